"""All parts of the demo as processes: started in order, on spare ports, and stopped whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace import testing
from headrace.capture.options import CaptureOptions
from headrace.capture.state import Registry
from headrace.client import Admin, Client, TopicPartition, end_offsets
from headrace.demo.shop import PRODUCTS, Shop
from headrace.demo.visitors import CLICKS, Visitors
from headrace.errors import HeadraceError, UsageError

__all__ = ["CAPTURE", "CORRECTED", "PRICED", "Stage"]

CAPTURE = "shop"
TABLES = ("customers", "products", "orders", "payments")
PRICED = "orders-priced"
CORRECTED = "clicks-corrected"
PIPELINES = Path(__file__).with_name("pipelines.py")
STOP_S_MAX = 60.0
CAPTURE_S_MAX = 60.0
CONSOLE_S_MAX = 60.0
HEARTBEAT_MS = 1000
LOG_LINES = 15
JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""The queries of a demo are small: compiling them thoroughly takes more of two cores than running them. Without the
thorough compiler Java keeps 48 MB of compiled code, and sweeping what does not fit took 8% of a core."""


class Part:
    """A program of the demo, with its output in a file or handed on line by line."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for the demo, which closes the day before it stops the others
            )

    def follow(self, take: Callable[[str], None]) -> None:
        """Hand every line to ``take``, on a thread that ends with the program."""

        def read() -> None:
            assert self._process.stdout is not None
            with self._process.stdout as lines:
                for line in lines:
                    take(line.decode(errors="replace").rstrip())

        threading.Thread(target=read, name=self.name, daemon=True).start()

    def check(self) -> None:
        if self._process.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])
            raise HeadraceError(f"{self.name} ended with {self._process.returncode}:\n{tail}")

    def ask_to_stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        if self._process.poll() is None:
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class Stage:
    """Broker, database, capture, pipelines, shop and visitors: entered, they run."""

    def __init__(self, say: Callable[[str], None], *, orders_per_s: float, clicks_per_s: float, seed: int) -> None:
        self._say = say
        self._rates = (orders_per_s, clicks_per_s)
        self._seed = seed
        self._stack = ExitStack()
        self.parts: list[Part] = []
        self.console = ""
        """The address of the web console, with its token."""
        self.progress: dict[str, dict[str, Any]] = {}
        """The last report of each pipeline."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        """Undisturbed: a further Ctrl-C would leave behind what is not stopped yet."""
        before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            with suppress(OSError):  # the terminal may be gone
                self._say("\nStopping all that was started …")
            self._stack.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self) -> None:
        enter = self._stack.enter_context
        self._say("Everything that follows is started on spare ports, and stopped in the end.")
        self.home = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
        self._stack.callback(shutil.rmtree, self.home, ignore_errors=True)
        broker = enter(testing.broker(in_process=False))
        self.bootstrap = broker.bootstrap
        self._say(f"broker       {self.bootstrap}, process {broker.pid}")
        self.database = enter(_postgres()).url()
        self.shop = Shop(self.database, rate=self._rates[0], seed=self._seed)
        self._stack.callback(self.shop.stop)
        self.shop.prepare()
        self._say(f"PostgreSQL   {self.database}")
        self.client = enter(Client(self.bootstrap))
        for topic in (*(f"{CAPTURE}.public.{table}" for table in TABLES), CLICKS, PRICED, CORRECTED):
            Admin(self.client).create_topic(topic, partitions=1)
        self.index = self.home / "search.db"
        self._stack.callback(self._stop_parts)
        self._pipelines()  # first, because everything waits for Spark
        self._console()
        self._capture()
        self.visitors = Visitors(self.bootstrap, rate=self._rates[1], seed=self._seed)
        self._stack.callback(self.visitors.stop)
        self._until_captured()
        self.shop.open()
        self.visitors.come()

    def _stop_parts(self) -> None:
        """Asked all at once, so that one's end is not waited for by the others."""
        for part in self.parts:
            part.ask_to_stop()
        for part in self.parts:
            part.stop()

    def _console(self) -> None:
        """In front of the broker, as ``headrace up --http`` would start it."""
        shown = threading.Event()

        def take(line: str) -> None:
            word, _, address = line.partition(" ")
            if word == "console":
                self.console = address
                shown.set()

        part = self._part("console", ["console", "--bootstrap", self.bootstrap, "--http", "127.0.0.1:0"])
        part.follow(take)
        deadline_s = time.monotonic() + CONSOLE_S_MAX
        while not shown.wait(0.1):
            part.check()
            if time.monotonic() > deadline_s:
                raise HeadraceError(f"the console has not started within {CONSOLE_S_MAX:g} s")
        self._say(f"console      {self.console}")

    def _capture(self) -> None:
        """Added and then run, as a user does, so that ``headrace capture status`` knows it."""
        tables = tuple(f"public.{table}" for table in TABLES)
        options = CaptureOptions(name=CAPTURE, url=self.database, tables=tables, heartbeat_ms=HEARTBEAT_MS)
        Registry(self.client).put(options)
        part = self._part("capture", ["capture", "run", CAPTURE, "--bootstrap", self.bootstrap])
        part.follow(lambda line: None)
        self._say(f"capture      tables {', '.join(TABLES)} into topics {CAPTURE}.public.*")

    def _until_captured(self) -> None:
        """What a price was before capture saw it, no join can find out: so the first prices come first."""
        places = [TopicPartition(f"{CAPTURE}.public.products", 0)]
        deadline_s = time.monotonic() + CAPTURE_S_MAX
        while sum(end_offsets(self.client, places, read_committed=True).values()) < PRODUCTS:
            self.check()
            if time.monotonic() > deadline_s:
                raise HeadraceError(f"capture has not read the products within {CAPTURE_S_MAX:g} s")
            time.sleep(0.1)

    def _pipelines(self) -> None:
        self._checkpoints = self.home / "checkpoints"
        options = ["--bootstrap", self.bootstrap, "--checkpoints", str(self._checkpoints), "--output", "json"]
        logged = ["--log", str(self.home / "spark.log")]
        part = self._part("pipelines", ["run", str(PIPELINES), *options, *logged])
        part.follow(self._reported)
        self._say("pipelines    Spark starts; on two cores the first results take about 20 s")

    def _part(self, name: str, arguments: Sequence[str]) -> Part:
        environment = {"HEADRACE_DEMO_DATABASE": self.database, "HEADRACE_DEMO_INDEX": str(self.index)}
        if "SPARK_SUBMIT_OPTS" not in os.environ:
            environment["SPARK_SUBMIT_OPTS"] = JVM
        command = [sys.executable, "-m", "headrace", *arguments]
        part = Part(name, command, self.home / f"{name}.log", environment)
        self.parts.append(part)
        return part

    def _reported(self, line: str) -> None:
        try:
            report = json.loads(line)
        except ValueError:
            return
        if isinstance(report, dict) and "pipeline" in report:
            self.progress[report["pipeline"]] = report

    def steps(self) -> dict[str, str]:
        """What pipelines do that have not reported yet, as their checkpoints tell."""
        found = {}
        for folder in self._checkpoints.glob("[!.]*") if self._checkpoints.exists() else ():
            planned = any((folder / "spark" / "offsets").glob("[0-9]*"))
            if folder.name not in self.progress:
                found[folder.name] = "first batch" if planned else "starting"
        return found

    def batches(self) -> dict[str, Any]:
        """How far each pipeline is."""
        return {name: report["batch"] for name, report in self.progress.items()}

    def check(self) -> None:
        """Raise when a part has ended by itself."""
        for part in self.parts:
            part.check()
        for actor in (self.shop, self.visitors):
            if actor.failed is not None:
                raise actor.failed


def _postgres() -> Any:
    try:
        from headrace.testing.postgres import postgres
    except ModuleNotFoundError as error:
        raise UsageError(f"the demo needs {error.name}", "pip install 'headrace[demo]'") from error
    return postgres()
