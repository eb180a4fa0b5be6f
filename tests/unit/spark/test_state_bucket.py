"""A bucket against a plain dict: chunks, merges, deadlines, copies that fell behind and tasks that failed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.state import bucket as state_bucket
from headrace.spark.state.bucket import NEVER, Bucket, Layout, Manifest, StateMismatch
from headrace.spark.state.operator import factorize
from tests.unit.spark.stream_world import MemoryStore

KEYS = pa.struct([("user", pa.string())])
STATE = pa.struct([("count", pa.int64()), ("tags", pa.list_(pa.string()))])
LAYOUT = Layout(KEYS, STATE)

writes = st.dictionaries(
    st.sampled_from([None, "", "a", "b", "c", "d", "e", "f"]),
    st.tuples(st.booleans(), st.integers(0, 9), st.one_of(st.just(NEVER), st.integers(1, 20))),
    min_size=1,
    max_size=4,
)
"""By key: whether it lives, its value, its deadline."""


def write(bucket: Bucket, changes: dict[Any, tuple[bool, int, int]]) -> None:
    keys = list(changes)
    live, values, wakes = zip(*changes.values(), strict=True)
    states = pa.array([{"count": each, "tags": ["x"] * each} for each in values], STATE)
    bucket.append(
        pa.array([{"user": key} for key in keys], KEYS),
        keys,
        live=np.array(live),
        wake=np.array(wakes, np.int64),
        expire=np.full(len(keys), NEVER),
        states=states,
    )


def held(bucket: Bucket, keys: list[Any]) -> dict[Any, int]:
    places = bucket.find(keys)
    alive = bucket.alive(places)
    states = bucket.gather(np.where(alive, places, -1)).to_pylist()
    assert all(state is None or state["tags"] == ["x"] * state["count"] for state in states)
    return {key: state["count"] for key, state in zip(keys, states, strict=True) if state is not None}


ALL_KEYS: list[Any] = [None, "", "a", "b", "c", "d", "e", "f", "never written"]


@pytest.fixture(autouse=True, scope="module")
def small() -> Any:
    """Merges after few rows, so that short examples reach them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_bucket, "MERGE_CHUNKS_MIN", 3)
        patch.setattr(state_bucket, "GARBAGE_ROWS_MIN", 4)
        yield


@given(
    st.lists(st.tuples(writes, st.sampled_from(["first", "second", "anew"]), st.booleans()), max_size=30),
    st.booleans(),
    st.sampled_from([64 << 20, 400]),
)
def test_copies_in_several_processes_agree_with_a_plain_dict_also_when_tasks_fail(
    batches: list[tuple[dict[Any, tuple[bool, int, int]], str, bool]], large: bool, chunk_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_bucket, "CHUNK_BYTES_MAX", chunk_bytes)
        check_copies(batches, large)


def check_copies(batches: list[tuple[dict[Any, tuple[bool, int, int]], str, bool]], large: bool) -> None:
    store = MemoryStore()
    model: dict[Any, tuple[bool, int, int]] = {}
    workers = {"first": Bucket(LAYOUT), "second": Bucket(LAYOUT)}
    many = dict.fromkeys(ALL_KEYS[:-1] + [str(number) for number in range(30)], (True, 1, NEVER))
    for changes, worker, fails in [(many, "first", False), *batches] if large else batches:
        bucket = workers.get(worker) or Bucket(LAYOUT)
        committed = store.copy()
        before = store.manifest_value()
        bucket.refresh(before, store)
        write(bucket, changes)
        bucket.save(before, 1, store)
        if fails:  # after it had changed the worker's copy; Spark throws away what it wrote
            store = committed
            continue
        model |= changes
        alive = {key: value for key, (live, value, _) in model.items() if live}
        assert held(bucket, list(model)) == alive
        manifest = store.manifest_value()
        assert manifest.key_count == len(alive)
        assert manifest.timer_count == sum(live and wake < NEVER for live, _, wake in model.values())
        assert manifest.due_us == min((wake for live, _, wake in model.values() if live), default=NEVER)
        assert set(store.chunks) == set(manifest.chunks), "no chunk is left behind, none is missing"


