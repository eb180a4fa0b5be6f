"""What pages of captures and pipelines have in common: a subject that publishes state records may be lost.

Anybody who may write to the topic of state records can write anything. ``figure`` and ``rows_by_name`` take what a
page can show of it, so that one odd record spoils no list.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from headrace.client import StateRecord, remove_state_record
from headrace.console.alarms import Alarm
from headrace.console.page import Action, Ask
from headrace.console.problems import BadRequest, ConsoleError
from headrace.console.watch import Watched, figure

__all__ = ["forget", "life", "rows_by_name", "running", "subject", "subject_alarms"]

LOST = "lost"
ALARMS_MAX = 5


class SubjectUnknown(ConsoleError):
    """Nothing was published under this name."""

    status = 404


def life(record: StateRecord, watched: Watched) -> dict[str, Any]:
    """Its state as people should see it: one that stopped without reporting its end is lost, whatever it reported
    last."""
    is_lost = watched.is_lost(record)
    age_s = max(0, time.time_ns() // 1_000_000 - record.at_ms) // 1000
    told = f"no sign of life for {age_s} s: it was killed, or its machine is away" if is_lost else ""
    return {
        "name": record.name,
        "state": LOST if is_lost else record.state,
        "alive": watched.is_alive(record),
        "error": " · ".join(filter(None, (told, record.error))),
        "since_ms": record.since_ms,
        "at_ms": record.at_ms,
        "process": f"{record.host}:{record.pid}",
    }


def rows_by_name(value: Any) -> dict[str, Mapping[str, Any]]:
    """Such as the tables of a capture: objects by name."""
    return {name: row for name, row in value.items() if isinstance(row, dict)} if isinstance(value, dict) else {}


def subject(ask: Ask, kind: str) -> StateRecord:
    name = ask.text("name")
    found = ask.console.watch.look().states.get(f"{kind}/{name}")
    if found is None:
        raise SubjectUnknown(f"no {kind} {name!r} has reported", "it may have been removed; go back to the list")
    return found


def running(watched: Watched) -> list[dict[str, Any]]:
    """Pipelines and captures with their state, for the overview; those in trouble first."""
    found = [(each, life(each, watched)) for kind in ("pipeline", "capture") for each in watched.of(kind)]
    found.sort(key=lambda pair: (pair[1]["alive"] and not pair[1]["error"], pair[0].kind, pair[0].name))
    return [
        {
            "kind": each.kind,
            "name": each.name,
            "state": shown["state"],
            "rows_per_s": figure(each.details.get("rows_per_s")) if shown["alive"] else None,
            "lag": figure(each.details.get("lag")) if shown["alive"] else None,
            "lag_ms": figure(each.details.get("lag_ms")) if shown["alive"] else None,
        }
        for each, shown in found
    ]


def subject_alarms(watched: Watched) -> list[Alarm]:
    """What has stopped without saying so, failed, or cannot go on."""
    found = []
    for kind in ("pipeline", "capture"):
        for each in watched.of(kind):
            shown = life(each, watched)
            link = f"/{kind}s/{quote(each.name, safe='')}"
            if shown["state"] == LOST:
                cure = f"{_sentence(shown['error'])} Start it again, or forget it on its page."
                found.append(Alarm(level="error", title=f"{kind.title()} {each.name} is lost", text=cure, link=link))
            elif each.state == "failed":
                text = f"{_sentence(each.error)} Correct this and start it again."
                found.append(Alarm(level="error", title=f"{kind.title()} {each.name} has failed", text=text, link=link))
            elif each.error:
                text = f"{_sentence(each.error)} It is tried again by itself."
                found.append(Alarm(level="warning", title=f"{kind.title()} {each.name} waits", text=text, link=link))
    return found[:ALARMS_MAX]


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def forget(kind: str) -> Action:
    """Remove the record of a subject that does not run any more; one that runs would write it again."""

    def act(ask: Ask) -> dict[str, Any]:
        name = ask.body.get("name")
        watched = ask.console.watch.look()
        record = watched.states.get(f"{kind}/{name}")
        if not isinstance(name, str) or record is None:
            raise SubjectUnknown(f"no {kind} {name!r} has reported")
        if record.heartbeat_ms and watched.is_alive(record):
            raise BadRequest(f"{kind} {name!r} runs", "stop it first")
        remove_state_record(ask.client, kind, name)
        ask.console.watch.again()
        return {"forgotten": name}

    return Action(name=f"{kind}/forget", act=act)
