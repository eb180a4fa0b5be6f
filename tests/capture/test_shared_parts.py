"""What all sources share, end to end, on the one that starts fastest: a file of SQLite and a broker in this process."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.batch import build_batch, parse_header
from headrace.capture import Capture, CaptureOptions
from headrace.client import Client, Producer, RawBatch
from headrace.client.positioned import ensure_topic
from headrace.spark.source.decode import decode
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.positions import OffsetRange
from headrace.spark.source.values import BadRecord, TypedMaker
from tests.capture.test_read_back import columns_of
from tests.capture.world import catch_up, committed, events, fold, topics
from tests.waiting import eventually

numbers = itertools.count(1)


class File:
    """A database in a file, and a capture of it."""

    def __init__(self, log: str, folder: Path) -> None:
        self.log = log
        self.path = folder / "shop.db"
        self.name = f"shared{next(numbers)}"
        self.session = sqlite3.connect(self.path, isolation_level=None)

    def run(self, *statements: str) -> None:
        for each in statements:
            self.session.execute(each)

    def options(self, **given: Any) -> CaptureOptions:
        return CaptureOptions(name=self.name, url=f"sqlite:///{self.path}", **given)

    def catch_up(self, **given: Any) -> list[str]:
        said: list[str] = []
        catch_up(self.log, self.options(**given), said.append)
        return said

    def topic(self, table: str) -> str:
        return f"{self.name}.main.{table}"


@pytest.fixture
def file(log: str, tmp_path: Path) -> File:
    return File(log, tmp_path)


def test_a_row_larger_than_its_topic_takes_is_a_dead_letter_and_capture_goes_on(file: File) -> None:
    small = {"max.message.bytes": "100000"}
    file.run("create table t (id integer primary key, body blob)", "insert into t values (1, 'a')")
    file.session.execute("insert into t values (2, ?)", (os.urandom(100_000),))
    said = file.catch_up(topic_config=small)
    file.run("insert into t values (3, 'c')", "update t set body = 'b' where id = 2")
    file.catch_up(topic_config=small)
    (letter,) = [json.loads(each.value or b"") for each in committed(file.log, f"{file.name}.dead-letters")]
    assert (letter["table"], letter["key"], letter["op"], letter["row"]) == ("main.t", {"id": 2}, "r", {"id": 2})
    assert "max.message.bytes" in letter["reason"]
    assert any("dead-letters" in line for line in said)
    rows = fold(events(file.log, file.topic("t")))
    assert {row["id"]: row["body"] for row in rows.values()} == {1: "a", 2: "b", 3: "c"}


def test_a_large_row_that_compresses_into_what_the_topic_takes_is_an_event(file: File) -> None:
    file.run("create table t (id integer primary key, body text)")
    file.session.execute("insert into t values (1, ?)", ("a" * 300_000,))
    file.catch_up(topic_config={"max.message.bytes": "100000"})
    assert [len(each.value["after"]["body"]) for each in events(file.log, file.topic("t"))] == [300_000]


def test_many_rows_go_into_a_topic_that_takes_only_small_batches(file: File) -> None:
    file.run("create table t (id integer primary key, body blob)")
    file.run("begin")
    file.session.executemany("insert into t values (?, ?)", ((each, os.urandom(500)) for each in range(500)))
    file.run("commit")
    file.catch_up(topic_config={"max.message.bytes": "20000"})
    assert len(fold(events(file.log, file.topic("t")))) == 500


def test_tables_whose_names_lose_characters_have_separate_topics(file: File) -> None:
    file.run("create table größe (id integer primary key)", "create table gräße (id integer primary key)")
    file.run("insert into größe values (1)", "insert into gräße values (2)")
    file.catch_up()
    names = [each for each in topics(file.log, f"{file.name}.main.") if "gr__e-" in each]
    assert sorted(each.value["after"]["id"] for name in names for each in events(file.log, name)) == [1, 2]
    assert len(names) == 2


def test_plain_rows_tell_a_truncation_and_a_read_of_them_ends_instead_of_keeping_what_is_gone(file: File) -> None:
    file.run("create table t (id integer primary key)", "insert into t values (1)")
    file.catch_up(unwrap=True)
    file.run("delete from t", "insert into t values (2)")
    catch_up(file.log, file.options(unwrap=True), resnapshot=True)
    records = committed(file.log, file.topic("t"))
    (truncation,) = [each for each in records if each.key is None]
    assert (truncation.value, dict(truncation.headers)) == (None, {"__op": b"t"})
    given = {"kafka.bootstrap.servers": file.log, "subscribe": file.topic("t"), "valueFormat": "json"}
    chosen = SourceOptions.parse({name.lower(): text for name, text in given.items()}, streaming=False)
    make = TypedMaker(chosen, columns_of("id long"), OffsetRange(file.topic("t"), 0, 0, len(records)), lambda: 1)
    data = build_batch(records).data
    with pytest.raises(BadRecord, match=r"truncated.*--unwrap"):
        list(make(decode([RawBatch(parse_header(data), data)])))


# ---- signals -----------------------------------------------------------------------------------------------------


def send(log: str, prefix: str, value: Any, key: str | None = None) -> None:
    with Client(log) as client:
        ensure_topic(client, f"{prefix}-signal", partitions=1)
        with Producer(client) as producer:
            text = value if isinstance(value, bytes) else json.dumps(value).encode()
            producer.send(f"{prefix}-signal", text, key=(key or prefix).encode(), partition=0)


def snapshot_of(*tables: str, **more: Any) -> dict[str, Any]:
    return {"type": "execute-snapshot", "data": {"data-collections": tables, "type": "incremental", **more}}


def test_a_signal_reads_a_table_again_once_and_other_tables_are_not_touched(file: File) -> None:
    file.run("create table t (id integer primary key)", "insert into t values (1)")
    file.run("create table u (id integer primary key)", "insert into u values (1)")
    send(file.log, file.name, snapshot_of("main.t"))  # from before the first run, which reads everything
    file.catch_up()
    send(file.log, file.name, snapshot_of("main.t"))
    send(file.log, file.name, snapshot_of("main.u"), key="another")
    said = file.catch_up()
    assert [each.op for each in events(file.log, file.topic("t"))] == ["r", "t", "r"]
    assert [each.op for each in events(file.log, file.topic("u"))] == ["r"]
    assert any("main.t: a truncation and all rows again" in line for line in said)
    file.catch_up()
    assert len(events(file.log, file.topic("t"))) == 3


def test_a_running_capture_takes_signals_up(file: File) -> None:
    file.run("create table t (id integer primary key)", "insert into t values (1)")
    stop = threading.Event()
    said: list[str] = []
    capture = Capture(file.log, file.options(), say=said.append)
    thread = threading.Thread(target=capture.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: len(events(file.log, file.topic("t"))) == 1)
        send(file.log, file.name, {"type": "log", "data": {"message": "hello"}})
        send(file.log, file.name, snapshot_of("main\\.t"))
        eventually(lambda: [each.op for each in events(file.log, file.topic("t"))] == ["r", "t", "r"])
    finally:
        stop.set()
        thread.join()
    assert "hello" in said


@pytest.mark.parametrize(
    ("signal", "line"),
    [
        (snapshot_of("main.nothing"), "nothing is not captured"),
        (snapshot_of("main.x*"), "no table matches main.x*"),
        (snapshot_of("main.t", **{"additional-conditions": [{"filter": "id > 1"}]}), "additional conditions"),
        ({"type": "pause-snapshot"}, "'pause-snapshot' are not known"),
        (b"{", "cannot be read"),
        ({"data": {}}, "cannot be read"),
    ],
)
def test_a_signal_that_cannot_be_obeyed_is_said_and_passed_over(file: File, signal: Any, line: str) -> None:
    file.run("create table t (id integer primary key)", "insert into t values (1)")
    file.catch_up()
    send(file.log, file.name, signal)
    send(file.log, file.name, snapshot_of("main.t"))
    said = file.catch_up()
    assert [each for each in said if line in each]
    assert [each.op for each in events(file.log, file.topic("t"))] == ["r", "t", "r"]
