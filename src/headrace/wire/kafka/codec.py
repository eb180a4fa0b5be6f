"""Readers and writers, compiled from the declarations: one pair per (message, version), made on first use.

Compiled means: Python source is put together from the declaration (never from the wire), with each run of fixed-size
fields as a single ``struct`` call. A small request costs a few microseconds either way.

What a reader promises about bytes from strangers:

* every length is checked against the bytes that remain before anything is allocated;
* the number of array elements and tagged fields in one message is bounded by ``elements_max``;
* whatever is wrong, the error is ``MalformedMessage``.

What a writer promises: a value that its field cannot carry in this version is an ``UnwritableMessage``. A string that
is null, in a version before the one that lets it be null, is written as an empty string, as Kafka does.

A writer returns chunks. ``records`` fields take anything that has a length (bytes, or a slice of a file that the
server sends without reading it into memory), and pass through untouched. An array of structs may be given as a list of
elements that are encoded: bytes of ``write_element``, or tuples of chunks of ``write_chunks`` where they hold records.
That is how a long answer is written piece by piece, and how elements that are repeated in it share their bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import MISSING
from functools import cache
from typing import Any, TypeVar

from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.schema import NEVER, Field, fields_of, spec_of

__all__ = [
    "ELEMENTS_MAX",
    "EncodedElements",
    "MalformedMessage",
    "UnwritableMessage",
    "blank",
    "read_message",
    "read_uvarint",
    "uvarint",
    "write_chunks",
    "write_element",
    "write_message",
]

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview
ValueReader = Callable[[memoryview, int, list[int]], tuple[Any, int]]

ELEMENTS_MAX = 1_000_000
"""Array elements and tagged fields in one message: a frame of 100 MB could otherwise ask for 100 million objects."""

SHORT_STRING_BYTES_MAX = 2**15 - 1
"""The longest string of a version that is not flexible."""

LENGTH_MAX = 2**31 - 1


class MalformedMessage(KafkaError):
    """The peer's bytes are not the message they claim to be."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, f"malformed message: {reason}")


class UnwritableMessage(KafkaError):
    """An answer that the peer's version of the protocol cannot carry, or that is larger than answers may be."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, f"unwritable message: {reason}")


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


# ---- primitives -----------------------------------------------------------------------------------------------------

_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = [bytes([n]) for n in range(0x80)]


def read_uvarint(view: memoryview, position: int) -> tuple[int, int]:
    byte = view[position]
    position += 1
    if byte < 0x80:
        return byte, position
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedMessage("a varint of more than 5 bytes")


_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


def _span(view: memoryview, position: int, length: int) -> int:
    """The position after ``length`` bytes, if there are as many."""
    end = position + length
    if length < 0 or end > len(view):
        raise _too_long(length, position, view)
    return end


def _too_long(length: int, position: int, view: memoryview) -> MalformedMessage:
    return MalformedMessage(f"a length of {length} at byte {position} of {len(view)}")


def _read_size(view: memoryview, position: int, flexible: bool, wide: bool) -> tuple[int, int]:
    """A length prefix; -1 is null."""
    if flexible:
        length = view[position]
        if length < 0x80:
            return length - 1, position + 1
        length, position = read_uvarint(view, position)
        return length - 1, position
    if wide:
        return _I32.unpack_from(view, position)[0], position + 4
    return _I16.unpack_from(view, position)[0], position + 2


def _read_string(view: memoryview, position: int, flexible: bool, nullable: bool) -> tuple[str | None, int]:
    length, position = _read_size(view, position, flexible, wide=False)
    if length < 0:
        _null("string", nullable, length)
        return None, position
    end = position + length
    if end > len(view):
        raise _too_long(length, position, view)
    return str(view[position:end], "utf-8"), end


def _read_bytes(view: memoryview, position: int, flexible: bool, nullable: bool) -> tuple[bytes | None, int]:
    length, position = _read_size(view, position, flexible, wide=True)
    if length < 0:
        _null("bytes", nullable, length)
        return None, position
    end = position + length
    if end > len(view):
        raise _too_long(length, position, view)
    return bytes(view[position:end]), end


def _read_records(view: memoryview, position: int, flexible: bool, nullable: bool) -> tuple[memoryview | None, int]:
    """Records stay where they are: the view keeps the frame alive."""
    if flexible:
        length, position = read_uvarint(view, position)
        length -= 1
    else:
        length, position = _I32.unpack_from(view, position)[0], position + 4
    if length < 0:
        return None, position
    end = position + length
    if end > len(view):
        raise _too_long(length, position, view)
    return view[position:end], end


def _null(kind: str, nullable: bool, length: int) -> None:
    if not nullable or length != -1:
        raise MalformedMessage(f"{kind} of length {length}")


def _read_count(
    view: memoryview, position: int, flexible: bool, nullable: bool, item_bytes_min: int, budget: list[int]
) -> tuple[int, int]:
    """An array's count, or -1 for null; never more than the bytes that remain could hold."""
    count, position = _read_size(view, position, flexible, wide=True)
    if count < 0:
        _null("array", nullable, count)
        return -1, position
    if count * item_bytes_min > len(view) - position:
        raise MalformedMessage(f"an array of {count} at byte {position} of {len(view)}")
    _spend(budget, count)
    return count, position


