"""``headrace run`` as users run it: a process, a broker, signals, restarts, and a terminal without Spark's noise."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import psutil  # type: ignore[import-untyped]
import pyarrow.parquet as pq
import pytest

from headrace.client import Client, Groups, StateRecord, TopicPartition, read_state_records
from headrace.testing import broker as start_broker
from tests.servers.process import RunningServer
from tests.spark.topics import create, eventually, send

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(900)]

COMMAND = Path(sys.executable).with_name("headrace")
HEAD = """
from pyspark.sql import functions as F
from headrace.spark.run.pipelines import pipeline
from headrace.spark import sinks
from headrace.spark.source.reading import batch, stream
"""
COPY = """
@pipeline(sink=sinks.parquet("out"))
def copy(spark):
    return stream(spark, "TOPIC", value_format="text").select("value", "_offset")
"""


def options(bootstrap: str, *more: str) -> list[str]:
    return ["--bootstrap", bootstrap, "--master", "local[2]", *more]


def environment() -> dict[str, str]:
    ours = ("HEADRACE_", "SPARK_", "PYSPARK")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "SPARK_SUBMIT_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", "")}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMMAND), "run", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@contextmanager
def running(
    folder: Path, *arguments: str, errors: int | TextIO = subprocess.PIPE, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    command = [str(COMMAND), "run", *arguments]
    pipe = subprocess.PIPE
    wanted = {**environment(), **variables}
    with subprocess.Popen(command, cwd=folder, env=wanted, stdout=pipe, stderr=errors, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def until(condition: Callable[[], bool], child: subprocess.Popen[str]) -> None:
    def met() -> bool:
        assert child.poll() is None, child.communicate()
        return condition()

    eventually(met)


def is_starting_spark(child: subprocess.Popen[str]) -> bool:
    """Whether its JVM runs, and not just the Java that is asked for its version."""
    try:
        return any("SparkSubmit" in " ".join(each.cmdline()) for each in psutil.Process(child.pid).children())
    except psutil.NoSuchProcess:  # that one has just ended
        return False


def written(folder: Path) -> list[str]:
    """What counts: the files that Spark's sink has listed, and not one that a task is writing."""
    listed = [
        line for each in (folder / "out" / "_spark_metadata").glob("[0-9]*") for line in each.read_text().split("\n")
    ]
    files = [folder / "out" / Path(json.loads(line)["path"]).name for line in listed if line.startswith("{")]
    return sorted(value for each in files for value in pq.read_table(each).column("value").to_pylist())


@pytest.mark.slow
def test_what_is_there_is_worked_off_the_terminal_stays_clean_and_the_next_run_goes_on(
    headrace_server: RunningServer, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic = unique("in")
    create(headrace_server.bootstrap, topic)
    send(headrace_server.bootstrap, topic, [b"a", b"b"])
    (tmp_path / "shop.py").write_text(HEAD + COPY.replace("TOPIC", topic))
    first = run(tmp_path, "shop.py", "--available-now", *options(headrace_server.bootstrap, "--output", "json"))
    assert first.returncode == 0, first.stderr
    assert first.stderr == "starting Spark; its messages go to headrace-run.log\n"
    *batches, last = [json.loads(line) for line in first.stdout.splitlines()]
    assert (last["pipeline"], last["state"], last["rows"], last["lag"]) == ("copy", "done", 2, 0)
    assert batches[0]["batch_ms"] > 0
    assert (tmp_path / "headrace-run.log").stat().st_size > 0
    assert (tmp_path / "headrace-checkpoints" / "copy" / "spark" / "commits" / "0").is_file()
    send(headrace_server.bootstrap, topic, [b"c"])
    second = run(tmp_path, "shop.py", "--available-now", *options(headrace_server.bootstrap))
    assert second.returncode == 0, second.stderr
    assert "copy  done" in second.stderr
    assert written(tmp_path) == ["a", "b", "c"]


@pytest.mark.slow
def test_a_signal_stops_it_cleanly_and_positions_are_shown_to_the_last_one(
    headrace_server: RunningServer, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic = unique("in")
    create(headrace_server.bootstrap, topic)
    send(headrace_server.bootstrap, topic, [b"a"])
    (tmp_path / "shop.py").write_text(HEAD + COPY.replace("TOPIC", topic))
    with running(tmp_path, "shop.py", *options(headrace_server.bootstrap)) as child:
        until(lambda: written(tmp_path) == ["a"], child)
        send(headrace_server.bootstrap, topic, [b"b"])
        until(lambda: written(tmp_path) == ["a", "b"], child)
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=300)
    assert child.returncode == 0, errors
    assert "stopping" in errors
    assert "copy  stopped" in errors
    assert "Traceback" not in errors
    with Client(headrace_server.bootstrap) as client:
        found = Groups(client).committed("headrace-spark-copy")
    assert found[TopicPartition(topic, 0)] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_spark_starts_leaves_no_process_and_no_file_behind(
    headrace_server: RunningServer, unique: Callable[[str], str], tmp_path: Path, number: signal.Signals
) -> None:
    topic = unique("in")
    create(headrace_server.bootstrap, topic)
    (tmp_path / "shop.py").write_text(HEAD + COPY.replace("TOPIC", topic))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = options(headrace_server.bootstrap)
    with running(tmp_path, "shop.py", *command, TMPDIR=str(temporary)) as child:
        until(lambda: is_starting_spark(child), child)
        started = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(number)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert "Traceback" not in errors
    assert psutil.wait_procs(started, timeout=60)[1] == []
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_a_broker_that_goes_away_is_waited_for_and_nothing_is_lost(tmp_path: Path) -> None:
    with start_broker(in_process=False) as broker:
        create(broker.bootstrap, "in")
        send(broker.bootstrap, "in", [b"a"])
        impatient = COPY.replace("TOPIC", "in").replace('"text"', '"text", retryTimeoutMs=1000')
        (tmp_path / "shop.py").write_text(HEAD + impatient)
        with running(tmp_path, "shop.py", *options(broker.bootstrap)) as child:
            until(lambda: written(tmp_path) == ["a"], child)
            broker.kill()
            log = tmp_path / "headrace-run.log"
            until(lambda: "pipeline copy failed" in log.read_text(errors="replace"), child)
            broker.start()
            send(broker.bootstrap, "in", [b"b"])
            until(lambda: written(tmp_path) == ["a", "b"], child)
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=300)
    assert child.returncode == 0, errors
    assert "copy failed: " in errors
    assert "restart 1 in 1 s" in errors


