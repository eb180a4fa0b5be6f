"""Visitors of the shop's pages, whose devices send clicks through a Kafka client.

Their clocks are wrong, by seconds or by hours. A device sends what it has collected some seconds later, in any order,
and some transfers take their time. The shop's server notes when it received a click; what the time really was when it
occurred is written beside it for nobody but the audit.
"""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.errors import HeadraceError, UsageError

__all__ = ["CLICKS", "Visitors"]

CLICKS = "clicks"
DEVICES = 40
ROUND_S = 0.2
OFFLINE_S_MAX = 6.0
FLUSH_S_MAX = 60.0
PAGES = ("home", "search", "product", "basket", "checkout")


@dataclass(slots=True)
class Device:
    name: str
    clock_off: timedelta
    sends_next_s: float
    collected: list[tuple[str, datetime]]


class Visitors:
    """``rate`` clicks a second over all devices, until they leave."""

    def __init__(self, bootstrap: str, *, rate: float, seed: int) -> None:
        self._bootstrap = bootstrap
        self._rate = rate
        self._chance = random.Random(seed)
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="visitors", daemon=True)
        self._devices = [self._device(number) for number in range(DEVICES)]
        self.clicks = 0
        self.failed: BaseException | None = None

    def _device(self, number: int) -> Device:
        off = self._chance.choice((0.0, 2.5, -40.0, 3600.0, -7200.0, 86_400.0 * 3))
        return Device(f"device-{number}", timedelta(seconds=off * self._chance.uniform(0.8, 1.2)), 0.0, [])

    def come(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Everybody sends what is left, if anybody has come."""
        self._leaving.set()
        if self._thread.ident is not None:
            self._thread.join()

    def leave(self, ahead: timedelta) -> None:
        """A last click, dated ahead, lets those come out that wait for later ones."""
        self.stop()
        if self.failed is not None:
            raise self.failed
        sender = Sender(self._bootstrap)
        later = datetime.now(UTC) + ahead
        self._send(sender, self._devices[0], "closing", later, later)
        sender.close()

    def _run(self) -> None:
        try:
            sender = Sender(self._bootstrap)
            began_s = time.monotonic()
            made = 0
            while not self._leaving.wait(ROUND_S):
                now_s = time.monotonic()
                while made < (now_s - began_s) * self._rate:
                    self._chance.choice(self._devices).collected.append((self._page(), datetime.now(UTC)))
                    made += 1
                for device in self._devices:
                    if device.collected and now_s >= device.sends_next_s:
                        self._transfer(sender, device)
            for device in self._devices:
                self._transfer(sender, device)
            sender.close()
        except BaseException as error:
            self.failed = error

    def _page(self) -> str:
        return self._chance.choice(PAGES)

    def _transfer(self, sender: Sender, device: Device) -> None:
        now = datetime.now(UTC)
        self._chance.shuffle(device.collected)
        for page, occurred in device.collected:
            self._send(sender, device, page, occurred, now)
        device.collected = []
        device.sends_next_s = time.monotonic() + self._chance.expovariate(1 / 1.5) % OFFLINE_S_MAX

    def _send(self, sender: Sender, device: Device, page: str, occurred: datetime, sent: datetime) -> None:
        self.clicks += page != "closing"
        transfer = timedelta(milliseconds=self._chance.expovariate(1 / 60))
        click = {
            "id": 0 if page == "closing" else self.clicks,
            "device": device.name,
            "page": page,
            "occurred": (occurred + device.clock_off).isoformat(),
            "sent": (sent + device.clock_off).isoformat(),
            "received": (sent + transfer).isoformat(),
            "really": occurred.isoformat(),
        }
        sender.send(device.name.encode(), json.dumps(click).encode())


class Sender:
    """librdkafka, which knows nothing of headrace."""

    def __init__(self, bootstrap: str) -> None:
        try:
            from confluent_kafka import Producer
        except ModuleNotFoundError as error:
            raise UsageError("the demo's visitors need confluent-kafka", "pip install 'headrace[demo]'") from error
        self._producer: Any = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "enable.idempotence": True})

    def send(self, key: bytes, value: bytes) -> None:
        self._producer.produce(CLICKS, value, key)
        self._producer.poll(0)

    def close(self) -> None:
        """Return when all is acknowledged."""
        if self._producer.flush(FLUSH_S_MAX):
            raise HeadraceError("clicks were not acknowledged by the broker in time")
