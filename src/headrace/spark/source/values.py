"""Values as typed columns, and what becomes of those that do not fit.

``json``      an object per value; its members become the columns of the schema
``debezium``  a change as Debezium writes it, with or without its schema around it; the schema given is that of a row,
              and the columns are ``op``, ``before``, ``after`` and ``ts_ms``
``text``      UTF-8, in one column

A record without a value has nulls in every column and is not a bad one: it is a tombstone, by which a compacted topic
says that a key is gone. Only the column ``_tombstone`` distinguishes it from a value whose columns are all null. A bad
value ends the query with its place and reason (``onBadRecord=fail``), or leaves nulls with the bytes in ``_raw`` and
the reason in ``_error`` (``null``), or goes to a separate topic with place and reason in headers (``deadletter``; at
least once, because a task that is repeated sends it again).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from headrace.client import Producer
from headrace.errors import HeadraceError, UsageError
from headrace.spark.source.columns import (
    ERROR_COLUMN,
    META_PREFIX,
    PLAIN,
    RAW_COLUMN,
    TOMBSTONE_COLUMN,
    check_plain,
    meta_columns,
    metadata,
)
from headrace.spark.source.decode import Decoded
from headrace.spark.source.json_columns import JsonColumns, Parsed
from headrace.spark.source.json_forms import DEBEZIUM, forms_in
from headrace.spark.source.json_forms import PLAIN as PLAIN_FORMS
from headrace.spark.source.options import SourceOptions, connect
from headrace.spark.source.pieces import Pieces
from headrace.spark.source.positions import OffsetRange

__all__ = ["BadRecord", "TypedMaker", "output_schema"]

TEXT_COLUMN = "value"
ENVELOPE = ("op", "before", "after", "ts_ms")
TRUNCATED, PARTITION_TRUNCATED = "t", "tp"
"""A truncation of the table, and one of the rows in its own partition, which stands in every partition."""
TRUNCATION_OF_ROWS = (
    "it has neither key nor value, which says that the table was truncated (headrace capture --unwrap); a read of "
    "plain rows cannot follow that: capture without --unwrap and read valueFormat=debezium"
)
MARKS = frozenset({RAW_COLUMN, ERROR_COLUMN, TOMBSTONE_COLUMN})
RESERVED = frozenset({META_PREFIX + name for name in PLAIN} - {"_value"} | MARKS)

HEADER_PREFIX = "headrace."
SCHEMA_FIRST, PAYLOAD = b'{"schema":', b',"payload":'
"""How records with a schema begin, and what stands between the two, as Kafka Connect writes them."""
SCHEMAS_MAX = 64


class BadRecord(HeadraceError):
    """A value does not fit the schema."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"the value at {topic}[{partition}] offset {offset} does not fit the schema: {reason}. "
            "onBadRecord=null keeps such values in a column, onBadRecord=deadletter sends them to a topic"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason


def output_schema(options: SourceOptions) -> StructType | str:
    """The columns of a typed read when the user gave none to the reader; text is parsed by Spark itself."""
    surrounding = meta_columns(options["includeHeaders"], options["onBadRecord"] == "null")
    given = options["valueSchema"]
    if given is None and options["valueFormat"] != "text":
        raise UsageError(
            f"valueFormat={options['valueFormat']} needs to know the columns", "option('valueSchema', 'id long, …')"
        )
    if given is None:
        return StructType([StructField(TEXT_COLUMN, StringType()), *surrounding])
    if given.startswith("{"):
        row = _from_json(given)
        return StructType([*(_envelope(row) if options["valueFormat"] == "debezium" else row.fields), *surrounding])
    if options["valueFormat"] == "debezium":
        given = f"op string, before struct<{given}>, after struct<{given}>, ts_ms bigint"
    return ", ".join([given, *(f"{each.name} {each.dataType.simpleString()}" for each in surrounding)])


def _from_json(text: str) -> StructType:
    try:
        return StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError("valueSchema is JSON but no schema of Spark", "StructType.json() writes one") from error


def _envelope(row: StructType) -> list[StructField]:
    kinds = {"op": StringType(), "before": row, "after": row, "ts_ms": LongType()}
    return [StructField(name, kinds[name]) for name in ENVELOPE]


