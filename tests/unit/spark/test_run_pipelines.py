"""Writing pipelines down, reading files of them, and the one line that a failure becomes. No JVM is started."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.cli import rebuild
from headrace.cli.main import run as command_line
from headrace.client import BrokerUnreachable, DeliveryFailed, TopicPartition
from headrace.client.connection import Address, TlsFailed
from headrace.client.scram import AuthenticationFailed
from headrace.errors import ErrorCode, HeadraceError, KafkaError, UsageError
from headrace.spark import sinks
from headrace.spark.run import failures
from headrace.spark.run.failures import is_permanent, reason
from headrace.spark.run.launch import LogFile
from headrace.spark.run.pipelines import choose, load_file, pipeline, registered
from headrace.spark.run.runner import Choices, pause_s
from headrace.spark.testing import Event, _in_batches
from headrace.spark.topic_sink.sink import _let_through, make_writer

HEAD = "from headrace.spark.run.pipelines import pipeline\nfrom headrace.spark import sinks\n"


def file(folder: Path, text: str, name: str = "shop.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_function_is_given_back_as_it_was_and_remembered_under_its_name(tmp_path: Path) -> None:
    text = HEAD + "@pipeline(sink=sinks.console())\ndef revenue(spark): return 7\n@pipeline\ndef bare(spark): ...\n"
    found = load_file(file(tmp_path, text)).pipelines
    assert [each.name for each in found] == ["revenue", "bare"]
    assert found[0].build(None) == 7  # type: ignore[arg-type, comparison-overlap]
    assert found[1].sink.describe() == "console"


def test_the_pipelines_of_a_file_do_not_stay_behind(tmp_path: Path) -> None:
    before = registered()
    load_file(file(tmp_path, HEAD + "@pipeline\ndef revenue(spark): ...\n"))
    assert registered() == before


def test_two_pipelines_of_one_name_are_refused_with_both_places(tmp_path: Path) -> None:
    text = HEAD + "@pipeline\ndef a(spark): ...\n@pipeline(name='a')\ndef b(spark): ...\n"
    with pytest.raises(UsageError, match=r"two pipelines are named 'a': .*shop.py:3 and .*shop.py:5"):
        load_file(file(tmp_path, text))


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", ".hidden", "with space", "x" * 201])
def test_a_name_that_is_no_plain_folder_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a pipeline"):
        pipeline(name=name)(lambda spark: spark)  # type: ignore[arg-type, return-value]


def test_a_sink_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"'orders' is no sink \(hr.sinks.topic"):
        pipeline(sink="orders")  # type: ignore[call-overload]


def test_a_place_for_state_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match=r"state='ram' must be one of disk, memory"):
        pipeline(state="ram")


def test_an_output_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="append, update, complete"):
        pipeline(output_mode="upsert")


def test_a_function_is_a_sink() -> None:
    def keep(rows: DataFrame, batch_id: int) -> None: ...

    assert sinks.as_sink(keep).describe().endswith("keep")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\n", "has no pipeline"),
        ("def broken(:\n", "shop.py:1: SyntaxError"),
        ("import json\n\njson.loads('{')\n", "shop.py:3: JSONDecodeError"),
        ("import no_such_module_at_all\n", "shop.py:1: ModuleNotFoundError"),
        ("import sys\nsys.exit(0)\n", "shop.py:2: SystemExit"),
        (HEAD + "@pipeline\ndef a(): ...\n", r"shop.py:3: pipeline 'a' is called with the session .*def a\(spark\)"),
        (HEAD + "@pipeline\ndef a(spark, rows): ...\n", "shop.py:3: pipeline 'a' is called with the session"),
        (HEAD + "@pipeline(every='10 secs')\ndef a(spark): ...\n", "shop.py:3: every='10 secs' is no duration"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_in_one_line_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        load_file(file(tmp_path, text))


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    file(tmp_path, "NAME = 'from_beside'\n", "beside_of_shop.py")
    text = HEAD + "import beside_of_shop\n@pipeline(name=beside_of_shop.NAME)\ndef a(spark): ...\n"
    assert [each.name for each in load_file(file(tmp_path, text)).pipelines] == ["from_beside"]


def test_only_those_asked_for_are_chosen_and_unknown_ones_are_told(tmp_path: Path) -> None:
    found = load_file(file(tmp_path, HEAD + "@pipeline\ndef a(spark): ...\n@pipeline\ndef b(spark): ...\n"))
    assert [each.name for each in choose(found, ("b",)).pipelines] == ["b"]
    assert [each.name for each in choose(found, ()).pipelines] == ["a", "b"]
    with pytest.raises(UsageError, match=r"no pipeline 'c' \(there are: a, b\)"):
        choose(found, ("c",))


def test_pauses_double_up_to_a_minute() -> None:
    assert [pause_s(failures) for failures in (1, 2, 3, 7, 1000)] == [1.0, 2.0, 4.0, 60.0, 60.0]


def test_patience_is_endless_unless_the_run_is_to_end_or_the_user_says_so() -> None:
    assert Choices(command="", checkpoints="").patience is None
    assert Choices(command="", checkpoints="", available_now=True).patience == 3
    assert Choices(command="", checkpoints="", available_now=True, restarts_max=0).patience == 0


STREAM_FAILED = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted: \
Task 0 in stage 1.0 failed 1 times: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/worker.py", line 3, in main
headrace.spark.source.values.BadRecord: the value at orders[0] offset 5 does not fit the schema: it is no JSON

	at org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)
Driver stacktrace: SQLSTATE: XXKST
=== Streaming Query ===
Identifier: copy [id = 1, runId = 2]
Current State: ACTIVE"""


