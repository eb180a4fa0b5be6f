"""Event sourcing: an application keeps its facts as immutable events and derives everything else from them.

    store = open_store("sqlite:///bank.db")
    store.append("account-1", Event("Deposited", {"cents": 500}), expected=NONE)
    for event in store.read("account-1"):
        print(event.version, event.type, event.data)

Where things are, in the order in which an event meets them:

    deciding.py      a command becomes events, by pure functions or a class; snapshots; tests in one call
    events.py        events before and after they are stored, queries, conditions
    privacy.py       personal fields are encrypted with the key of their subject (``keys.py``), which can be destroyed
    appends.py       appends of many threads share one commit
    store.py         what every store offers, and the invariants that hold in all of them
    sqlite.py, postgres.py, topics.py    where events are: a file, a database, or the log itself
    forks.py         a process uses what it has opened itself
    upcasting.py     old events in new code
    projections.py   views, each with its position in the same transaction; rebuilt beside the old one
    target_views.py  the same in caches, indexes and other systems, by the writers of ``headrace.targets``
    processes.py     events in, commands out, once in effect
    publishing.py    every event also becomes a record of a topic, through capture

Keys are in ``headrace.sourcing.keys``, which needs the package cryptography.
"""

from __future__ import annotations

from headrace.sourcing.appends import Appended, Progress, retrying
from headrace.sourcing.deciding import (
    Aggregate,
    CommandOutcome,
    Decider,
    Loaded,
    Rejection,
    Repository,
    Snapshots,
    check,
    handle,
    load,
    on,
)
from headrace.sourcing.errors import (
    AppendConflict,
    SourcingError,
    StoreUnavailable,
    SubjectIsForgotten,
    TakenOver,
    WriterBusy,
)
from headrace.sourcing.events import ANY, EXISTS, NONE, Condition, Event, Forgotten, Query, QueryItem, RecordedEvent
from headrace.sourcing.opening import open_store
from headrace.sourcing.privacy import FORGOTTEN_STREAM, FORGOTTEN_TYPE, PersonalData, UnencryptedPersonalData
from headrace.sourcing.processes import Command, ProcessManager, run_process
from headrace.sourcing.projections import Projection, ProjectionRunner, View
from headrace.sourcing.store import EventStore, Page, StreamInfo
from headrace.sourcing.upcasting import Upcasters

__all__ = [
    "ANY",
    "EXISTS",
    "FORGOTTEN_STREAM",
    "FORGOTTEN_TYPE",
    "NONE",
    "Aggregate",
    "AppendConflict",
    "Appended",
    "Command",
    "CommandOutcome",
    "Condition",
    "Decider",
    "Event",
    "EventStore",
    "Forgotten",
    "Loaded",
    "Page",
    "PersonalData",
    "ProcessManager",
    "Progress",
    "Projection",
    "ProjectionRunner",
    "Query",
    "QueryItem",
    "RecordedEvent",
    "Rejection",
    "Repository",
    "Snapshots",
    "SourcingError",
    "StoreUnavailable",
    "StreamInfo",
    "SubjectIsForgotten",
    "TakenOver",
    "UnencryptedPersonalData",
    "Upcasters",
    "View",
    "WriterBusy",
    "check",
    "handle",
    "load",
    "on",
    "open_store",
    "retrying",
    "run_process",
]
