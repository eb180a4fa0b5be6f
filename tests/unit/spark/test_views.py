"""Views without Spark: after every batch, what the changes add up to is the query on the tables as they then are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.spark.aggregates.retracting import Average, Count, Distinct, Maximum, Minimum, Sum, Top
from headrace.spark.tables.grouped import Grouped
from headrace.spark.tables.view_operators import Consolidated, JoinSide, NotExact, Table, TableJoin, exact_changes
from headrace.vocabulary import UNAVAILABLE
from tests.unit.spark.stream_world import Query, cut

Row = dict[str, Any]
Change = tuple[str, int, Row | None]
"""(table, key, the row from now on). A key below zero: all rows of the lane that it names are gone."""
LANES = 2

INT = pa.int64()
LEFT_KEY = pa.struct([("id", INT)])
LEFT_ROW = pa.struct([("id", INT), ("ref", INT), ("note", pa.string())])
RIGHT_KEY = pa.struct([("number", INT)])
RIGHT_ROW = pa.struct([("number", INT), ("ref", INT), ("price", INT)])


def table_rows(key: pa.StructType, row: pa.StructType) -> pa.Schema:
    return pa.schema([*key, ("_truncates", pa.bool_()), ("_lane", INT), ("_position", INT), ("_row", row)])


class Folded:
    """Changes added up; each must be true to what was there."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], Row] = {}

    def take(self, changes: pa.Table) -> None:
        told = Counter(tuple(change["key"].values()) for change in changes.to_pylist())
        assert all(count == 1 for count in told.values()), "a key twice in one batch"
        for change in changes.to_pylist():
            key, before, after = tuple(change["key"].values()), change["before"], change["after"]
            assert self.rows.get(key) == before
            assert before != after
            assert change["op"] == ("insert" if before is None else "delete" if after is None else "update")
            if after is None:
                del self.rows[key]
            else:
                self.rows[key] = after

    def bag(self) -> Counter[tuple[Any, ...]]:
        return bag(self.rows.values())


def bag(rows: Iterable[Row]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple((name, plain(row[name])) for name in sorted(row)) for row in rows)


def plain(value: Any) -> Any:
    return tuple(tuple(each.values()) for each in value) if isinstance(value, list) else value


class Kept:
    """A table made exact."""

    def __init__(self, name: str, key: pa.StructType, row: pa.StructType) -> None:
        self.name, self.key = name, key
        self.query = Query(Table(key, row), table_rows(key, row), key)

    def push(self, batch: list[Change]) -> pa.Table:
        (key,) = [each.name for each in self.key]
        rows = [
            {
                key: number if number > 0 else None,
                "_truncates": number <= 0,
                "_lane": number % LANES,
                "_position": position,
                "_row": row,
            }
            for position, (table, number, row) in enumerate(batch)
            if table == self.name
        ]
        return self.query.push(pa.Table.from_pylist(rows[::-1], self.query.rows))  # the order within a batch is known


def deltas(changes: pa.Table) -> list[tuple[Row, Row, int]]:
    """(key, row, weight)"""
    return [
        (change["key"], change[side], weight)
        for change in changes.to_pylist()
        for side, weight in (("before", -1), ("after", 1))
        if change[side] is not None
    ]


refs = st.one_of(st.none(), st.integers(1, 3))
lefts = st.one_of(st.none(), st.fixed_dictionaries({"ref": refs, "note": st.sampled_from("xyz")}))
rights = st.one_of(st.none(), st.fixed_dictionaries({"ref": refs, "price": st.one_of(st.none(), st.integers(0, 9))}))


@st.composite
def histories(draw: st.DrawFn) -> list[list[Change]]:
    found: list[Change] = []
    for _ in range(draw(st.integers(0, 15))):
        number = draw(st.integers(1, 4))
        if draw(st.integers(0, 9)) == 0:
            found.append((draw(st.sampled_from(["left", "right"])), -draw(st.integers(0, 1)), None))
        elif draw(st.booleans()):
            left = draw(lefts)
            found.append(("left", number, left and {"id": number, **left}))
        else:
            right = draw(rights)
            found.append(("right", number, right and {"number": number, **right}))
    return draw(cut(found))


