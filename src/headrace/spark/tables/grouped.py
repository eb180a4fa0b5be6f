"""A table grouped and kept up to date: the operator of ``hr.view`` with groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from headrace.changes import WEIGHT
from headrace.spark.aggregates.retracting import ROWS, Fresh, Part, Tally, Value
from headrace.spark.state.bucket import Ints
from headrace.spark.state.operator import Clock, Operator, Step, Touched, fields_of
from headrace.spark.tables.view_operators import NotExact, change_schema, exact_changes

__all__ = ["Grouped"]


@dataclass(frozen=True, slots=True)
class Grouped(Operator):
    """Rows of the input: the columns of the group, those that values are made of, and a ``_weight``."""

    keys: pa.StructType
    values: tuple[Value, ...]
    name: ClassVar[str] = "view"
    clock: ClassVar[Clock] = "none"

    @property
    def parts(self) -> list[Part]:
        return list({part.key: part for part in [Tally(), *(each.part for each in self.values)]}.values())

    @property
    def state(self) -> pa.StructType:
        return pa.struct([(part.key, part.type) for part in self.parts])

    @property
    def row(self) -> pa.StructType:
        return pa.struct([*self.keys, *((each.name, each.type) for each in self.values)])

    @property
    def output(self) -> pa.Schema:
        return change_schema(self.keys, self.row)

    def step(self, touched: Touched) -> Step:
        count = len(touched.keys)
        weights = np.asarray(touched.rows.column(WEIGHT), np.int64)
        fresh = Fresh(touched.rows, touched.codes, weights, count)
        held = fields_of(touched.held)
        merged = {part.key: part.merge(held[part.key], fresh) for part in self.parts}
        rows = np.asarray(merged[ROWS], np.int64)
        self._check(touched, rows)
        return Step(
            output=exact_changes(touched.keys, self._results(touched, held), self._results(touched, merged)),
            states=pa.StructArray.from_arrays(list(merged.values()), fields=list(self.state)),
            keep=rows > 0,
        )

    def _check(self, touched: Touched, rows: Ints) -> None:
        if len(rows) and rows.min() < 0:
            group = touched.keys[int(rows.argmin())].as_py()
            raise NotExact(
                f"more rows went from the group {group} than had come to it: the changes are not exact. A view reads "
                "changes that hr.changes, hr.view or hr.join_tables gave, or rows and weights made of them"
            )

    def _results(self, touched: Touched, held: dict[str, pa.Array]) -> pa.StructArray:
        """The row of each group; none where it has no rows."""
        there = np.asarray(held[ROWS].fill_null(0), np.int64) > 0
        columns = [*touched.keys.flatten(), *(each.read(held[each.part.key]) for each in self.values)]
        return pa.StructArray.from_arrays(columns, fields=list(self.row), mask=pa.array(~there))