@given(st.lists(writes, max_size=20), st.integers(0, 21), st.booleans())
def test_keys_are_due_once_their_deadline_has_come_and_the_last_word_counts(
    batches: list[dict[Any, tuple[bool, int, int]]], now_us: int, loads: bool
) -> None:
    store, bucket = MemoryStore(), Bucket(LAYOUT)
    model: dict[Any, tuple[bool, int, int]] = {}
    for changes in batches:
        write(bucket, changes)
        model |= changes
    if loads:
        bucket.save(Manifest(), 1, store)
        bucket = Bucket(LAYOUT)
        bucket.refresh(store.manifest_value(), store)
    expected = {key for key, (live, _, wake) in model.items() if live and wake <= now_us}
    found = bucket.keys_at(bucket.due(now_us))
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert bucket.next_due_us() == min((wake for live, _, wake in model.values() if live), default=NEVER)
    for key in found:
        write(bucket, {key: (True, 0, NEVER)})
    assert len(bucket.due(now_us)) == 0


def test_a_key_is_due_at_its_very_deadline_and_not_before() -> None:
    bucket = Bucket(LAYOUT)
    write(bucket, {"a": (True, 1, 5), "b": (True, 1, 9)})
    assert bucket.keys_at(bucket.due(4)) == []
    assert bucket.keys_at(bucket.due(5)) == ["a"]
    assert sorted(bucket.keys_at(bucket.due(9))) == ["a", "b"]


def test_a_copy_that_fell_behind_reads_only_the_chunks_that_it_lacks() -> None:
    store, here, elsewhere = MemoryStore(), Bucket(LAYOUT), Bucket(LAYOUT)
    write(here, {f"user {number}": (True, number % 5, NEVER) for number in range(1000)})
    here.save(Manifest(), 1, store)
    elsewhere.refresh(store.manifest_value(), store)
    assert store.chunks_read == 1
    for number in range(5):
        before = store.manifest_value()
        write(here, {f"user {number}": (True, 9, NEVER)})
        here.save(before, 1, store)
    store.chunks_read = 0
    elsewhere.refresh(store.manifest_value(), store)
    assert store.chunks_read < 5
    assert held(elsewhere, ["user 3", "user 999"]) == {"user 3": 9, "user 999": 4}


def test_what_is_written_for_a_batch_does_not_grow_with_what_is_held() -> None:
    def written(held_count: int) -> int:
        store, bucket = MemoryStore(), Bucket(LAYOUT)
        write(bucket, {f"user {number}": (True, 1, NEVER) for number in range(held_count)})
        before = bucket.save(Manifest(), 1, store)
        write(bucket, {f"user {number}": (True, 2, NEVER) for number in range(10)})
        after = bucket.save(before, 1, store)
        return sum(len(store.chunks[each]) for each in set(after.chunks) - set(before.chunks))

    assert written(100) == written(20_000)


def test_states_of_an_older_version_are_upgraded_as_they_are_read_and_stay_so() -> None:
    store, old = MemoryStore(), Bucket(LAYOUT)
    write(old, {"a": (True, 3, NEVER)})
    old.save(Manifest(), 1, store)

    def upgrade(states: pa.StructArray, version: int) -> pa.StructArray:
        assert version == 1
        return pa.StructArray.from_arrays([states.field("count").cast(pa.float64())], fields=list(newer.state))

    newer = Layout(KEYS, pa.struct([("total", pa.float64())]), version=2, upgrade=upgrade)
    bucket = Bucket(newer)
    bucket.refresh(store.manifest_value(), store)
    assert bucket.gather(bucket.find(["a"])).to_pylist() == [{"total": 3.0}]

    without = Bucket(Layout(KEYS, newer.state, version=2))
    with pytest.raises(StateMismatch, match=r"version 1 and the program has 2.*upgrade"):
        without.refresh(store.manifest_value(), store)
    changed = Bucket(Layout(KEYS, newer.state))
    with pytest.raises(StateMismatch, match="raise the version"):
        changed.refresh(store.manifest_value(), store)


