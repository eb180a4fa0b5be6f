"""/metrics, /health and /ready.

``/metrics`` must not hold up requests: counters are read in slices of ``SLICE_S``, and the text is made on a thread.
Scrapes that come while one is under way share its text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from time import monotonic

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import CollectorRegistry

from headrace.metrics.collector import Collector
from headrace.metrics.known_names import Unfilled
from headrace.server.http import HttpResponse, Route

__all__ = ["Endpoints"]

SLICE_S = 0.002
JSON = "application/json"


class Endpoints:
    """``reasons_not_ready`` is asked for each ``/ready``: an empty list means that the broker serves."""

    def __init__(self, collector: Collector, reasons_not_ready: Callable[[], list[str]]) -> None:
        self._collector = collector
        self._reasons_not_ready = reasons_not_ready
        self._rendering: asyncio.Task[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-metrics")
        self._started_at = monotonic()

    def routes(self) -> dict[str, Route]:
        return {"/metrics": self.metrics, "/health": self.health, "/ready": self.ready}

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def metrics(self) -> HttpResponse:
        if self._rendering is None:
            self._rendering = asyncio.get_running_loop().create_task(self._render())
            self._rendering.add_done_callback(self._rendered)
        text = await asyncio.shield(self._rendering)
        return HttpResponse(body=text, content_type=CONTENT_TYPE_PLAIN_0_0_4)

    def _rendered(self, task: asyncio.Task[bytes]) -> None:
        self._rendering = None

    async def health(self) -> HttpResponse:
        """The process lives and its loop answers: that an answer comes says both."""
        return _json(HTTPStatus.OK, {"status": "ok", "uptime_seconds": round(monotonic() - self._started_at, 3)})

    async def ready(self) -> HttpResponse:
        reasons = self._reasons_not_ready()
        if reasons:
            return _json(HTTPStatus.SERVICE_UNAVAILABLE, {"status": "not ready", "reasons": reasons})
        return _json(HTTPStatus.OK, {"status": "ready"})

    async def _render(self) -> bytes:
        found: list[Metric | Unfilled] = []
        began = monotonic()
        for metric in self._collector.steps():
            if metric is not None:
                found.append(metric)
            if monotonic() - began > SLICE_S:
                await asyncio.sleep(0)
                began = monotonic()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._text, found)

    def _text(self, found: list[Metric | Unfilled]) -> bytes:
        made = (each.filled() if isinstance(each, Unfilled) else each for each in found)
        return generate_latest(_Collected([*made, *self._collector.slow()]))


class _Collected(CollectorRegistry):
    """A registry that holds what was collected."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        super().__init__(auto_describe=False)
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def _json(status: HTTPStatus, content: dict[str, object]) -> HttpResponse:
    return HttpResponse(status=status, body=json.dumps(content).encode() + b"\n", content_type=JSON)
