"""What a checkpoint tells a sink about the batch at hand. No JVM is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.spark.topic_sink.checkpoint import PlannedBatch, read_checkpoint, read_end_offsets


def planned(folder: Path, *ends: dict[str, int]) -> str:
    """A checkpoint as Spark writes it, with so many batches."""
    (folder / "offsets").mkdir()
    (folder / "metadata").write_text('{"id":"the-query"}')
    for number, each in enumerate(ends):
        (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(each)}\n')
        (folder / "offsets" / f".{number}.crc").touch()
    return str(folder)


def test_the_newest_planned_batch_has_its_own_end_and_other_batches_have_none(tmp_path: Path) -> None:
    folder = tmp_path / "50%25 of all"  # nothing in Hadoop's paths is escaped
    folder.mkdir()
    location = planned(folder, *[{"b": 10 * number, "a": number} for number in range(11)])
    for spelt in (location, f"file:{location}", f"file://{location}", f"{location}/"):
        found = read_checkpoint(spelt)
        assert found == PlannedBatch("the-query", 10, '{"a":10,"b":100}')
    assert found.ends_of(10) == '{"a":10,"b":100}'
    assert (found.ends_of(9), found.ends_of(11)) == (None, None)
    assert [read_end_offsets(location, number) for number in (9, 10)] == ['{"a":9,"b":90}', '{"a":10,"b":100}']


def test_a_checkpoint_without_a_batch_tells_the_query_and_one_that_is_not_there_nothing(tmp_path: Path) -> None:
    assert read_checkpoint(planned(tmp_path)) == PlannedBatch("the-query")
    assert PlannedBatch("the-query").ends_of(0) is None
    assert read_checkpoint(str(tmp_path / "nowhere")) is None
    with pytest.raises(OSError, match="nowhere"):
        read_end_offsets(str(tmp_path / "nowhere"), 0)


def test_the_ends_of_several_sources_stand_one_below_the_other(tmp_path: Path) -> None:
    location = planned(tmp_path, {"a": 1})
    (tmp_path / "offsets" / "1").write_text('v1\n{}\n{"b": 2, "a": 1}\n7\n')
    assert read_end_offsets(location, 1) == '{"a":1,"b":2}\n7'