STUCK = """
import time
from pathlib import Path

def wait(rows, batch_id):
    Path(f"begun-{batch_id}").touch()
    while not Path("go").exists():
        time.sleep(0.1)

@pipeline(sink=wait)
def stuck(spark):
    return stream(spark, "TOPIC", value_format="text").select("value", "_offset")

@pipeline(sink=sinks.parquet("out"), every="1 hour")
def idle(spark):
    return stream(spark, "TOPIC", value_format="text").select("value", "_offset")
"""


@pytest.mark.slow
def test_the_lag_is_that_of_now_also_in_a_batch_that_does_not_end_and_between_batches(
    headrace_server: RunningServer, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic = unique("in")
    create(headrace_server.bootstrap, topic)
    send(headrace_server.bootstrap, topic, [b"a", b"b", b"c"])
    (tmp_path / "shop.py").write_text(HEAD + STUCK.replace("TOPIC", topic))
    with running(tmp_path, "shop.py", *options(headrace_server.bootstrap)) as child:
        until(lambda: (tmp_path / "begun-0").exists() and written(tmp_path) == ["a", "b", "c"], child)
        send(headrace_server.bootstrap, topic, [b"x"] * 712)
        until(lambda: lags_of(headrace_server.bootstrap, topic) == {"stuck": (715, 715), "idle": (712, 712)}, child)
        (tmp_path / "go").touch()
        until(lambda: lags_of(headrace_server.bootstrap, topic)["stuck"] == (0, 0), child)
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=300)
    assert child.returncode == 0, errors


def lags_of(bootstrap: str, topic: str) -> dict[str, tuple[int | None, int | None]]:
    """By pipeline: its lag, and that of its source in the graph."""
    with Client(bootstrap) as client:
        found = read_state_records(client, "pipeline").values()
    ours = [each for each in found if any(topic in node["topics"] for node in each.details["graph"]["nodes"])]
    return {each.name: (each.details["lag"], each.details["nodes"]["n0"].get("lag")) for each in ours}


@pytest.mark.slow
def test_a_broker_that_is_away_is_named_once_and_once_when_it_is_back(tmp_path: Path) -> None:
    with start_broker(in_process=False) as broker:
        create(broker.bootstrap, "in")
        send(broker.bootstrap, "in", [b"a"])
        (tmp_path / "shop.py").write_text(HEAD + COPY.replace("TOPIC", "in"))
        with (
            (tmp_path / "errors").open("w") as errors,
            running(tmp_path, "shop.py", *options(broker.bootstrap), errors=errors) as child,
        ):
            told = (tmp_path / "errors").read_text
            until(lambda: written(tmp_path) == ["a"], child)
            broker.kill()
            until(lambda: f"broker {broker.bootstrap} is not reachable since " in told(), child)
            broker.start()
            until(lambda: f"broker {broker.bootstrap} is back after " in told(), child)
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=300)
    assert [told().count(each) for each in ("not reachable", "; waiting", "is back")] == [1, 1, 1]