def test_the_reason_is_the_users_error_and_not_a_page_of_tracebacks() -> None:
    assert reason(RuntimeError(STREAM_FAILED)) == (
        "the value at orders[0] offset 5 does not fit the schema: it is no JSON"
    )


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ("", ""),
        ('  File "/jobs/shop.py", line 7, in total\n    return 1 / zero\n', "/jobs/shop.py:7: "),
        ('  File "/jobs/shop.py", line 7, in total\n  File "/jobs/helper.py", line 3, in f\n', "/jobs/helper.py:3: "),
        ('  File "/jobs/shop.py", line 7\n  File "/usr/lib/python3.12/json/decoder.py", line 3\n', "/jobs/shop.py:7: "),
        ('  File "/jobs/shop.py", line 7\n  File "/v/lib/site-packages/numpy/x.py", line 3\n', "/jobs/shop.py:7: "),
        (f'  File "{failures.__file__}", line 3, in x\n  File "<string>", line 1\n', ""),
    ],
)
def test_an_error_of_the_users_code_has_its_name_and_the_last_line_that_is_the_users(frames: str, place: str) -> None:
    worker = '  File "/spark/python/lib/pyspark.zip/pyspark/worker.py", line 3, in main\n'
    text = f"Traceback (most recent call last):\n{worker}{frames}ZeroDivisionError: division by zero\n\n\tat x"
    assert reason(RuntimeError(text)) == f"{place}ZeroDivisionError: division by zero"


def test_a_place_in_the_current_folder_is_shown_as_the_user_types_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text("import json\n\njson.loads('{')\n")
    with pytest.raises(UsageError, match=r"^shop\.py:3: JSONDecodeError: Expecting"):
        load_file(Path("shop.py"))


def test_only_what_the_sink_refuses_or_the_user_must_mend_is_not_tried_again() -> None:
    names = (
        "errors.Refused",
        "errors.UsageError",
        "spark.source.tasks.DataLost",
        "spark.source.values.BadRecord",
        "spark.state.bucket.StateMismatch",
        "spark.tables.view_operators.NotExact",
    )
    for name in names:
        told = RuntimeError(STREAM_FAILED.replace("spark.source.values.BadRecord", name))
        assert is_permanent(told)
        assert reason(told).startswith("the value at orders[0]")
    assert is_permanent(UsageError("a pipeline that is built again has no such column"))
    lost = STREAM_FAILED.replace("source.values.BadRecord", "topic_sink.protocol.TransactionsLost")
    assert not is_permanent(RuntimeError(lost))
    assert not is_permanent(RuntimeError("Refused"))
    away = RuntimeError(STREAM_FAILED.replace("spark.source.values.BadRecord", "targets.target.Unavailable"))
    assert not is_permanent(away)
    assert reason(away).startswith("the value at orders[0]")


def as_text(error: BaseException) -> RuntimeError:
    """As an error of another process comes to the driver: a traceback within a message."""
    try:
        raise error
    except BaseException:
        text = traceback.format_exc()
    return RuntimeError(f"[STREAM_FAILED] Job aborted: {text}\n\tat org.apache.spark.x(y.scala:1)\nDriver stacktrace:")


