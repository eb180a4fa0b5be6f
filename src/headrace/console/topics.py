"""Topics: the list, one topic with its partitions and settings, and what can be done to it."""

from __future__ import annotations

import time
from typing import Any

from headrace.client import Admin, ConfigSource, ResourceKind, TopicPartition, end_offsets, start_offsets
from headrace.console.limits import FINE_POINTS
from headrace.console.page import Action, Ask, Page, View, listing
from headrace.console.problems import BadRequest

__all__ = ["PAGE"]

RANGE_S_MAX = 86_400


def topics(ask: Ask) -> dict[str, Any]:
    """From the last sample: a list of a thousand topics asks the broker nothing."""
    snapshot = ask.console.sampler.snapshot
    with_internal = ask.flag("internal")
    rows = [
        {
            "name": each.name,
            "partitions": each.partitions,
            "replicas": each.replicas,
            "messages": each.messages,
            "size": each.size,
            "rate": round(each.rate, 1),
            "internal": each.internal,
            "leaderless": each.leaderless,
            "behind": each.behind,
        }
        for each in snapshot.topics.values()
        if with_internal or not each.internal
    ]
    hidden = 0 if with_internal else sum(each.internal for each in snapshot.topics.values())
    found = listing(ask, rows, search=["name"], sort="name")
    return {**found, "hidden": hidden, "problem": snapshot.problem, "sampled": snapshot.taken_s > 0}


def topic(ask: Ask) -> dict[str, Any]:
    """One topic as it is now."""
    name = ask.text("name")
    range_s = ask.integer("range", FINE_POINTS, least=10, most=RANGE_S_MAX)
    ask.client.forget_topic(name)
    found = ask.client.topic(name)
    served = [TopicPartition(name, each.index) for each in found.partitions if each.leader >= 0]
    starts, ends = start_offsets(ask.client, served), end_offsets(ask.client, served)
    sizes = ask.console.sampler.snapshot.sizes
    figures = ask.console.sampler.snapshot.topics.get(name)
    partitions = []
    for each in found.partitions:
        place = TopicPartition(name, each.index)
        start, end = starts.get(place), ends.get(place)
        partitions.append(
            {
                "partition": each.index,
                "leader": each.leader if each.leader >= 0 else None,
                "replicas": list(each.replicas),
                "in_sync": list(each.in_sync),
                "start": start,
                "end": end,
                "messages": end - start if start is not None and end is not None else None,
                "size": sizes.get(place),
            }
        )
    return {
        "name": name,
        "id": found.topic_id.hex(),
        "internal": found.internal,
        "partitions": partitions,
        "messages": sum(each["messages"] or 0 for each in partitions),
        "size": figures.size if figures is not None else None,
        "rate": round(figures.rate, 1) if figures is not None else 0.0,
        "groups": _groups(ask, name),
        "chart": ask.console.history.chart({"written": f"in/{name}"}, time.time(), range_s),
    }


def _groups(ask: Ask, name: str) -> list[dict[str, Any]]:
    return [
        {"name": each.name, "state": each.state, "lag": each.lag}
        for each in ask.console.sampler.snapshot.groups.values()
        if name in each.topics
    ]


def settings(ask: Ask) -> dict[str, Any]:
    entries = Admin(ask.client).describe_config(ResourceKind.TOPIC, ask.text("name"), details=True)
    return {
        "settings": [
            {
                "name": each.name,
                "value": each.value,
                "inherited": each.inherited,
                "own": each.source is ConfigSource.TOPIC,
                "from": each.source.name.lower().replace("_", " "),
                "doc": each.doc,
                "read_only": each.read_only,
                "sensitive": each.sensitive,
            }
            for each in entries
        ]
    }


# ---- changes --------------------------------------------------------------------------------------------------------


def create(ask: Ask) -> None:
    name, partitions, config = ask.body.get("name"), ask.body.get("partitions"), ask.body.get("settings") or {}
    if not isinstance(name, str) or not name:
        raise BadRequest("a topic needs a name")
    if partitions is not None and not (isinstance(partitions, int) and partitions > 0):
        raise BadRequest("partitions is a number from 1 on")
    replicas = ask.body.get("replicas")
    Admin(ask.client).create_topic(
        name,
        partitions=partitions or -1,
        replication_factor=replicas if isinstance(replicas, int) and replicas > 0 else -1,
        config=_texts(config),
    )


def alter(ask: Ask) -> None:
    name = _name(ask)
    put, remove = _texts(ask.body.get("put") or {}), ask.body.get("remove") or []
    if not isinstance(remove, list) or not all(isinstance(each, str) for each in remove):
        raise BadRequest("remove is a list of names")
    if not put and not remove:
        raise BadRequest("nothing is to be changed")
    Admin(ask.client).alter_config(ResourceKind.TOPIC, name, put=put, remove=remove)


def grow(ask: Ask) -> None:
    total = ask.body.get("partitions")
    if not isinstance(total, int) or total < 1:
        raise BadRequest("partitions is a number from 1 on")
    Admin(ask.client).create_partitions(_name(ask), total)


def delete(ask: Ask) -> None:
    name = _confirmed(ask)
    Admin(ask.client).delete_topic(name)


def empty(ask: Ask) -> None:
    """Delete all records and keep the topic."""
    name = _confirmed(ask)
    count = len(ask.client.topic(name).partitions)
    Admin(ask.client).delete_records({TopicPartition(name, index): -1 for index in range(count)})


def _name(ask: Ask) -> str:
    name = ask.body.get("name")
    if not isinstance(name, str) or not name:
        raise BadRequest("no topic is named")
    return name


def _confirmed(ask: Ask) -> str:
    """What cannot be undone needs the name typed again."""
    name = _name(ask)
    if ask.body.get("confirm") != name:
        raise BadRequest(f"type {name} to confirm")
    return name


def _texts(given: Any) -> dict[str, str]:
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
        raise BadRequest("settings are texts by name")
    return given


PAGE = Page(
    name="topics",
    views=[
        View(name="topics", answer=topics),
        View(name="topic", answer=topic, every_s=1.0),
        View(name="topic/settings", answer=settings, every_s=10.0),
    ],
    actions=[
        Action(name="topic/create", act=create),
        Action(name="topic/alter", act=alter),
        Action(name="topic/grow", act=grow),
        Action(name="topic/delete", act=delete),
        Action(name="topic/empty", act=empty),
    ],
)
