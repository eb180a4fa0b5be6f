"""What an operator with state is, in words: kept with the checkpoint, published with the progress, shown to people.

    {"kind": "windows", "version": 1, "buckets": 8, "keys": [["user", "string"]], "state": "struct<…>",
     "parameters": {"event_time": "at", "emit": "final", …}, "free": ["emit", "keep", "late"]}

It is made of the operator's own fields, so an operator says nothing twice. Types are left out of the parameters: the
types of keys and state say what a checkpoint depends on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

__all__ = ["Description", "parameters_of"]

MICROSECONDS = "_us"
"""How the names of durations end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    kind: str
    version: int
    buckets: int
    keys: tuple[tuple[str, str], ...]
    """Names and types."""
    state: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    """Parameters that may change under a checkpoint: what is held keeps its meaning."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    def meaning(self) -> str:
        """A digest of what state means besides its types. Parameters that may change are not in it."""
        fixed = {name: text for name, text in sorted(self.parameters.items()) if name not in self.free}
        return hashlib.blake2b(json.dumps([self.kind, fixed]).encode(), digest_size=8).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> Description:
        found = json.loads(text)
        keys = tuple((str(name), str(kind)) for name, kind in found.pop("keys"))
        return cls(keys=keys, free=tuple(found.pop("free")), **found)


def parameters_of(value: Any) -> dict[str, str]:
    """The fields of a dataclass as text, without those that are types or not given."""
    return {name.removesuffix(MICROSECONDS): text for name, text in _fields(value)}


def _fields(value: Any) -> Iterator[tuple[str, str]]:
    for each in dataclasses.fields(value):
        text = _text(getattr(value, each.name), is_duration=each.name.endswith(MICROSECONDS))
        if text is not None:
            yield each.name, text


def _text(value: Any, *, is_duration: bool = False) -> str | None:
    if value is None or isinstance(value, pa.Schema | pa.DataType | pa.Field):
        return None
    if is_duration and isinstance(value, int):
        return f"{value / 1_000_000:g} s"
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}({', '.join(text for _, text in _fields(value))})"
    if callable(value) or f" at {hex(id(value))}" in repr(value):  # its address is another one in every run
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(text for text in map(_text, value) if text is not None)}]"
    if isinstance(value, dict | frozenset):
        return _repr(value)
    return str(value)


def _repr(value: Any) -> str:
    """As ``repr``, but a set has one order: Python's own is another one in every process."""
    if isinstance(value, frozenset):
        return f"frozenset({{{', '.join(sorted(map(_repr, value)))}}})" if value else "frozenset()"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_repr(key)}: {_repr(each)}' for key, each in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_repr, value))}{',' if len(value) == 1 else ''})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (f"{each.name}={_repr(getattr(value, each.name))}" for each in dataclasses.fields(value) if each.repr)
        return f"{type(value).__qualname__}({', '.join(fields)})"
    return repr(value)
