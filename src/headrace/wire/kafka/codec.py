"""Readers and writers, compiled from the declarations: one pair per (message, version), made on first use.

Compiled means: Python source is put together from the declaration (never from the wire), with each run of fixed-size
fields as a single ``struct`` call. A small request costs a few microseconds either way.

What a reader promises about bytes from strangers:

* every length is checked against the bytes that remain before anything is allocated;
* the number of array elements and tagged fields in one message is bounded by ``elements_max``;
* whatever is wrong, the error is ``MalformedMessage``.

``read_message`` reads a message in one go. ``read_in_steps`` is for messages with thousands of elements: the same
readers, compiled as generators that yield between the elements of arrays, so that the caller can do other work.

What a writer promises: a value that its field cannot carry in this version is an ``UnwritableMessage``. A string that
is null, in a version before the one that lets it be null, is written as an empty string, as Kafka does.

A writer returns chunks. ``records`` fields take anything that has a length (bytes, or a slice of a file that the
server sends without reading it into memory), and pass through untouched. An array of structs may be given as a list of
elements that are encoded: bytes of ``write_element``, or tuples of chunks of ``write_chunks`` where they hold records.
That is how a long answer is written piece by piece, and how elements that are repeated in it share their bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable
from dataclasses import MISSING
from functools import cache
from typing import Any, TypeVar

from headrace.wire.kafka.primitives import (
    FIXED,
    I32,
    MalformedMessage,
    TooManyElements,
    UnwritableMessage,
    ValueReader,
    read_bytes,
    read_count,
    read_records,
    read_string,
    read_tags,
    read_uvarint,
    records_chunks,
    span,
    string_bytes,
    uvarint,
)
from headrace.wire.kafka.schema import NEVER, Field, fields_of, spec_of

__all__ = [
    "ELEMENTS_MAX",
    "ELEMENTS_PER_STEP",
    "EncodedElements",
    "MalformedMessage",
    "TooManyElements",
    "UnwritableMessage",
    "blank",
    "read_in_steps",
    "read_message",
    "read_uvarint",
    "uvarint",
    "write_chunks",
    "write_element",
    "write_message",
]

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

ELEMENTS_MAX = 1_000_000
"""Array elements and tagged fields in one message: a frame of 100 MB could otherwise ask for 100 million objects."""

ELEMENTS_PER_STEP = 100
"""Array elements that are read between two yields of ``read_in_steps``: 0.1 to 0.25 ms."""


def read_message(
    cls: type[T], version: int, data: Buffer, position: int = 0, *, elements_max: int = ELEMENTS_MAX
) -> tuple[T, int]:
    """Decode one message; returns it and the position after it."""
    view = data if type(data) is memoryview else memoryview(data)
    kind: Any = cls
    try:
        read: tuple[T, int] = _reader(kind, version)(view, position, [elements_max, elements_max])
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"{cls.__name__} v{version}: {error}") from None
    return read


def read_in_steps(
    cls: type[T], version: int, data: Buffer, position: int = 0, *, elements_max: int = ELEMENTS_MAX
) -> Generator[int, None, tuple[T, int]]:
    """The same in steps: yields, after each, how many elements it has read."""
    view = data if type(data) is memoryview else memoryview(data)
    kind: Any = cls
    read = _nested_reader(kind, version, _flexible(cls, version), _has_elements(kind, version))
    try:
        made = read(view, position, [elements_max, elements_max, 0])
        done: tuple[T, int] = (yield from made) if _has_elements(kind, version) else made
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"{cls.__name__} v{version}: {error}") from None
    return done


def write_message(message: object, version: int) -> list[Any]:
    """Encode one message as chunks: bytes, and whatever its ``records`` fields hold."""
    out: list[Any] = []
    kind: Any = type(message)
    _writer(kind, version)(message, out.append)
    return out


class EncodedElements(list[Any]):
    """Elements of an array of structs, each encoded by ``write_element``. ``errors`` counts the error codes in them,
    which their bytes no longer show."""

    def __init__(self, elements: Iterable[bytes] = ()) -> None:
        super().__init__(elements)
        self.errors: dict[int, int] = {}


def write_element(element: object, message: type, version: int) -> bytes:
    """Encode one element of an array in ``message``; the array may then be given as a list of such bytes."""
    out: list[Any] = []
    cls: Any = type(element)
    _nested_writer(cls, version, _flexible(message, version))(element, out.append)
    return b"".join(out)


def write_chunks(element: object, message: type, version: int) -> tuple[Any, ...]:
    """The same for an element that holds records, which are not copied."""
    out: list[Any] = []
    cls: Any = type(element)
    _nested_writer(cls, version, _flexible(message, version))(element, out.append)
    return tuple(out)


@cache
def blank(cls: Any) -> Any:
    """The shared instance of a struct that has all its defaults; nobody may change it.

    A tagged field that holds it is left out without being compared: a Fetch answer saves that for three fields in
    each of its partitions, of which there may be a thousand.
    """
    return cls()


# ---- compilation ----------------------------------------------------------------------------------------------------


def _flexible(cls: type, version: int) -> bool:
    return version >= spec_of(cls).flexible


@cache
def _reader(cls: Any, version: int) -> Any:
    return _compile_reader(cls, version, _flexible(cls, version), in_steps=False)


@cache
def _writer(cls: Any, version: int) -> Any:
    return _compile_writer(cls, version, _flexible(cls, version))


class _Source:
    """Lines of a function being put together, and the objects its names refer to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "read_string": read_string,
            "read_bytes": read_bytes,
            "read_records": read_records,
            "read_count": read_count,
            "read_tags": read_tags,
            "span": span,
            "uvarint": uvarint,
            "string_bytes": string_bytes,
            "records_chunks": records_chunks,
            "I32": I32,
        }

    def bind(self, value: Any) -> str:
        name = f"_{len(self.names)}"
        self.names[name] = value
        return name

    def add(self, line: str) -> None:
        self.lines.append("    " + line)

    def compile(self, signature: str) -> Any:
        source = f"def {signature}:\n" + "\n".join(self.lines)
        exec(compile(source, f"<{signature}>", "exec"), self.names)
        return self.names[signature.partition("(")[0]]


