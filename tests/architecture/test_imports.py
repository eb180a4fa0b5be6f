"""What must not be loaded: checked in a fresh interpreter, because this one has loaded everything.

The import contracts of .importlinter are checked by ``make check`` and ``make test``.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "pyspark",
    "pandas",
    "numpy",
    "pyarrow",
    "aiokafka",
    "confluent_kafka",
    "kafka",
    "rich",
    "click",
    "multiprocessing",
)


def modules_after(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import headrace", "import headrace.broker", "import headrace.client"])
def test_importing_the_broker_or_the_client_loads_nothing_heavy(statement: str) -> None:
    assert modules_after(statement) & set(HEAVY) == set()


def test_importing_headrace_itself_loads_no_part_of_it_but_errors() -> None:
    loaded = {name for name in modules_after("import headrace") if name.startswith("headrace.")}
    assert loaded <= {"headrace.errors", "headrace.version"}


def test_the_wire_runs_without_asyncio_sockets_or_threads() -> None:
    """The import contract looks at our own files; this looks at what really got loaded beside a bare interpreter."""
    wire = modules_after("import headrace.wire.kafka.codec, headrace.wire.kafka.connection")
    assert {"asyncio", "socket", "ssl", "uvloop"} & wire == set()
