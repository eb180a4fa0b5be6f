"""Reading a SQLite table in chunks, by rowid where it has rowids and by its key where it has not.

Rowids are integers and never null. Keys of a table with rowids may be null, of mixed classes and ordered by a
collation. VACUUM may change the rowids of a table whose key they are not: then its snapshot begins again.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

from headrace.capture.source import Progress
from headrace.capture.sqlite.file import SqliteFile, TableInfo, quoted

__all__ = ["ChunkReader"]


class ChunkReader:
    """Rows of a table after those that were read; when it was left early, ``end`` says so in the progress."""

    def __init__(self, file: SqliteFile, table: TableInfo, progress: Progress, chunk_rows: int) -> None:
        self._file = file
        self._table = table
        self._progress = progress
        self._chunk_rows = chunk_rows
        # Without a key, changes of rows that were read cannot be distinguished from others: it is read in one piece.
        by = (quoted(table.rowid),) if table.rowid else table.key_terms
        self._order = by if table.key else ()
        self._last: tuple[Any, ...] | None = None
        self._is_whole = False
        self._taken = 0

    @property
    def may_end(self) -> bool:
        """Whether the next chunk could begin after the row that came last."""
        last = self._last
        return (
            last is not None and bool(self._order) and all(isinstance(each, int | float | str | bytes) for each in last)
        )

    def rows(self) -> Generator[Sequence[Any], None, None]:
        names = ", ".join(map(quoted, self._table.columns))
        query = f"select {', '.join([names, *self._order])} from {quoted(self._table.name)}"
        bounds = [_from_json(each) for each in self._progress.after or ()]
        if bounds:
            query += f" where ({', '.join(self._order)}) > ({', '.join('?' * len(bounds))})"
        if self._order:
            query += f" order by {', '.join(self._order)}"
        width = len(self._table.columns)
        with closing(self._file.each(query, *bounds)) as found:
            for row in found:
                self._last = row[width:]
                self._taken += 1
                yield row[:width]
                if self._taken >= self._chunk_rows and self.may_end:
                    return
        self._is_whole = True

    def end(self) -> None:
        progress = self._progress
        progress.rows += self._taken
        progress.done = self._is_whole
        progress.after = None if self._is_whole else [_as_json(each) for each in self._last or ()]


def _as_json(value: Any) -> str:
    return json.dumps({"hex": value.hex()} if isinstance(value, bytes) else value)


def _from_json(text: str) -> Any:
    value = json.loads(text)
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value