def _present(cls: type, version: int) -> list[tuple[str, Field, Any]]:
    return [each for each in fields_of(cls) if each[1].present(version)]


@cache
def _bytes_min(cls: type, version: int, flexible: bool) -> int:
    """The fewest bytes a struct can take: what makes an array's count plausible. Never 0, or a count would be free."""
    total = 1 if flexible else 0
    for _, wire, _ in _present(cls, version):
        if not wire.tagged(version):
            total += _item_bytes_min(wire, version, flexible)
    return max(total, 1)


@cache
def _has_elements(cls: type, version: int) -> bool:
    """Whether a struct holds, at any depth, an array that is read element by element. Only such a struct is worth a
    reader in steps. Arrays in tagged fields do not count: they are read in one go."""
    for _, wire, _ in _present(cls, version):
        if not wire.tagged(version):
            if wire.kind == "array" and wire.item is not None and wire.item.kind not in FIXED:
                return True
            if wire.kind == "struct" and wire.type is not None and _has_elements(wire.type, version):
                return True
    return False


def _item_bytes_min(wire: Field, version: int, flexible: bool) -> int:
    if wire.kind in FIXED:
        return struct.calcsize(">" + FIXED[wire.kind])
    if wire.kind == "struct":
        assert wire.type is not None
        return 1 if wire.nullable(version) else _bytes_min(wire.type, version, flexible)
    if flexible:
        return 1
    return 2 if wire.kind == "string" else 4