@pytest.mark.slow
def test_what_only_the_user_can_mend_ends_a_pipeline_in_its_first_batch_with_the_reason(
    headrace_server: RunningServer, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic = unique("in")
    create(headrace_server.bootstrap, topic)
    send(headrace_server.bootstrap, topic, [b"a"])
    target = 'sinks.sql("sqlite:///shop.db", table="nowhere", key="value")'
    (tmp_path / "shop.py").write_text(HEAD + COPY.replace("TOPIC", topic).replace('sinks.parquet("out")', target))
    ended = run(tmp_path, "shop.py", *options(headrace_server.bootstrap))
    assert ended.returncode == 1, ended.stderr
    assert "copy failed: there is no table nowhere at sqlite:///shop.db (make it, or let the sink: create=True)" in (
        ended.stderr
    )
    assert "restart" not in ended.stderr


@pytest.mark.slow
def test_a_changed_query_is_refused_in_words_and_starts_over_when_told_to(
    headrace_server: RunningServer, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic = unique("in")
    create(headrace_server.bootstrap, topic)
    send(headrace_server.bootstrap, topic, [b"a", b"b", b"a"])
    counting = f"""
seen = []

@pipeline(sink=lambda rows, batch_id: print(sorted(map(tuple, rows.collect())), flush=True))
def words(spark):
    return stream(spark, "{topic}", value_format="text").groupBy(KEY).count()
"""
    file = tmp_path / "words.py"
    file.write_text(HEAD + counting.replace("KEY", '"value"'))
    first = run(tmp_path, "words.py", "--available-now", *options(headrace_server.bootstrap))
    assert first.stdout == "[('a', 2), ('b', 1)]\n", first.stderr
    file.write_text(HEAD + counting.replace("KEY", '"value", "_partition"'))
    refused = run(tmp_path, "words.py", "--available-now", *options(headrace_server.bootstrap))
    assert refused.returncode == 1
    line = refused.stderr.splitlines()[-1]
    assert "pipeline 'words' has changed and no longer fits its checkpoint headrace-checkpoints/words" in line
    assert "was by value (string) and is by value (string), _partition (int)" in line
    assert "headrace run words.py --only words --start-over" in line
    again = run(tmp_path, "words.py", "--available-now", "--start-over", *options(headrace_server.bootstrap))
    assert again.stdout == "[('a', 0, 2), ('b', 0, 1)]\n", again.stderr
    assert "its old checkpoint is kept as words.until-" in again.stderr


@pytest.mark.slow
def test_a_bounded_pipeline_runs_once_and_only_those_asked_for_run(
    headrace_server: RunningServer, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic = unique("in")
    create(headrace_server.bootstrap, topic)
    send(headrace_server.bootstrap, topic, [b"a"])
    text = f"""
@pipeline
def once(spark):
    return batch(spark, "{topic}", value_format="text").select("value")

@pipeline
def never(spark):
    raise RuntimeError("not asked for")
"""
    (tmp_path / "once.py").write_text(HEAD + text)
    done = run(tmp_path, "once.py", "--only", "once", *options(headrace_server.bootstrap))
    assert done.returncode == 0, done.stderr
    assert "|    a|" in done.stdout
    wrong = run(tmp_path, "once.py", *options(headrace_server.bootstrap))
    assert wrong.returncode == 1
    assert "headrace: once.py:13: pipeline 'never': RuntimeError: not asked for" in wrong.stderr


@pytest.mark.slow
def test_without_a_broker_it_ends_at_once_and_says_how_to_start_one(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HEAD + COPY.replace("TOPIC", "in"))
    done = run(tmp_path, "shop.py", "--bootstrap", "127.0.0.1:1", "--master", "local[2]")
    assert done.returncode == 1
    assert "start one: headrace up" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_on_a_cluster_headrace_and_the_file_reach_executors_that_have_neither(
    headrace_server: RunningServer, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Workers run a Python in which this package cannot be found: what they use came from the driver."""
    topic = unique("in")
    create(headrace_server.bootstrap, topic, partitions=2)
    for partition in range(2):
        send(headrace_server.bootstrap, topic, [b"%d" % partition] * 3, partition=partition)
    source = Path(__file__).resolve().parents[2] / "src"
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(
        f"import sys\nsys.path[:] = [each for each in sys.path if each != {str(source)!r}]\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}/hidden:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "helper.py").write_text("def shout(text):\n    return text + '!'\n")
    text = f"""
import helper

@F.udf("string")
def where(text):
    import headrace
    return helper.shout(text) + headrace.__file__

@pipeline(sink=sinks.parquet("out"))
def copy(spark):
    return stream(spark, "{topic}", value_format="text").select(where("value").alias("value"))
"""
    (tmp_path / "job" / "shop.py").write_text(HEAD + text)
    done = subprocess.run(
        [str(COMMAND), "run", str(tmp_path / "job" / "shop.py"), "--available-now"]
        + ["--bootstrap", headrace_server.bootstrap, "--master", "local-cluster[2,1,1024]"],
        cwd=tmp_path,
        env={**environment(), "PYSPARK_PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = written(tmp_path)
    assert [row[:2] for row in rows] == ["0!"] * 3 + ["1!"] * 3
    places = {row[2:] for row in rows}
    assert all(
        "headrace.zip/headrace" in each and not each.startswith(tempfile.gettempdir() + "/headrace-") for each in places
    )


def test_the_first_pipeline_of_the_documentation_runs_and_the_terminal_stays_clean(
    headrace_server: RunningServer, tmp_path: Path
) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "pipelines.md").read_text()
    program, *_ = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "shop.py").write_text(program)
    orders = [{"id": number, "amount": "1.50", "placed_at": f"2026-01-31T10:{number:02}:00Z"} for number in range(10)]
    create(headrace_server.bootstrap, "orders")
    create(headrace_server.bootstrap, "revenue")
    send(headrace_server.bootstrap, "orders", [json.dumps(order).encode() for order in orders])
    done = run(tmp_path, "shop.py", "--available-now", *options(headrace_server.bootstrap))
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("starting Spark; its messages go to headrace-run.log\n")
    assert "revenue_per_minute  done" in done.stderr
    assert "WARN" not in done.stderr
    consume = [str(COMMAND), "consume", "revenue", "-e", "-b", headrace_server.bootstrap, "-f", "%k %v\n"]
    printed = subprocess.run(consume, env=environment(), capture_output=True, text=True, timeout=120, check=True)
    lines = sorted(printed.stdout.splitlines())
    key, value = lines[0].split(" {", 1)
    assert key == "2026-01-31 10:00:00"
    assert json.loads("{" + value) == {"minute": "2026-01-31T10:00:00.000Z", "revenue": 1.5}
    assert len(lines) == 7
    with Client(headrace_server.bootstrap) as client:
        check_published(read_state_records(client, "pipeline")["revenue_per_minute"])


def check_published(record: StateRecord) -> None:
    """What was published of the pipeline of the README when it was done."""
    details = record.details
    assert (record.state, record.ended, record.error) == ("done", True, "")
    assert (details["rows"], details["lag"], details["restarts"], details["late_rows"]) == (10, 0, 0, 0)
    assert details["results_topic"] == "revenue"
    assert details["watermark_text"].startswith("the watermark is 2026-01-31 10:07:00")
    first = details["batches"][0]
    assert first["rows"] == 10
    assert 0 < first["phases"]["addBatch"] <= first["ms"]
    source, operator, sink = details["graph"]["nodes"]
    assert [each["title"] for each in (source, operator, sink)] == ["orders", "aggregation", "topic revenue"]
    ids = [each["id"] for each in (source, operator, sink)]
    assert details["graph"]["edges"] == [[ids[0], ids[1]], [ids[1], ids[2]]]
    assert details["nodes"][ids[0]]["lag"] == 0
    assert details["nodes"][ids[1]]["dropped"] == 0


@pytest.mark.slow
def test_updates_reach_a_topic_and_a_second_run_repeats_none(
    headrace_server: RunningServer, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic, out = unique("in"), unique("out")
    create(headrace_server.bootstrap, topic)
    create(headrace_server.bootstrap, out)
    send(headrace_server.bootstrap, topic, [b"a", b"b", b"a"])
    text = f"""
@pipeline(sink=sinks.topic("{out}", key="value"), state="memory")
def words(spark):
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    return stream(spark, "{topic}", value_format="text").groupBy("value").count()
"""
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / "words.py").write_text(HEAD + text)
    for _ in range(2):
        more = ("--conf", "spark.sql.shuffle.partitions=3")
        done = run(folder, "words.py", "--available-now", *more, *options(headrace_server.bootstrap))
        assert done.returncode == 0, done.stderr
    assert "HDFSBackedStateStoreProvider" in (folder / "headrace-checkpoints/words/spark/offsets/0").read_text()
    consume = [str(COMMAND), "consume", out, "-e", "-b", headrace_server.bootstrap, "-f", "%k %v\n"]
    printed = subprocess.run(consume, env=environment(), capture_output=True, text=True, timeout=120, check=True)
    assert sorted(printed.stdout.splitlines()) == ['a {"value":"a","count":2}', 'b {"value":"b","count":1}']
