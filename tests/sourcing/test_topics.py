"""The log as a store has one writer, by a lease and a fence; and every event of any store reaches a topic once."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.capture import Capture, CaptureOptions
from headrace.client import Client
from headrace.client.positioned import committed_records
from headrace.errors import UsageError
from headrace.sourcing import Event, EventStore, SourcingError, StoreUnavailable, WriterBusy, open_store, retrying
from headrace.sourcing.keys import KeyStore
from headrace.sourcing.publishing import publish, published_position
from headrace.sourcing.sqlite import SqliteStore
from headrace.sourcing.topics import TopicStore
from headrace.testing.broker import TestBroker
from tests.waiting import eventually

pytestmark = pytest.mark.servers


def paid(amount: int) -> Event:
    return Event("Paid", {"amount": amount})


@pytest.fixture
def topic(log_broker: TestBroker, unique: Callable[[str], str]) -> str:
    return f"kafka://{log_broker.bootstrap}/{unique('events')[:80]}"


def in_topic(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    with Client(bootstrap) as client:
        return [json.loads(record.value or b"") for record in committed_records(client, topic)]


# ---- one writer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["", "?lease=3"], ids=["default", "short"])
def test_a_second_writer_is_refused_with_the_owners_name_until_the_first_one_closes(topic: str, options: str) -> None:
    first, second = open_store(topic + options), open_store(topic)
    first.append("a-1", paid(1))
    with pytest.raises(WriterBusy, match=r"is written by .* process") as refused:
        second.append("a-1", paid(2))
    assert refused.value.owner in str(refused.value)
    assert [event.data["amount"] for event in second.read("a-1")] == [1]
    first.close()
    assert second.append("a-1", paid(2)).position == 2
    second.close()


def test_a_writer_whose_lease_ran_out_while_it_slept_can_write_no_more(topic: str) -> None:
    """The lease is a courtesy; the fence is what holds."""
    slow = open_store(f"{topic}?lease=0.3")
    slow.append("a-1", paid(1))
    slow._ended.set()  # type: ignore[attr-defined]  # it stops renewing, as a process does that is stopped
    quick = open_store(topic)

    def take_over() -> int:
        return quick.append("a-1", paid(2), expected=1).position

    def tried() -> int:
        try:
            return take_over()
        except WriterBusy:
            return 0

    assert eventually(tried) == 2
    with pytest.raises(WriterBusy, match=r"taken over by|is written by"):
        slow.append("a-1", paid(9))
    assert [event.data["amount"] for event in slow.read("a-1")] == [1, 2]
    slow.close()
    quick.close()


def test_a_kept_index_goes_on_where_it_was_and_one_of_another_topic_is_made_again(
    topic: str, log_broker: TestBroker, tmp_path: Path
) -> None:
    where = f"?index={tmp_path}/index.db"
    with open_store(topic + where) as store:
        store.append("a-1", [paid(1), Event("Paid", {"amount": 2}, tags=("x",))])
    with open_store(topic + where) as store:
        assert [event.data["amount"] for event in store.read("a-1")] == [1, 2]
        assert store.append("a-1", paid(3), expected=2).position == 3
    with open_store(f"kafka://{log_broker.bootstrap}/another-topic{where}") as store:
        assert store.head() == 0
    with open_store(topic + where) as store:
        assert [event.version for event in store.read("a-1")] == [1, 2, 3]
        assert [event.version for event in store.read_all()] == [1, 2, 3]


@pytest.mark.parametrize("failure", [sqlite3.OperationalError("database or disk is full"), KeyboardInterrupt()])
def test_an_index_that_fails_after_the_log_has_the_events_gives_no_position_out_twice(
    topic: str, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise failure

    with open_store(topic) as store:
        store.append("a-1", paid(1))
        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "_commit", fail)
            with pytest.raises((SourcingError, KeyboardInterrupt)):
                store.append("a-1", paid(2))
        assert store.append("a-1", paid(3)).position == 3
        assert [event.data["amount"] for event in store.read("a-1")] == [1, 2, 3]
    with open_store(topic) as store:
        assert [event.data["amount"] for event in store.read("a-1")] == [1, 2, 3]


def test_an_index_that_fails_while_it_catches_up_reads_the_same_records_again(topic: str) -> None:
    with open_store(topic) as writer, open_store(topic) as reader:
        assert isinstance(reader, TopicStore)
        (pages,) = reader._writer.execute("pragma page_count").fetchone()
        reader._writer.execute(f"pragma max_page_count = {pages + 2}")  # a disk that is full
        for number in range(10):
            writer.append("a-1", Event("A", {"number": number, "text": "x" * 5_000}))
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="full"):
                list(reader.read("a-1"))
        reader._writer.execute("pragma max_page_count = 1000000")
        assert [event.data["number"] for event in reader.read("a-1")] == list(range(10))


def test_a_broker_that_is_not_there_is_a_store_that_cannot_be_reached() -> None:
    with pytest.raises(StoreUnavailable, match=r"^kafka://127\.0\.0\.1:1/events: cannot reach a broker"):
        open_store("kafka://127.0.0.1:1/events")


def test_a_topic_that_is_no_store_is_refused(log_broker: TestBroker) -> None:
    with Client(log_broker.bootstrap) as client:
        from headrace.client import Admin, Producer

        Admin(client).create_topic("three", partitions=3)
        Admin(client).create_topic("short", partitions=1)
        with Producer(client) as producer:
            producer.send(
                "short",
                b'{"position":7,"stream":null,"version":null,"event_id":"e","type":"T","data":{},'
                b'"tags":[],"schema_version":1,"correlation_id":null,"causation_id":null,"actor":null,'
                b'"command_id":null,"recorded_us":1}',
            )
    with pytest.raises(UsageError, match="has 3 partitions"):
        open_store(f"kafka://{log_broker.bootstrap}/three")
    with pytest.raises(SourcingError, match="position 7 after 0"):
        open_store(f"kafka://{log_broker.bootstrap}/short")


@pytest.mark.parametrize("value", [b"hello", b'{"id": 1}', b"[]", b"\xff"], ids=["text", "object", "list", "bytes"])
def test_records_that_are_no_events_are_refused_in_words(topic: str, log_broker: TestBroker, value: bytes) -> None:
    from headrace.client import Producer

    with Client(log_broker.bootstrap) as client, Producer(client) as producer:
        producer.send(topic.rpartition("/")[2], value)
    with pytest.raises(SourcingError, match="is not the topic of an event store"):
        open_store(topic)


def test_a_topic_has_either_a_writer_of_its_own_or_a_store_that_is_published_to_it(
    topic: str, log_broker: TestBroker, tmp_path: Path
) -> None:
    """Both would give the same positions to different events, and readers would pass over the second ones."""
    name = topic.rpartition("/")[2]
    with open_store(tmp_path / "events.db") as store:
        store.append("a-1", paid(1))
        publish(store, log_broker.bootstrap, name, until_current=True)
        with open_store(topic) as copy:
            assert [event.data["amount"] for event in copy.read("a-1")] == [1]
            with pytest.raises(SourcingError, match="follows another store"):
                copy.append("a-1", paid(2))
        with open_store(f"{topic}-own") as own:
            own.append("b-1", paid(3))
        with pytest.raises(UsageError, match="is itself an event store"):
            publish(store, log_broker.bootstrap, f"{name}-own", until_current=True)


WRITER = """
import sys
from headrace.sourcing import Event, open_store
store = open_store(sys.argv[1])
for number in range(1_000_000):
    done = store.append("a-1", Event("Paid", {"amount": number}))
    print(done.position, flush=True)
