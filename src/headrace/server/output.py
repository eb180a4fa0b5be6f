"""Answers on their way out of one connection.

A chunk is bytes, or a slice of a file. What a peer does not take stays in its file: slices are sent piece by piece, and
only while the connection takes them, so a peer that asks for a gigabyte and does not read costs next to nothing.

Answers in memory go through the transport, which gathers what one turn of the loop writes. An answer of megabytes is a
list of small pieces: they are joined as they leave, a turn's worth at a time, since copying all of them at once and
handing them to a peer that keeps up would hold the loop for tens of milliseconds. An answer that carries records goes
around the transport, so that it leaves at once: a small one in one call, a large one by the kernel, which sends the
file's pages itself (``sendfile``), and none is copied through this process. That is possible while the transport holds
nothing back, and where the connection is plain TCP.

Nothing here waits for the disk on the loop. What the page cache has (the usual case) is sent at once; where it lacks
something a thread reads the piece, and this connection alone waits.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Protocol

from headrace.linux import HAS_LINUX_CALLS
from headrace.ports import File
from headrace.server.descriptors import is_scarce
from headrace.server.page_cache import has_descriptor, is_cached, read_at_once

__all__ = ["LOCAL_BUFFER_BYTES", "PIECE_BYTES", "DirectSocket", "Output", "Slice"]

PIECE_BYTES = 128 << 10
"""One read from a file on its way through a transport. Measured with uvloop on loopback, CPU seconds per GB: 64 KiB
pieces 0.62, 128 KiB 0.48, 256 KiB 0.46; ``sendfile`` 0.30. A consumer that does not read costs one piece and the write
buffer. What is in memory leaves in such pieces too."""

JOINED_BYTES_MAX = 32 << 10
"""A chunk up to this size is copied together with its neighbours: one more call would cost more than the copy."""

GATHERED_BYTES_MAX = 64 << 10
"""An answer up to this size is read into memory and sent in one call; above, ``sendfile`` is cheaper."""

TURN_BYTES = 2 << 20
"""What one connection may send before the others have their turn. Around its transport that takes less than a
millisecond; with half as much, a reader of large answers cost a tenth more. Through it, some two milliseconds."""

LOCAL_BUFFER_BYTES = 192 << 10
"""What the kernel holds for a peer on this machine. By default it holds up to 4 MB, which leave the processor's caches
before the peer reads them: 0.26 CPU s per GB and 1,010 MB/s, and 0.21 and 1,840 with this bound, on a busy machine. The
best of eight sizes; its neighbours are within the noise. A peer on another machine keeps the kernel's own
bound, which grows with the distance."""

WARMED_BYTES = 1 << 20
"""What a thread reads at once where the page cache lacks something."""

SHARE_OF_DESCRIPTORS = 0.5
"""Connections get a second descriptor while fewer than this share of all are in use."""

_BYTES = (bytes, bytearray, memoryview)
_NO_SENDFILE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
"""Of filesystems that cannot."""
_MORE = getattr(socket, "MSG_MORE", 0)


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
    """The queue of chunks. ``failed`` is called when a promised byte cannot be read, ``drained`` when all that had
    to wait has left, ``taken`` whenever the peer took something after a wait."""

    def __init__(
        self,
        transport: asyncio.Transport,
        readers: Executor,
        *,
        drained: Callable[[], None],
        failed: Callable[[str], None],
        taken: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._readers = readers
        self._drained = drained
        self._failed = failed
        self._taken = taken
        self._chunks: deque[Any] = deque()
        self._slice_sent = 0  # bytes of the first slice in the queue that are handed over
        self._paused = False
        self._awaits_turn = False  # this turn's worth is written through the transport; the next goes on
        self._reading: asyncio.Future[bytes] | None = None
        self._direct: DirectSocket | None = None
        self._around = False  # what is in the queue goes around the transport
        self._warmed_bytes = 0  # of the first slice, from where it is: a thread has just read them

    @property
    def blocked(self) -> bool:
        """Something waits for the peer to read, or for its next turn."""
        return self._paused or bool(self._chunks)

    def add(self, chunks: Iterable[Any]) -> None:
        idle = not self._chunks
        self._chunks.extend(chunks)
        if idle and self._may_go_around():
            self._around = True
            self._gather_if_small()
        self._pump()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._writable()

    def abandon(self) -> None:
        """The connection is gone."""
        self._chunks.clear()
        self._paused = True
        self._around = False
        self._drained = self._taken = self._failed = _no_owner  # they refer to what refers to this
        if self._direct is not None:
            self._direct.close()
            self._direct = None

    def _writable(self) -> None:
        self._taken()
        self._go_on()

    def _go_on(self) -> None:
        self._pump()
        if not self.blocked:
            self._drained()

    def _break_off(self, reason: str) -> None:
        """The peer was promised these bytes in the frame's size: nothing can be sent in their place."""
        failed = self._failed
        self.abandon()
        failed(reason)

    def _break_off_at_the_end(self, chunk: Slice) -> None:
        self._break_off(f"{chunk.file.path} ends before {chunk.position + chunk.size}")

    def _pump(self) -> None:
        if self._around:
            self._pump_around()
        else:
            self._pump_through()
        if not self._chunks:
            self._around = False

    # ---- through the transport --------------------------------------------------------------------------------------

    def _pump_through(self) -> None:
        """What the transport takes, and then the others' turn: a peer that keeps up lets it take everything."""
        chunks = self._chunks
        left = TURN_BYTES
        while chunks and not self._paused and self._reading is None and not self._awaits_turn:
            if left <= 0:
                self._awaits_turn = True
                asyncio.get_running_loop().call_soon(self._next_turn)
                return
            chunk = chunks[0]
            if isinstance(chunk, _BYTES):
                left -= self._write_piece()
            elif chunk.size == 0:
                chunks.popleft()
            else:
                self._read_piece(chunk)

    def _next_turn(self) -> None:
        self._awaits_turn = False
        self._go_on()

    def _write_piece(self) -> int:
        """The size of what was written: the bytes at the front, up to ``PIECE_BYTES``."""
        chunks = self._chunks
        piece = self._front()
        if len(piece) > PIECE_BYTES:
            view = memoryview(piece)
            piece, chunks[0] = view[:PIECE_BYTES], view[PIECE_BYTES:]
        else:
            chunks.popleft()
        self._transport.write(piece)
        return len(piece)

    def _front(self) -> bytes | bytearray | memoryview:
        """The first chunk, which is bytes; small ones that follow each other have become one."""
        chunks = self._chunks
        parts: list[bytes | bytearray | memoryview] = []
        size = 0
        while chunks and isinstance(chunks[0], _BYTES) and len(chunks[0]) <= JOINED_BYTES_MAX:
            size += len(chunks[0])
            if size > PIECE_BYTES:
                break
            parts.append(chunks.popleft())
        if parts:
            chunks.appendleft(parts[0] if len(parts) == 1 else b"".join(parts))
        first: bytes | bytearray | memoryview = chunks[0]
        return first

    def _read_piece(self, chunk: Slice) -> None:
        size = min(PIECE_BYTES, chunk.size - self._slice_sent)
        position = chunk.position + self._slice_sent
        try:
            piece = read_at_once(chunk.file, size, position)
        except OSError as error:
            self._break_off(f"{chunk.file.path} at {position}: {error.strerror}")
            return
        if piece is None:
            self._read_in_thread(chunk, PIECE_BYTES, self._take_piece)
        else:
            self._take_piece(chunk, piece)

    def _read_in_thread(self, chunk: Slice, size_max: int, then: Callable[[Slice, bytes], None]) -> None:
        """Only this connection waits."""
        size = min(size_max, chunk.size - self._slice_sent)
        loop = asyncio.get_running_loop()
        self._reading = loop.run_in_executor(self._readers, chunk.file.pread, size, chunk.position + self._slice_sent)
        self._reading.add_done_callback(lambda reading: self._read_by_thread(reading, then))

    def _read_by_thread(self, reading: asyncio.Future[bytes], then: Callable[[Slice, bytes], None]) -> None:
        self._reading = None
        error = None if reading.cancelled() else reading.exception()
        if not self._chunks or reading.cancelled():
            return
        chunk = self._chunks[0]
        if error is not None:
            self._break_off(f"{chunk.file.path} at {chunk.position + self._slice_sent}: {error}")
            return
        then(chunk, reading.result())
        self._go_on()

    def _take_piece(self, chunk: Slice, piece: bytes | bytearray | memoryview) -> None:
        """The next bytes of the first slice are in memory: they take their place before what is left of it."""
        if self._advance(chunk, len(piece)):
            self._chunks.appendleft(piece)

    def _advance(self, chunk: Slice, count: int) -> bool:
        if not count:
            self._break_off_at_the_end(chunk)
            return False
        self._slice_sent += count
        if self._slice_sent == chunk.size:
            self._chunks.popleft()
            self._slice_sent = self._warmed_bytes = 0
        return True

    # ---- around it --------------------------------------------------------------------------------------------------

    def _may_go_around(self) -> bool:
        first = next((chunk for chunk in self._chunks if not isinstance(chunk, _BYTES)), None)
        if first is None or not has_descriptor(first.file):
            return False
        if self._paused or self._transport.get_write_buffer_size():
            return False
        if self._direct is None:
            self._direct = DirectSocket.of(self._transport, self._writable)
        return self._direct is not None

    def _gather_if_small(self) -> None:
        """One call for a small answer costs less than one for its header and one for each slice."""
        if sum(map(len, self._chunks)) > GATHERED_BYTES_MAX:
            return
        parts = []
        with suppress(OSError):  # what cannot be read now is dealt with where it is sent
            for chunk in self._chunks:
                part = chunk if isinstance(chunk, _BYTES) else read_at_once(chunk.file, chunk.size, chunk.position)
                if part is None or len(part) != len(chunk):
                    return
                parts.append(part)
            self._chunks = deque([b"".join(parts)])

    def _pump_around(self) -> None:
        """As much as fits into the kernel's buffer, and then the others' turn."""
        direct = self._direct
        assert direct is not None
        chunks = self._chunks
        left = TURN_BYTES
        try:
            while chunks and left > 0 and self._reading is None:
                chunk = chunks[0]
                if isinstance(chunk, _BYTES):
                    chunk = self._front()
                    sent = direct.send(chunk, more=len(chunks) > 1)
                    if sent < len(chunk):
                        chunks[0] = memoryview(chunk)[sent:]
                    else:
                        chunks.popleft()
                elif chunk.size == 0:
                    chunks.popleft()
                    continue
                else:
                    sent = self._send_slice(direct, chunk, left)
                left -= sent
        except BlockingIOError:
            left = 0
        except OSError:
            self._transport.abort()  # it has not noticed yet that nothing can be sent any more
            return
        direct.watch(bool(chunks) and self._reading is None)

    def _send_slice(self, direct: DirectSocket, chunk: Slice, size_max: int) -> int:
        """How much of ``size_max`` is used up: all of it where the kernel took less than it was given, since it would
        take no more."""
        size = min(size_max, chunk.size - self._slice_sent)
        position = chunk.position + self._slice_sent
        try:
            if not self._warmed_bytes and not is_cached(chunk.file, size, position):
                self._read_in_thread(chunk, WARMED_BYTES, self._note_warmed)
                return 0
            size = min(size, self._warmed_bytes or size)
            sent = direct.send_file(chunk.file, size, position)
        except OSError as error:
            if error.errno in _NO_SENDFILE:
                self._read_in_thread(chunk, PIECE_BYTES, self._take_piece)
            elif error.errno == errno.EIO:
                self._break_off(f"{chunk.file.path} at {position}: {error.strerror}")
            else:
                raise  # it is the connection's
            return 0
        self._warmed_bytes = max(0, self._warmed_bytes - sent)
        self._advance(chunk, sent)
        return sent if sent == size else size_max

    def _note_warmed(self, chunk: Slice, data: bytes) -> None:
        """The page cache has these bytes now, and sends them itself."""
        self._warmed_bytes = len(data)
        if not data:
            self._break_off_at_the_end(chunk)