def _compile_reader(cls: type, version: int, flexible: bool, in_steps: bool) -> Any:
    """``read(view, at, budget)``, which returns the instance and the position after it; ``in_steps`` makes it a
    generator."""
    source = _Source()
    run: list[tuple[str, str]] = []
    given: list[str] = []
    tags: dict[int, tuple[str, ValueReader]] = {}

    def end_run() -> None:
        if run:
            shape = struct.Struct(">" + "".join(FIXED[kind] for _, kind in run))
            targets = ", ".join(f"f_{name}" for name, _ in run)
            source.add(f"{targets}, = {source.bind(shape.unpack_from)}(view, at)")
            source.add(f"at += {shape.size}")
            run.clear()

    for name, wire, _ in _present(cls, version):
        if wire.tagged(version):
            assert wire.tag is not None
            tags[wire.tag] = (name, _compile_value_reader(wire, version, flexible))
            continue
        given.append(name)
        if wire.kind in FIXED:
            run.append((name, wire.kind))
            continue
        end_run()
        _read_variable(source, f"f_{name}", wire, version, flexible, in_steps)
    end_run()
    _make(source, cls, given)
    if flexible:
        # Nearly every struct ends with no tagged field at all.
        source.add("if not view[at]: return made, at + 1")
        source.add("extra = {}")
        source.add(f"at = read_tags(view, at, {source.bind(tags)}, extra, budget)")
        source.add("for name in extra: setattr(made, name, extra[name])")
    source.add("return made, at")
    return source.compile("read(view, at, budget)")


def _make(source: _Source, cls: type, given: list[str]) -> None:
    """The instance, field by field: calling a dataclass with as many keywords takes twice as long."""
    source.add(f"made = {source.bind(cls.__new__)}({source.bind(cls)})")
    for name, _, default in fields_of(cls):
        if name in given:
            source.add(f"made.{name} = f_{name}")
        elif default is MISSING:
            source.add(f"made.{name} = {source.bind(_default_factory(cls, name))}()")
        else:
            source.add(f"made.{name} = {source.bind(default)}")


def _default_factory(cls: Any, name: str) -> Any:
    return cls.__dataclass_fields__[name].default_factory


def _read_variable(
    source: _Source, target: str, wire: Field, version: int, flexible: bool, in_steps: bool = False
) -> None:
    nullable = wire.nullable(version)
    if wire.kind == "string" and flexible:
        _read_short_string(source, target, nullable)
    elif wire.kind in ("string", "bytes", "records"):
        source.add(f"{target}, at = read_{wire.kind}(view, at, {flexible}, {nullable})")
    elif wire.kind == "struct":
        assert wire.type is not None
        read = _read_struct(source, wire.type, version, flexible, in_steps)
        if nullable:
            source.add(f"{target} = None")
            source.add("at += 1")
            source.add(f"if view[at - 1] < 128: {target}, at = {read}")
        else:
            source.add(f"{target}, at = {read}")
    else:
        _read_array(source, target, wire, version, flexible, in_steps)


def _read_struct(source: _Source, cls: type, version: int, flexible: bool, in_steps: bool) -> str:
    """The expression that reads a nested struct."""
    in_steps = in_steps and _has_elements(cls, version)
    call = f"{source.bind(_nested_reader(cls, version, flexible, in_steps))}(view, at, budget)"
    return f"yield from {call}" if in_steps else call


def _read_short_string(source: _Source, target: str, nullable: bool) -> None:
    """A string whose length takes one byte is read in place; any other, and every error, is the function's."""
    source.add("n = view[at]")
    source.add("end = at + n")
    source.add("if 0 < n < 128 and end <= len(view):")
    source.add(f"    {target} = str(view[at + 1 : end], 'utf-8')")
    source.add("    at = end")
    if nullable:
        source.add(f"elif not n: {target}, at = None, at + 1")
    source.add(f"else: {target}, at = read_string(view, at, True, {nullable})")


