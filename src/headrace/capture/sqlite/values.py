"""SQLite's values: as triggers write them down, as Python has them, and as JSON.

A row in the change table is text: for every column a letter for the storage class and the value, with commas between.
Reals have 20 digits, which is more than a real has; texts and blobs are hexadecimal digits, so a text that is not valid
in the database's encoding is kept as it is. No function is used that an old or small SQLite of the application lacks.

    n            NULL
    i-5          an integer
    r0.5         a real
    t6162        a text, in the database's encoding
    b00ff        a blob
    l            a text or blob that is too large to be written down

**Keys.** SQLite keeps any class of value in any column, and JSON has fewer classes. In a key, where two values must
never look alike, a value of another class than its column shows is an object that names the class:
``{"blob": "MQ=="}``, ``{"text": "MQ=="}`` in a column of blobs, ``{"real": "Infinity"}``.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from headrace.capture.envelope import CannotEncode, json_text

__all__ = ["NULL_IN_KEY", "Unreadable", "json_value", "key_renderer", "stored_row", "text_or_bytes"]

CODECS = {"UTF-8": "utf-8", "UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}


class Unreadable:
    """A value that has no form in an event, and why."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


NULL_IN_KEY = Unreadable(
    "its key has a NULL, and SQLite lets any number of rows have the same one: declare the key NOT NULL, or choose "
    "columns with --key-columns"
)
_TOO_LARGE = Unreadable("one of its values is too large for a record")


def text_or_bytes(raw: bytes) -> str | Unreadable:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _not_text(raw)


def _not_text(raw: bytes) -> Unreadable:
    return Unreadable(f"a text is not valid Unicode: x'{raw[:32].hex()}'{'…' if len(raw) > 32 else ''}")


def stored_row(text: str, encoding: str) -> list[Any]:
    """A row as the triggers wrote it."""
    codec = CODECS[encoding]
    return [_stored(each, codec) for each in text.split(",")]


def _stored(text: str, codec: str) -> Any:
    letter, value = text[0], text[1:]
    if letter == "t":
        raw = bytes.fromhex(value)
        try:
            return raw.decode(codec)
        except UnicodeDecodeError:
            return _not_text(raw)
    if letter == "i":
        return int(value)
    if letter == "r":
        return float(value)
    if letter == "b":
        return bytes.fromhex(value)
    return _TOO_LARGE if letter == "l" else None


def json_value(value: Any) -> bytes:
    if isinstance(value, str):
        return json_text(value)
    if isinstance(value, bytes):
        return b'"' + b64encode(value) + b'"'
    if isinstance(value, Unreadable):
        raise CannotEncode(value.reason)
    if isinstance(value, float) and math.isinf(value):
        # JSON has no infinities; a text is what readers of Debezium's JSON are used to.
        return b'"Infinity"' if value > 0 else b'"-Infinity"'
    return json.dumps(value).encode()


def key_renderer(declared: str) -> Callable[[Any], bytes]:
    """How values of a column are shown that is part of a key; see the module."""
    holds_blobs = "BLOB" in declared.upper() or "BINARY" in declared.upper()
    odd = {"text": str} if holds_blobs else {"blob": bytes}

    def render(value: Any) -> bytes:
        shown = json_value(value)
        for name, kind in odd.items():
            if isinstance(value, kind):
                return b'{"%b":%b}' % (name.encode(), shown)
        return b'{"real":%b}' % shown if isinstance(value, float) and math.isinf(value) else shown

    return render
