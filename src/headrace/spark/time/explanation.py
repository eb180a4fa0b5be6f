"""What holds a watermark back, in plain words: ``print(hr.explain_watermark(query))``.

    the watermark is 09:40:12, 22 min behind the clock
    payments.at holds it back: its newest row is from 09:50:12 and rows may come 10 min late; nothing new for 12 min
    orders.at is 12 min further: its newest row is from 10:02:08

Spark reports one watermark for a whole query. ``hr.watermark`` lets each source report how new its rows are; from that
follows which of them is the smallest. Sources whose watermark was set otherwise are named by what they read.
Within one source the newest row counts, whichever partition it is in: an old partition holds nothing back, but what it
gives next may be late. With ``partitions=True`` the broker is asked how far each partition is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.client import MAX_TIMESTAMP, list_offsets
from headrace.spark.plan import query_sources
from headrace.spark.progress import Report, duration, watermark_of
from headrace.spark.source.options import SourceOptions, connect
from headrace.spark.source.positions import ID_MARK, from_json
from headrace.spark.time.watermarks import METRIC, ROWS_FORMAT

__all__ = ["Explanation", "PartitionTime", "SourceTime", "explain", "explain_watermark"]

LISTED_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTime:
    """How new the newest record of a partition is, by the record's own timestamp, and how many wait to be read."""

    topic: str
    partition: int
    newest: datetime | None
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTime:
    """One source of a query, as far as its reports say."""

    name: str
    newest: datetime | None = None
    """Event time of its newest row."""
    marked: datetime | None = None
    """Up to where it counts as silent."""
    lateness: timedelta | None = None
    """None when its watermark is not one of ``hr.watermark``."""
    quiet_since: datetime | None = None
    """When it last had rows; None when it never had."""
    waiting: int | None = None
    partitions: tuple[PartitionTime, ...] = ()

    @property
    def watermark(self) -> datetime | None:
        known = [each for each in (self.newest, self.marked) if each is not None]
        return max(known) - (self.lateness or timedelta()) if known else None

    @property
    def is_idle(self) -> bool:
        """Whether it is its silence, and not a row, that its watermark stands on."""
        return self.marked is not None and (self.newest is None or self.marked > self.newest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A query's watermark and its sources. As text it says which of them holds it back."""

    now: datetime
    watermark: datetime | None
    sources: tuple[SourceTime, ...] = ()

    @property
    def holding(self) -> SourceTime | None:
        """The source that the others wait for: one that never had a row, or else the one with the smallest time."""
        told = [each for each in self.sources if each.lateness is not None]
        silent = [each for each in told if each.watermark is None]
        if silent:
            return silent[0]
        return min(told, key=lambda each: each.watermark or self.now, default=None)

    @property
    def reason(self) -> str:
        """In one line, why it is no further."""
        if not self.sources:
            return "nothing has been read yet"
        holding = self.holding
        if holding is None:
            quiet = [each for each in self.sources if each.quiet_since is not None or not each.waiting]
            text = "; ".join(f"{each.name}: {_news(each, self.now)}" for each in quiet or self.sources)
            return f"{text} (hr.watermark on each source tells more)"
        return f"{holding.name} holds it back: {_state(holding, self.now)}"

    def lines(self) -> Iterator[str]:
        if self.watermark is None:
            yield "there is no watermark yet"
        else:
            yield f"the watermark is {_moment(self.watermark, self.now)}, {_behind(self.watermark, self.now)}"
        yield self.reason
        holding = self.holding
        for each in self.sources:
            if each is not holding and each.lateness is not None:
                yield f"{each.name}: {_state(each, self.now)}"
            yield from (f"  {line}" for line in _partition_lines(each, self))

    def __str__(self) -> str:
        return "\n".join(self.lines())


def explain_watermark(query: Any, *, partitions: bool = False) -> Explanation:
    """What holds back the watermark of a running query; with ``partitions``, also how far each partition is."""
    found = explain(query.recentProgress, datetime.now(UTC))
    if not partitions or not query.recentProgress:
        return found
    detailed = _partition_times(query, query.recentProgress[-1])
    sources = [_with_partitions(each, detailed) for each in found.sources]
    return replace(found, sources=tuple(sources))


def explain(reports: Sequence[Report], now: datetime) -> Explanation:
    """From the progress reports of a query, in their order."""
    if not reports:
        return Explanation(now=now, watermark=None)
    read = _read_sources(reports)
    observed = [_observed(name, reports, read) for name in sorted(_metric_names(reports))]
    told = {each.name.rpartition(".")[0] for each in observed}
    others = [each for each in read if each.name not in told]
    return Explanation(now=now, watermark=watermark_of(reports[-1]), sources=(*observed, *others))


# ---- out of reports ------------------------------------------------------------------------------------------------


def _metric_names(reports: Sequence[Report]) -> set[str]:
    names = {name for report in reports for name in report.get("observedMetrics") or {}}
    return {name for name in names if name.startswith(METRIC)}


def _observed(metric: str, reports: Sequence[Report], read: Sequence[SourceTime]) -> SourceTime:
    """The newest time reported so far, since a batch without rows reports none."""
    told = [(report.get("observedMetrics") or {}).get(metric) for report in reports]
    values = [_entries(each) for each in told if each is not None]
    newest, marked = (_newest(values, name) for name in ("newest", "marked"))
    lateness_us = max((int(each.get("lateness_us") or 0) for each in values), default=0)
    name = metric.removeprefix(METRIC)
    source = next((each for each in read if each.name == name.rpartition(".")[0]), None)
    return SourceTime(
        name=name,
        newest=newest,
        marked=marked,
        lateness=timedelta(microseconds=lateness_us),
        quiet_since=source.quiet_since if source else None,
        waiting=source.waiting if source else None,
    )


def _entries(row: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = row.asDict() if hasattr(row, "asDict") else row
    return found


def _newest(values: Sequence[Mapping[str, Any]], name: str) -> datetime | None:
    return max((_time(each[name]) for each in values if each.get(name) is not None), default=None)


def _time(value: Any) -> datetime:
    """A time of an observed metric: a Row has it as Python does, in local time; JSON as text."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    found = datetime.fromisoformat(str(value).replace(" ", "T"))
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _read_sources(reports: Sequence[Report]) -> list[SourceTime]:
    """The sources that rows come from; the last report in which each had rows tells since when it is quiet."""
    count = len(reports[-1].get("sources") or ())
    same = [report for report in reports if len(report.get("sources") or ()) == count]
    found = []
    for index in range(count):
        latest = same[-1]["sources"][index]
        name = _name(latest)
        if name is None:
            continue
        with_rows = [each for each in same if int(each["sources"][index].get("numInputRows") or 0)]
        quiet_since = datetime.fromisoformat(with_rows[-1]["timestamp"]) if with_rows else None
        found.append(SourceTime(name=name, quiet_since=quiet_since, waiting=_waiting(latest)))
    return found


def _name(source: Mapping[str, Any]) -> str | None:
    """Its topics, or what Spark calls it; None for the marks of ``hr.watermark``."""
    offset = _json(source.get("endOffset"))
    if isinstance(offset, dict) and "marked_ms" in offset:
        return None
    if isinstance(offset, dict) and all(isinstance(each, dict) for each in offset.values()):
        topics = [topic for topic in offset if ID_MARK not in topic]
        if topics:
            return ",".join(topics)
    return str(source.get("description") or "a source")


def _waiting(source: Mapping[str, Any]) -> int | None:
    try:
        latest, end = (from_json(_json(source.get(name))) for name in ("latestOffset", "endOffset"))
    except (ValueError, TypeError, AttributeError):
        return None
    return sum(max(0, at - end.get(place, at)) for place, at in latest.items())


def _json(offset: Any) -> Any:
    try:
        return json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return None


# ---- out of the broker ---------------------------------------------------------------------------------------------


def _partition_times(query: Any, report: Report) -> dict[str, tuple[PartitionTime, ...]]:
    """By the topics of a source, how far each of its partitions is."""
    found: dict[str, tuple[PartitionTime, ...]] = {}
    for kind, given in query_sources(query):
        if kind == ROWS_FORMAT:
            options = SourceOptions.parse(given, streaming=True)
            for source in report["sources"]:
                name = _name(source)
                if name is not None and set(name.split(",")) >= set(options.selection.topics or ("",)):
                    found[name] = _asked(options, source)
    return found


def _asked(options: SourceOptions, source: Mapping[str, Any]) -> tuple[PartitionTime, ...]:
    position = from_json(_json(source["endOffset"]))
    latest = from_json(_json(source.get("latestOffset") or source["endOffset"]))
    with connect(options, role="driver") as client:
        newest = list_offsets(client, dict.fromkeys(position, MAX_TIMESTAMP))
    return tuple(
        PartitionTime(
            topic=place.topic,
            partition=place.partition,
            newest=datetime.fromtimestamp(found.timestamp / 1000, UTC) if found.timestamp >= 0 else None,
            waiting=max(0, latest.get(place, 0) - position[place]),
        )
        for place, found in sorted(newest.items())
    )


def _with_partitions(source: SourceTime, detailed: Mapping[str, tuple[PartitionTime, ...]]) -> SourceTime:
    found = detailed.get(source.name) or detailed.get(source.name.rpartition(".")[0]) or ()
    return replace(source, partitions=found)


# ---- words ---------------------------------------------------------------------------------------------------------


def _state(source: SourceTime, now: datetime) -> str:
    if source.watermark is None:
        return f"no row has come from it yet; {_news(source, now)}"
    late = f"rows may come {_span(source.lateness or timedelta())} late"
    if source.is_idle and source.marked is not None:
        return f"it is silent, and counts as {_moment(source.marked, now)}; {late}"
    assert source.newest is not None, "a watermark without a mark stands on a row"
    return f"its newest row is from {_moment(source.newest, now)} and {late}; {_news(source, now)}"


def _news(source: SourceTime, now: datetime) -> str:
    if source.waiting:
        return f"{source.waiting:,} records wait to be read"
    if source.quiet_since is None:
        return "nothing new as far back as is known"
    return f"nothing new for {_span(now - source.quiet_since)}"


def _partition_lines(source: SourceTime, explanation: Explanation) -> Iterator[str]:
    """The oldest first: what they give next is what may be late."""
    known = sorted(source.partitions, key=lambda each: each.newest or datetime.min.replace(tzinfo=UTC))
    for each in known[:LISTED_MAX]:
        place = f"{each.topic}[{each.partition}]"
        waiting = f", {each.waiting:,} wait to be read" if each.waiting else ""
        if each.newest is None:
            yield f"{place} is empty"
        else:
            yield f"{place}: newest record {_moment(each.newest, explanation.now)}{waiting}"
    if len(known) > LISTED_MAX:
        yield f"and {len(known) - LISTED_MAX} partitions that are newer"


def _moment(moment: datetime, now: datetime) -> str:
    return f"{moment:%H:%M:%S}" if abs(now - moment) < timedelta(days=1) else f"{moment:%Y-%m-%d %H:%M:%S}"


def _behind(moment: datetime, now: datetime) -> str:
    span = now - moment
    return f"{_span(span)} behind the clock" if span >= timedelta() else f"{_span(-span)} ahead of the clock"


def _span(span: timedelta) -> str:
    return duration(max(0.0, span.total_seconds() * 1000))
