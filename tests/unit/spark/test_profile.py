"""Java and the profile, without starting Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace.spark as hr
from headrace.errors import UsageError
from headrace.spark.plan import arrow_blocks, keeps_state, session_id
from headrace.spark.run.java import find_java, java_version, wrong_version
from headrace.spark.run.session import _cores, _given, _profile, session
from headrace.spark.source.registration import register
from headrace.spark.state.dedup_operator import DedupForever


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ('openjdk version "17.0.12" 2024-07-16', (17, 0, 12)),
        ('java version "1.8.0_392"', (8, 0)),
        ('openjdk version "21" 2023-09-19', (21,)),
        ("no such thing", ()),
    ],
)
def test_the_version_of_java_is_read_from_what_it_prints(printed: str, version: tuple[int, ...]) -> None:
    assert java_version(printed) == version


@pytest.mark.parametrize(
    ("version", "good"),
    [((17, 0, 12), True), ((21,), True), ((11, 0, 2), False), ((8, 0), False), ((25, 0, 1), False), ((25, 0, 3), True)],
)
def test_versions_that_spark_does_not_run_on_are_refused(version: tuple[int, ...], good: bool) -> None:
    assert (wrong_version(version) == "") is good


def test_missing_or_old_java_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"JAVA_HOME=.* has no bin/java .*install Java 17 or 21"):
        find_java()
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(UsageError, match=r"is Java 11\.0\.2: Spark 4\.3 needs 17 or newer") as told:
        find_java()
    assert "\n" not in str(told.value)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="no java on the PATH"):
        find_java()


def test_what_the_caller_sets_wins_over_the_profile_and_must_be_a_setting_of_spark() -> None:
    assert _given({"spark_ui_enabled": True, "conf": {"spark.x.camelCase": 5}}) == {
        "spark.ui.enabled": "true",
        "spark.x.camelCase": "5",
    }
    with pytest.raises(UsageError, match="no setting of Spark"):
        _given({"shuffle": 3})


def test_only_a_master_on_this_machine_is_kept_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    local = _profile({"spark.master": "local[3]"})
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert local["spark.ui.enabled"] == "false"
    assert local["spark.sql.shuffle.partitions"] == "3"
    cluster = _profile({"spark.master": "spark://h:7077"})
    assert "spark.driver.bindAddress" not in cluster
    assert "spark.sql.shuffle.partitions" not in cluster
    assert "RocksDB" in cluster["spark.sql.streaming.stateStore.providerClass"]


@pytest.mark.parametrize(("master", "cores"), [("local[2]", 2), ("local-cluster[2,3,1024]", 6), ("local", None)])
def test_cores_follow_from_the_master(master: str, cores: int | None) -> None:
    assert _cores(master) == cores or cores is None


def test_the_package_offers_its_names_without_loading_spark_and_a_module_hides_no_function() -> None:
    script = (
        "import sys, headrace.spark as hr\n"
        "assert 'pyspark' not in sys.modules\n"
        "hr.stream, hr.register\n"
        "assert callable(hr.session) and callable(hr.stream) and callable(hr.table) and callable(hr.pipeline)\n"
        "assert hr.sinks.__name__ == 'headrace.spark.sinks'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)


def test_without_pyspark_the_error_says_what_to_install() -> None:
    script = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "import headrace.spark as hr\n"
        "from headrace.errors import UsageError\n"
        "try:\n"
        "    hr.session\n"
        "except UsageError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, timeout=100, capture_output=True, text=True)
    assert "pip install 'headrace[spark]'" in done.stdout


def test_what_spark_loads_into_its_many_processes_does_not_import_pandas() -> None:
    """Spark starts a Python for the planner of every query; pandas would take two thirds of its start."""
    loads = "import sys, headrace.spark.source.data_source, headrace.spark.topic_sink.sink, headrace.spark.testing"
    program = f"{loads}; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0


def test_spark_connect_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"Spark Connect has none.*without SPARK_REMOTE"):
        session(conf={"spark.remote": "sc://127.0.0.1"})
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1")
    with pytest.raises(UsageError, match="Spark Connect has none"):
        session()


CONNECT: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
"""Its class is known by its module: the package that Connect needs is none of ours."""
OF_CONNECT: Any = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe", "sparkSession": CONNECT})()


@pytest.mark.parametrize(
    "use",
    [
        lambda: register(CONNECT),
        lambda: hr.stream(CONNECT, "orders"),
        lambda: hr.batch(CONNECT, "orders"),
        lambda: hr.table(CONNECT, "orders"),
        lambda: hr.queue(CONNECT, "work"),
        lambda: hr.state_totals(CONNECT, "checkpoint"),
        lambda: hr.state_of(CONNECT, "checkpoint", "key"),
        lambda: hr.apply_operator(OF_CONNECT, DedupForever(pa.schema([("id", pa.int64())])), keys=["id"]),
        lambda: next(arrow_blocks(OF_CONNECT, 10)),
        lambda: keeps_state(OF_CONNECT),
        lambda: session_id(CONNECT),
    ],
    ids=["register", "stream", "batch", "table", "queue", "totals", "state", "operator", "rows", "plan", "session"],
)
def test_a_session_of_spark_connect_that_was_made_elsewhere_is_refused(use: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match=r"Spark Connect has none.*hr.session\(master=…\)"):
        use()