def test_states_of_a_newer_version_are_not_read() -> None:
    store, newer = MemoryStore(), Bucket(Layout(KEYS, STATE, version=2))
    write(newer, {"a": (True, 3, NEVER)})
    newer.save(Manifest(), 1, store)
    with pytest.raises(StateMismatch, match="run the one that wrote it"):
        Bucket(LAYOUT).refresh(store.manifest_value(), store)


def test_the_manifest_has_the_same_value_after_a_round_trip_and_a_newer_format_is_not_guessed_at() -> None:
    manifest = Manifest(("x", "y"), 32, "struct<user: string>", 2, 3, 4, 5, 6, 7)
    assert Manifest.decode(manifest.encode()) == manifest
    with pytest.raises(StateMismatch, match="format 2"):
        Manifest.decode(manifest.encode().replace(b'"format":1', b'"format":2'))


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.one_of(st.none(), st.integers(0, 2))), max_size=20))
def test_rows_get_the_number_of_their_key_with_nulls_as_keys_like_others(rows: list[tuple[Any, Any]]) -> None:
    kind = pa.struct([("x", pa.string()), ("y", pa.int64())])
    table = pa.Table.from_pylist([{"x": x, "y": y} for x, y in rows], pa.schema(list(kind)))
    codes, keys = factorize(table, kind)
    values = [(each["x"], each["y"]) for each in keys.to_pylist()]
    assert [values[code] for code in codes] == rows
    assert len(set(values)) == len(values)


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.date32()])
def test_a_time_after_the_year_9999_is_a_key_as_any_other(kind: pa.DataType) -> None:
    layout = Layout(pa.struct([("window_end", kind)]), STATE)
    moments = pa.array([0, 2**30 * (1 << 31 if pa.types.is_timestamp(kind) else 1), None], pa.int64())
    times = moments.cast(pa.int32()).cast(kind) if pa.types.is_date(kind) else moments.cast(kind)
    keys = pa.StructArray.from_arrays([times], fields=list(layout.keys))
    assert layout.python_keys(keys) == moments.to_pylist()


def test_a_chunk_stays_below_its_bound_however_much_is_merged_and_chunks_stay_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One key alone may have more than the bound; nothing can be cut there."""
    monkeypatch.setattr(state_bucket, "CHUNK_BYTES_MAX", bound := 20_000)
    store, bucket = MemoryStore(), Bucket(LAYOUT)
    for number in range(500):  # often enough that all is merged, without the rows that newer ones hide
        before = store.manifest_value()
        bucket.refresh(before, store)
        write(bucket, {f"{number % 200}-{each}": (True, each % 9, NEVER) for each in range(20)})
        bucket.save(before, 1, store)
    assert bucket.key_count == 4000
    sizes = [chunk.batch.nbytes for chunk in bucket.chunks]
    assert max(sizes) <= bound
    assert sum(sizes) > 10 * bound, "there is so much that it had to be cut"
    assert len(sizes) <= 2 * sum(sizes) / (bound / 2) + 2 * state_bucket.MERGE_CHUNKS_MIN
    full = [chunk.chunk_id for chunk in bucket.chunks if chunk.is_full]
    for number in range(60):
        write(bucket, {f"new {number}-{each}": (True, 1, NEVER) for each in range(10)})
    kept = [chunk.chunk_id for chunk in bucket.chunks]
    assert kept[: len(full)] == full, "what is full is not written again because of small chunks"
    write(bucket, {"huge": (True, 30_000, NEVER)})
    assert max(chunk.batch.nbytes for chunk in bucket.chunks) > bound
    assert held(bucket, ["huge", "0-0", "199-19"]) == {"huge": 30_000, "0-0": 0, "199-19": 1}
