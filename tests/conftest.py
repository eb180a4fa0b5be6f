"""Fixtures and order for all tests: fast folders first, so that a simple mistake shows within seconds."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure, and no test asserts a time. A run of the same code looks at the same examples, so that
# it is red for a reason and not by chance; HEADRACE_EXPLORE=1 looks where nobody has looked yet.
settings.register_profile(
    "headrace",
    deadline=None,
    derandomize=os.environ.get("HEADRACE_EXPLORE") != "1",
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("headrace")

# Brokers of tests run side by side, and only one could have the port that queues are served on by default.
os.environ.setdefault("HEADRACE_AMQP", "off")

# Queries of tests are short: compiling them thoroughly takes more of two cores than running them.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

pytest_plugins = ["tests.skips", "tests.servers.fixtures"]

FOLDERS_FAST_FIRST = ("architecture", "unit", "properties", "docs", "differential", "interop", "chaos", "spark")
TESTS = Path(__file__).parent
EXAMPLES_MIN = 3


def pytest_configure() -> None:
    """A run started in the background by a script ignores Ctrl-C, and so would the commands that tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--examples-part",
        type=int,
        default=1,
        metavar="N",
        help="look at one in N of each property's examples: `make check` has to be quick",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.path))
    for item in items:
        thin_out(item, config.getoption("--examples-part"))
        if item.path.is_relative_to(TESTS / "spark"):
            item.add_marker("spark")


def pytest_collection_finish() -> None:
    """Modules and tests live to the end: the garbage collector need not look at them after every few tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def level_of_the_root_logger() -> Iterator[None]:
    """Celery sets it for the whole process, and later tests would not hear warnings."""
    root = logging.getLogger()
    before = root.level
    yield
    if root.level != before:
        root.setLevel(before)


def thin_out(item: pytest.Item, part: int) -> None:
    """A test that states its own number of examples has its settings in this attribute; hypothesis has no other way."""
    test = getattr(item, "obj", None)
    own: settings | None = getattr(test, "_hypothesis_internal_use_settings", None)
    if part > 1 and own is not None:
        fewer = settings(own, max_examples=max(EXAMPLES_MIN, own.max_examples // part))
        getattr(test, "__func__", test)._hypothesis_internal_use_settings = fewer


def rank(path: Path) -> int:
    """The sort is stable, so tests keep the order of their file inside a folder."""
    folder = path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""
    return FOLDERS_FAST_FIRST.index(folder) if folder in FOLDERS_FAST_FIRST else 3
