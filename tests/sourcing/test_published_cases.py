"""The test cases that the package eventsourcing publishes for its recorders, on every kind of our store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from eventsourcing.dcb import tests as boundary_cases
from eventsourcing.tests import persistence as cases

from headrace.sourcing import EventStore, open_store
from tests.sourcing.conftest import KINDS, NewUrl
from tests.sourcing.recorders import AggregatesOnly, BoundaryRecorder, Recorder


class OnOurStore:
    """Gives each test a new store of one kind."""

    kind = "sqlite"
    recorder: Callable[[EventStore], Any] = Recorder
    test_performance = None  # it prints a time and checks nothing

    @pytest.fixture(autouse=True)
    def _store(self, new_url: NewUrl) -> Iterator[None]:
        with open_store(new_url(self.kind)) as self.store:
            yield

    def create_recorder(self) -> Any:
        return type(self).recorder(self.store)


class AggregateCases(cases.AggregateRecorderTestCase):
    pass


class ApplicationCases(cases.ApplicationRecorderTestCase[Recorder]):
    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class BoundaryCases(boundary_cases.DCBRecorderTestCase):
    def test_append_and_read(self) -> None:
        self._test_append_read(self.create_recorder())  # type: ignore[attr-defined]

    def test_append_and_subscribe(self) -> None:
        self._test_append_subscribe(self.create_recorder())  # type: ignore[attr-defined]


SUITES: dict[str, tuple[type, Any]] = {
    "Aggregates": (AggregateCases, AggregatesOnly),
    "Applications": (ApplicationCases, Recorder),
    "Tracking": (cases.TrackingRecorderTestCase, Recorder),
    "Processes": (cases.ProcessRecorderTestCase, Recorder),
    "Interleaving": (cases.NonInterleavingNotificationIDsBaseCase, Recorder),
    "Boundaries": (BoundaryCases, BoundaryRecorder),
}

for kind in KINDS:
    for suite, (base, adapter) in SUITES.items():
        name = f"Test{suite}On{kind.capitalize()}"
        body = {"kind": kind, "recorder": staticmethod(adapter), "__module__": __name__}
        made = type(name, (OnOurStore, base), body)
        globals()[name] = pytest.mark.servers(made) if kind == "postgres" else made

# What pytest would collect for itself: they are made into the above.
del AggregateCases, ApplicationCases, BoundaryCases, made, base


def test_every_suite_runs_on_every_kind_of_store() -> None:
    found = [each for each in globals() if each.startswith("Test")]
    assert len(found) == len(SUITES) * len(KINDS)


def test_a_store_that_forgets_an_append_does_not_pass(tmp_path: Path) -> None:
    """The cases can fail: here the second event of every append is lost."""
    with open_store(tmp_path / "events.db") as store:

        class Loses(Recorder):
            def insert_events(self, stored_events: Any, **options: Any) -> Any:
                return super().insert_events(stored_events[:1], **options)

        class Case(cases.ApplicationRecorderTestCase[Recorder]):
            def create_recorder(self) -> Recorder:
                return Loses(store)

        with pytest.raises(AssertionError):
            Case("test_insert_select").test_insert_select()
