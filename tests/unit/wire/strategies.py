"""Hypothesis strategies made from the declarations: any message, any version, any values that version can carry."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import MISSING
from functools import cache
from typing import Any

from hypothesis import strategies as st

from headrace.wire.kafka import messages
from headrace.wire.kafka.schema import _SPECS, Field, fields_of, spec_of

for _info in pkgutil.iter_modules(messages.__path__):
    importlib.import_module(f"{messages.__name__}.{_info.name}")

MESSAGES = sorted((cls for cls in _SPECS if cls.__module__.startswith(messages.__name__)), key=lambda cls: cls.__name__)

PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    "string": st.one_of(st.text(max_size=20), st.integers(100, 300).map(lambda size: "ü" * size)),
    "bytes": st.one_of(st.binary(max_size=20), st.integers(100, 300).map(bytes)),
    "records": st.one_of(st.binary(max_size=20), st.integers(100, 300).map(bytes)),
}


def versioned_messages(cls: type) -> st.SearchStrategy[tuple[Any, int]]:
    """(message, version) for one declared class."""
    spec = spec_of(cls)
    versions = st.integers(spec.first_version, spec.last_version)
    return versions.flatmap(lambda version: st.tuples(instances(cls, version), st.just(version)))


@cache
def instances(cls: type, version: int) -> st.SearchStrategy[Any]:
    """A struct whose fields have values where the version carries them and their defaults where it does not."""
    fields = {name: values(wire, version, default) for name, wire, default in fields_of(cls) if wire.present(version)}
    return st.builds(cls, **fields)


def values(wire: Field, version: int, default: Any) -> st.SearchStrategy[Any]:
    made: st.SearchStrategy[Any]
    if wire.kind == "array":
        assert wire.item is not None
        made = st.lists(values(wire.item, version, MISSING), max_size=3)
    elif wire.kind == "struct":
        assert wire.type is not None
        made = instances(wire.type, version)
    else:
        made = PRIMITIVES[wire.kind]
    if wire.nullable(version):
        made = st.none() | made
    if default is not MISSING and (default is not None or wire.nullable(version)):
        made = st.just(default) | made
    return made