"""


def test_what_a_killed_writer_acknowledged_is_there_and_the_next_one_goes_on(topic: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, f"{topic}?lease=0.5"], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        acknowledged = [int(child.stdout.readline()) for _ in range(10)][-1]
        child.send_signal(signal.SIGKILL)
    with open_store(topic) as store:
        assert store.head() >= acknowledged
        done = eventually(lambda: _appended(store))
        assert [event.position for event in store.read_all()] == list(range(1, done + 1))
        assert [event.version for event in store.read("a-1")] == list(range(1, done + 1))


def test_the_temporary_index_of_a_killed_process_is_removed_by_the_next_one_and_that_of_a_running_one_is_not(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has snapshots, which may have personal data in plain."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    command = [sys.executable, "-c", WRITER, f"{topic}?lease=0.5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        (of_child,) = tmp_path.iterdir()
        with open_store(topic):
            assert of_child.exists()
        child.send_signal(signal.SIGKILL)
    (being_made := tmp_path / "headrace-events-new").mkdir()
    assert of_child.exists()
    with open_store(topic) as store:
        assert not of_child.exists()
        assert store.head() > 0
    assert list(tmp_path.iterdir()) == [being_made]


def _appended(store: EventStore) -> int:
    try:
        return store.append("a-1", paid(-1)).position
    except (WriterBusy, StoreUnavailable):
        return 0


# ---- every event reaches a topic ------------------------------------------------------------------------------------


def test_a_topic_has_the_events_of_its_store_once_and_in_order_also_while_others_write(
    store: EventStore, log_broker: TestBroker, unique: Callable[[str], str], several_writers: bool
) -> None:
    name = unique("published")[:80]
    store.append("a-1", [paid(number) for number in range(20)])
    stop = threading.Event()
    publisher = threading.Thread(target=publish, args=(store, log_broker.bootstrap, name), kwargs={"stop": stop})
    publisher.start()
    for number in range(20, 40):
        store.append(f"a-{number % 3}", paid(number))
    eventually(lambda: len(in_topic(log_broker.bootstrap, name)), lambda count: count >= 40)
    stop.set()
    publisher.join()
    publish(store, log_broker.bootstrap, name, until_current=True)
    found = in_topic(log_broker.bootstrap, name)
    assert [(each["position"], each["stream"], each["version"], each["data"]) for each in found] == [
        (event.position, event.stream, event.version, event.data) for event in store.read_all()
    ]
    with Client(log_broker.bootstrap) as client:
        assert published_position(client, name) == 40


def test_the_largest_event_that_a_store_takes_fits_into_a_topic(
    topic: str, log_broker: TestBroker, tmp_path: Path
) -> None:
    letters = [chr(0x10000 + (number * 7919) % 0xF0000) for number in range(999_990)]  # four bytes, hardly compressible
    large = Event("Noted", {"x": "".join(letters)}, tags=[f"{number:0>500}" for number in range(100)])
    with open_store(tmp_path / "events.db") as store, open_store(topic) as log:
        for each in (store, log):
            each.append("a-1", large)
        assert publish(store, log_broker.bootstrap, f"{topic.rpartition('/')[2]}-copy", until_current=True) == 1
    with open_store(topic) as log:
        assert next(log.read("a-1")).data == large.data


def test_another_store_or_an_older_copy_is_not_published_to_the_same_topic(
    log_broker: TestBroker, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = unique("published")[:80]
    with open_store(tmp_path / "one.db") as one, open_store(tmp_path / "two.db") as two:
        one.append("a-1", [paid(1), paid(2)])
        publish(one, log_broker.bootstrap, name, until_current=True)
        with pytest.raises(UsageError, match="is shorter"):
            publish(two, log_broker.bootstrap, name, until_current=True)
        two.append("a-1", [paid(1), paid(2)])
        with pytest.raises(UsageError, match="another event there"):
            publish(two, log_broker.bootstrap, name, until_current=True)


def test_a_topic_never_has_a_persons_data_in_plain(
    log_broker: TestBroker, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Neither before forgetting nor after it."""
    name, secret = unique("published")[:80], "Ada Lovelace of St James's Square"
    with open_store(tmp_path / "one.db", keys=KeyStore(tmp_path / "keys")) as store:
        store.append(
            "a-1", Event("Opened", {"name": secret, "plain": "in the open, in any file"}, personal={"name": "u1"})
        )
        publish(store, log_broker.bootstrap, name, until_current=True)
        store.forget("u1")
        publish(store, log_broker.bootstrap, name, until_current=True)
    assert [each["type"] for each in in_topic(log_broker.bootstrap, name)] == ["Opened", "SubjectForgotten"]
    with Client(log_broker.bootstrap) as client:
        written = b"".join(repr(record).encode() for record in committed_records(client, name))
    assert b"in the open" in written
    assert b"Lovelace" not in written