@pytest.mark.parametrize(
    ("error", "lasts"),
    [
        (KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "topic 'a b'"), True),
        (DeliveryFailed(ErrorCode.MESSAGE_TOO_LARGE, TopicPartition("out", 0), 1, "too large"), True),
        (AuthenticationFailed("user 'anna' is not let in by PLAIN"), True),
        (TlsFailed(Address("h", 1), "its certificate is not trusted"), True),
        (DeliveryFailed(ErrorCode.REQUEST_TIMED_OUT, TopicPartition("out", 0), 1, "late"), False),
        (KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "oops"), False),
        (BrokerUnreachable(Address("h", 1), "connection refused"), False),
    ],
)
def test_what_a_broker_refuses_for_good_is_not_tried_again_also_where_only_its_text_is_known(
    error: KafkaError, lasts: bool
) -> None:
    assert is_permanent(error) is lasts
    assert is_permanent(as_text(error)) is lasts
    assert reason(as_text(error)) == error.message


def test_a_batch_that_a_broker_refuses_for_good_says_so_through_sparks_pickler() -> None:
    through = _let_through(KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "topic 'a b': invalid topic exception"))
    assert is_permanent(as_text(through))
    assert reason(as_text(through)) == "topic 'a b': invalid topic exception"


def test_a_guard_of_the_query_itself_is_permanent_and_its_words_are_the_reason() -> None:
    text = "Job aborted: Task 0 failed: [USER_RAISED_EXCEPTION] these rows cannot be written SQLSTATE: P0001\n\tat x"
    assert is_permanent(RuntimeError(text))
    assert reason(RuntimeError(text)) == "these rows cannot be written"


def test_an_error_inside_of_another_processs_error_is_found() -> None:
    """As the topic sink's comes out of foreachBatch."""
    inner = "Traceback (most recent call last):\n  File 'sink.py', line 1\nheadrace.errors.Refused: not again"
    outer = (
        "Traceback (most recent call last):\n  File 'plain.py', line 2\npyspark.errors.AnalysisException: [X] Failed: "
    )
    told = RuntimeError(f"{outer}{inner}\n SQLSTATE: 38000")
    assert is_permanent(told)
    assert reason(told) == "not again"
    assert not is_permanent(RuntimeError(f"{outer}{inner}".replace("errors.Refused", "targets.target.Unavailable")))


def test_a_class_of_the_users_with_the_name_of_one_of_ours_is_not_ours() -> None:
    assert not is_permanent(
        RuntimeError(STREAM_FAILED.replace("headrace.spark.source.values.BadRecord", "shop.BadRecord"))
    )


def test_a_batch_that_cannot_begin_is_told_in_its_own_words_and_not_in_those_of_sparks_pickler() -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "retryTimeoutMs": "100"}
    writer = make_writer(StructType().add("value", "string"), options, overwrite=False)
    with pytest.raises(HeadraceError, match=r"^cannot reach a broker at 127\.0\.0\.1:1") as told:
        CloudPickleSerializer().dumps(writer)  # type: ignore[no-untyped-call]
    assert type(told.value).__name__ == "BrokerUnreachable"


def test_without_a_traceback_the_message_is_the_reason() -> None:
    assert reason(HeadraceError("no such topic")) == "no such topic"
    assert reason(KeyError("amount")) == "KeyError: 'amount'"
    assert len(reason(HeadraceError("x" * 5000))) == 400


def test_the_reason_has_no_ids_and_offsets_of_the_query() -> None:
    text = "Python worker failed to connect back.\n=== Streaming Query ===\nIdentifier: copy [id = 1]"
    assert reason(StreamingQueryException(text)) == "Python worker failed to connect back"


