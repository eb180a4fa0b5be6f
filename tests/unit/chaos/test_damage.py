"""The judge of damage is judged: what differs is noticed, an error is an honest answer, and files are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import testing
from headrace.batch import build_batch
from headrace.client import Client, Producer
from headrace.record import Record
from tests.chaos.damage import Damage, batch_starts, judge, names
from tests.chaos.damage_snapshot import Failed, differences, take
from tests.chaos.damage_world import World, file_kind


def damaged(tmp_path: Path, damage: Damage, content: bytes) -> bytes:
    path = tmp_path / "file"
    path.write_bytes(content)
    damage.apply(tmp_path)
    return path.read_bytes()


FILE = Path("file")


def test_each_kind_of_damage_does_what_it_says(tmp_path: Path) -> None:
    assert damaged(tmp_path, Damage("flip", FILE, 1, bit=0), b"\0\0\0") == b"\0\1\0"
    assert damaged(tmp_path, Damage("truncate", FILE, 1), b"abc") == b"a"
    assert damaged(tmp_path, Damage("cut", FILE, 0), b"abc") == b""
    assert damaged(tmp_path, Damage("zero", FILE, 1, size=2), b"abcd") == b"a\0\0d"
    assert damaged(tmp_path, Damage("extend", FILE, size=2), b"ab") == b"ab\0\0"
    Damage("delete", FILE).apply(tmp_path)
    assert not (tmp_path / FILE).exists()


def test_batches_of_a_segment_are_found_with_their_end() -> None:
    batches = [build_batch([Record(b"k", b"v" * size)]) for size in (1, 50)]
    first, second = (batch.data for batch in batches)
    assert batch_starts(first + second) == [0, len(first), len(first) + len(second)]


def test_a_different_value_is_wrong_and_an_error_is_not() -> None:
    truth = {"a": 1, "b": (1, 2), "c": 3}
    assert differences(truth, dict(truth)) == ([], [])
    assert differences(truth, {**truth, "a": 2}) == (["a: 2 and not 1"], [])
    assert differences(truth, {**truth, "a": Failed("no")}) == ([], ["a: no"])
    assert differences(truth, {"a": 1, "b": (1, 2)}) == (["c: None and not 3"], [])
    assert differences(truth, {**truth, "d": 4}) == (["d: 4 and not None"], [])
    stuck = {**truth, "b": (1, Failed("stuck"))}
    assert differences(truth, stuck)[0], "a reader that waits for ever has no answer"


def test_a_line_names_a_file_by_its_partition_or_by_its_name() -> None:
    in_topic = Damage("flip", Path("topics/t~1/0/00.log"), 3)
    assert names(["cut 3 bytes of /data/topics/t~1/0/00.log"], in_topic)
    assert not names(["cut 3 bytes of /data/topics/t~1/1/00.log"], in_topic)
    assert names(["/data/checkpoint: its checksum is wrong"], Damage("flip", Path("checkpoint"), 3))


def test_files_are_told_apart_by_what_they_are_for() -> None:
    data = Path("/data")
    assert file_kind(data / "checkpoint", data) == "checkpoint"
    assert file_kind(data / "topics/t~1/0/00.log", data) == "topic log"
    assert file_kind(data / "state/journal/0/00.index", data) == "journal index"


@pytest.fixture
def world(tmp_path: Path) -> World:
    data = tmp_path / "original"
    with testing.broker(data=data) as broker:
        with Client(broker.bootstrap) as client, Producer(client) as producer:
            producer.send("t", b"value")
        truth = take(broker.bootstrap)
    return World(data, "stopped", truth)


def test_an_undamaged_directory_is_the_same(world: World, tmp_path: Path) -> None:
    assert judge(world, None, tmp_path).verdict == "same"


@pytest.fixture
def lossy(world: World) -> World:
    """A world whose broker has lost a record: the truth has one more than the files."""
    offset, time_ms, key, _, *rest = world.truth["t[0] uncommitted"][0]
    more = (*world.truth["t[0] uncommitted"], (offset + 1, time_ms, key, b"another", *rest))
    return World(world.data, world.end, {**world.truth, "t[0] uncommitted": more})


def log_of(world: World) -> Path:
    (log,) = (world.data / "topics").glob("t~*/0/*.log")
    return log.relative_to(world.data)


def test_a_record_that_is_missing_without_a_word_is_silent(lossy: World, tmp_path: Path) -> None:
    outcome = judge(lossy, None, tmp_path)
    assert outcome.verdict == "SILENT"
    assert "t[0] uncommitted" in outcome.details[0]


def test_a_loss_counts_as_reported_only_if_the_log_names_the_damaged_file(lossy: World, tmp_path: Path) -> None:
    (snapshot,) = (lossy.data / log_of(lossy)).parent.glob("*.producers")
    damage = Damage("zero", snapshot.relative_to(lossy.data), 0, size=4)
    assert judge(lossy, damage, tmp_path).verdict == "reported"
    Damage("zero", Path("flushed"), 0, size=4).apply(lossy.data)
    elsewhere = Damage("extend", log_of(lossy).with_suffix(".index"), size=1)
    assert judge(lossy, elsewhere, tmp_path).verdict == "unnamed"


def test_a_loss_from_a_file_that_can_be_derived_is_wrong_even_if_the_file_is_named(
    lossy: World, tmp_path: Path
) -> None:
    assert judge(lossy, Damage("zero", Path("checkpoint"), 0, size=4), tmp_path).verdict == "WRONG"


def test_a_refused_start_that_names_another_file_is_unnamed(world: World, tmp_path: Path) -> None:
    (journal,) = (world.data / "state/journal/0").glob("*.log")
    lost = Damage("delete", journal.relative_to(world.data))
    assert judge(world, lost, tmp_path).verdict == "refused"
    lost.apply(world.data)
    assert judge(world, Damage("extend", log_of(world), size=1), tmp_path).verdict == "unnamed"


def test_a_damaged_record_is_an_error_for_the_client_that_reads_it(world: World, tmp_path: Path) -> None:
    path = log_of(world)
    position = (world.data / path).stat().st_size - 3
    assert judge(world, Damage("flip", path, position), tmp_path).verdict == "client error"
