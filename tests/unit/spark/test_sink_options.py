"""What the sink can be asked for, and what it reads in a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.record import Codec
from headrace.spark.topic_sink.checkpoint import read_checkpoint, read_end_offsets
from headrace.spark.topic_sink.options import SINK, SinkOptions, canonical

BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def test_options_have_defaults_and_any_case() -> None:
    options = SinkOptions.parse({**BROKER, "TOPIC": "t", "kafka.compression.type": "LZ4"}, streaming=True)
    assert options["topic"] == "t"
    assert options.settings.decision_topic == "__headrace_sink"
    assert options.settings.transaction_timeout_ms == 900_000
    assert options.settings.producer.codec is Codec.LZ4


@pytest.mark.parametrize(
    ("given", "streaming", "told"),
    [
        ({}, True, "needs a broker"),
        ({**BROKER, "writeId": "x"}, True, "writeId is for batch writes"),
        ({**BROKER, "writeId": "x", "sinkId": "y", "batchId": "1"}, False, "either writeId, or sinkId and batchId"),
        ({**BROKER, "sinkId": "y"}, False, "belong together"),
        ({**BROKER, "endOffsets": "{}"}, False, "endOffsets needs"),
        ({**BROKER, "sinkId": "a/b"}, True, "sinkId 'a/b' must be"),
        ({**BROKER, "kafka.compression.type": "rar"}, True, "must be one of none, gzip"),
        ({**BROKER, "kafka.group.id": "g"}, True, "no option 'kafka.group.id'"),
        ({**BROKER, "batchBytes": "many"}, True, "whole number"),
    ],
)
def test_a_wrong_option_is_told_with_what_is_right(given: dict[str, str], streaming: bool, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        SinkOptions.parse(given, streaming=streaming)


def test_passwords_do_not_show(capsys: pytest.CaptureFixture[str]) -> None:
    options = SinkOptions.parse({**BROKER, "kafka.sasl.password": "hunter2"}, streaming=True)
    assert "hunter2" not in repr(options)


def test_every_option_says_what_it_means() -> None:
    assert all(each.meaning for each in SINK)


def test_offsets_are_the_same_text_however_they_are_written() -> None:
    assert canonical('{"b": {"1": 2, "0": 1}}') == canonical({"b": {"0": 1, "1": 2}}) == '{"b":{"0":1,"1":2}}'
    assert canonical("not json") == "not json"
    assert canonical(None) is None


def make_checkpoint(root: Path) -> None:
    (root / "offsets").mkdir(parents=True)
    (root / "metadata").write_text('{"id":"the-query"}')
    (root / "offsets" / "9").write_text('v1\n{"batchWatermarkMs":0}\n{"t":{"0":9}}')
    (root / "offsets" / "10").write_text('v1\n{"batchWatermarkMs":0}\n{"t": {"0": 10}}\n5')
    (root / "offsets" / ".10.crc").write_text("x")


def test_a_checkpoint_tells_the_query_the_last_batch_and_where_it_ends(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "c")
    for location in (str(tmp_path / "c"), f"file:{tmp_path}/c", f"file://{tmp_path}/c/"):
        found = read_checkpoint(location)
        assert found is not None
        assert (found.query_id, found.batch_id, found.ends) == ("the-query", 10, '{"t":{"0":10}}\n5')
        assert read_end_offsets(location, 9) == '{"t":{"0":9}}'


def test_a_checkpoint_out_of_reach_is_none_and_one_without_batches_has_an_id(tmp_path: Path) -> None:
    assert read_checkpoint(str(tmp_path / "nowhere")) is None
    assert read_checkpoint("unknown://bucket/c") is None
    make_checkpoint(tmp_path / "c")
    for each in (tmp_path / "c" / "offsets").iterdir():
        each.unlink()
    found = read_checkpoint(str(tmp_path / "c"))
    assert found is not None
    assert (found.query_id, found.batch_id, found.ends) == ("the-query", None, None)
