"""What is counted about Kafka requests, per API: how many, how long, how large, and the errors in their answers.

Errors stand in an answer wherever its declaration has an ``error_code``: for the whole, per topic, per partition. The
function that looks for them is compiled once per kind of answer, from the declaration, because it runs for every
answer: about one partition it takes 0.1 µs compiled, and four times that as nested functions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from headrace.measures import REQUEST_SECONDS, Histogram
from headrace.wire.kafka.apis import APIS
from headrace.wire.kafka.codec import EncodedElements
from headrace.wire.kafka.schema import fields_of

__all__ = ["ApiMeasures", "error_counter"]

CountErrors = Callable[[Any, dict[int, int]], None]
"""Adds the error codes of an answer to a dictionary of counts."""


class ApiMeasures:
    """The counts of one API since the start."""

    __slots__ = ("_count_errors", "errors", "request_bytes", "response_bytes", "seconds")

    def __init__(self, api_key: int) -> None:
        self.seconds = Histogram(REQUEST_SECONDS)
        """From the beginning of execution until the answer leaves; its count is the number of requests."""
        self.request_bytes = 0
        self.response_bytes = 0
        self.errors: dict[int, int] = {}
        """By error code; one answer may hold many."""
        self._count_errors = error_counter(APIS[api_key].response)

    def answered(self, response: Any, chunks: list[Any], seconds: float) -> None:
        """An answer leaves. Runs for every request, so the histogram's ``observe`` is written out here."""
        histogram = self.seconds
        histogram.counts[bisect_left(REQUEST_SECONDS, seconds)] += 1
        histogram.sum += seconds
        for chunk in chunks:
            self.response_bytes += len(chunk)
        self._count_errors(response, self.errors)


def error_counter(response: type) -> CountErrors:
    """The function for one kind of answer."""
    body = _loops(response, "response", 1) or ["    pass"]
    lines = ["def count_errors(response, errors):", *body]
    namespace: dict[str, Any] = {"EncodedElements": EncodedElements, "add": _add}
    exec("\n".join(lines), namespace)
    count_errors: CountErrors = namespace["count_errors"]
    return count_errors


def _loops(cls: type, name: str, depth: int) -> list[str]:
    """Source that looks at ``name``, a ``cls``, and at all lists of structs in it that can hold an error."""
    indent = "    " * depth
    lines = []
    for field_name, field, _ in fields_of(cls):
        if field_name == "error_code":
            lines.append(f"{indent}if {name}.error_code:")
            lines.append(f"{indent}    errors[{name}.error_code] = errors.get({name}.error_code, 0) + 1")
        elif field.item is not None and field.item.type is not None:
            inner = _loops(field.item.type, f"part{depth}", depth + 1)
            if inner:
                lines.append(f"{indent}parts{depth} = {name}.{field_name} or ()")
                lines.append(f"{indent}if type(parts{depth}) is EncodedElements: add(errors, parts{depth}.errors)")
                lines.append(f"{indent}else:")
                lines.append(f"{indent}  for part{depth} in parts{depth}:")
                lines += inner
    return lines


def _add(errors: dict[int, int], others: dict[int, int]) -> None:
    for code, count in others.items():
        errors[code] = errors.get(code, 0) + count
