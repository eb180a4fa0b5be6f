"""What is done to the broker in a long run, one thing after the other, each chosen by chance."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable

from tests.chaos.broker import COMMAND, WRITES, ChaosBroker
from tests.chaos.history import Recorder
from tests.chaos.proxy import TO_BROKER, TO_CLIENT, Proxy

__all__ = ["FAULTS", "JUMP_MS_MAX", "STANDSTILL_S_MAX", "THROUGH_PROXY", "Faults"]

HOUR_S, DAY_S = 3_600, 86_400
JUMPS_S = (0, 0, HOUR_S, -HOUR_S, DAY_S, -DAY_S, 8 * DAY_S)
JUMP_MS_MAX = 2 * 1000 * (max(JUMPS_S) - min(JUMPS_S))
SYNCS = "fdatasync,syncfs"
ANSWERED_S = 2.0
"""What was asked before is answered after this time."""
_REBUILT = re.compile(r"index\b.*; it will be rebuilt$")
"""What ``restore`` says of an index that could not be written under ``files`` or ``full``; it is never the only place
of a fact."""
THROUGH_PROXY = frozenset({"network", "restore"})
"""Faults that need clients to connect through it."""
STANDSTILL_S_MAX = 8.0
"""How long a broker is stopped, or what is under way held, before it goes on."""


class Faults:
    """Does things to a broker and its network; what lasts is over when the call returns, but for the clock."""

    def __init__(self, broker: ChaosBroker, proxy: Proxy, recorder: Recorder, seed: int) -> None:
        self.broker = broker
        self.proxy = proxy
        self.recorder = recorder
        self.chance = random.Random(seed)
        self.restored = 0

    def last(self, least_s: float, most_s: float) -> None:
        time.sleep(self.chance.uniform(least_s, most_s))

    def kill(self) -> None:
        with self.recorder.calm:
            self.broker.kill()
            time.sleep(self.chance.choice([0.0, 0.0, 0.3, 1.0]))
            self.broker.start()

    def stop(self) -> None:
        with self.broker.frozen():
            self.last(0.2, STANDSTILL_S_MAX)

    def clock(self) -> None:
        self.broker.shift_clock(self.chance.choice(JUMPS_S))

    def slow(self) -> None:
        delay_ms = self.chance.choice([20, 100, 500])
        with self.broker.injected(f"{SYNCS}:delay_enter={delay_ms}ms"):
            self.last(1.0, 4.0)

    def full(self) -> None:
        with self.broker.injected(f"{WRITES}:error=ENOSPC"):
            self.last(0.5, 3.0)

    def files(self) -> None:
        with self.broker.few_files(self.chance.randint(0, 4)):
            self.last(1.0, 4.0)

    def restore(self) -> None:
        """Nothing reaches the broker any more and all that did is answered; then a backup of it, as it runs, is made
        and restored, and a broker on the restored directory takes its place. Nobody has seen more than the backup has,
        so everything that holds after a kill must hold after this."""
        home, self.restored = self.broker.home, self.restored + 1
        backups, data = home / "backups", home / f"data-{self.restored}"
        with self.recorder.calm, self.proxy.closed(TO_BROKER):
            time.sleep(ANSWERED_S)
            with self.proxy.held(TO_CLIENT):
                self._headrace("backup", "create", str(backups), "--bootstrap", self.broker.bootstrap)
                self.broker.kill()
                self._headrace("restore", str(backups), "--data", str(data))
                shutil.rmtree(self.broker.data)
                self.broker.data = data
                self.proxy.cut()
                self.broker.start()

    def _headrace(self, *arguments: str) -> None:
        done = subprocess.run([str(COMMAND), *arguments], capture_output=True, text=True, timeout=300, check=False)
        told = [line for line in done.stderr.splitlines() if line and not _REBUILT.search(line)]
        if done.returncode != 0 or told:
            raise RuntimeError(f"headrace {' '.join(arguments)} exited {done.returncode}:\n{done.stderr}")

    def network(self) -> None:
        directions = self.chance.choice([(TO_BROKER,), (TO_CLIENT,), (TO_BROKER, TO_CLIENT)])
        what = self.chance.choice(["held", "lost", "vanished"])
        if what == "held":
            began = self.recorder.now()
            with self.proxy.held(*directions):
                self.last(0.5, STANDSTILL_S_MAX)
                if TO_BROKER in directions:
                    self.recorder.write("held", began=began)
        elif what == "lost":
            self.proxy.lose(*directions)
        else:
            self.proxy.vanish()


FAULTS: dict[str, Callable[[Faults], None]] = {
    "kill": Faults.kill,
    "stop": Faults.stop,
    "clock": Faults.clock,
    "slow": Faults.slow,
    "full": Faults.full,
    "files": Faults.files,
    "network": Faults.network,
    "restore": Faults.restore,
}
