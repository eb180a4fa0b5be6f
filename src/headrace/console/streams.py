"""Server-Sent Events, and other answers that a thread makes bit by bit.

A client of Kafka blocks, so what takes long runs on a separate thread and gives its parts with ``emit``. When the
browser is slow, ``emit`` waits; when it is gone, ``emit`` raises ``Gone``, which ends the thread. So a search ends when
its tab is closed.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import CancelledError
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from headrace.console.limits import HEARTBEAT_S, STREAM_ITEMS_MAX
from headrace.console.problems import Busy, problem_of

__all__ = ["Emit", "Gone", "StreamAnswer", "Streams", "event_text", "json_text"]

EVENTS = "text/event-stream"
HALF_PAIR = re.compile("[\ud800-\udfff]")
EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Gone(Exception):
    """The browser has closed the stream, or the console stops."""


def json_text(value: Any) -> str:
    """JSON as browsers read it: NaN and infinities, which Python would write, are null. Half a surrogate pair, which
    JSON of others can have, is no text that can be sent."""
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=False)
    return HALF_PAIR.sub("\ufffd", text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def event_text(name: str, value: Any) -> bytes:
    """JSON text has no line breaks, so it is one data line."""
    return f"event: {name}\ndata: {json_text(value)}\n\n".encode()


class Emit:
    """Given to the thread of a stream."""

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[bytes | None]) -> None:
        self._loop = loop
        self._queue = queue
        self.gone = threading.Event()

    def event(self, name: str, value: Any) -> None:
        self.data(event_text(name, value))

    def data(self, data: bytes) -> None:
        """Wait until the browser has taken enough of what came before."""
        self.check()
        try:
            put = asyncio.run_coroutine_threadsafe(self._queue.put(data), self._loop)
            put.result()
        except (CancelledError, RuntimeError):
            raise Gone from None

    def check(self) -> None:
        if self.gone.is_set():
            raise Gone


class StreamAnswer(StreamingResponse):
    """A stream that tells its end, also when its reader left before the first part."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        on_end: Callable[[], None],
        *,
        media_type: str,
        headers: dict[str, str],
    ) -> None:
        super().__init__(parts, media_type=media_type, headers={**EVENT_HEADERS, **headers})
        self._parts = parts
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            try:
                await self._parts.aclose()
            finally:
                self._on_end()


class Streams:
    """The streams of a console, each kind with its limit."""

    def __init__(self) -> None:
        self.closing = asyncio.Event()
        self._open: Counter[str] = Counter()

    def answer(
        self,
        kind: str,
        most: int,
        parts: AsyncGenerator[bytes, None],
        *,
        media_type: str = EVENTS,
        headers: dict[str, str] | None = None,
    ) -> StreamAnswer:
        """An answer that counts as one of its kind until it ends; ``Busy`` when there are ``most``."""
        if self._open[kind] >= most:
            raise Busy(kind, most)
        self._open[kind] += 1

        def leave() -> None:
            self._open[kind] -= 1

        return StreamAnswer(parts, leave, media_type=media_type, headers=headers or {})

    def threaded(
        self,
        kind: str,
        most: int,
        work: Callable[[Emit], None],
        *,
        media_type: str = EVENTS,
        headers: dict[str, str] | None = None,
    ) -> StreamAnswer:
        """An answer whose parts come from ``work`` on a thread. Events get a heartbeat and their errors as an event. A
        file that fails in the middle ends without its end, so that a browser does not take it for whole."""
        parts = self._parts(kind, work, heartbeat=media_type == EVENTS)
        return self.answer(kind, most, parts, media_type=media_type, headers=headers)

    async def _parts(self, kind: str, work: Callable[[Emit], None], *, heartbeat: bool) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(STREAM_ITEMS_MAX)
        emit = Emit(loop, queue)
        failures: list[Exception] = []

        def run() -> None:
            try:
                work(emit)
            except Gone:
                pass
            except Exception as error:
                if heartbeat:
                    emit_last(emit, event_text("problem", problem_of(error)[1]))
                else:
                    failures.append(error)
            finally:
                emit_end(emit)

        thread = threading.Thread(target=run, name=f"console-{kind}", daemon=True)
        thread.start()
        closing = asyncio.ensure_future(self.closing.wait())
        getting = asyncio.ensure_future(queue.get())
        try:
            while True:
                await asyncio.wait({getting, closing}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    part = getting.result()
                    if part is None:
                        if failures:
                            raise failures[0]
                        return
                    yield part
                    getting = asyncio.ensure_future(queue.get())
                elif closing.done():
                    return
                elif heartbeat:
                    yield b": still here\n\n"
        finally:
            emit.gone.set()
            closing.cancel()
            getting.cancel()
            while not queue.empty():  # frees a thread that waits for room
                queue.get_nowait()


def emit_last(emit: Emit, data: bytes) -> None:
    try:
        emit.data(data)
    except Gone:
        pass


def emit_end(emit: Emit) -> None:
    """Say that nothing follows."""
    try:
        asyncio.run_coroutine_threadsafe(emit._queue.put(None), emit._loop)
    except RuntimeError:  # the loop is closed, and with it the stream
        pass
