"""How a Kafka message is declared: one class per message, the union of all its versions.

A declaration reads like the dataclass it is, and each field says in which versions it is on the wire:

    @message(api_key=12, versions=(0, 4), flexible=4)
    class HeartbeatRequest:
        group_id: str = string()
        generation_id: int = i32()
        member_id: str = string()
        group_instance_id: str | None = string(since=3, null=3, default=None)

Handlers work with that one class. A field that the peer's version does not have keeps its default when read and is left
out when written, so a handler asks for the version only where Kafka's behaviour depends on it. ``codec.py`` compiles a
reader and a writer per (class, version) from the declarations; ``tests/unit/wire/test_declarations.py`` compares every
declaration with Apache Kafka's own schemas.

A *flexible* version encodes lengths as varints and ends each struct with tagged fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

__all__ = [
    "NEVER",
    "NO_ID",
    "Field",
    "MessageSpec",
    "array",
    "bits",
    "boolean",
    "data",
    "f64",
    "fields_of",
    "i8",
    "i16",
    "i32",
    "i64",
    "message",
    "records",
    "spec_of",
    "string",
    "struct",
    "structs",
    "u16",
    "u32",
    "uuid",
]

T = TypeVar("T")

NEVER = 1 << 15
"""A version that no message reaches: the bound of an open range, and the start of a range that never begins."""

NO_ID = bytes(16)
"""The null uuid: a topic id that is not given."""


@dataclass(frozen=True, slots=True)
class Field:
    """What the wire has to know about one field; ``kind`` is a primitive's name, 'struct', or 'array'."""

    kind: str
    since: int = 0
    until: int = NEVER
    null: int = NEVER  # first version in which it may be null
    tag: int | None = None
    tag_since: int = NEVER
    item: Field | None = None  # of an array
    type: type | None = None  # of a struct

    def present(self, version: int) -> bool:
        return self.since <= version <= self.until

    def tagged(self, version: int) -> bool:
        return self.tag is not None and version >= self.tag_since

    def nullable(self, version: int) -> bool:
        return version >= self.null


@dataclass(frozen=True, slots=True)
class MessageSpec:
    """A top-level message: its API key, the versions declared, and the first flexible one."""

    api_key: int
    first_version: int
    last_version: int
    flexible: int


def _declare(spec: Field, default: Any) -> Any:
    if isinstance(default, list):
        return field(default_factory=list, metadata={"wire": spec})
    return field(default=default, metadata={"wire": spec})


def _primitive(kind: str, zero: Any) -> Callable[..., Any]:
    def declare(
        *,
        since: int = 0,
        until: int = NEVER,
        null: int = NEVER,
        tag: int | None = None,
        tag_since: int | None = None,
        default: Any = zero,
    ) -> Any:
        spec = Field(kind, since, until, null, tag, since if tag_since is None else tag_since)
        return _declare(spec, default)

    declare.__name__ = kind
    return declare


boolean = _primitive("bool", False)
i8 = _primitive("int8", 0)
i16 = _primitive("int16", 0)
u16 = _primitive("uint16", 0)
i32 = _primitive("int32", 0)
u32 = _primitive("uint32", 0)
i64 = _primitive("int64", 0)
f64 = _primitive("float64", 0.0)
string = _primitive("string", "")
bits = _primitive("bytes", b"")
records = _primitive("records", None)
uuid = _primitive("uuid", NO_ID)


def array(
    item: str,
    *,
    since: int = 0,
    until: int = NEVER,
    null: int = NEVER,
    tag: int | None = None,
    tag_since: int | None = None,
    default: Any = (),
) -> Any:
    """An array of a primitive, by the primitive's name."""
    spec = Field("array", since, until, null, tag, since if tag_since is None else tag_since, item=Field(item))
    return _declare(spec, None if default is None else [])


def structs(
    item: type,
    *,
    since: int = 0,
    until: int = NEVER,
    null: int = NEVER,
    tag: int | None = None,
    tag_since: int | None = None,
    default: Any = (),
) -> Any:
    """An array of another declared struct."""
    of = Field("struct", type=item)
    spec = Field("array", since, until, null, tag, since if tag_since is None else tag_since, item=of)
    return _declare(spec, None if default is None else [])


def data(
    of: type,
    *,
    since: int = 0,
    until: int = NEVER,
    null: int = NEVER,
    tag: int | None = None,
    tag_since: int | None = None,
    default: Any = (),
) -> Any:
    """One nested struct; its default is the struct with all its defaults, or null where ``default=None``."""
    spec = Field("struct", since, until, null, tag, since if tag_since is None else tag_since, type=of)
    if default is None:
        return field(default=None, metadata={"wire": spec})
    return field(default_factory=of, metadata={"wire": spec})


def _declared(cls: type[T]) -> type[T]:
    """A slotted dataclass whose ``==`` and ``repr`` are shared: generating them for each of 350 classes took half of
    the time it takes to import them."""
    methods: dict[str, Any] = {"__eq__": _equal, "__hash__": None, "__repr__": _show}
    for name, method in methods.items():
        setattr(cls, name, method)
    cls.__doc__ = cls.__doc__ or f"{cls.__name__} on the wire."  # or dataclass would work out a signature for it
    return dataclass(slots=True, kw_only=True, eq=False, repr=False)(cls)


def _equal(self: Any, other: Any) -> bool:
    return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in self.__slots__)


def _show(self: Any) -> str:
    return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


@dataclass_transform(kw_only_default=True)
def struct(cls: type[T]) -> type[T]:
    """Declare a part of a message."""
    return _declared(cls)


@dataclass_transform(kw_only_default=True)
def message(*, api_key: int, versions: tuple[int, int], flexible: int = NEVER) -> Callable[[type[T]], type[T]]:
    """Declare a request, a response, or (with ``api_key=-1``) data that other messages carry."""

    def declare(cls: type[T]) -> type[T]:
        made = _declared(cls)
        _SPECS[made] = MessageSpec(api_key, versions[0], versions[1], flexible)
        return made

    return declare


_SPECS: dict[type, MessageSpec] = {}


def spec_of(cls: type) -> MessageSpec:
    return _SPECS[cls]


def fields_of(cls: type) -> list[tuple[str, Field, Any]]:
    """(name, wire description, default) of each field in declaration order."""
    found = []
    for each in dataclasses.fields(cls):
        default = each.default if each.default is not dataclasses.MISSING else dataclasses.MISSING
        found.append((each.name, each.metadata["wire"], default))
    return found