def test_capture_of_the_table_gives_the_same_events_in_debeziums_envelope(
    log_broker: TestBroker, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """For those who have consumers of captured tables: the store is an ordinary file of SQLite."""
    with open_store(tmp_path / "bank.db") as store:
        options = CaptureOptions(name="bank", url=f"sqlite:///{tmp_path}/bank.db", tables=("headrace_events",))
        Capture(log_broker.bootstrap, options).run(threading.Event(), until_current=True)
        for number in range(5):
            store.append(f"a-{number % 2}", paid(number))
        Capture(log_broker.bootstrap, options).run(threading.Event(), until_current=True)
        rows = [each["after"] for each in in_topic(log_broker.bootstrap, "bank.main.headrace_events")]
        assert [(row["position"], row["stream"], json.loads(row["data"])) for row in rows] == [
            (event.position, event.stream, event.data) for event in store.read_all()
        ]


def test_the_retry_helper_raises_the_last_conflict(tmp_path: Path) -> None:
    with open_store(tmp_path / "one.db") as store:
        calls: list[int] = []

        def conflicts() -> None:
            calls.append(1)
            store.append("a-1", paid(1), expected=7)

        with pytest.raises(SourcingError, match="expected version 7"):
            retrying(conflicts, attempts=3)
        assert len(calls) == 3
