"""A driver that stops for a while (SIGSTOP, a machine that sleeps) is replaced, and goes on: it must not write then.

Checkpoints are on a file system that only Spark can read, as with s3a:// and hdfs://, so drivers hold leases: on a
local disk the lock of a stopped driver stays, and nobody replaces it.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from headrace.client import Client
from tests.chaos.spark_judge import committed
from tests.chaos.spark_life import Life
from tests.servers.process import RunningServer
from tests.spark.topics import create, send
from tests.waiting import eventually as wait_for_it

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(1800)]

PATIENCE_S = 420
"""Two drivers with three pipelines each start on a busy machine."""
eventually = partial(wait_for_it, pause_s=0.1, patience_s=PATIENCE_S)
COMMAND = Path(sys.executable).with_name("headrace")
PIPELINES = """
import time
from pathlib import Path

from pyspark.sql import functions as F
from headrace.spark import sinks
from headrace.spark.run.pipelines import pipeline
from headrace.spark.source.reading import stream

HOME = Path({home!r})


def read(spark, name):
    @F.udf("string")
    def held(text):
        if (HOME / "hold").exists():
            (HOME / f"{{name}}.waits").touch()
        while (HOME / "hold").exists():
            time.sleep(0.02)
        return text

    return stream(spark, {source!r}, value_format="text").select(held("value").alias("value"))


@pipeline(sink=sinks.topic({target!r}))
def copied(spark):
    return read(spark, "copied")


@pipeline(sink=sinks.sql(f"sqlite:///{{HOME}}/added.db", table="added", create=True))
def added(spark):
    return read(spark, "added")


@pipeline(sink=sinks.sql(f"sqlite:///{{HOME}}/counted.db", table="counted", key="value", create=True))
def counted(spark):
    return read(spark, "counted").groupBy("value").count()
"""


class World:
    """Two drivers of the same pipelines, the topic that they read, and all targets."""

    def __init__(self, home: Path, bootstrap: str, source: str, target: str) -> None:
        self.home, self.bootstrap, self.source, self.target = home, bootstrap, source, target
        self.drivers: list[Life] = []
        for topic in (source, target):
            create(bootstrap, topic)
        (home / "shared").mkdir()
        self.hold = home / "hold"
        text = PIPELINES.format(home=str(home), source=source, target=target)
        (home / "shop.py").write_text(text)

    def driver(self, name: str) -> Life:
        link = f"spark.hadoop.fs.viewfs.mounttable.shared.link./checkpoints={(self.home / 'shared').as_uri()}"
        words = ["--bootstrap", self.bootstrap, "--master", "local[4]", "--conf", link]
        words += ["--conf", "spark.sql.shuffle.partitions=2"]
        words += ["--checkpoints", "viewfs://shared/checkpoints", "--log", str(self.home / f"{name}.spark.log")]
        begun = Life(self.home / f"{name}.log", [str(COMMAND), "run", str(self.home / "shop.py"), *words])
        self.drivers.append(begun)
        return begun

    def send(self, *values: str) -> None:
        send(self.bootstrap, self.source, [each.encode() for each in values])

    def copied(self) -> Counter[str]:
        with Client(self.bootstrap) as client:
            return Counter((record.value or b"").decode() for _, record in committed(client, self.target))

    def added(self) -> Counter[str]:
        return Counter(str(row[0]) for row in self._rows("added"))

    def counted(self) -> Counter[str]:
        return Counter({str(value): int(count) for value, count in self._rows("counted")})

    def _rows(self, table: str) -> list[tuple[object, ...]]:
        if not (self.home / f"{table}.db").exists():
            return []
        try:
            with closing(sqlite3.connect(f"file:{self.home}/{table}.db?mode=ro", uri=True)) as base:
                return base.execute(f"SELECT * FROM {table}").fetchall()
        except sqlite3.OperationalError:  # no table yet
            return []

    def wait_for(self, *kinds: Callable[[], Counter[str]], wanted: set[str], driver: Life) -> None:
        for kind in kinds:

            def there(kind: Callable[[], Counter[str]] = kind) -> bool:
                driver.check()
                return wanted <= set(kind())

            eventually(there)

    def close(self) -> None:
        for driver in self.drivers:
            signal_all(driver, signal.SIGCONT)
            driver.close()


def signal_all(driver: Life, number: signal.Signals) -> None:
    for pid in driver.processes():
        os.kill(pid, number)


def test_a_driver_that_was_stopped_in_a_micro_batch_and_replaced_ends_when_it_goes_on_and_writes_nothing(
    headrace_server: RunningServer, unique: Callable[[str], str], tmp_path: Path
) -> None:
    world = World(tmp_path, headrace_server.bootstrap, unique("from"), unique("to"))
    try:
        first = world.driver("first")
        world.send("a", "b")
        world.wait_for(world.copied, world.added, world.counted, wanted={"a", "b"}, driver=first)
        world.hold.touch()
        world.send("c", "d")
        eventually(lambda: all((tmp_path / f"{name}.waits").exists() for name in ("copied", "added", "counted")))
        signal_all(first, signal.SIGSTOP)
        world.hold.unlink()

        second = world.driver("second")
        world.wait_for(world.copied, wanted={"c", "d"}, driver=second)
        assert "has the lease of process" in second.text()
        world.send("e")
        world.wait_for(world.copied, wanted={"e"}, driver=second)

        signal_all(first, signal.SIGCONT)
        eventually(lambda: first.child.poll() is not None)
        assert first.child.returncode == 1
        assert "is in use by process" in first.text()
        world.send("f")
        world.wait_for(world.copied, world.added, world.counted, wanted=set("abcdef"), driver=second)
        second.child.send_signal(signal.SIGTERM)
        eventually(lambda: second.child.poll() is not None)
        assert second.child.returncode == 0, second.text()
    finally:
        world.close()
    once = Counter("abcdef")
    assert (world.copied(), world.added(), world.counted()) == (once, once, once)
