"""Texts of all of MariaDB's character sets, decoded as the server decodes them.

Python's codecs differ from MariaDB's in detail (latin1 is Windows' with its gaps filled, sjis, big5 and
others have extensions), and some sets have no codec at all (dec8, hp8, swe7, keybcs2, geostd8). So
only Unicode is decoded by Python; of every other set the server is asked once what its characters are, on first use.
The snapshot reads texts in the character set of their column too, so that both ways go through the same tables.

The question: all candidates of one to three bytes, each followed by a line feed, converted to UTF-32. What is not a
character of the set comes back as a question mark.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["BINARY", "Charsets", "Unreadable", "utf8"]

BINARY = 63
"""The collation of bytes."""
UTF8 = ("utf8", "utf8mb3", "utf8mb4")
UNICODE = {
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}
THREE_BYTES = ("ujis", "eucjpms")
LINE_FEED = 10
UNDEFINED = "\ufffe"
"""What ``codecs.charmap_decode`` takes for a byte that is no character."""

Ask = Callable[..., list[tuple[Any, ...]]]


class Unreadable:
    """Stands for a value that the database holds and that is not what its type says."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __repr__(self) -> str:
        return f"Unreadable({self.reason!r})"


class Charsets:
    """Decoders by collation; ``ask`` runs a query. Used by two threads, which may build the same table twice."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._names: dict[int, str] = {}
        self._decoders: dict[str, Callable[[bytes], Any] | None] = {}

    def decoder(self, collation: int) -> Callable[[bytes], Any] | None:
        """From bytes to text, or to ``Unreadable``; None where the bytes are the value."""
        if collation in (0, BINARY):
            return None
        if collation not in self._names:
            self._names |= self._all_collations()
        return self.named(self._names[collation])

    def named(self, name: str) -> Callable[[bytes], Any] | None:
        """The same by the name of the character set."""
        if name not in self._decoders:
            self._decoders[name] = self._made(name)
        return self._decoders[name]

    def _all_collations(self) -> dict[int, str]:
        found: dict[int, str] = dict(
            self._ask("select id, character_set_name from information_schema.collations where id is not null")
        )
        columns = self._ask("show columns from information_schema.collation_character_set_applicability like 'id'")
        if columns:  # since 10.10 one collation serves several character sets, under an id for each
            found |= self._ask(
                "select id, character_set_name from information_schema.collation_character_set_applicability"
            )
        return found

    def _made(self, name: str) -> Callable[[bytes], Any] | None:
        if name == "binary":
            return None
        if name in UTF8:
            return utf8
        if name in UNICODE:
            return _unicode(name, UNICODE[name])
        table = self._characters(name)
        if all(len(each) == 1 for each in table):
            return _single(name, "".join(table.get(bytes((byte,)), UNDEFINED) for byte in range(256)))
        return _several(name, table)

    def _characters(self, name: str) -> dict[bytes, str]:
        """Every character of a set by its bytes, from the server."""
        ((size,),) = self._ask(
            "select maxlen from information_schema.character_sets where character_set_name = %s", name
        )
        candidates = list(_candidates(int(size), three=name in THREE_BYTES))
        packed = b"\n".join(candidates).hex()
        ((answer,),) = self._ask(f"select cast(convert(convert(x'{packed}' using {name}) using utf32) as binary)")
        shown = (answer if isinstance(answer, bytes) else answer.encode("latin-1")).decode("utf-32-be").split("\n")
        assert len(shown) == len(candidates), f"{name} has a character for the line feed"
        found = {each: text for each, text in zip(candidates, shown, strict=True) if len(text) == 1 and text != "?"}
        return found | {b"\n": "\n", b"?": "?"}


def _candidates(size: int, *, three: bool) -> Iterator[bytes]:
    yield from (bytes((byte,)) for byte in range(256) if byte != LINE_FEED)
    if size > 1:
        yield from (bytes((lead, trail)) for lead in range(0x80, 0x100) for trail in range(0x20, 0x100))
    if three:
        yield from (bytes((0x8F, row, cell)) for row in range(0xA1, 0xFF) for cell in range(0xA1, 0xFF))


def _unreadable(name: str, data: bytes) -> Unreadable:
    shown = data[:40].hex() + ("…" if len(data) > 40 else "")
    return Unreadable(f"the bytes {shown} are no text of the character set {name}")


def utf8(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _unreadable("utf8mb4", data)


def _unicode(name: str, encoding: str) -> Callable[[bytes], Any]:
    decode = codecs.lookup(encoding).decode

    def read(data: bytes) -> Any:
        try:
            return decode(data)[0]
        except UnicodeDecodeError:
            return _unreadable(name, data)

    return read


def _single(name: str, table: str) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return codecs.charmap_decode(data, "strict", table)[0]
        except UnicodeDecodeError:
            return _unreadable(name, data)

    return read


def _several(name: str, table: dict[bytes, str]) -> Callable[[bytes], Any]:
    """One to three bytes for a character. A byte that begins a longer one is no character by itself."""
    is_ascii = all(table.get(bytes((byte,))) == chr(byte) for byte in range(128))

    def read(data: bytes) -> Any:
        if is_ascii and data.isascii():
            return data.decode("ascii")
        found, at = [], 0
        while at < len(data):
            for size in (1, 2, 3):
                text = table.get(data[at : at + size])
                if text is not None:
                    break
            else:
                return _unreadable(name, data)
            found.append(text)
            at += size
        return "".join(found)

    return read
