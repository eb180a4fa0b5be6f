"""What somebody should look at, in words, with what to do about it.

Each alarm has a level (``error`` or ``warning``), a title, a sentence, and where it can be looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from headrace.console.history import History
from headrace.console.snapshot import ClusterSnapshot, GroupFigures
from headrace.console.watch import Watched

__all__ = ["Alarm", "Forecast", "alarms", "forecast"]

FREE_SHARE_MIN = 0.1
FULL_SOON_S = 24 * 3600.0
FORECAST_S = 6 * 3600.0
FORECAST_S_MIN = 120.0
FORECAST_REACH = 24.0
"""A forecast reaches this many times as far as the samples: an hour of samples gives a day, two minutes 48 minutes."""
LAG_S = 300.0
LAG_MIN = 1_000
NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    level: str
    title: str
    text: str
    link: str = ""
    """A place in the console, as the part of its address after ``#``."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """``state`` is ``unknown``, ``steady`` or ``shrinks``."""

    state: str
    full_in_s: float | None = None


def alarms(
    snapshot: ClusterSnapshot, history: History, now_s: float, watched: Watched, more: Sequence[Alarm] = ()
) -> list[dict[str, Any]]:
    """Errors first. ``more``: of others."""
    found = [
        *_unreachable(snapshot),
        *_leaderless(snapshot),
        *_behind(snapshot),
        *_disk(snapshot, history, now_s),
        *_lag(snapshot, history, now_s, watched),
        *more,
    ]
    return [asdict(each) for each in sorted(found, key=lambda each: each.level != "error")]


def _unreachable(snapshot: ClusterSnapshot) -> list[Alarm]:
    if not snapshot.problem:
        return []
    text = f"{snapshot.problem}. The figures are those of the last answer. Start the broker, or see its log."
    return [Alarm(level="error", title="The broker does not answer", text=text)]


def _leaderless(snapshot: ClusterSnapshot) -> list[Alarm]:
    names = [each.name for each in snapshot.topics.values() if each.leaderless]
    if not names:
        return []
    text = (
        f"{_named(names)} cannot be written or read in full. On headrace a log is damaged: stop the broker and run "
        "'headrace log verify'. On Apache Kafka start the brokers that hold the replicas."
    )
    return [Alarm(level="error", title="Partitions without a leader", text=text, link=f"/topics?q={names[0]}")]


def _behind(snapshot: ClusterSnapshot) -> list[Alarm]:
    names = [each.name for each in snapshot.topics.values() if each.behind and not each.leaderless]
    if not names:
        return []
    text = f"{_named(names)} have replicas that do not follow. Look for a broker that is down or slow."
    return [Alarm(level="warning", title="Replicas are not in sync", text=text, link=f"/topics?q={names[0]}")]


def _disk(snapshot: ClusterSnapshot, history: History, now_s: float) -> list[Alarm]:
    disk = snapshot.disk
    if disk is None or not disk.total:
        return []
    share = disk.usable / disk.total
    left_s = forecast(snapshot, history, now_s).full_in_s
    if share >= FREE_SHARE_MIN and (left_s is None or left_s > FULL_SOON_S):
        return []
    when = "" if left_s is None else f" At the present rate it is full in {_duration(left_s)}."
    text = (
        f"{share:.0%} of the disk is free.{when} Lower retention.ms or retention.bytes of the largest topics, delete "
        "topics, or give the data directory a larger disk."
    )
    level = "error" if share < FREE_SHARE_MIN / 2 else "warning"
    return [Alarm(level=level, title="The disk is filling up", text=text, link="/topics?sort=-size")]


def forecast(snapshot: ClusterSnapshot, history: History, now_s: float) -> Forecast:
    """What becomes of the disk if its free space goes on shrinking as it did lately, whatever fills it."""
    points = history.recent("free", now_s, FORECAST_S)
    if _slope(points) is None:  # a console that has just started has only its last minutes
        points = history.recent("free", now_s, LAG_S * 2)
    slope = _slope(points)
    if snapshot.disk is None or slope is None:
        return Forecast("unknown")
    if slope >= 0:
        return Forecast("steady")
    full_in_s = snapshot.disk.usable / -slope
    seen_s = points[-1][0] - points[0][0]
    return Forecast("shrinks", full_in_s) if full_in_s <= seen_s * FORECAST_REACH else Forecast("unknown")


def _slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Growth per second by least squares; None before enough time was seen."""
    if len(points) < 2 or points[-1][0] - points[0][0] < FORECAST_S_MIN:
        return None
    mean_x = math.fsum(x for x, _ in points) / len(points)
    mean_y = math.fsum(y for _, y in points) / len(points)
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    return math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else None


def _lag(snapshot: ClusterSnapshot, history: History, now_s: float, watched: Watched) -> list[Alarm]:
    """Groups whose lag has only grown for some minutes."""
    found = []
    for group in snapshot.groups.values():
        if group.lag is None or group.lag < LAG_MIN:
            continue
        points = history.recent(f"lag/{group.name}", now_s, LAG_S)
        if (_slope(points) or 0.0) > 0 and points[-1][1] > points[0][1] * 1.1:
            found.append(_falls_behind(group, group.lag, watched))
    return found[:NAMES_SHOWN]


def _falls_behind(group: GroupFigures, lag: int, watched: Watched) -> Alarm:
    """A pipeline has a group without members, which shows how far it is."""
    pipeline = watched.pipeline_of(group.name)
    if pipeline is not None:
        title, link = f"Pipeline {pipeline.name} falls behind", f"/pipelines/{quote(pipeline.name, safe='')}"
        if watched.is_alive(pipeline):
            cure = "falls further behind. Its page shows which phase of a batch takes the time"
        else:
            cure = "does not run. Start it again, or forget it on its page and delete its group"
    else:
        title, link = f"Group {group.name} falls behind", f"/groups/{quote(group.name, safe='')}"
        if group.state.lower() == "empty":
            cure = "has no members. Start its consumers, or delete the group"
        else:
            cure = "falls further behind. Add members, or make them faster"
    return Alarm(level="warning", title=title, text=f"It is {lag:,} messages behind and {cure}.", link=link)


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more topics"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return "less than two minutes"
