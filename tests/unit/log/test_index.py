"""The index: bisected by offset, position and time; bounded in memory; never believed when it does not check out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.disk import FileCache
from headrace.log.index import BLOCK_BYTES, BLOCK_ENTRIES, BlockSummary, Index, IndexDamaged
from headrace.testing.disk import SimulatedDisk

PATH = "/index"


def new_index(count: int, *, base: int = 1000, step: int = 3) -> tuple[SimulatedDisk, Index]:
    disk = SimulatedDisk()
    index = Index(FileCache(disk), PATH, base)
    for number in range(1, count + 1):
        index.add(base + number * step, number * 100, number * 7, number)
    return disk, index


@given(count=st.integers(0, 900), probe=st.integers(0, 3000))
def test_a_search_finds_what_a_scan_would(count: int, probe: int) -> None:
    _, index = new_index(count)
    by_offset = max((n for n in range(1, count + 1) if 3 * n <= probe), default=0)
    assert index.floor_offset(1000 + probe) == (1000 + 3 * by_offset, 100 * by_offset)
    by_position = max((n for n in range(1, count + 1) if 100 * n <= probe * 30), default=0)
    assert index.floor_position(probe * 30) == (1000 + 3 * by_position, 100 * by_position)
    by_time = max((n for n in range(1, count + 1) if 7 * n < probe), default=0)
    assert index.floor_timestamp(probe) == (1000 + 3 * by_time, 100 * by_time)


def test_memory_holds_at_most_one_block_however_long_the_segment() -> None:
    disk, index = new_index(50 * BLOCK_ENTRIES)
    assert len(index._columns[0]) <= BLOCK_ENTRIES
    assert disk.file_size(PATH) == 49 * BLOCK_BYTES


def test_a_saved_index_goes_on_where_it_was() -> None:
    disk, index = new_index(300)
    index.save(BlockSummary(30_050, 1950, 2200, 77))
    again = Index(FileCache(disk), PATH, 1000)
    assert again.load_tail(40_000) == BlockSummary(30_050, 1950, 2200, 77)
    again.add(2000, 31_000, 2200, 78)
    assert again.floor_offset(5000) == (2000, 31_000)
    assert again.entries()[:300] == index.entries()


def test_a_block_that_covers_more_than_the_log_has_is_dropped() -> None:
    disk, _ = new_index(BLOCK_ENTRIES * 3 + 1)
    again = Index(FileCache(disk), PATH, 1000)
    limit = (BLOCK_ENTRIES * 2 + 1) * 100
    found = again.load_tail(limit)
    assert found is not None
    assert found.covered_bytes <= limit
    assert disk.file_size(PATH) == 2 * BLOCK_BYTES


@pytest.mark.parametrize("position", [0, 5, 8, 12, 20, 30, 70, 1100, 2100, 4095])
def test_a_changed_byte_anywhere_in_a_block_is_noticed(position: int) -> None:
    disk, index = new_index(BLOCK_ENTRIES + 10)
    disk.damage(PATH, lambda content: content.__setitem__(position, content[position] ^ 1))
    with pytest.raises(IndexDamaged):
        index.floor_offset(1010)


def test_a_block_of_another_segment_is_not_believed() -> None:
    disk, _ = new_index(BLOCK_ENTRIES + 1)
    assert Index(FileCache(disk), PATH, 2000).load_summary() is None


def test_a_full_disk_keeps_entries_in_memory_until_there_is_room() -> None:
    disk = SimulatedDisk(capacity_bytes=100)
    index = Index(FileCache(disk), PATH, 0)
    for number in range(1, 400):
        index.add(number, number * 100, number, number)
    assert index.floor_offset(5) == (5, 500)
    disk.capacity_bytes = None
    index.add(400, 40_000, 400, 400)
    assert disk.file_size(PATH) == BLOCK_BYTES
    assert index.floor_offset(5) == (5, 500)
    assert index.floor_offset(399) == (399, 39_900)


def test_a_block_has_exactly_these_bytes() -> None:
    disk = SimulatedDisk()
    index = Index(FileCache(disk), PATH, 0x0102030405)
    index.add(0x0102030405 + 9, 4242, 77, 0)
    index.save(BlockSummary(5000, 0x0102030405 + 20, 88, 0x0A0B0C0D, 0x0102030405 + 21, 3))
    block = disk.contents(PATH)
    assert len(block) == BLOCK_BYTES
    assert (
        block[4:64].hex() == "4948020000000000010000000504030201000000881300000000000019040302010000005800000000000000"
        "1a04030201000000030000000d0c0b0a"
    )
    assert block[64:68].hex() == "09000000"
    assert block[1072:1076].hex() == "92100000"
    assert block[2080:2088].hex() == "4d00000000000000"
    assert block[:4].hex() == "811ecccf"