def _spend(budget: list[int], count: int) -> None:
    """``budget`` is [what is left, what there was]: one list for all parts of a message."""
    budget[0] -= count
    if budget[0] < 0:
        raise MalformedMessage(f"more than {budget[1]} array elements and tagged fields")


def _read_tags(
    view: memoryview,
    position: int,
    known: dict[int, tuple[str, ValueReader]],
    into: dict[str, Any],
    budget: list[int],
) -> int:
    count, position = read_uvarint(view, position)
    _spend(budget, count)
    for _ in range(count):
        tag, position = read_uvarint(view, position)
        size, position = read_uvarint(view, position)
        end = _span(view, position, size)
        if tag in known:
            name, read = known[tag]
            into[name], reached = read(view[:end], position, budget)
            if reached != end:
                raise MalformedMessage(f"tagged field {name} of {size} bytes ends after {reached - position}")
        position = end
    return position


def _string_bytes(text: str, flexible: bool) -> bytes:
    raw = text.encode()
    if len(raw) > SHORT_STRING_BYTES_MAX and not flexible:
        raise UnwritableMessage(f"a string of {len(raw)} bytes; this version carries {SHORT_STRING_BYTES_MAX}")
    return (uvarint(len(raw) + 1) if flexible else _I16.pack(len(raw))) + raw


def _records_chunks(value: Sized | Sequence[Sized] | None, flexible: bool, emit: Callable[[Any], None]) -> None:
    """A records field is null, one chunk, or a list of chunks that follow each other."""
    if value is None:
        emit(b"\x00" if flexible else b"\xff\xff\xff\xff")
        return
    chunks = value if isinstance(value, list) else [value]
    length = sum(map(len, chunks))
    if length > LENGTH_MAX:
        raise UnwritableMessage(f"{length} bytes of records; a field carries {LENGTH_MAX}")
    emit(uvarint(length + 1) if flexible else _I32.pack(length))
    for chunk in chunks:
        emit(chunk)


# ---- compilation ----------------------------------------------------------------------------------------------------


def _flexible(cls: type, version: int) -> bool:
    return version >= spec_of(cls).flexible


@cache
def _reader(cls: Any, version: int) -> Any:
    return _compile_reader(cls, version, _flexible(cls, version))


@cache
def _writer(cls: Any, version: int) -> Any:
    return _compile_writer(cls, version, _flexible(cls, version))


