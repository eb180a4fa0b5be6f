"""What an operator says of itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

import headrace.spark as hr
from headrace.spark.state.operator import Step, Touched

KEYS = pa.struct([("user", pa.string())])
OTHER_KEYS = pa.struct([("user", pa.int64())])


@dataclass(frozen=True)
class Sums(hr.Operator):
    """It is only asked what it is."""

    column: str = "amount"
    keep_us: int = 5_000_000
    helper: Any = None
    name: ClassVar[str] = "sums"
    state: ClassVar[pa.StructType] = pa.struct([("total", pa.int64())])
    output: ClassVar[pa.Schema] = pa.schema([("total", pa.int64())])
    free: ClassVar[tuple[str, ...]] = ("keep",)

    def step(self, touched: Touched) -> Step:
        raise AssertionError(touched)


def meaning(operator: hr.Operator, **also: str) -> str:
    return operator.describe(KEYS, 8, also).meaning()


def test_state_has_another_meaning_when_a_parameter_that_is_not_free_is_another() -> None:
    assert meaning(Sums()) != meaning(Sums(column="tip"))
    assert meaning(Sums(), filter="amount > 0") != meaning(Sums())
    assert meaning(Sums()) == meaning(Sums(keep_us=1))


def test_the_number_of_buckets_and_the_types_are_compared_elsewhere() -> None:
    assert Sums().describe(KEYS, 8).meaning() == Sums().describe(OTHER_KEYS, 16).meaning()


def test_an_object_is_described_without_its_address_which_is_another_one_in_every_process() -> None:
    class Helper:
        pass

    described = Sums(helper=Helper()).describe(KEYS, 8)
    assert described.parameters["helper"].endswith("Helper")
    assert described.meaning() == replace(described, parameters={**described.parameters}).meaning()
    assert meaning(Sums(helper=Helper())) == meaning(Sums(helper=Helper()))
