"""The table of what bounds each API is whole, and says of each handler how it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.broker.bounds import BOUNDS, Execution, bounds_document
from headrace.broker.fetch import FetchHandler
from headrace.broker.produce import ProduceHandler
from headrace.wire.kafka.api_key import ApiKey
from headrace.wire.kafka.apis import APIS
from tests.unit.broker.harness import Harness

IF_LARGE: dict[ApiKey, Callable[..., Any]] = {
    ApiKey.PRODUCE: ProduceHandler.produce,
    ApiKey.FETCH: FetchHandler.fetch,
}


def test_every_api_says_what_bounds_it() -> None:
    assert BOUNDS.keys() == APIS.keys()


def test_the_bounds_in_the_documentation_are_what_the_code_prints() -> None:
    document = Path(__file__).resolve().parents[3] / "docs" / "bounds.md"
    assert document.read_text() == bounds_document(), "run `make docs`"


def test_handlers_run_as_the_table_says(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        for key, handler in harness.broker._handlers.items():
            how = BOUNDS[ApiKey(key)].how
            if how is Execution.SLICES_IF_LARGE:
                assert handler.__func__ is IF_LARGE[ApiKey(key)]  # type: ignore[attr-defined]
            else:
                assert runs_in_slices(handler) == (how is Execution.SLICES), APIS[key].name

    with_broker(scenario)


def runs_in_slices(handler: Callable[..., Any]) -> bool:
    """Whether it is a generator, or says that it returns one."""
    return inspect.isgeneratorfunction(handler) or str(handler.__annotations__["return"]).startswith("Steps[")