class Tables:
    """The tables as they are."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, Row]] = {"left": {}, "right": {}}

    def take(self, batch: list[Change]) -> None:
        for table, number, row in batch:
            self.rows[table].pop(number, None)
            if number <= 0:
                self.rows[table] = {key: row for key, row in self.rows[table].items() if key % LANES != number % LANES}
            if row is not None:
                self.rows[table][number] = row

    def of(self, table: str) -> list[Row]:
        return list(self.rows[table].values())


def run(
    batches: list[list[Change]], restarts: set[int], stages: list[Any], step: Callable[[Tables, list[Change]], None]
) -> None:
    tables = Tables()
    for number, batch in enumerate(batches):
        if number in restarts:
            for each in stages:
                each.restart()
        tables.take(batch)
        step(tables, batch)


# ---- one table -----------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(histories(), st.sets(st.integers(0, 30)))
def test_changes_made_exact_add_up_to_the_table_after_every_batch(
    batches: list[list[Change]], restarts: set[int]
) -> None:
    kept, folded = Kept("left", LEFT_KEY, LEFT_ROW), Folded()

    def step(tables: Tables, batch: list[Change]) -> None:
        folded.take(kept.push(batch))
        assert folded.bag() == bag(tables.of("left"))
        assert kept.query.keys_held == len(tables.of("left"))

    run(batches, restarts, [kept.query], step)


def test_rows_with_not_a_number_and_lists_are_compared_by_what_they_are() -> None:
    row = pa.struct([("ratio", pa.float64()), ("tags", pa.list_(INT))])
    keys = pa.array([{"id": 1}, {"id": 2}, {"id": 3}], LEFT_KEY)
    before = [{"ratio": float("nan"), "tags": [1]}, {"ratio": 1.0, "tags": [1, 2]}, {"ratio": None, "tags": None}]
    after = [{"ratio": float("nan"), "tags": [1]}, {"ratio": 1.0, "tags": [1, 3]}, {"ratio": None, "tags": None}]
    told = exact_changes(keys, pa.array(before, row), pa.array(after, row))
    assert [each["id"] for each in told.column("key").to_pylist()] == [2]


def left(number: int, note: str) -> Change:
    return "left", number, {"id": number, "ref": 1, "note": note}


def test_a_value_that_was_not_sent_is_that_of_the_row_before() -> None:
    kept = Kept("left", LEFT_KEY, LEFT_ROW)
    kept.push([left(1, "large")])
    moved = ("left", 1, {"id": 1, "ref": 2, "note": UNAVAILABLE})
    (change,) = kept.push([moved]).to_pylist()
    assert (change["before"]["note"], change["after"]) == ("large", {"id": 1, "ref": 2, "note": "large"})
    (change,) = kept.push([left(2, "new"), ("left", 2, {"id": 2, "ref": 3, "note": UNAVAILABLE})]).to_pylist()
    assert (change["op"], change["after"]) == ("insert", {"id": 2, "ref": 3, "note": "new"})


def test_a_row_that_lacks_a_value_is_not_shown_until_it_is_known() -> None:
    """During a snapshot an update can come before the row itself."""
    kept = Kept("left", LEFT_KEY, LEFT_ROW)
    assert kept.push([left(1, UNAVAILABLE)]).num_rows == 0
    assert kept.push([left(1, UNAVAILABLE)]).num_rows == 0
    (change,) = kept.push([left(1, "large")]).to_pylist()
    assert (change["op"], change["before"], change["after"]["note"]) == ("insert", None, "large")


def test_a_value_is_not_taken_from_a_row_that_was_truncated_or_deleted() -> None:
    for gone in (("left", -1, None), ("left", 1, None)):
        kept = Kept("left", LEFT_KEY, LEFT_ROW)
        kept.push([left(1, "large")])
        (change,) = kept.push([gone, left(1, UNAVAILABLE)]).to_pylist()
        assert change["op"] == "delete"


def test_of_two_truncations_in_one_batch_the_last_one_counts() -> None:
    kept = Kept("left", LEFT_KEY, LEFT_ROW)
    gone = ("left", -1, None)
    assert kept.push([left(1, "x"), gone, left(1, "y"), gone]).num_rows == 0
    (change,) = kept.push([gone, left(1, "z")]).to_pylist()
    assert (change["op"], change["after"]["note"]) == ("insert", "z")


def test_a_row_that_came_again_from_another_partition_goes_with_that_one() -> None:
    """The topic was given more partitions, so the key moved. The row stays the same."""
    query = Query(Table(LEFT_KEY, LEFT_ROW), table_rows(LEFT_KEY, LEFT_ROW), LEFT_KEY)

    def push(lane: int, position: int, *, truncates: bool = False) -> list[Row]:
        row = None if truncates else {"id": 1, "ref": 1, "note": "x"}
        given = {"id": None if truncates else 1, "_truncates": truncates, "_lane": lane, "_position": position}
        told: list[Row] = query.push(pa.Table.from_pylist([{**given, "_row": row}], query.rows)).to_pylist()
        return told

    assert [each["op"] for each in push(0, 7)] == ["insert"]
    assert push(1, 0) == []
    assert push(0, 8, truncates=True) == []
    assert [each["op"] for each in push(1, 1, truncates=True)] == ["delete"]


# ---- two tables ----------------------------------------------------------------------------------------------------


COLUMNS = {"foreign key": ("ref", "number"), "many to many": ("ref", "ref"), "one to one": ("id", "number")}


class Joined:
    """``left`` and ``right`` on two columns, on the kernel as ``hr.join_tables`` puts them there."""

    def __init__(self, kind: str, how: Any) -> None:
        self.how, self.columns = how, COLUMNS[kind]
        self.by_left_key = kind != "many to many" and how != "full"
        self.name = self.columns[0]
        on = pa.struct([(self.name, INT)])
        shared = ((self.name, self.name),) if kind == "one to one" else ()
        taken = [each.name for each in LEFT_ROW if each.name != self.name]
        left = JoinSide(
            "left", LEFT_KEY, LEFT_ROW, () if shared else (("id", "id"),), tuple((name, name) for name in taken)
        )
        taken = [each.name for each in RIGHT_ROW if each.name != self.columns[1] and each.name != "ref"]
        key = () if shared or self.by_left_key else (("number", "ref" if kind == "foreign key" else "number"),)
        right = JoinSide("right", RIGHT_KEY, RIGHT_ROW, key, tuple((name, name) for name in taken))
        operator = TableJoin(on, left, right, how, shared, ((self.name, self.name),))
        rows = pa.schema([*on, ("_left", left.entry), ("_right", right.entry), ("_weight", INT)])
        self.left, self.right = Kept("left", LEFT_KEY, LEFT_ROW), Kept("right", RIGHT_KEY, RIGHT_ROW)
        self.join = Query(operator, rows, on)
        self.stages = [self.left.query, self.right.query, self.join]
        flat = pa.schema([*operator.key_type, ("_before", operator.row_type), ("_after", operator.row_type)])
        self.last = Query(Consolidated(operator.key_type, operator.row_type), flat, operator.key_type)
        self.stages.append(self.last)

    def push(self, batch: list[Change]) -> pa.Table:
        rows = []
        for side, kept, column in (("left", self.left, self.columns[0]), ("right", self.right, self.columns[1])):
            for key, row, weight in deltas(kept.push(batch)):
                rows.append({self.name: row[column], f"_{side}": {"key": key, "row": row}, "_weight": weight})
        found = self.join.push(pa.Table.from_pylist(rows, self.join.rows))
        flat = [{**each["key"], "_before": each["before"], "_after": each["after"]} for each in found.to_pylist()]
        return self.last.push(pa.Table.from_pylist(flat[::-1], self.last.rows))

    def by_hand(self, tables: Tables) -> Counter[tuple[Any, ...]]:
        mine, theirs = self.columns

        def row(left: Row | None, right: Row | None) -> Row:
            found: Row = dict.fromkeys(each.name for each in self.join.operator.output.field("after").type)
            joined = {**{name: (right or {}).get(name) for name in ("number", "price")}, **(left or {})}
            joined[self.name] = left[mine] if left else (right or {})[theirs]
            return {name: joined.get(name) for name in found}

        pairs = [
            (left, right)
            for left in tables.of("left")
            for right in tables.of("right")
            if left[mine] is not None and left[mine] == right[theirs]
        ]
        found = [row(left, right) for left, right in pairs]
        if self.how in ("left", "full"):
            met = [left["id"] for left, _ in pairs]
            found += [row(left, None) for left in tables.of("left") if left["id"] not in met]
        if self.how == "full":
            met = [right["number"] for _, right in pairs]
            found += [row(None, right) for right in tables.of("right") if right["number"] not in met]
        return bag(found)


@pytest.mark.parametrize("how", ["inner", "left", "full"])
@pytest.mark.parametrize("kind", list(COLUMNS))
@settings(max_examples=15)
@given(histories(), st.sets(st.integers(0, 20)))
def test_the_changes_of_a_join_add_up_to_the_join_of_both_tables_after_every_batch(
    kind: str, how: str, batches: list[list[Change]], restarts: set[int]
) -> None:
    joined, folded = Joined(kind, how), Folded()

    def step(tables: Tables, batch: list[Change]) -> None:
        folded.take(joined.push(batch))
        assert folded.bag() == joined.by_hand(tables)

    run(batches, restarts, joined.stages, step)


def test_a_pair_whose_rows_move_together_has_changed_once() -> None:
    joined = Joined("many to many", "inner")
    right = {"number": 2, "ref": 1, "price": 20}
    joined.push([("right", 2, right), ("left", 5, {"id": 5, "ref": 1, "note": "x"})])
    moved = [("right", 2, {**right, "ref": 3}), ("left", 5, {"id": 5, "ref": 3, "note": "x"})]
    (change,) = joined.push(moved).to_pylist()
    assert (change["op"], change["key"]) == ("update", {"id": 5, "number": 2})
    assert (change["before"]["ref"], change["after"]["ref"]) == (1, 3)


@pytest.mark.parametrize("side", ["_before", "_after"])
def test_two_rows_of_one_key_in_a_batch_are_refused_and_the_key_is_named(side: str) -> None:
    """As ``hr.changes(rows, key=…)`` finds them, with weights and a key that is none."""
    rows = pa.schema([*LEFT_KEY, ("_before", LEFT_ROW), ("_after", LEFT_ROW)])
    query = Query(Consolidated(LEFT_KEY, LEFT_ROW), rows, LEFT_KEY)
    given = [{"id": number, side: {"id": number, "ref": None, "note": note}} for number, note in ((1, "x"), (2, "y"))]
    assert query.push(pa.Table.from_pylist(given, rows)).num_rows == 2
    with pytest.raises(NotExact, match=r"two rows of a table have the key \{'id': 2\}"):
        query.push(pa.Table.from_pylist([*given, given[1]], rows))


def test_a_row_that_moves_to_another_partner_is_one_update() -> None:
    joined = Joined("foreign key", "inner")
    joined.push(
        [
            ("right", 1, {"number": 1, "ref": None, "price": 10}),
            ("right", 2, {"number": 2, "ref": None, "price": 20}),
            ("left", 5, {"id": 5, "ref": 1, "note": "x"}),
        ]
    )
    (change,) = joined.push([("left", 5, {"id": 5, "ref": 2, "note": "x"})]).to_pylist()
    assert (change["op"], change["key"]) == ("update", {"id": 5})
    assert (change["before"]["price"], change["after"]["price"]) == (10, 20)


# ---- groups --------------------------------------------------------------------------------------------------------

GROUP = pa.struct([("ref", INT)])
MONEY = pa.decimal128(12, 2)
GROUP_ROWS = pa.schema([("ref", INT), ("id", INT), ("price", INT), ("cost", MONEY), ("_weight", INT)])


def grouped() -> Grouped:
    top = Top("top", 2, (("price", INT), ("id", INT)), ("descending", "ascending"), ("id", "price"))
    values = (
        Count("rows"),
        Count("priced", "price"),
        Sum("total", "price", INT),
        Sum("costs", "cost", pa.decimal128(38, 2)),
        Average("mean", "price", INT),
        Minimum("lowest", "price", INT),
        Maximum("highest", "price", INT),
        Distinct("prices", "price", INT),
        top,
    )
    return Grouped(GROUP, values)


def cost_of(row: Row) -> Decimal | None:
    return None if row["price"] is None else Decimal(row["price"]) / 10


def group_by_hand(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    found = []
    for ref in {row["ref"] for row in rows}:
        members = [row for row in rows if row["ref"] == ref]
        prices = sorted(row["price"] for row in members if row["price"] is not None)
        best = sorted(members, key=lambda row: (row["price"] is None, -(row["price"] or 0), row["number"]))[:2]
        found.append(
            {
                "ref": ref,
                "rows": len(members),
                "priced": len(prices),
                "total": sum(prices) if prices else None,
                "costs": Decimal(sum(prices)) / 10 if prices else None,
                "mean": sum(prices) / len(prices) if prices else None,
                "lowest": min(prices, default=None),
                "highest": max(prices, default=None),
                "prices": len(set(prices)),
                "top": [{"id": row["number"], "price": row["price"]} for row in best],
            }
        )
    return bag(found)


@settings(max_examples=30)
@given(histories(), st.sets(st.integers(0, 30)))
def test_groups_are_those_of_the_table_after_every_batch_and_a_row_that_changes_its_group_leaves_the_old_one(
    batches: list[list[Change]], restarts: set[int]
) -> None:
    kept, folded = Kept("right", RIGHT_KEY, RIGHT_ROW), Folded()
    query = Query(grouped(), GROUP_ROWS, GROUP)

    def step(tables: Tables, batch: list[Change]) -> None:
        rows = [
            {"ref": row["ref"], "id": row["number"], "price": row["price"], "cost": cost_of(row), "_weight": weight}
            for _, row, weight in deltas(kept.push(batch))
        ]
        folded.take(query.push(pa.Table.from_pylist(rows, GROUP_ROWS)))
        assert folded.bag() == group_by_hand(tables.of("right"))
        assert query.keys_held == len(folded.rows)

    run(batches, restarts, [kept.query, query], step)


def test_values_that_several_ask_for_are_held_once() -> None:
    assert [each.name for each in grouped().state] == [
        "rows",
        "count price",
        "sum price",
        "sum cost",
        "values price ascending",
        "values price descending, id ascending",
    ]


def one(ref: int, price: int | None, weight: int = 1) -> pa.Table:
    row = {"ref": ref, "id": 1, "price": price, "cost": None, "_weight": weight}
    return pa.Table.from_pylist([row], GROUP_ROWS)


def test_a_row_that_went_without_having_come_is_told_and_not_counted() -> None:
    query = Query(grouped(), GROUP_ROWS, GROUP)
    query.push(one(1, 5))
    with pytest.raises(NotExact, match=r"from the group \{'ref': 2\} than had come"):
        query.push(one(2, 5, -1))


def test_a_sum_beyond_the_whole_numbers_is_an_error_and_does_not_wrap_around() -> None:
    query = Query(grouped(), GROUP_ROWS, GROUP)
    query.push(one(1, 2**62))
    with pytest.raises(HeadraceError, match="'total' of 'price' is too large: cast it to a decimal"):
        query.push(one(1, 2**62))


FLOATS = pa.schema([("ref", INT), ("price", pa.float64()), ("_weight", INT)])


def test_what_is_not_finite_leaves_a_sum_when_its_row_goes_and_is_the_largest_where_rows_are_ordered() -> None:
    values = (
        Sum("total", "price", pa.float64()),
        Average("mean", "price", pa.float64()),
        Top("top", 2, (("price", pa.float64()),), ("descending",), ("price",)),
    )
    query = Query(Grouped(GROUP, values), FLOATS, GROUP)

    def total(*rows: tuple[float | None, int]) -> tuple[str, str, str]:
        given = [{"ref": 1, "price": price, "_weight": weight} for price, weight in rows]
        row = query.push(pa.Table.from_pylist(given, FLOATS)).to_pylist()[-1]["after"]
        return str(row["total"]), str(row["mean"]), str([each["price"] for each in row["top"]])

    nan, infinity = float("nan"), float("inf")
    assert total((1.0, 1), (nan, 1), (2.0, 1)) == ("nan", "nan", "[nan, 2.0]")
    assert total((nan, -1), (infinity, 1)) == ("inf", "inf", "[inf, 2.0]")
    assert total((-infinity, 1)) == ("nan", "nan", "[inf, 2.0]")
    assert total((infinity, -1), (None, 1)) == ("-inf", "-inf", "[2.0, 1.0]")
    assert total((-infinity, -1)) == ("3.0", "1.5", "[2.0, 1.0]")
    assert total((1.0, -1), (2.0, -1)) == ("None", "None", "[None]")
