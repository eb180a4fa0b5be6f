"""Patterns over events of users without Spark: DuckDB computes what Spark would compute of each row."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot

from headrace.spark.patterns.automaton import compile_pattern
from headrace.spark.patterns.clauses import parse_clauses
from headrace.spark.patterns.expressions import Columns
from headrace.spark.patterns.fluent import Pattern
from headrace.spark.patterns.match import fluent_plan
from headrace.spark.patterns.operator import GIVEN_UP, MASK, MatchPatterns
from headrace.spark.patterns.overflow import Overflow
from headrace.spark.patterns.recognize import PLACE, sql_plan
from tests.unit.spark.state_world import KEYS, Event, Stream, table

__all__ = ["Matching", "place_of"]


def place_of(event: Event) -> int:
    return zlib.crc32(repr(event).encode())


_CONNECTION = duckdb.connect()
_CONNECTION.execute("SET TimeZone = 'UTC'")


def duck(sql: str) -> str:
    return sqlglot.transpile(sql, read="spark", write="duckdb", identify=True)[0]


class Matching:
    """A pattern, by its text or made by functions, over the columns user, at and amount."""

    def __init__(
        self,
        wanted: str | Pattern,
        *,
        timeouts: bool = False,
        measures: Mapping[str, str] | None = None,
        partials_max: int = 10**6,
        overflow: Overflow = "fail",
        late: bool = False,
    ) -> None:
        self.overflow = overflow
        columns = Columns(coming=frozenset({"user", "at", "amount"}))
        if isinstance(wanted, str):
            clauses = parse_clauses(wanted)
            plan, self.measures = sql_plan(
                clauses, compile_pattern(clauses.pattern), columns, partials_max, "match", overflow
            )
            given: Any = "rows" if clauses.rows == "all" else "atoms"
            empty, unmatched = clauses.empty, clauses.unmatched
        else:
            plan, self.measures = fluent_plan(
                "match", wanted, columns, (partials_max, overflow), timeouts, measures or {}
            )
            given, empty, unmatched = "atoms" if measures else "events", True, False
        self.columns = columns
        self.operator = MatchPatterns(
            rows=self.prepared([]).schema,
            keys=KEYS,
            event_time="at",
            order=((PLACE, "ascending"),),
            place=PLACE,
            patterns=(plan,),
            given=given,
            shown=("at", "amount"),
            empty=empty,
            unmatched=unmatched,
            numbered=any(each.kind == "match_number" for each in plan.atoms),
            anchored=any(each.at_start for each in plan.automaton.start),
            late=("user", "at", "amount") if late else None,
        )

    def prepared(self, events: Sequence[Event]) -> pa.Table:
        rows = table(events)
        bits = [f"CASE WHEN {duck(sql)} THEN {1 << bit} ELSE 0 END" for sql, bit in self.columns.conditions.items()]
        asked = [f"{duck(sql)} AS {name}" for sql, name in self.columns.values.items()]
        asked += [f"CAST({' + '.join(bits)} AS BIGINT) AS {MASK}"] if bits else []
        found = _CONNECTION.from_arrow(rows).select(", ".join(["*", *asked])).to_arrow_table()
        if self.overflow == "drop_newest":
            nobody = pa.array([[]] * found.num_rows, pa.list_(pa.int32()))
            found = found.append_column(GIVEN_UP, nobody)
        found = found.append_column(PLACE, pa.array([place_of(each) for each in events], pa.int64()))
        fields = [
            pa.field(each.name, rows.schema.field(each.name).type if each.name in rows.schema.names else each.type)
            for each in found.schema
        ]
        return found.cast(pa.schema(fields))

    def streamed(self, batches: Sequence[Sequence[Event]], restarts: set[int]) -> list[dict[str, Any]]:
        stream = Stream(self.operator, self.operator.rows, KEYS)
        for _ in stream.take(map(self.prepared, batches), restarts):
            pass
        return self.read(stream.finish())

    def bounded(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        return self.streamed([events], set())

    def read(self, found: pa.Table) -> list[dict[str, Any]]:
        """The rows of the result with the measures, which are atoms alone here, by their names."""
        rows = found.to_pylist()
        for row in rows:
            for measure, sql in self.measures.items():
                row[measure] = row[sql.strip("`")]
        return rows
