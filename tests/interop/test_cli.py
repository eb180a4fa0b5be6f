"""The real command, in its own process, against a real broker: ours and Apache Kafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headrace.client import Admin, Client, ClientOptions, Groups, TopicPartition
from tests.servers.process import RunningServer
from tests.unit.client.reading import wait_until_complete
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.servers

COMMAND = str(Path(sys.executable).with_name("headrace"))
Unique = Callable[[str], str]
PATIENCE = ClientOptions(request_timeout_ms=60_000, retry_timeout_ms=60_000, missing_topic_timeout_ms=60_000)


class Shell:
    """Runs commands against one broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self.environment = {**kept, "HEADRACE_BOOTSTRAP": bootstrap}

    def __call__(self, *arguments: str, stdin: bytes = b"", status: int = 0) -> bytes:
        """The output of a command that ended with ``status``; a failure is one line on stderr."""
        done = subprocess.run(
            [COMMAND, *arguments], input=stdin, capture_output=True, env=self.environment, timeout=120, check=False
        )
        assert done.returncode == status, done.stderr.decode()
        if status:
            assert done.stderr.startswith(b"headrace: ")
            assert done.stderr.count(b"\n") == 1, done.stderr.decode()
            return done.stderr
        return done.stdout

    def topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic without a process for it: hundreds of them add up. Its records may be of any age."""
        with Client(self.bootstrap, PATIENCE) as client:
            Admin(client).create_topic(name, partitions=partitions, config={"retention.ms": "-1"})
            client.topic(name)  # Apache Kafka acknowledges a topic a moment before it serves it

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--output", "json"))

    def topics(self) -> dict[str, int]:
        """Every topic with its partitions."""
        return {each["name"]: each["partitions"] for each in self.json("topic", "list")}

    def described(self, name: str) -> dict[str, Any]:
        (found,) = self.json("topic", "describe", name)
        return {**found, "settings": {each["setting"]: each["value"] for each in found["settings"]}}

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )


@pytest.fixture
def shell(broker: RunningServer) -> Shell:
    return Shell(broker.bootstrap)


# ---- topics ---------------------------------------------------------------------------------------------------------


def test_a_topic_lives_from_create_to_delete(shell: Shell, unique: Unique) -> None:
    name = unique("topic")
    shell("topic", "create", name, "--partitions", "3", "--config", "retention.ms=60000")
    # Apache Kafka acknowledges each change a moment before it tells of it.
    eventually(shell.topics, lambda found: found.get(name) == 3)
    found = shell.described(name)
    assert [each["partition"] for each in found["partitions"]] == [0, 1, 2]
    assert found["settings"]["retention.ms"] == "60000"
    shell("topic", "alter", name, "--partitions", "5", "--default", "retention.ms", "--config", "segment.bytes=2000000")
    found = eventually(
        lambda: shell.described(name),
        lambda found: len(found["partitions"]) == 5 and "segment.bytes" in found["settings"],
    )
    assert found["settings"]["segment.bytes"] == "2000000"
    assert "retention.ms" not in found["settings"]
    shell("topic", "delete", name, "--yes")
    eventually(shell.topics, lambda found: name not in found)


def test_describe_as_a_table_shows_offsets_and_sizes(shell: Shell, unique: Unique) -> None:
    name = unique("topic")
    shell.topic(name)
    shell("produce", name, stdin=b"a\nb\nc\n")
    title, header, row = shell("topic", "describe", name).decode().splitlines()[:3]
    assert title.split()[0] == name
    assert header.split()[:2] == ["PARTITION", "LEADER"]
    partition, _leader, _replicas, _in_sync, start, end, size = row.split()
    assert (partition, start, end) == ("0", "0", "3")
    assert int(size) > 60


def test_creating_twice_fails_unless_that_is_fine(shell: Shell, unique: Unique) -> None:
    name = unique("topic")
    shell("topic", "create", name)
    shell("topic", "create", name, "--if-not-exists")
    assert b"--if-not-exists" in shell("topic", "create", name, status=1)


def test_deleting_asks_and_a_script_must_say_yes(shell: Shell, unique: Unique) -> None:
    name = unique("topic")
    shell.topic(name)
    assert b"--yes" in shell("topic", "delete", name, status=2)
    shell("topic", "delete", name, "--yes")
    shell("topic", "delete", name, "--yes", "--if-exists")
    assert b"topic list" in shell("topic", "delete", name, "--yes", status=1)


def test_trimming_moves_the_start(shell: Shell, unique: Unique) -> None:
    name = unique("topic")
    shell.topic(name)
    shell("produce", name, stdin=b"a\nb\nc\nd\n")
    assert shell.json("topic", "trim", name, "--before", "-1", "--yes") == [{"topic": name, "partition": 0, "start": 3}]
    assert shell("consume", name, "-e") == b"d\n"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("topic", "create", "bad name"), b"letters, digits"),
        (("topic", "create", "t", "--config", "nonsense=1"), b"nonsense"),
        (("topic", "describe", "no-such-topic"), b"headrace topic list"),
        (("topic", "alter", "no-such-topic", "--partitions", "3"), b"no-such-topic"),
        (("consume", "no-such-topic", "-e"), b"no-such-topic"),
        (("group", "describe", "no-such-group"), b"headrace group list"),
        (("group", "delete", "no-such-group", "--yes"), b"no-such-group"),
    ],
)
def test_a_failure_is_one_line_with_a_hint(shell: Shell, arguments: tuple[str, ...], hint: bytes) -> None:
    assert hint in shell(*arguments, status=1)


# ---- produce and consume --------------------------------------------------------------------------------------------


def test_what_goes_in_as_lines_comes_out_as_lines(shell: Shell, unique: Unique) -> None:
    name = unique("lines")
    shell.topic(name)
    lines = b"".join(b"line %d\n" % index for index in range(5000))
    shell("produce", name, stdin=lines)
    assert shell("consume", name, "-e") == lines


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_goes_through(shell: Shell, unique: Unique, codec: str) -> None:
    name = unique("codec")
    shell.topic(name)
    lines = b"".join(b"again and again %d\n" % index for index in range(2000))
    shell("produce", name, "-z", codec, stdin=lines)
    assert shell("consume", name, "-e") == lines


def test_keys_headers_partitions_and_times_are_kept(shell: Shell, unique: Unique) -> None:
    name = unique("fields")
    shell.topic(name, 3)
    options = ("-K", ":", "-p", "2", "-H", "source=test", "-H", "empty", "-t", "2026-01-31T12:00:00Z")
    shell("produce", name, *options, stdin=b"k1:v1\nk2:\n")
    printed = shell("consume", name, "-e", "-Z", "NULL", "-f", r"%p %o %k=%v %T %D %h %K %S\n")
    assert printed == (
        b"2 0 k1=v1 1769860800000 2026-01-31T12:00:00.000Z source=test,empty=NULL 2 2\n"
        b"2 1 k2= 1769860800000 2026-01-31T12:00:00.000Z source=test,empty=NULL 2 0\n"
    )


def test_bytes_of_any_kind_go_through_a_delimiter_of_ones_own(shell: Shell, unique: Unique) -> None:
    name = unique("binary")
    shell.topic(name)
    pieces = [bytes(range(256)), b"\n\n\x00", b"\xff\xfe"]
    shell("produce", name, "-D", r"\x01\x02\x03\x04\x05", stdin=b"\x01\x02\x03\x04\x05".join(pieces))
    # The first piece holds the delimiter itself once: bytes(range(256)) contains 1 to 5 in a row.
    expected = [bytes([0]), bytes(range(6, 256)), *pieces[1:]]
    assert shell("consume", name, "-e", "-D", "<>") == b"".join(each + b"<>" for each in expected)


def test_json_lines_copy_a_topic_with_everything(shell: Shell, unique: Unique) -> None:
    first, second = unique("from"), unique("to")
    for name in (first, second):
        shell.topic(name, 2)
    shell("produce", first, "-K", ":", "-H", "h=1", stdin=b"a:1\nb:2\n\xff:\xfe\n")
    shell("produce", first, "-k", "gone", "-Z", stdin=b"\n")
    copied = shell("consume", first, "-e", "--json")
    assert {"key_base64": "/w==", "value_base64": "/g=="}.items() <= json_lines(copied)[b"/w=="].items()
    shell("produce", second, "--json", "--keep-partitions", stdin=copied)
    assert [strip(each) for each in sorted(copied.splitlines())] == [
        strip(each) for each in sorted(shell("consume", second, "-e", "--json").splitlines())
    ]


def json_lines(data: bytes) -> dict[bytes, dict[str, Any]]:
    lines = [json.loads(line) for line in data.splitlines()]
    return {str(line.get("key") or line.get("key_base64")).encode(): line for line in lines}


def strip(line: bytes) -> dict[str, Any]:
    fields = json.loads(line)
    del fields["topic"]
    return dict(fields)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (("-o", "beginning"), b"0123456789"),
        (("-o", "4"), b"456789"),
        (("-o", "-3"), b"789"),
        (("-o", "end"), b""),
        (("-o", "@1005"), b"56789"),
        (("-o", "@999999"), b""),
        (("-o", "-100"), b"0123456789"),
        (("-o", "2", "--until", "5"), b"234"),
        (("--until", "@1003"), b"012"),
        (("-o", "3", "-c", "2"), b"34"),
    ],
)
def test_reading_starts_and_stops_where_it_was_told(
    shell: Shell, ten_records: str, place: tuple[str, ...], expected: bytes
) -> None:
    stop = () if "--until" in place or "-c" in place else ("-e",)
    assert shell("consume", ten_records, *place, *stop, "-D", "") == expected


@pytest.fixture(scope="module")
def ten_records_by_broker() -> dict[str, str]:
    return {}


@pytest.fixture
def ten_records(broker: RunningServer, shell: Shell, unique: Unique, ten_records_by_broker: dict[str, str]) -> str:
    """A topic with the values 0 to 9 at the times 1000 to 1009; made once per broker."""
    if broker.name not in ten_records_by_broker:
        name = unique("ten")
        shell.topic(name)
        lines = [json.dumps({"value": str(number), "timestamp": 1000 + number}) for number in range(10)]
        shell("produce", name, "--json", stdin="\n".join(lines).encode())
        ten_records_by_broker[broker.name] = name
    return ten_records_by_broker[broker.name]


def test_a_slow_pipe_is_not_held_back_until_it_closes(shell: Shell, unique: Unique) -> None:
    name = unique("slow")
    shell.topic(name)
    producing = shell.start("produce", name)
    reading = shell.start("consume", name)
    assert producing.stdin is not None
    assert reading.stdout is not None
    try:
        for word in (b"one\n", b"two\n"):
            producing.stdin.write(word)
            producing.stdin.flush()
            assert reading.stdout.readline() == word
        producing.stdin.close()
        assert producing.wait(PATIENCE_S) == 0
        reading.send_signal(signal.SIGINT)
        assert reading.wait(PATIENCE_S) == 130
        assert reading.stderr is not None
        assert reading.stderr.read() == b""
    finally:
        close(producing)
        close(reading)


def close(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            stream.close()


def test_a_reader_that_has_had_enough_is_no_failure(shell: Shell, unique: Unique) -> None:
    name = unique("pipe")
    shell.topic(name)
    shell("produce", name, stdin=b"x" * 99 + b"\n" + b"y\n" * 200_000)
    reading = shell.start("consume", name, "-e")
    assert reading.stdout is not None
    assert reading.stderr is not None
    try:
        reading.stdout.read(10)
        reading.stdout.close()
        assert reading.wait(PATIENCE_S) == 0
        assert reading.stderr.read() == b""
    finally:
        close(reading)


def test_lines_before_a_bad_one_are_delivered_and_the_bad_one_is_named(shell: Shell, unique: Unique) -> None:
    name = unique("bad")
    shell.topic(name)
    lines = b'{"value": "good"}\nnot json\n{"value": "never"}\n'
    assert b"line 2 is not JSON" in shell("produce", name, "--json", stdin=lines, status=1)
    assert shell("consume", name, "-e") == b"good\n"


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["--json"], b"not json\n"),
        (["--json"], b'\n\n{"valeu": 1}\n{"value": "good"}\n'),
        (["--record-bytes-max", "10"], b"longer than allowed"),
        (["--whole", "--record-bytes-max", "10"], b"longer than allowed"),
    ],
)
def test_a_mistake_before_the_first_record_makes_no_topic(
    shell: Shell, unique: Unique, arguments: list[str], stdin: bytes
) -> None:
    name = unique("unmade")
    shell("produce", name, *arguments, stdin=stdin, status=1)
    shell("produce", name, stdin=b"\n\n")
    assert name not in shell.topics()


def test_a_topic_is_made_for_its_first_record_and_that_is_said(shell: Shell, unique: Unique) -> None:
    name = unique("made")
    produced = shell.start("produce", name, "--json")
    try:
        _, told = produced.communicate(b'{"value": "good"}\nnot json\n', timeout=PATIENCE_S)
    finally:
        close(produced)
    assert produced.returncode == 1
    assert f"topic {name} is new; partitions: " in told.decode()
    assert b"line 2 is not JSON" in told
    assert shell("consume", name, "-e") == b"good\n"


def test_a_record_the_topic_cannot_take_is_told_with_the_setting_that_helps(shell: Shell, unique: Unique) -> None:
    name = unique("large")
    shell("topic", "create", name, "--config", "max.message.bytes=1000")
    assert b"max.message.bytes=N" in shell("produce", name, stdin=b"x" * 5000, status=1)


def test_whole_files_are_records(shell: Shell, unique: Unique, tmp_path: Path) -> None:
    name = unique("files")
    shell.topic(name)
    (tmp_path / "a").write_bytes(b"one\ntwo\n")
    (tmp_path / "b").write_bytes(b"\x00\xff")
    shell("produce", name, "--whole", str(tmp_path / "a"), str(tmp_path / "b"))
    assert shell("consume", name, "-e", "-D", "|") == b"one\ntwo\n|\x00\xff|"
    shell("produce", name, str(tmp_path / "a"))
    assert shell("consume", name, "-e", "-o", "2") == b"one\ntwo\n"


def test_the_end_of_a_committed_read_is_where_the_first_open_transaction_begins(shell: Shell, unique: Unique) -> None:
    name = unique("open")
    shell.topic(name)
    patience = {"transaction.timeout.ms": 600_000}
    producer = confluent_kafka.Producer({"bootstrap.servers": shell.bootstrap, "transactional.id": name, **patience})
    producer.init_transactions()
    for value, end in (("kept", producer.commit_transaction), ("taken back", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(name, value)
        producer.flush()
        end()
    producer.begin_transaction()
    producer.produce(name, "open")
    producer.flush()
    assert shell("consume", name, "-e") == b"kept\n"
    assert shell("consume", name, "-e", "-i", "uncommitted") == b"kept\ntaken back\nopen\n"
    producer.commit_transaction()
    with Client(shell.bootstrap, PATIENCE) as client:
        wait_until_complete(client, name)
    assert shell("consume", name, "-e") == b"kept\nopen\n"


def test_the_last_record_is_found_before_the_markers_of_transactions(shell: Shell, unique: Unique) -> None:
    """A marker has an offset too, so kcat prints nothing for ``-o -1`` here. Ours counts records; both end."""
    name, undone = unique("markers"), unique("undone")
    for each in (name, undone):
        shell.topic(each)
    producer = confluent_kafka.Producer({"bootstrap.servers": shell.bootstrap, "transactional.id": name})
    producer.init_transactions()
    for value in ("first", "last"):
        producer.begin_transaction()
        producer.produce(name, value)
        producer.commit_transaction()
    for _ in range(3):
        producer.begin_transaction()
        producer.produce(name, "taken back")
        producer.produce(undone, "taken back")
        producer.flush()
        producer.abort_transaction()
    with Client(shell.bootstrap, PATIENCE) as client:
        for each in (name, undone):
            wait_until_complete(client, each)
    assert shell("consume", name, "-o", "-1", "-e") == b"last\n"
    assert shell("consume", name, "-o", "-1", "-e", "-i", "uncommitted") == b"taken back\n"
    assert shell("consume", undone, "-o", "-1", "-e") == b"", "no record is left"


# ---- groups ---------------------------------------------------------------------------------------------------------


def test_a_group_remembers_what_it_has_printed(shell: Shell, unique: Unique) -> None:
    name, group = unique("t"), unique("g")
    shell.topic(name)
    shell("produce", name, stdin=b"1\n2\n3\n")
    assert shell("consume", name, "-G", group, "-c", "2") == b"1\n2\n"
    (found,) = shell.json("group", "describe", group)
    assert [(each["committed"], each["end"], each["lag"]) for each in found["partitions"]] == [(2, 3, 1)]
    assert shell("consume", name, "-G", group, "-e") == b"3\n"


def test_a_group_is_moved_by_place_time_and_distance_and_a_dry_run_moves_nothing(shell: Shell, unique: Unique) -> None:
    name, group = unique("t"), unique("g")
    shell.topic(name, 2)
    lines = [json.dumps({"value": "x", "timestamp": 1000 + number}) for number in range(10)]
    shell("produce", name, "--json", "-p", "0", stdin="\n".join(lines).encode())

    def moved(*arguments: str) -> list[tuple[int | None, int]]:
        rows = shell.json("group", "reset", group, "--topic", f"{name}:0", *arguments)
        return [(row["from"], row["to"]) for row in rows]

    assert moved("--to", "latest") == [(None, 10)]
    assert moved("--to", "earliest", "--dry-run") == [(10, 0)]
    assert moved("--by", "-4") == [(10, 6)]
    assert moved("--to", "@1002") == [(6, 2)]
    assert moved("--to", "7") == [(2, 7)]
    assert moved("--by", "+100") == [(7, 10)]
    assert [each["group"] for each in shell.json("group", "list") if each["group"] == group] == [group]
    shell("group", "delete", group, "--yes")
    assert group not in [each["group"] for each in shell.json("group", "list")]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_group_that_is_being_read_shows_its_member_and_cannot_be_moved(
    shell: Shell, unique: Unique, number: signal.Signals, status: int
) -> None:
    """When the reader is asked to end it leaves, and the group can be moved at once."""
    name, group = unique("t"), unique("g")
    shell.topic(name)
    shell("produce", name, stdin=b"1\n")
    reading = shell.start("consume", name, "-G", group)
    assert reading.stdout is not None
    try:
        assert reading.stdout.readline() == b"1\n"
        (found,) = shell.json("group", "describe", group)
        assert [each["partitions"] for each in found["members"]] == [[f"{name}[0]"]]
        assert b"members" in shell("group", "reset", group, "--to", "earliest", status=1)
        reading.send_signal(number)
        assert reading.wait(PATIENCE_S) == status
        shell("group", "reset", group, "--to", "earliest")
    finally:
        close(reading)


def test_names_are_completed_from_the_broker(shell: Shell, unique: Unique) -> None:
    name = unique("completed")
    shell.topic(name)
    shell.environment |= {
        "_HEADRACE_COMPLETE": "bash_complete",
        "COMP_WORDS": f"headrace consume {name[:-2]}",
        "COMP_CWORD": "2",
    }
    # A shell must not hang, so a broker that does not answer within a moment completes to nothing.
    eventually(lambda: shell("consume").decode().split(",")[-1].strip(), lambda completed: completed == name)


# ---- up -------------------------------------------------------------------------------------------------------------


def test_a_second_broker_on_the_same_directory_is_refused_and_names_the_first(headrace_server: RunningServer) -> None:
    told = Shell("")("up", "--data", str(headrace_server.data), "--kafka", "127.0.0.1:0", "--amqp", "off", status=1)
    assert f"in use by process {headrace_server.pid}".encode() in told


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--kafka", "0.0.0.0:0"), b"--insecure"),
        (("--kafka", "nonsense"), b"HOST:PORT"),
        (("--http", "127.0.0.1:0", "--kafka", "off"), b"a client of the Kafka listener"),
        (("--set", "num.partitons=3"), b"did you mean num.partitions"),
        (("--config", "/no/such/file.toml"), b"/no/such/file.toml"),
    ],
)
def test_up_refuses_what_it_cannot_do_and_leaves_nothing_behind(
    arguments: tuple[str, ...], hint: bytes, tmp_path: Path
) -> None:
    assert hint in Shell("")("up", "--data", str(tmp_path / "data"), *arguments, status=2)
    assert list(tmp_path.iterdir()) == []


def test_up_refuses_a_port_that_is_taken(headrace_server: RunningServer, tmp_path: Path) -> None:
    arguments = ["--data", str(tmp_path / "data"), "--kafka", headrace_server.bootstrap, "--amqp", "off"]
    told = Shell("")("up", *arguments, status=1)
    assert headrace_server.bootstrap.encode() in told


def test_status_shows_the_lag_of_groups(shell: Shell, unique: Unique) -> None:
    topic, group = unique("topic"), unique("group")
    shell.topic(topic)
    shell("produce", topic, stdin=b"a\nb\nc\n")
    with Client(shell.bootstrap, PATIENCE) as client:
        Groups(client).commit(group, {TopicPartition(topic, 0): 1})
    done = subprocess.run(
        [COMMAND, "status", "--output", "json"], env=shell.environment, capture_output=True, timeout=120, check=False
    )
    assert done.returncode in (0, 1), "other tests, and a full disk, may make something wrong"
    found = json.loads(done.stdout)
    assert {each["name"]: each["lag"] for each in found["groups"]}[group] == 2
    assert found["disks"]
    assert found["broker"]["cluster_id"]
