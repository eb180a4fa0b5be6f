"""The Java client of Apache Kafka, compiled here and now against the jars that the broker came with."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers.kafka import java_command, kafka_jars
from tests.servers.process import CannotRun, RunningServer
from tests.skips import skip_or_fail

pytestmark = pytest.mark.servers

SOURCE = Path(__file__).parent / "java" / "Client.java"
JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("java")
    try:
        command = ["javac", "-cp", f"{kafka_jars()}/*", "-d", str(folder), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    except CannotRun as why:
        skip_or_fail(str(why))
    except FileNotFoundError:
        skip_or_fail("the Java client needs javac, which is not installed")
    except subprocess.CalledProcessError as failed:
        pytest.fail(failed.stderr, pytrace=False)
    return folder


@pytest.mark.parametrize(
    "scenarios",
    [
        pytest.param("records,codecs,positions", id="records-codecs-positions"),
        pytest.param("eager,cooperative", id="classic-groups"),
        pytest.param("consumer", id="consumer-protocol"),
        pytest.param("transactions,fencing,exactlyonce", id="transactions"),
        pytest.param("admin,security", id="admin"),
    ],
)
def test_the_java_client_finds_what_it_expects(
    broker: RunningServer, classes: Path, unique: Callable[[str], str], scenarios: str
) -> None:
    command = java_command("Client", broker.bootstrap, scenarios, unique("java"), jvm=JVM, classpath=str(classes))
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    finished = [line for line in done.stdout.splitlines() if line.endswith(" ok")]
    assert finished == [f"{each} ok" for each in scenarios.split(",")]
