"""How long one request can hold up everybody else: the worst request of each API that fits the limits on requests.

The broker holds topics with many partitions, groups, producers and transactions. A probe on a second connection asks
for something small again and again; its longest wait while a request is executed is that request's stall. Requests
repeat names, or name everything there is, as far as ``request.elements.max`` and ``request.other.bytes.max`` allow.

The probe measures elapsed time, which on a busy machine holds other processes' time too. So the note says how much
processor time the broker's loop used in the probe's longest such wait, and the first line is a time in which nothing
but maintenance runs.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.figures import Figure
from benchmarks.raw_client import connect, read_exactly
from benchmarks.stalls_requests import GROUPS, MEMBERS, PRODUCERS, REQUESTS, TRANSACTIONS, WIDE, Asked, World, setup
from headrace.wire.kafka.apis import APIS, Api
from headrace.wire.kafka.codec import blank, read_message, write_message
from headrace.wire.kafka.messages.groups import HeartbeatRequest
from tests.servers.headrace import headrace_server

__all__ = ["run"]

STALL_MS_MAX = 50
IDLE_S = 11
"""Two checkpoints and a run of retention."""
IN_FLIGHT = 30
PROBE_PAUSE_S = 0.001
AFTER_S = 0.05
"""A request may have consequences after its answer."""
PARKED_S = 0.5
"""Some answers wait for other clients, and never come here."""


def run(*, quick: bool) -> list[Figure]:
    rounds = 1 if quick else 2
    settings = {"log.retention.check.interval.ms": "10000", "group.consumer.heartbeat.interval.ms": "15000"}
    with headrace_server(settings=settings) as server, Client(server.bootstrap) as client:
        world = World(client.ask, client.ask_all)
        setup(world)
        with Probe(server.bootstrap, server.pid) as probe:
            time.sleep(IDLE_S)
            figures = [_figure("nothing but maintenance", [probe.take()])]
            for api in APIS.values():
                for case, make in REQUESTS.get(api.key, {"nothing asked for": _empty(api)}).items():
                    stalls = [_stall_ms(server.bootstrap, probe, make(world, number)) for number in range(rounds)]
                    figures.append(_figure(f"{api.name}: {case}", stalls))
    figures[0].note += (
        f"; {WIDE:,} partitions, {GROUPS:,} groups, one with {MEMBERS:,} members, "
        f"{PRODUCERS:,} producers in a partition, "
        f"{TRANSACTIONS:,} transactional ids"
    )
    return figures


def _empty(api: Api) -> Callable[[World, int], Asked]:
    return lambda world, number: [(blank(api.request), None)]


def _figure(case: str, stalls: list[Stall]) -> Figure:
    return Figure(
        hop="stalls",
        case=case,
        unit="ms, longest",
        ours=[each.elapsed_ms for each in stalls],
        higher_is_better=False,
        goal=STALL_MS_MAX,
        absolute=True,
        note=f"{median(each.cpu_ms for each in stalls):.0f} ms of processor time",
    )


def _stall_ms(bootstrap: str, probe: Probe, bodies: Asked) -> Stall:
    """The longest wait of the probe while these are answered, one after the other."""
    frames = [(body, version, encoded(body, version)) for body, version in bodies]
    with Client(bootstrap) as client:
        time.sleep(AFTER_S)
        probe.take()
        for body, _, frame in frames:
            client.send(frame)
            if not client.skip_answer(PARKED_S if type(body).__name__ in WAITING else 60):
                break
        time.sleep(AFTER_S)
        return probe.take()


WAITING = {"JoinGroupRequest", "SyncGroupRequest"}


def encoded(body: Any, version: int | None) -> bytes:
    api = APIS[KEYS[type(body)]]
    version = api.version_max if version is None else version
    payload = b"".join(map(bytes, write_message(body, version)))
    head = struct.pack(">hhih", api.key, version, 0, -1)
    if api.request_header_version(version) == 2:
        head += b"\x00"
    return struct.pack(">i", len(head) + len(payload)) + head + payload


KEYS = {api.request: api.key for api in APIS.values()}


class Client:
    """One connection, one request at a time."""

    def __init__(self, bootstrap: str) -> None:
        self.socket = connect(bootstrap)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, frame: bytes) -> None:
        self.socket.settimeout(60)
        self.socket.sendall(frame)

    def receive(self) -> bytearray:
        size = bytearray(4)
        read_exactly(self.socket, memoryview(size))
        answer = bytearray(struct.unpack(">i", size)[0])
        read_exactly(self.socket, memoryview(answer))
        return answer

    def skip_answer(self, timeout_s: float) -> bool:
        """Wait for an answer; False if none comes."""
        self.socket.settimeout(timeout_s)
        try:
            self.receive()
        except (TimeoutError, ConnectionError):  # a request that Kafka too refuses by closing the connection
            return False
        return True

    def ask(self, body: Any, version: int | None = None) -> Any:
        api = APIS[KEYS[type(body)]]
        version = api.version_max if version is None else version
        self.send(encoded(body, version))
        position = 5 if api.response_header_version(version) else 4
        return read_message(api.response, version, self.receive(), position, elements_max=10_000_000)[0]

    def ask_all(self, bodies: list[Any], version: int) -> None:
        """Several requests on their way at once; the answers are not looked at."""
        for number, body in enumerate(bodies):
            self.send(encoded(body, version))
            if number >= IN_FLIGHT:
                self.receive()
        for _ in bodies[:IN_FLIGHT]:
            self.receive()


def loop_cpu_ms(pid: int) -> float:
    """The time that the main thread of a process, which runs its event loop, has had on a processor."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e6


class Stall(NamedTuple):
    """The longest wait, and the most processor time of the loop in any wait."""

    elapsed_ms: float
    cpu_ms: float


@dataclass(slots=True)
class Probe:
    """Asks all the time, and keeps its longest wait."""

    bootstrap: str
    pid: int
    _longest: Stall = field(default_factory=lambda: Stall(0.0, 0.0))
    _done: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Probe:
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        assert self._thread is not None
        self._thread.join()

    def take(self) -> Stall:
        longest, self._longest = self._longest, Stall(0.0, 0.0)
        return longest

    def _ask(self) -> None:
        frame = encoded(HeartbeatRequest(group_id="nobody", generation_id=1, member_id="nobody"), None)
        with Client(self.bootstrap) as client:
            while not self._done.is_set():
                cpu_before = loop_cpu_ms(self.pid)
                began = time.monotonic()
                client.send(frame)
                client.receive()
                elapsed_ms = (time.monotonic() - began) * 1000
                cpu_ms = min(loop_cpu_ms(self.pid) - cpu_before, elapsed_ms)
                longest = self._longest
                self._longest = Stall(max(longest.elapsed_ms, elapsed_ms), max(longest.cpu_ms, cpu_ms))
                time.sleep(PROBE_PAUSE_S)