def _no_owner(*_: object) -> None:
    """In the place of callbacks into a connection that is gone."""


class DirectSocket:
    """A second descriptor of a transport's socket, to send on while the transport is silent.

    An event loop does not let others watch the descriptor that a transport uses, so there is a second one.
    """

    def __init__(self, connected: socket.socket, writable: Callable[[], None]) -> None:
        self._socket = connected
        self._writable = writable
        self._loop = asyncio.get_running_loop()
        self._watching = False

    @classmethod
    def of(cls, transport: asyncio.Transport, writable: Callable[[], None]) -> DirectSocket | None:
        """None where the transport does more to bytes than send them, or is no socket's, or where descriptors are
        scarce: connections and segments need them more."""
        used = transport.get_extra_info("socket")
        if used is None or transport.get_extra_info("sslcontext") is not None:
            return None
        try:
            second = os.dup(used.fileno())
        except OSError:
            return None
        if is_scarce(second, SHARE_OF_DESCRIPTORS):
            os.close(second)
            return None
        connected = socket.socket(fileno=second)
        connected.setblocking(False)
        if _is_local(connected):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_BUFFER_BYTES)
        return cls(connected, writable)

    def send(self, data: bytes | bytearray | memoryview, *, more: bool) -> int:
        """``more`` lets the kernel put the beginning of what follows into the same packet."""
        return self._socket.send(data, _MORE if more else 0)

    def send_file(self, file: File, size: int, position: int) -> int:
        if not HAS_LINUX_CALLS:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return os.sendfile(self._socket.fileno(), file.fileno(), position, size)

    def watch(self, wanted: bool) -> None:
        """Have ``writable`` called as soon as, and as long as, the kernel takes more."""
        if wanted == self._watching or self._socket.fileno() < 0:
            return
        self._watching = wanted
        if wanted:
            self._loop.add_writer(self._socket.fileno(), self._writable)
        else:
            self._loop.remove_writer(self._socket.fileno())

    def close(self) -> None:
        self.watch(False)
        self._socket.close()


def _is_local(connected: socket.socket) -> bool:
    """Whether the peer is a process of this machine."""
    try:
        return connected.family == socket.AF_UNIX or connected.getpeername()[0] == connected.getsockname()[0]
    except OSError:
        return False  # it has gone