class _Source:
    """Lines of a function being put together, and the objects its names refer to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "read_string": _read_string,
            "read_bytes": _read_bytes,
            "read_records": _read_records,
            "read_count": _read_count,
            "read_tags": _read_tags,
            "span": _span,
            "uvarint": uvarint,
            "string_bytes": _string_bytes,
            "records_chunks": _records_chunks,
            "I32": _I32,
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


def _item_bytes_min(wire: Field, version: int, flexible: bool) -> int:
    if wire.kind in _FIXED:
        return struct.calcsize(">" + _FIXED[wire.kind])
    if wire.kind == "struct":
        assert wire.type is not None
        return 1 if wire.nullable(version) else _bytes_min(wire.type, version, flexible)
    if flexible:
        return 1
    return 2 if wire.kind == "string" else 4


def _compile_reader(cls: type, version: int, flexible: bool) -> Any:
    source = _Source()
    run: list[tuple[str, str]] = []
    given: list[str] = []
    tags: dict[int, tuple[str, ValueReader]] = {}

    def end_run() -> None:
        if run:
            shape = struct.Struct(">" + "".join(_FIXED[kind] for _, kind in run))
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
        if wire.kind in _FIXED:
            run.append((name, wire.kind))
            continue
        end_run()
        _read_variable(source, f"f_{name}", wire, version, flexible)
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


def _read_variable(source: _Source, target: str, wire: Field, version: int, flexible: bool) -> None:
    nullable = wire.nullable(version)
    if wire.kind == "string" and flexible:
        _read_short_string(source, target, nullable)
    elif wire.kind in ("string", "bytes", "records"):
        source.add(f"{target}, at = read_{wire.kind}(view, at, {flexible}, {nullable})")
    elif wire.kind == "struct":
        assert wire.type is not None
        read = source.bind(_nested_reader(wire.type, version, flexible))
        if nullable:
            source.add(f"{target} = None")
            source.add("at += 1")
            source.add(f"if view[at - 1] < 128: {target}, at = {read}(view, at, budget)")
        else:
            source.add(f"{target}, at = {read}(view, at, budget)")
    else:
        _read_array(source, target, wire, version, flexible)


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


def _read_array(source: _Source, target: str, wire: Field, version: int, flexible: bool) -> None:
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
    if item.kind in _FIXED:
        code = _FIXED[item.kind]
        unpack = source.bind(struct.unpack_from)
        shape = f"'>' + '{code}' * n" if item.kind == "uuid" else f"f'>{{n}}{code}'"
        source.add(f"{target} = list({unpack}({shape}, view, at)) if n > 0 else None if n < 0 else []")
        source.add(f"at += max(n, 0) * {least}")
        return
    source.add(f"{target} = None if n < 0 else []")
    source.add("for _ in range(n):")
    if item.kind == "struct":
        assert item.type is not None
        source.add(f"    item, at = {source.bind(_nested_reader(item.type, version, flexible))}(view, at, budget)")
    else:
        source.add(f"    item, at = read_{item.kind}(view, at, {flexible}, False)")
    source.add(f"    {target}.append(item)")


@cache
def _nested_reader(cls: type, version: int, flexible: bool) -> Any:
    return _compile_reader(cls, version, flexible)


@cache
def _nested_writer(cls: type, version: int, flexible: bool) -> Any:
    return _compile_writer(cls, version, flexible)


def _compile_value_reader(wire: Field, version: int, flexible: bool) -> Any:
    """A reader of one value alone: what a tagged field holds."""
    source = _Source()
    if wire.kind in _FIXED:
        shape = struct.Struct(">" + _FIXED[wire.kind])
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
            shape = struct.Struct(">" + "".join(_FIXED[kind] for _, kind in run))
            values = ", ".join(f"m.{name}" for name, _ in run)
            source.add(f"emit({source.bind(shape.pack)}({values}))")
            run.clear()

    for name, wire, default in _present(cls, version):
        if wire.tagged(version):
            tagged.append((name, wire, default))
        elif wire.kind in _FIXED:
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
    if item.kind in _FIXED:
        code = _FIXED[item.kind]
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
    if wire.kind in _FIXED:
        shape = struct.Struct(">" + _FIXED[wire.kind])
        source.add(f"emit({source.bind(shape.pack)}(value))")
    else:
        _write_variable(source, "value", wire, version, flexible)
    return source.compile("write(value, emit)")