class TypedMaker:
    """Makes the Arrow batches of a typed read. One per task: it may hold a producer for bad records."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        wanted: OffsetRange,
        partitions: Callable[[], int] | None = None,
    ) -> None:
        """``partitions``: how many the topic has, for truncations; the broker is asked otherwise."""
        self._options = options
        self._wanted = wanted
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._value_fields = StructType([each for each in schema.fields if each.name not in RESERVED])
        self._parse = _parsers(options, self._value_fields, partitions or self._partition_count)
        self._letters: _DeadLetters | None = None

    @classmethod
    def check(cls, options: SourceOptions, schema: StructType) -> None:
        """Raise what can be known before anything is read."""
        for each in schema.fields:
            if each.name in RESERVED - MARKS:
                check_plain(each, META_PREFIX)
            if each.name == TOMBSTONE_COLUMN and not isinstance(each.dataType, BooleanType):
                raise UsageError(f"column {each.name!r} is boolean, not {each.dataType.simpleString()}")
        if options["onBadRecord"] == "null" and RAW_COLUMN not in schema.fieldNames():
            raise UsageError(f"onBadRecord=null needs a column for the bytes: add '{RAW_COLUMN} binary' to the schema")
        _parsers(options, StructType([each for each in schema.fields if each.name not in RESERVED]), lambda: 1)

    def __call__(self, decoded: Decoded) -> Iterator[pa.RecordBatch]:
        parsed = self._parse(decoded.value_pieces)
        self._refuse_truncations(decoded, parsed.bad)
        if parsed.bad and self._options["onBadRecord"] == "fail":
            row, reason = min(parsed.bad.items())
            raise BadRecord(self._wanted.topic, self._wanted.partition, int(decoded.offsets[row]), reason)
        values = dict(zip(self._value_fields.fieldNames(), parsed.columns, strict=True))
        arrays = [self._column(name, decoded, parsed, values) for name in self._schema.names]
        made = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if parsed.bad and self._options["onBadRecord"] == "deadletter":
            made = self._without_bad(made, decoded, parsed.bad)
        if made.num_rows:
            yield made

    def _refuse_truncations(self, decoded: Decoded, bad: dict[int, str]) -> None:
        """Among plain rows a record with neither key nor value is a truncation of all that came before it.

        A query that folds these rows would keep deleted ones, without an error.
        """
        if self._options["valueFormat"] != "json":
            return
        for row in np.flatnonzero(decoded.value_pieces.is_null() & ~decoded.has_key).tolist():
            bad[row] = TRUNCATION_OF_ROWS

    def close(self) -> None:
        """After the last batch: what was sent to the dead letters has arrived there."""
        if self._letters is not None:
            self._letters.close()
            self._letters = None

    def _column(self, name: str, decoded: Decoded, parsed: Parsed, values: Mapping[str, pa.Array]) -> pa.Array:
        if name in values:
            return values[name]
        if name == TOMBSTONE_COLUMN:
            return pa.array(decoded.value_pieces.is_null())
        if name == RAW_COLUMN:
            return _only_rows(decoded.value_pieces, parsed.bad)
        if name == ERROR_COLUMN:
            return pa.array([parsed.bad.get(row) for row in range(decoded.row_count)], pa.string())
        column = metadata(name.removeprefix(META_PREFIX), decoded, self._wanted)
        wanted = self._schema.field(name).type
        return column if column.type == wanted else column.cast(wanted)

    def _partition_count(self) -> int:
        with connect(self._options, role="task") as client:
            return len(client.topic(self._wanted.topic).partitions)

    def _without_bad(self, made: pa.RecordBatch, decoded: Decoded, bad: Mapping[int, str]) -> pa.RecordBatch:
        if self._letters is None:
            self._letters = _DeadLetters(self._options, self._wanted)
        self._letters.send(decoded, bad)
        good = np.ones(made.num_rows, bool)
        good[list(bad)] = False
        return made.filter(pa.array(good))


def _parsers(options: SourceOptions, fields: StructType, partitions: Callable[[], int]) -> Any:
    """The function from values to columns that a format means."""
    if not fields.fields:
        raise UsageError("a typed read needs at least one column of the value in its schema")
    kind = options["valueFormat"]
    if kind == "text":
        if len(fields.fields) != 1 or not isinstance(fields.fields[0].dataType, StringType):
            raise UsageError("valueFormat=text has one column of the value, a string", "for example 'value string'")
        return _parse_text
    if kind == "debezium":
        return _Debezium(fields, options, partitions).parse
    forms = PLAIN_FORMS.chosen(options["timeUnit"], options["decimalFormat"])
    return JsonColumns(fields, time_zone=options["timeZone"], forms=forms).parse_pieces


def _only_rows(values: Pieces, rows: Mapping[int, str]) -> pa.BinaryArray:
    """Null but in these rows."""
    if not rows:
        return pa.nulls(len(values), pa.binary())
    mask = np.ones(len(values), bool)
    mask[list(rows)] = False
    return values.column().take(pa.array(np.arange(len(values)), mask=mask))


def _parse_text(pieces: Pieces) -> Parsed:
    values = pieces.column()
    try:
        return Parsed([values.cast(pa.string())])
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        bad = {}
        for row, value in enumerate(values.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError as error:
                texts.append(None)
                bad[row] = f"it is not UTF-8 at byte {error.start}"
        return Parsed([pa.array(texts, pa.string())], bad)


class _Debezium:
    """Changes with or without ``{"schema": …, "payload": …}`` around them, even mixed in one topic."""

    def __init__(self, fields: StructType, options: SourceOptions, partitions: Callable[[], int]) -> None:
        self._fields = fields
        self._partitions = partitions
        whole = fields if "op" in fields.fieldNames() else StructType([*fields.fields, StructField("op", StringType())])
        self._names = whole.fieldNames()
        self._wrapped = StructType([*whole.fields, StructField("payload", whole)])
        self._time_zone = options["timeZone"]
        self._forms = DEBEZIUM.chosen(options["timeUnit"], options["decimalFormat"])
        self._json = JsonColumns(self._wrapped, time_zone=self._time_zone, forms=self._forms)
        self._by_schema: dict[bytes, JsonColumns] = {}

    def parse(self, pieces: Pieces) -> Parsed:
        values = pieces.column()
        parsed = self._parse_json(values)
        plain = dict(zip(self._names, parsed.columns, strict=False))
        payload = parsed.columns[-1]
        columns = self._unwrapped(plain, payload)
        absent = pc.and_(values.is_valid(), columns["op"].is_null()).to_numpy(zero_copy_only=False)
        for row in np.nonzero(absent)[0].tolist():
            parsed.bad.setdefault(row, "it has no 'op', so it is not a change as Debezium writes it")
        columns["op"] = self._with_truncations(columns["op"], values, parsed.bad)
        return Parsed([columns[name] for name in self._fields.fieldNames()], parsed.bad)

    def _parse_json(self, values: pa.BinaryArray) -> Parsed:
        """Records with a schema before them are read by what it says; those with one schema together."""
        rest = np.flatnonzero(np.asarray(pc.starts_with(values, SCHEMA_FIRST).fill_null(False)))
        if not len(rest):
            return self._json.parse(values)
        others = np.setdiff1d(np.arange(len(values)), rest)
        parts = [(others, self._json.parse(values.take(pa.array(others))))]
        while len(rest):
            head = values[int(rest[0])].as_py().partition(PAYLOAD)[0]
            same = np.asarray(pc.starts_with(values.take(pa.array(rest)), head + PAYLOAD))
            same[0] = True
            parts.append((rest[same], self._reader(head).parse(values.take(pa.array(rest[same])))))
            rest = rest[~same]
        back = np.argsort(np.concatenate([rows for rows, _ in parts]))
        columns = [
            pa.concat_arrays(each).take(pa.array(back))
            for each in zip(*(parsed.columns for _, parsed in parts), strict=True)
        ]
        return Parsed(columns, {int(rows[row]): why for rows, parsed in parts for row, why in parsed.bad.items()})

    def _reader(self, head: bytes) -> JsonColumns:
        found = self._by_schema.get(head)
        if found is None:
            if len(self._by_schema) >= SCHEMAS_MAX:
                self._by_schema.clear()
            forms = forms_in(head[len(SCHEMA_FIRST) :], self._forms)
            found = self._by_schema[head] = JsonColumns(self._wrapped, time_zone=self._time_zone, forms=forms)
        return found

    def _with_truncations(self, ops: pa.Array, values: pa.BinaryArray, bad: dict[int, str]) -> pa.Array:
        """A truncation of a topic with several partitions must say that it stands in all of them, as capture's does.

        Debezium writes it into one. There is no order between that one and the rows of the other partitions.
        """
        places = np.flatnonzero(np.asarray(pc.equal(ops, TRUNCATED).fill_null(False)))
        if not len(places):
            return ops
        kinds = ops.to_pylist()
        count = self._partitions()
        for row in places.tolist():
            found = json.loads(values[row].as_py())
            if int((found.get("payload") or found).get("partitions", 1)) > 1:
                kinds[row] = PARTITION_TRUNCATED
            elif count > 1:
                bad[row] = (
                    f"it is a truncation, and the topic has {count} partitions: it has no order with the rows of the "
                    "others. Capture such a table with headrace, or into a topic with one partition"
                )
        return pa.array(kinds, pa.string())

    def _unwrapped(self, plain: dict[str, pa.Array], payload: pa.StructArray) -> dict[str, pa.Array]:
        if payload.null_count == len(payload):
            return plain
        inner = {name: pc.struct_field(payload, [index]) for index, name in enumerate(self._names)}
        if payload.null_count == 0:
            return inner
        present = payload.is_valid()
        return {name: pc.if_else(present, inner[name], plain[name]) for name in self._names}


class _DeadLetters:
    """Bad records on their way to a topic, each with its key, value and headers, and where it came from."""

    def __init__(self, options: SourceOptions, wanted: OffsetRange) -> None:
        self._topic = options["deadLetterTopic"]
        self._wanted = wanted
        self._client = connect(options, role="task")
        self._producer = Producer(self._client)

    def send(self, decoded: Decoded, bad: Mapping[int, str]) -> None:
        assert decoded.headers is not None, "dead letters keep the headers of their records"
        for row, reason in sorted(bad.items()):
            kept = [(each["key"], each["value"]) for each in decoded.headers[row].as_py() or []]
            told = {
                "error": reason,
                "topic": self._wanted.topic,
                "partition": self._wanted.partition,
                "offset": int(decoded.offsets[row]),
                "timestamp": int(decoded.timestamps_ms[row]),
            }
            self._producer.send(
                self._topic,
                decoded.values[row].as_py(),
                key=decoded.keys[row].as_py(),
                headers=[*kept, *((HEADER_PREFIX + name, str(value).encode()) for name, value in told.items())],
            )
        self._producer.flush()  # before the rows beside them are given to Spark

    def close(self) -> None:
        self._client.close()
