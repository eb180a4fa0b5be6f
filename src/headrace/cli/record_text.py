"""Records as text: JSON lines in and out, and kcat's format strings.

A JSON line holds ``topic``, ``partition``, ``offset``, ``timestamp``, ``key``, ``value`` and ``headers``. Keys and
values are strings; bytes that are not UTF-8 stand as ``key_base64`` and ``value_base64``. What ``consume --json``
prints, ``produce --json`` takes. When producing, a value may also be any other JSON, which is then sent as JSON text.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.errors import BadArgument, UsageError

if TYPE_CHECKING:
    from headrace.client import TopicPartition
    from headrace.record import Record

__all__ = ["Draft", "Formatter", "compile_format", "json_line", "parse_json_line", "unescape"]

Formatter = Callable[["TopicPartition", "Record"], bytes]
Headers = Sequence[tuple[str, bytes | None]]

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)")
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_TOKEN = re.compile(r"%(.)")


def unescape(text: str) -> bytes:
    r"""A delimiter or format as it was typed: ``\n``, ``\t``, ``\0`` and ``\xNN`` mean what they mean elsewhere."""
    out = bytearray()
    position = 0
    for match in _ESCAPE.finditer(text):
        out += text[position : match.start()].encode()
        code = match[1]
        if len(code) == 3:
            out.append(int(code[1:], 16))
        elif code in _SIMPLE:
            out += _SIMPLE[code].encode()
        else:
            raise BadArgument(f"{match[0]!r} is not an escape", r"use \n, \r, \t, \0, \\ or \xNN")
        position = match.end()
    return bytes(out + text[position:].encode())


# ---- format strings -------------------------------------------------------------------------------------------------


def _headers_text(headers: Headers, null: bytes) -> bytes:
    return b",".join(name.encode() + b"=" + (null if value is None else value) for name, value in headers)


def _tokens(null: bytes) -> dict[str, Formatter]:
    def size(data: bytes | None) -> bytes:
        return b"-1" if data is None else b"%d" % len(data)

    def value(_: TopicPartition, record: Record) -> bytes:
        return null if record.value is None else record.value

    return {
        "v": value,
        "s": value,
        "S": lambda _, record: size(record.value),
        "k": lambda _, record: null if record.key is None else record.key,
        "K": lambda _, record: size(record.key),
        "t": lambda partition, _: partition.topic.encode(),
        "p": lambda partition, _: b"%d" % partition.partition,
        "o": lambda _, record: b"%d" % record.offset,
        "T": lambda _, record: b"%d" % record.timestamp,
        "D": lambda _, record: time_text(record.timestamp).encode(),
        "h": lambda _, record: _headers_text(record.headers, null),
    }


def compile_format(text: str, null: bytes = b"") -> Formatter:
    """A function that prints records; literal parts are unescaped once, here."""
    tokens = _tokens(null)
    parts: list[bytes | Formatter] = []
    position = 0
    for match in _TOKEN.finditer(text):
        parts.append(unescape(text[position : match.start()]))
        if match[1] == "%":
            parts.append(b"%")
        elif match[1] in tokens:
            parts.append(tokens[match[1]])
        else:
            raise BadArgument(f"%{match[1]} in the format is not known", f"use %{', %'.join(tokens)} or %%")
        position = match.end()
    parts.append(unescape(text[position:]))

    def render(partition: TopicPartition, record: Record) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(partition, record) for part in parts)

    return render


def time_text(timestamp_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds; a record may have no time, or one that no calendar knows."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ---- JSON -----------------------------------------------------------------------------------------------------------


def json_line(partition: TopicPartition, record: Record) -> bytes:
    fields: dict[str, Any] = {
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    _put_bytes(fields, "key", record.key)
    _put_bytes(fields, "value", record.value)
    if record.headers:
        fields["headers"] = [[name, _header_json(value)] for name, value in record.headers]
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _put_bytes(fields: dict[str, Any], name: str, data: bytes | None) -> None:
    try:
        fields[name] = None if data is None else data.decode()
    except UnicodeDecodeError:
        assert data is not None, "None is not decoded"
        fields[f"{name}_base64"] = base64.b64encode(data).decode()


def _header_json(value: bytes | None) -> Any:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        assert value is not None, "None is not decoded"
        return {"base64": base64.b64encode(value).decode()}


JSON_FIELDS = (
    *("value", "value_base64", "key", "key_base64", "headers"),
    *("partition", "timestamp", "topic", "offset"),
)
"""The fields of a JSON line: what ``consume --json`` prints. Topic and offset are not used when it is sent."""


@dataclass(slots=True, kw_only=True)
class Draft:
    """A record to be sent, as its line describes it."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None


def parse_json_line(line: bytes, number: int) -> Draft:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"line {number} is not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"line {number} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise UsageError(f"line {number} is not a JSON object", 'for example {"key": "a", "value": "b"}')
    unknown = [name for name in fields if name not in JSON_FIELDS]
    if unknown:
        raise UsageError(f"line {number}: unknown field {unknown[0]!r}", f"known are {', '.join(JSON_FIELDS)}")
    try:
        draft = Draft(
            value=_take_bytes(fields, "value"),
            key=_take_bytes(fields, "key"),
            headers=_take_headers(fields.get("headers")),
            partition=_take_integer(fields, "partition"),
            timestamp=_take_integer(fields, "timestamp"),
        )
    except ValueError as error:
        raise UsageError(f"line {number}: {error}") from None
    if "value" not in fields and "value_base64" not in fields:
        raise UsageError(f"line {number} has no value", 'a tombstone is written as {"key": "a", "value": null}')
    return draft


def _take_bytes(fields: Mapping[str, Any], name: str) -> bytes | None:
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        return _from_base64(encoded, f"{name}_base64")
    return _to_bytes(fields.get(name))


def _to_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode("utf-8", "surrogatepass")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _from_base64(encoded: Any, name: str) -> bytes:
    try:
        return base64.b64decode(str(encoded), validate=True)
    except binascii.Error as error:
        raise ValueError(f"{name} is not base64: {error}") from None


def _take_headers(given: Any) -> Headers:
    """A list of [name, value] pairs, or an object."""
    if given is None:
        return ()
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError("headers must be an object or a list of [name, value] pairs")
    return [(str(name), _header_bytes(value)) for name, value in pairs]


def _header_bytes(value: Any) -> bytes | None:
    if isinstance(value, dict) and set(value) == {"base64"}:
        return _from_base64(value["base64"], "a header")
    return _to_bytes(value)


def _take_integer(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    return value