def test_what_the_jvm_would_print_goes_to_the_log_and_what_we_print_does_not(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from headrace.spark.run.launch import LogFile\n"
        "log = LogFile(Path(sys.argv[1]))\n"
        "with log.taking_output():\n"
        "    child = subprocess.Popen(['sh', '-c', 'read line; echo noise; echo more >&2'], stdin=subprocess.PIPE)\n"
        "print('ours', flush=True)\n"
        "child.communicate(b'go\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "spark.log")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("ours\n", "")
    assert (tmp_path / "spark.log").read_text() == "noise\nmore\n"


def test_a_mistake_in_a_query_is_in_the_log_and_not_a_page_of_json_on_the_terminal(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pyspark.logger import PySparkLogger\n"
        "from headrace.spark.run.launch import LogFile\n"
        "LogFile(Path(sys.argv[1])).take_logging()\n"
        "logger = PySparkLogger.getLogger('DataFrameQueryContextLogger')\n"
        "logger.propagate = False  # as PySpark does before each message\n"
        "logger.exception('no column amount')\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "spark.log")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "")
    assert "no column amount" in (tmp_path / "spark.log").read_text()


def test_the_log_is_cut_when_it_grows_too_large_and_writers_go_on(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "logs" / "spark.log", bytes_max=10)
    writer = os.open(log.path, os.O_WRONLY | os.O_APPEND)
    os.write(writer, b"0123456789abcdef")
    log.keep_bounded()
    os.write(writer, b"next")
    os.close(writer)
    assert log.path.read_bytes() == b"next"
    assert log.path.with_name("spark.log.1").read_bytes() == b"0123456789abcdef"


def test_the_command_tells_a_missing_java_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    path = file(tmp_path, HEAD + "@pipeline\ndef a(spark): ...\n")
    assert command_line(["run", str(path), "--log", str(tmp_path / "spark.log")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("headrace: Spark needs Java and JAVA_HOME=")
    assert "install Java 17 or 21" in line


def test_the_command_tells_a_missing_file_before_it_looks_for_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert command_line(["run", str(tmp_path / "none.py")]) == 1
    assert "there is no file" in capsys.readouterr().err


def test_a_folder_is_no_file_of_pipelines(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{tmp_path} is a folder"):
        load_file(tmp_path)


def test_the_command_tells_checkpoints_that_cannot_be_there_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file(tmp_path, HEAD + "@pipeline\ndef a(spark): ...\n")
    assert command_line(["run", str(path), "--checkpoints", f"{path}/checkpoints"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path} is no folder (choose another: --checkpoints DIR)" in line


def test_a_sink_that_cannot_be_rebuilt_is_told_before_spark_starts(tmp_path: Path) -> None:
    text = HEAD + "@pipeline(sink=sinks.topic('a').transform(lambda rows: rows))\ndef a(spark): ...\n"
    with pytest.raises(UsageError, match="'a' writes to topic a, which cannot be rebuilt"):
        rebuild.check(load_file(file(tmp_path, text)))


def test_events_come_in_one_micro_batch_or_in_those_given() -> None:
    assert [len(each) for each in _in_batches("t", [{"a": 1}, {"a": 2}])] == [2]
    batches = _in_batches("t", [[{"a": 1}], [], [{"a": 2}, Event(None, key="k")]])
    assert [len(each) for each in batches] == [1, 0, 2]
    assert batches[2][1]["value"] is None
    times = [event["timestamp"] for batch in batches for event in batch]
    assert times == [times[0], times[0] + 1, times[0] + 2]
    with pytest.raises(UsageError, match="neither all events nor all lists"):
        _in_batches("t", [{"a": 1}, [{"a": 2}]])


def test_an_event_that_json_cannot_hold_is_told() -> None:
    with pytest.raises(UsageError, match="of type type, which JSON cannot hold"):
        _in_batches("t", [{"a": SparkSession}])


def test_a_pipeline_has_one_sink_or_several_that_can_be_told_apart(tmp_path: Path) -> None:
    text = HEAD + "@pipeline(sinks=[sinks.topic('a'), sinks.sql('sqlite:///x', table='b')])\ndef both(spark): ...\n"
    (found,) = load_file(file(tmp_path, text)).pipelines
    assert found.sink.describe() == "topic a, table b at sqlite:///x"
    assert [(each.describe(), each.results_topic) for each in found.sink.parts] == [
        ("topic a", "a"),
        ("table b at sqlite:///x", ""),
    ]
    with pytest.raises(UsageError, match="either sink= or sinks="):
        pipeline(sink=sinks.console(), sinks=[sinks.console()])
    with pytest.raises(UsageError, match="has no sink"):
        pipeline(sinks=[])
    with pytest.raises(UsageError, match="two of the sinks are topic a"):
        pipeline(sinks=[sinks.topic("a"), sinks.topic("a", key="id").transform(lambda rows: rows)])
    one = pipeline(sinks=[sinks.topic("a")], name="with one of several")
    assert one is not None


def test_two_operators_of_one_name_are_refused_with_the_argument_that_helps() -> None:
    text = (
        "[DUPLICATED_METRICS_NAME] The metric name is not unique: state match(card). The same name cannot be used for "
        "metrics with different results.\nHowever multiple instances of metrics with with same result and name are "
        "allowed (e.g. self-joins). SQLSTATE: 42710;\n~Union false, false"
    )
    assert reason(AnalysisException(text)) == (
        "two operators of the query have the name 'match(card)'; name= gives one of them another"
    )
