"""``same_as_kafka(scenario)``: run it on Apache Kafka and on headrace, and compare the notes.

Apache Kafka's notes are also kept in ``recorded/``, so that machines without Java still hold headrace to them. Where
Kafka runs, the recording is checked too. HEADRACE_RECORD=1 writes the recordings again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.differential.difference import differences
from tests.differential.scenario import Scenario
from tests.servers.process import RunningServer

RECORDED = Path(__file__).parent / "recorded"
Compare = Callable[[Callable[[Scenario], None]], None]

KAFKA_ATTEMPTS = 3
"""Apache Kafka does some things a moment after it has answered, and on a busy machine a scenario may look before that:
the recording is wrong when Kafka never says the same. headrace has one attempt."""

WARM_UP_KEYS = (("warm-up", 0), ("warm-up", 1))
"""The first use of a coordinator makes internal topics; clients wait for that, raw requests must not meet it."""


def notes_of(server: RunningServer, play: Callable[[Scenario], None]) -> list[Any]:
    scenario = Scenario(server)
    try:
        play(scenario)
        notes: list[Any] = json.loads(json.dumps(scenario.notes))
        return notes
    finally:
        scenario.close()


class Recording:
    """The notes of one test among those of its file: ``recorded/<file>.json``, a line per note for readable diffs."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.path = RECORDED / f"{request.path.stem.removeprefix('test_')}.json"
        self.name = request.node.name.removeprefix("test_")

    def all(self) -> dict[str, list[Any]]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def read(self) -> list[Any] | None:
        return self.all().get(self.name)

    def write(self, notes: list[Any]) -> None:
        self.path.parent.mkdir(exist_ok=True)
        everything = sorted({**self.all(), self.name: notes}.items())
        tests = (f"{json.dumps(name)}: [\n{joined(notes)}\n]" for name, notes in everything)
        self.path.write_text("{\n" + ",\n".join(tests) + "\n}\n")


def joined(notes: list[Any]) -> str:
    return ",\n".join(f"  {json.dumps(note)}" for note in notes)


@pytest.fixture(scope="session")
def warm_kafka(request: pytest.FixtureRequest) -> Iterator[RunningServer | None]:
    """Apache Kafka with its coordinators up, or None where there is none to be had and recordings stand in."""
    try:
        server: RunningServer = request.getfixturevalue("apache_kafka")
    except pytest.skip.Exception:
        yield None
        return
    scenario = Scenario(server)
    for key, key_type in WARM_UP_KEYS:
        scenario.coordinator(key, key_type)
    scenario.until(
        lambda: (
            scenario.ask("InitProducerId", transactional_id="warm-up", transaction_timeout_ms=1000)["error_code"] == 0
        )
    )
    scenario.close()
    yield server


@pytest.fixture
def same_as_kafka(request: pytest.FixtureRequest, warm_kafka: RunningServer | None) -> Compare:
    recording = Recording(request)

    def compare(play: Callable[[Scenario], None]) -> None:
        expected = recording.read()
        if warm_kafka is not None and os.environ.get("HEADRACE_RECORD") == "1":
            recording.write(notes_of(warm_kafka, play))
            return
        if warm_kafka is not None:
            assert expected is not None, "no recording yet: run with HEADRACE_RECORD=1"
            for _ in range(KAFKA_ATTEMPTS):
                changed = differences(expected, notes_of(warm_kafka, play))
                if not changed:
                    break
            assert not changed, "the recording is not what Apache Kafka says today:\n" + "\n".join(changed)
        if expected is None:
            pytest.skip("neither Apache Kafka nor a recording of it is here")
        headrace: RunningServer = request.getfixturevalue("headrace_server")
        found = differences(expected, notes_of(headrace, play))
        if found:
            pytest.fail("\n" + "\n".join(found), pytrace=False)

    return compare
