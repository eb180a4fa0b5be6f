"""Groups: who is in them, how far behind they are, and where they go on reading.

A reset is made in two steps. The plan says for every partition from which offset to which; applying sends exactly the
offsets of the plan that a person has seen, whatever was produced meanwhile.
"""

from __future__ import annotations

import time
from typing import Any

from headrace.client import Groups, PartitionLag, TopicPartition, end_offsets
from headrace.client.places import parse_place, resolve
from headrace.console.page import Action, Ask, Page, View, listing
from headrace.console.problems import BadRequest

__all__ = ["PAGE"]

RANGE_S = 600
RANGE_S_MAX = 86_400
MEMBERS_MAX = 500
PARTITIONS_MAX = 5_000


def groups(ask: Ask) -> dict[str, Any]:
    """Every group, with what the sampler knows of it."""
    snapshot = ask.console.sampler.snapshot
    rows = [
        {
            "name": each.name,
            "state": each.state,
            "kind": each.kind,
            "lag": each.lag,
            "rate": round(each.rate, 1),
            "topics": list(each.topics[:20]),
        }
        for each in snapshot.groups.values()
    ]
    found = listing(ask, rows, search=("name", "state", "topics"), sort="name")
    return {**found, "problem": snapshot.problem}


def group(ask: Ask) -> dict[str, Any]:
    """One group: members, assignment, lag by partition, and both over time."""
    name = ask.text("name")
    found = Groups(ask.client)
    described = found.describe(name)
    lags = found.lag(name)[:PARTITIONS_MAX]
    rows = [_lag_row(each) for each in lags]
    pipeline = ask.console.watch.look().pipeline_of(name)
    return {
        "name": name,
        "pipeline": None if pipeline is None else pipeline.name,
        "state": described.state,
        "kind": described.kind,
        "assignor": described.assignor,
        "lag": sum(row["lag"] or 0 for row in rows),
        "members": [
            {
                "id": each.member_id,
                "client": each.client_id,
                "host": each.host,
                "instance": each.instance_id,
                "partitions": [str(part) for part in sorted(each.partitions)],
            }
            for each in described.members[:MEMBERS_MAX]
        ],
        "partitions": rows,
        "charts": _charts(ask, name),
    }


def _lag_row(lag: PartitionLag) -> dict[str, Any]:
    """Where nothing was committed, the members alone know where they begin: there is no lag, as in the chart."""
    return {
        "topic": lag.partition.topic,
        "partition": lag.partition.partition,
        "committed": lag.committed,
        "start": lag.start,
        "end": lag.end,
        "lag": lag.lag if lag.committed is not None else None,
        "member": lag.member.client_id if lag.member else None,
    }


def _charts(ask: Ask, name: str) -> dict[str, Any]:
    range_s = ask.integer("range", RANGE_S, least=60, most=RANGE_S_MAX)
    history = ask.console.history
    return {
        "lag": history.chart({"lag": f"lag/{name}"}, time.time(), range_s),
        "rate": history.chart({"read": f"out/{name}"}, time.time(), range_s),
    }


# ---- reset ---------------------------------------------------------------------------------------------------------


def reset_plan(ask: Ask) -> dict[str, Any]:
    """What a reset would do. Nothing is changed."""
    name, topic = ask.text("name"), ask.text("topic", "")
    found = Groups(ask.client)
    described = found.describe(name)
    committed = found.committed(name)
    partitions = _partitions(ask, topic) if topic else sorted(committed)
    if not partitions:
        raise BadRequest(f"group {name!r} has no offsets", "choose a topic")
    place = parse_place(ask.text("to"), int(time.time() * 1000))
    targets = resolve(ask.client, partitions, place)
    ends = end_offsets(ask.client, partitions)
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "from": committed.get(each),
            "to": targets[each],
            "lag": ends[each] - targets[each],
            "moves": targets[each] - committed[each] if each in committed else None,
        }
        for each in partitions
    ]
    return {"name": name, "rows": rows, "refusal": _refusal(ask, name, len(described.members))}


def _refusal(ask: Ask, name: str, members: int) -> str:
    """Why a reset would not be one; empty where it would."""
    pipeline = ask.console.watch.look().pipeline_of(name)
    if pipeline is not None:
        return f"it shows how far pipeline {pipeline.name} is, which goes on from its checkpoint whatever it says"
    if members:
        return f"it has {members} member{'s' if members > 1 else ''}: stop {'them' if members > 1 else 'it'} first"
    return ""


def _partitions(ask: Ask, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, each.index) for each in ask.client.topic(topic).partitions]


def reset(ask: Ask) -> dict[str, Any]:
    """Set the offsets of a plan."""
    name, rows = ask.body.get("name"), ask.body.get("offsets")
    if not isinstance(name, str) or not isinstance(rows, list) or not rows or len(rows) > PARTITIONS_MAX:
        raise BadRequest("a reset needs the group's name and the offsets of a plan")
    offsets = {}
    for row in rows:
        match row:
            case {"topic": str(topic), "partition": int(partition), "to": int(offset)} if offset >= 0:
                offsets[TopicPartition(topic, partition)] = offset
            case _:
                raise BadRequest(f"{row!r} is no offset of a plan")
    groups = Groups(ask.client)
    refusal = _refusal(ask, name, len(groups.describe(name).members))
    if refusal:
        raise BadRequest(f"group {name!r} cannot be reset: {refusal}")
    groups.commit(name, offsets)
    return {"done": len(offsets)}


def delete(ask: Ask) -> dict[str, Any]:
    name = ask.body.get("name")
    if not isinstance(name, str):
        raise BadRequest("the group's name is missing")
    Groups(ask.client).delete(name)
    return {"deleted": name}


PAGE = Page(
    name="groups",
    views=(
        View(name="groups", answer=groups),
        View(name="group", answer=group),
        View(name="group/reset-plan", answer=reset_plan),
    ),
    actions=(Action(name="group/reset", act=reset), Action(name="group/delete", act=delete)),
)