def _read_array(source: _Source, target: str, wire: Field, version: int, flexible: bool, in_steps: bool) -> None:
    item = wire.item
    assert item is not None
    least = _item_bytes_min(item, version, flexible)
    slow = f"n, at = read_count(view, at, {flexible}, {wire.nullable(version)}, {least}, budget)"
    if flexible:  # a count of one byte is read in place
        source.add("n = view[at] - 1")
        source.add(f"if 0 <= n < 127 and n * {least} < len(view) - at and n <= budget[0]:")
        source.add("    at += 1")
        source.add("    budget[0] -= n")
        if wire.nullable(version):
            source.add("elif n < 0: at += 1")
        source.add(f"else: {slow}")
    else:
        source.add(slow)
    if item.kind in FIXED:
        code = FIXED[item.kind]
        unpack = source.bind(struct.unpack_from)
        shape = f"'>' + '{code}' * n" if item.kind == "uuid" else f"f'>{{n}}{code}'"
        source.add(f"{target} = list({unpack}({shape}, view, at)) if n > 0 else None if n < 0 else []")
        source.add(f"at += max(n, 0) * {least}")
        return
    source.add(f"{target} = None if n < 0 else []")
    source.add("for _ in range(n):")
    if item.kind == "struct":
        assert item.type is not None
        source.add(f"    item, at = {_read_struct(source, item.type, version, flexible, in_steps)}")
    else:
        source.add(f"    item, at = read_{item.kind}(view, at, {flexible}, False)")
    source.add(f"    {target}.append(item)")
    if in_steps:
        source.add("    budget[2] += 1")
        source.add(f"    if budget[2] >= {ELEMENTS_PER_STEP}:")
        source.add("        done, budget[2] = budget[2], 0")
        source.add("        yield done")


@cache
def _nested_reader(cls: type, version: int, flexible: bool, in_steps: bool = False) -> Any:
    return _compile_reader(cls, version, flexible, in_steps)


@cache
def _nested_writer(cls: type, version: int, flexible: bool) -> Any:
    return _compile_writer(cls, version, flexible)


def _compile_value_reader(wire: Field, version: int, flexible: bool) -> Any:
    """A reader of one value alone: what a tagged field holds."""
    source = _Source()
    if wire.kind in FIXED:
        shape = struct.Struct(">" + FIXED[wire.kind])
        source.add(f"return {source.bind(shape.unpack_from)}(view, at)[0], at + {shape.size}")
    else:
        _read_variable(source, "value", wire, version, flexible)
        source.add("return value, at")
    return source.compile("read(view, at, budget)")


def _compile_writer(cls: type, version: int, flexible: bool) -> Any:
    source = _Source()
    run: list[tuple[str, str]] = []
    tagged: list[tuple[str, Field, Any]] = []

    def end_run() -> None:
        if run:
            shape = struct.Struct(">" + "".join(FIXED[kind] for _, kind in run))
            values = ", ".join(f"m.{name}" for name, _ in run)
            source.add(f"emit({source.bind(shape.pack)}({values}))")
            run.clear()

    for name, wire, default in _present(cls, version):
        if wire.tagged(version):
            tagged.append((name, wire, default))
        elif wire.kind in FIXED:
            run.append((name, wire.kind))
        else:
            end_run()
            _write_variable(source, f"m.{name}", wire, version, flexible)
    end_run()
    if tagged:
        _write_tags(source, tagged, version, flexible)
    elif flexible:
        source.add("emit(b'\\x00')")
    elif not source.lines:
        source.add("pass")
    return source.compile("write(m, emit)")


def _write_variable(source: _Source, value: str, wire: Field, version: int, flexible: bool) -> None:
    nullable = wire.nullable(version)
    if wire.kind == "records":
        source.add(f"records_chunks({value}, {flexible}, emit)")
    elif wire.kind == "string":
        null = b"\x00" if flexible else b"\xff\xff"
        plain = f"string_bytes({value}, {flexible})"
        if nullable:
            source.add(f"emit({null!r} if {value} is None else {plain})")
        elif wire.null != NEVER:
            source.add(f"emit(string_bytes({value} or '', {flexible}))")
        else:
            source.add(f"emit({plain})")
    elif wire.kind == "bytes":
        size = f"uvarint(len({value}) + 1)" if flexible else f"I32.pack(len({value}))"
        null = b"\x00" if flexible else b"\xff\xff\xff\xff"
        plain = f"emit({size}); emit({value})"
        if nullable:
            source.add(f"if {value} is None: emit({null!r})")
            source.add(f"else: {plain}")
        else:
            source.add(plain)
    elif wire.kind == "struct":
        assert wire.type is not None
        write = source.bind(_nested_writer(wire.type, version, flexible))
        if nullable:
            source.add(f"if {value} is None: emit(b'\\xff')")
            source.add(f"else: emit(b'\\x01'); {write}({value}, emit)")
        else:
            source.add(f"{write}({value}, emit)")
    else:
        _write_array(source, value, wire, version, flexible)


