"""Answers on their way out of one connection.

A chunk is bytes, or a slice of a file. Slices are read in pieces, and only while the transport takes them: a peer that
asks for a gigabyte and does not read costs one piece and the transport's buffer. A piece is read without waiting where
the page cache has it (the usual case); where it does not, a thread reads it, and this connection alone waits.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any, Protocol

from headrace.ports import File
from headrace.server.limits import PIECE_BYTES

__all__ = ["Output", "Slice"]

_BYTES = (bytes, bytearray, memoryview)
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)
_NOT_NOW = {errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class Slice(Protocol):
    """A range of a file, as ``headrace.log`` hands it out."""

    @property
    def file(self) -> File: ...

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int: ...

    def __len__(self) -> int: ...


class Output:
    """The queue of chunks. ``failed`` is called when a promised byte cannot be read, ``drained`` when all has left."""

    def __init__(
        self,
        transport: asyncio.Transport,
        readers: Executor,
        *,
        drained: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        self._transport = transport
        self._readers = readers
        self._drained = drained
        self._failed = failed
        self._chunks: deque[Any] = deque()
        self._slice_sent = 0  # bytes of the slice at the head that are handed over
        self._paused = False
        self._reading: asyncio.Future[bytes] | None = None

    @property
    def blocked(self) -> bool:
        """The peer is behind: something waits for it to read."""
        return self._paused or bool(self._chunks)

    def add(self, chunks: Iterable[Any]) -> None:
        self._chunks.extend(chunks)
        self._pump()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._pump()
        if not self.blocked:
            self._drained()

    def abandon(self) -> None:
        """The connection is gone."""
        self._chunks.clear()
        self._paused = True

    def _break_off(self, reason: str) -> None:
        """The peer was promised these bytes in the frame's size: nothing can be sent in their place."""
        self.abandon()
        self._failed(reason)

    def _pump(self) -> None:
        chunks = self._chunks
        while chunks and not self._paused and self._reading is None:
            chunk = chunks[0]
            if isinstance(chunk, _BYTES):
                chunks.popleft()
                self._transport.write(chunk)
            elif chunk.size == 0:
                chunks.popleft()
            else:
                self._read_piece(chunk)

    def _read_piece(self, chunk: Slice) -> None:
        size = min(PIECE_BYTES, chunk.size - self._slice_sent)
        position = chunk.position + self._slice_sent
        try:
            piece = _read_at_once(chunk.file, size, position)
        except OSError as error:
            self._break_off(f"{chunk.file.path} at {position}: {error.strerror}")
            return
        if piece is not None:
            self._hand_over(chunk, piece)
            return
        loop = asyncio.get_running_loop()
        self._reading = loop.run_in_executor(self._readers, chunk.file.pread, size, position)
        self._reading.add_done_callback(self._cold_piece_read)

    def _cold_piece_read(self, reading: asyncio.Future[bytes]) -> None:
        self._reading = None
        error = None if reading.cancelled() else reading.exception()
        if not self._chunks or reading.cancelled():
            return
        chunk = self._chunks[0]
        if error is not None:
            self._break_off(f"{chunk.file.path} at {chunk.position + self._slice_sent}: {error}")
            return
        self._hand_over(chunk, reading.result())
        self._pump()
        if not self.blocked:
            self._drained()

    def _hand_over(self, chunk: Slice, piece: bytes | bytearray | memoryview) -> None:
        if not piece:
            self._break_off(f"{chunk.file.path} ends before {chunk.position + chunk.size}")
            return
        self._slice_sent += len(piece)
        if self._slice_sent == chunk.size:
            self._chunks.popleft()
            self._slice_sent = 0
        self._transport.write(piece)


def _read_at_once(file: File, size: int, position: int) -> bytearray | memoryview | None:
    """What the page cache has of it, or None where the disk would have to be asked."""
    piece = bytearray(size)
    try:
        count = os.preadv(file.fileno(), [piece], position, _NO_WAIT)
    except io.UnsupportedOperation:
        return None  # a file without descriptor: a simulated one
    except OSError as error:
        if error.errno in _NOT_NOW:
            return None
        raise
    if count == size:
        return piece
    return memoryview(piece)[:count]
