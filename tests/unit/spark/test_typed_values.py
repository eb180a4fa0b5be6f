"""Formats of values other than plain JSON, and what becomes of bad ones, without Spark or a broker."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from headrace.batch import build_batch, parse_header
from headrace.client import RawBatch
from headrace.errors import UsageError
from headrace.record import Record
from headrace.spark.source.decode import decode
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.positions import OffsetRange
from headrace.spark.source.values import BadRecord, TypedMaker, output_schema

ROW = StructType([StructField("id", LongType()), StructField("name", StringType())])
PLACE = OffsetRange("shop", 3, 0, 1000)


def options(**given: str) -> SourceOptions:
    complete = {"kafka.bootstrap.servers": "h:1", "subscribe": "shop", **given}
    return SourceOptions.parse({name.lower(): text for name, text in complete.items()}, streaming=False)


def read(chosen: SourceOptions, schema: StructType, *values: bytes | None) -> list[dict[str, Any]]:
    records = [Record(key=b"k%d" % index, value=value, timestamp=index) for index, value in enumerate(values)]
    data = memoryview(build_batch(records, base_offset=100).data)
    header = parse_header(data)
    assert header is not None
    TypedMaker.check(chosen, schema)
    made = TypedMaker(chosen, schema, PLACE)(decode([RawBatch(header, data)]))
    return [row for batch in made for row in batch.to_pylist()]


def schema_of(chosen: SourceOptions) -> StructType:
    schema = output_schema(chosen)
    assert isinstance(schema, StructType)
    return schema


def test_text_is_one_string_column_with_what_surrounds_it() -> None:
    chosen = options(valueFormat="text")
    rows = read(chosen, schema_of(chosen), "grüß".encode(), None)
    assert [row["value"] for row in rows] == ["grüß", None]
    assert rows[1]["_offset"] == 101
    assert rows[0]["_topic"] == "shop"
    assert rows[0]["_partition"] == 3
    assert rows[0]["_key"] == b"k0"


def test_the_key_may_be_read_as_a_string() -> None:
    schema = StructType([StructField("value", StringType()), StructField("_key", StringType())])
    assert read(options(valueFormat="text"), schema, b"v") == [{"value": "v", "_key": "k0"}]


def test_changes_are_read_with_and_without_their_schema_around_them() -> None:
    chosen = options(valueFormat="debezium", valueSchema=ROW.json())
    change = {"op": "u", "before": {"id": 1, "name": "a"}, "after": {"id": 1, "name": "b"}, "ts_ms": 5, "source": {}}
    created = {"op": "c", "before": None, "after": {"id": 2, "name": "c"}, "ts_ms": 6}
    wrapped = {"schema": {"type": "struct", "fields": []}, "payload": created}
    plain, mixed = (
        read(chosen, schema_of(chosen), *each)
        for each in (
            [json.dumps(change).encode()] * 2,
            [json.dumps(change).encode(), None, json.dumps(wrapped).encode()],
        )
    )
    assert plain[1]["after"] == {"id": 1, "name": "b"}
    assert [row["op"] for row in mixed] == ["u", None, "c"]
    assert mixed[0]["before"] == {"id": 1, "name": "a"}
    assert mixed[2]["before"] is None
    assert mixed[2]["after"] == {"id": 2, "name": "c"}
    assert mixed[2]["ts_ms"] == 6
    only_wrapped = read(chosen, schema_of(chosen), json.dumps(wrapped).encode())
    assert only_wrapped[0]["after"] == {"id": 2, "name": "c"}


def test_times_and_decimals_are_read_by_what_the_schema_of_a_record_says() -> None:
    row = StructType().add("at", "timestamp").add("day", "date").add("exact", "timestamp_ntz")
    row = row.add("price", "decimal(12,2)").add("zoned", "timestamp")
    chosen = options(valueFormat="debezium", valueSchema=row.json())

    def change(scale: int, price: str, unit: str, at: int) -> bytes:
        fields = [
            {"field": "at", "type": "int64", "name": f"io.debezium.time.{unit}"},
            {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
            {"field": "exact", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
            {
                "field": "price",
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "parameters": {"scale": str(scale)},
            },
            {"field": "zoned", "type": "string", "name": "io.debezium.time.ZonedTimestamp"},
        ]
        schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
        after = {"at": at, "day": 20455, "exact": 1767323045678901, "price": price, "zoned": "2026-01-02T03:04:05Z"}
        payload = {"op": "c", "before": None, "after": after, "ts_ms": 1}
        return json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode()

    values = [
        change(2, "BOI=", "Timestamp", 1767323045678),
        None,
        change(4, "AehI", "MicroTimestamp", 1767323045678000),
    ]
    rows = read(chosen, schema_of(chosen), *values, values[0])
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    for found in (rows[0]["after"], rows[2]["after"], rows[3]["after"]):
        assert (found["at"], found["day"], found["price"]) == (moment, date(2026, 1, 2), Decimal("12.50"))
        assert found["exact"] == datetime(2026, 1, 2, 3, 4, 5, 678_901)
        assert found["zoned"] == moment.replace(microsecond=0)
    assert rows[1]["op"] is None
    assert rows[1]["_tombstone"]
    assert not rows[0]["_tombstone"]


def test_json_that_is_no_change_is_bad_and_not_a_row_of_nulls() -> None:
    chosen = options(valueFormat="debezium", valueSchema=ROW.json())
    with pytest.raises(BadRecord, match=r"shop\[3\] offset 100 .* has no 'op'"):
        read(chosen, schema_of(chosen), b'{"id":1}')


def test_a_bad_record_fails_with_topic_partition_and_offset() -> None:
    chosen = options(valueFormat="json", valueSchema=ROW.json())
    with pytest.raises(BadRecord, match=r"shop\[3\] offset 101 .* id is \"x\", which is no bigint"):
        read(chosen, schema_of(chosen), b'{"id":1}', b'{"id":"x"}')


def test_with_null_the_bytes_and_the_reason_are_kept_beside_nulls() -> None:
    chosen = options(valueFormat="json", valueSchema=ROW.json(), onBadRecord="null")
    rows = read(chosen, schema_of(chosen), b'{"id":1,"name":"a"}', b"junk", None)
    assert [(row["id"], row["_raw"]) for row in rows] == [(1, None), (None, b"junk"), (None, None)]
    assert [row["_error"] is None for row in rows] == [True, False, True]


def test_text_that_is_not_utf8_is_bad_and_its_neighbours_are_read() -> None:
    chosen = options(valueFormat="text", onBadRecord="null")
    rows = read(chosen, schema_of(chosen), b"ok", b"\xff", None)
    assert [row["value"] for row in rows] == ["ok", None, None]
    assert rows[1]["_raw"] == b"\xff"
    assert rows[1]["_error"] == "it is not UTF-8 at byte 0"


def test_a_column_of_the_value_may_begin_with_an_underscore() -> None:
    schema = StructType([StructField("_id", LongType()), StructField("_offset", LongType())])
    assert read(options(valueFormat="json"), schema, b'{"_id":7}') == [{"_id": 7, "_offset": 100}]


@pytest.mark.parametrize(
    ("given", "fields", "told"),
    [
        ({"valueFormat": "json", "onBadRecord": "null"}, [StructField("a", LongType())], "_raw binary"),
        ({"valueFormat": "json"}, [StructField("_offset", LongType())], "at least one column of the value"),
        ({"valueFormat": "text"}, [StructField("a", LongType())], "one column of the value, a string"),
        ({"valueFormat": "json"}, [StructField("a", LongType()), StructField("_offset", BinaryType())], "is bigint"),
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_is_told_before_anything_is_read(
    given: dict[str, str], fields: list[StructField], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        TypedMaker.check(options(**given), StructType(fields))


def test_json_without_a_schema_and_a_schema_that_is_none_are_told() -> None:
    with pytest.raises(UsageError, match="needs to know the columns"):
        output_schema(options(valueFormat="json"))
    with pytest.raises(UsageError, match="no schema of Spark"):
        output_schema(options(valueFormat="json", valueSchema='{"a":1}'))


def test_a_schema_as_text_is_left_to_spark_with_the_surrounding_columns_behind_it() -> None:
    text = output_schema(options(valueFormat="json", valueSchema="id long"))
    assert isinstance(text, str)
    assert text.startswith("id long, _key binary, _topic string, _partition int, _offset bigint, _timestamp timestamp")
    changes = output_schema(options(valueFormat="debezium", valueSchema="id long"))
    assert isinstance(changes, str)
    assert changes.startswith("op string, before struct<id long>, after struct<id long>, ts_ms bigint, _key binary")


def test_batches_have_exactly_the_arrow_types_that_spark_expects() -> None:
    chosen = options(valueFormat="json", valueSchema=ROW.json())
    data = memoryview(build_batch([Record(b"k", b'{"id":1}', 5)]).data)
    header = parse_header(data)
    assert header is not None
    (made,) = TypedMaker(chosen, schema_of(chosen), PLACE)(decode([RawBatch(header, data)]))
    assert made.schema.field("_timestamp").type == pa.timestamp("us", tz="UTC")
    assert made.schema.field("_partition").type == pa.int32()
