"""Places in a partition as people write them: ``beginning``, ``end``, ``42``, ``-10``, ``@2026-01-31T12:00Z``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from headrace.errors import BadArgument

if TYPE_CHECKING:
    from headrace.client import Client, TopicPartition

__all__ = ["Place", "parse_place", "parse_time_ms", "resolve"]

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
INT64_MAX = 2**63 - 1
_AGO = re.compile(r"-([0-9]+)(ms|s|m|h|d|w)")

HINT = (
    "use beginning, end, an offset, -N (N before the end), or @TIME such as @2026-01-31T12:00:00Z, @-15m, @MILLISECONDS"
)


@dataclass(frozen=True, slots=True)
class Place:
    """``number`` is an offset, a distance from the end, or a time in ms, as ``kind`` says."""

    kind: Literal["beginning", "end", "offset", "before_end", "time"]
    number: int = 0


def parse_place(text: str, now_ms: int) -> Place:
    if text in ("beginning", "earliest"):
        return Place("beginning")
    if text in ("end", "latest"):
        return Place("end")
    if text.startswith("@"):
        return Place("time", parse_time_ms(text[1:], now_ms))
    if re.fullmatch(r"-[0-9]+", text):
        return Place("before_end", _bounded(text[1:]))
    if re.fullmatch(r"[0-9]+", text):
        return Place("offset", _bounded(text))
    raise BadArgument(f"{text!r} is not a place in a topic", HINT)


def _bounded(digits: str) -> int:
    """Offsets and times have 63 bits in the protocol."""
    if len(digits) > len(str(INT64_MAX)) or int(digits) > INT64_MAX:
        raise BadArgument(f"{digits[:30]} is too large", f"the largest offset and time are {INT64_MAX}")
    return int(digits)


def parse_time_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970, an ISO 8601 time (local when it names no zone), or a time ago such as ``-15m``."""
    if re.fullmatch(r"[0-9]+", text):
        return _bounded(text)
    ago = _AGO.fullmatch(text)
    if ago:
        return max(0, now_ms - int(ago[1]) * UNITS_MS[ago[2]])
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise BadArgument(f"{text!r} is not a time", "use 2026-01-31T12:00:00Z, -15m, or milliseconds") from None


def resolve(
    client: Client, partitions: Iterable[TopicPartition], place: Place, *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    """The offset of a place in each partition, within what the partition holds and, if asked, what is committed."""
    from headrace.client import end_offsets, list_offsets, start_offsets

    wanted = list(partitions)
    if place.kind == "beginning":
        return start_offsets(client, wanted)
    ends = end_offsets(client, wanted, read_committed=read_committed)
    if place.kind == "end":
        return ends
    if place.kind == "time":
        found = list_offsets(client, dict.fromkeys(wanted, place.number))
        return {each: at.offset if at.offset >= 0 else ends[each] for each, at in found.items()}
    starts = start_offsets(client, wanted)
    aims = {each: place.number if place.kind == "offset" else ends[each] - place.number for each in wanted}
    return {each: min(max(aims[each], starts[each]), ends[each]) for each in wanted}