def _write_array(source: _Source, value: str, wire: Field, version: int, flexible: bool) -> None:
    item = wire.item
    assert item is not None
    indent = ""
    if wire.nullable(version):
        null = b"\x00" if flexible else b"\xff\xff\xff\xff"
        source.add(f"if {value} is None: emit({null!r})")
        source.add("else:")
        indent = "    "
    size = f"uvarint(len({value}) + 1)" if flexible else f"I32.pack(len({value}))"
    if item.kind == "struct":
        assert item.type is not None
        write = source.bind(_nested_writer(item.type, version, flexible))
        none = b"\x01" if flexible else bytes(4)
        source.add(f"{indent}items = {value}")
        source.add(f"{indent}n = len(items)")
        source.add(f"{indent}if not n: emit({none!r})")
        source.add(f"{indent}else:")
        source.add(f"{indent}    emit({'uvarint(n + 1)' if flexible else 'I32.pack(n)'})")
        source.add(f"{indent}    if type(items[0]) is bytes:")
        source.add(f"{indent}        for item in items: emit(item)")
        source.add(f"{indent}    elif type(items[0]) is tuple:")
        source.add(f"{indent}        for item in items:")
        source.add(f"{indent}            for chunk in item: emit(chunk)")
        source.add(f"{indent}    else:")
        source.add(f"{indent}        for item in items: {write}(item, emit)")
        return
    source.add(f"{indent}emit({size})")
    if item.kind in FIXED:
        code = FIXED[item.kind]
        pack = source.bind(struct.pack)
        shape = f"'>' + '{code}' * len({value})" if item.kind == "uuid" else f"f'>{{len({value})}}{code}'"
        source.add(f"{indent}emit({pack}({shape}, *{value}))")
        return
    source.add(f"{indent}for item in {value}:")
    if item.kind == "string":
        source.add(f"{indent}    emit(string_bytes(item, {flexible}))")
    else:
        size = "uvarint(len(item) + 1)" if flexible else "I32.pack(len(item))"
        source.add(f"{indent}    emit({size}); emit(item)")


def _write_tags(source: _Source, tagged: list[tuple[str, Field, Any]], version: int, flexible: bool) -> None:
    """A tagged field is written when it differs from its default."""
    source.add("tags = []")
    for name, wire, default in sorted(tagged, key=lambda each: each[1].tag or 0):
        value = source.bind(_compile_value_writer(wire, version, flexible))
        if default is MISSING and wire.kind == "array":
            differs = f"m.{name}"
        elif default is MISSING:
            assert wire.type is not None
            default_name = source.bind(blank(wire.type))
            differs = f"m.{name} is not {default_name} and m.{name} != {default_name}"
        else:
            differs = f"m.{name} != {source.bind(default)}"
        source.add(f"if {differs}:")
        source.add("    parts = []")
        source.add(f"    {value}(m.{name}, parts.append)")
        source.add("    raw = b''.join(parts)")
        source.add(f"    tags.append({uvarint(wire.tag or 0)!r} + uvarint(len(raw)) + raw)")
    source.add("emit(uvarint(len(tags)))")
    source.add("for tag in tags: emit(tag)")


def _compile_value_writer(wire: Field, version: int, flexible: bool) -> Any:
    source = _Source()
    if wire.kind in FIXED:
        shape = struct.Struct(">" + FIXED[wire.kind])
        source.add(f"emit({source.bind(shape.pack)}(value))")
    else:
        _write_variable(source, "value", wire, version, flexible)
    return source.compile("write(value, emit)")
