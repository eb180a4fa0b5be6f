"""Where a chunk of a snapshot ends, as text in the state and as a bound that the server compares as it sorts.

MariaDB compares an ENUM or SET with a text as texts, where ORDER BY goes by its number: rows between two chunks would
be left out. A number and a text it may compare as doubles, which are equal for neighbours beyond 2**53. So each bound
goes back with the type of its column.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["KeyColumn", "quoted"]

HEX = "hex:"
INTEGERS = frozenset(("tinyint", "smallint", "mediumint", "int", "bigint", "year"))
NUMBERED = frozenset(("enum", "set", "bit"))
"""Types that sort by a number which is not what a query shows of them."""


class KeyColumn(NamedTuple):
    """A column of a key, as information_schema.columns describes it."""

    name: str
    data_type: str
    scale: int | None = None

    @property
    def compared(self) -> str:
        """What is compared with the bound: it sorts as the column does."""
        if self.data_type in NUMBERED:
            return f"cast({quoted(self.name)} as unsigned)"
        return quoted(self.name)

    @property
    def shown(self) -> str:
        """What is read to become the next bound: a text in UTF-8, of what is text."""
        name = quoted(self.name)
        if self.data_type in NUMBERED:
            return self.compared
        if self.is_binary:
            return f"cast({name} as binary)"
        return f"cast({name} as double)" if self.data_type == "float" else f"convert({name} using utf8mb4)"

    @property
    def is_binary(self) -> bool:
        return "binary" in self.data_type or "blob" in self.data_type

    @property
    def marker(self) -> str:
        return f"cast(%s as decimal(65,{self.scale or 0}))" if self.data_type == "decimal" else "%s"

    def bound(self, text: str) -> int | str | bytes:
        """The argument for the marker, from the text in the state."""
        if self.data_type in INTEGERS or self.data_type in NUMBERED:
            return int(text)
        if text.startswith(HEX) and self.is_binary:
            return bytes.fromhex(text[len(HEX) :])
        return text

    def text(self, value: bytes) -> str:
        """What ``bound`` takes, from a value of ``shown``."""
        return HEX + value.hex() if self.is_binary else value.decode()


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"
