"""Messages as the browser gets them. Bytes are text where they are UTF-8 that can be shown, and base64 otherwise."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from headrace.console.problems import BadRequest
from headrace.console.scanning import Found
from headrace.console.streams import json_text

__all__ = ["bytes_from", "bytes_json", "csv_line", "export_line", "found_json"]

UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r")
NUMBER = re.compile(r"[+-][0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?")
Headers = Sequence[tuple[str, bytes | None]]
CSV_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")


def bytes_json(data: bytes | None, bytes_max: int) -> dict[str, Any] | None:
    """``{"text": …}`` or ``{"base64": …}``, with the size, and ``cut`` when there is more."""
    if data is None:
        return None
    kept = data if len(data) <= bytes_max else data[:bytes_max]
    shown: dict[str, Any] = {"size": len(data)}
    text = _text(kept, cut=len(kept) < len(data))
    if text is not None:
        shown["text"] = text
    else:
        shown["base64"] = base64.b64encode(kept).decode()
    if len(kept) < len(data):
        shown["cut"] = True
    return shown


def _text(data: bytes, *, cut: bool) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not (cut and error.start >= len(data) - 3):  # a character that was cut in the middle
            return None
        text = data[: error.start].decode()
    return None if UNPRINTABLE.search(text) else text


def found_json(found: Found, bytes_max: int) -> dict[str, Any]:
    """With ``bytes_max`` of every part. All headers together have so many too, one at least: ``headers_cut`` tells."""
    record = found.record
    shown = _headers_that_fit(record.headers, bytes_max)
    return {
        "partition": found.partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "by_broker": found.by_broker,
        "key": bytes_json(record.key, bytes_max),
        "value": bytes_json(record.value, bytes_max),
        "headers": [[name, bytes_json(value, bytes_max)] for name, value in shown],
        "headers_cut": len(shown) < len(record.headers),
    }


def _headers_that_fit(headers: Headers, bytes_max: int) -> Headers:
    room = bytes_max
    for count, (name, value) in enumerate(headers):
        room -= len(name) + len(value or b"")
        if room < 0 and count:
            return headers[:count]
    return headers


def bytes_from(value: Any, what: str) -> bytes | None:
    """A key or value that the browser sent: null, a text, or ``{"base64": …}``."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise BadRequest(f"the {what} has half of a surrogate pair") from None
    if isinstance(value, dict) and isinstance(value.get("base64"), str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest(f"the {what} is not base64") from None
    raise BadRequest(f"the {what} is neither null nor a text nor base64")


# ---- export ---------------------------------------------------------------------------------------------------------


def export_line(found: Found) -> bytes:
    """A line that ``headrace produce --json`` takes."""
    record = found.record
    fields: dict[str, Any] = {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    for name, data in (("key", record.key), ("value", record.value)):
        text = None if data is None else _decoded(data)
        if data is not None and text is None:
            fields[f"{name}_base64"] = base64.b64encode(data).decode()
        else:
            fields[name] = text
    if record.headers:
        fields["headers"] = [[name, _header(value)] for name, value in record.headers]
    return json_text(fields).encode() + b"\n"


def csv_line(found: Found | None) -> bytes:
    """A row, or the row of titles. A cell that a spreadsheet would take for a formula begins with an apostrophe."""
    if found is None:
        return (",".join(CSV_COLUMNS) + "\r\n").encode()
    record = found.record
    headers = json_text([[name, _header(value)] for name, value in record.headers]) if record.headers else ""
    cells = [_cell(record.key), _cell(record.value), _harmless(headers)]
    out = io.StringIO()
    csv.writer(out).writerow([found.partition.partition, record.offset, record.timestamp, *cells])
    return out.getvalue().encode()


def _cell(data: bytes | None) -> str:
    if data is None:
        return ""
    text = _decoded(data)
    return _harmless(text) if text is not None else "base64:" + base64.b64encode(data).decode()


def _harmless(text: str) -> str:
    return "'" + text if text[:1] in FORMULA_BEGINS and not NUMBER.fullmatch(text) else text


def _header(value: bytes | None) -> Any:
    if value is None:
        return None
    text = _decoded(value)
    return text if text is not None else {"base64": base64.b64encode(value).decode()}


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
