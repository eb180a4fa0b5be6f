"""Every block of code in the documents is executed by a test, or is listed here with the reason why not.

Most documents are run by ``test_documents.py``, ``test_tutorial.py`` and ``tests/spark/test_documents.py``. Here are
the pages for people who come from another system, and the ledger that notices a block that nothing runs. What cannot
be run is at least parsed: every ``headrace`` command line of every document has options that exist.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pika
import psycopg
import pytest

from headrace import testing
from headrace.cli.main import cli
from headrace.client import Admin, Client, Queues
from tests.docs.test_documents import BIN, BLOCK, DOCUMENTS, ROOT, Block, blocks
from tests.servers.postgres import PostgresServer
from tests.waiting import eventually

PRINTED = ("docs/api/", "docs/cli.md", "docs/configuration.md", "ARCHITECTURE.md")
"""Printed from the code and compared with it, or drawings."""
SPARK = "tests/spark/test_documents.py"
HERE = "tests/docs/test_snippets.py"
PLAYED = "tests/docs/test_documents.py"
RUN_BY: dict[tuple[str, str], str] = {
    ("README.md", "sh python text"): PLAYED,
    ("docs/capture.md", "sh"): PLAYED,
    ("docs/quickstart.md", "sh python text toml"): PLAYED,
    ("docs/sourcing.md", "sh python text"): PLAYED,
    ("docs/state-records.md", "sh"): HERE,
    ("docs/howto/from-kafka.md", "sh python"): PLAYED,
    ("docs/tutorial.md", "sh py text"): "tests/docs/test_tutorial.py",
    ("docs/queues.md", "py toml"): HERE,
    **{
        (f"docs/{page}.md", "python"): SPARK
        for page in (
            "howto/from-spark-kafka",
            "joins",
            "patterns",
            "pipelines",
            "queues",
            "searches",
            "sinks",
            "spark-sink",
            "spark-source",
            "state",
            "time",
            "views",
            "windows",
        )
    },
    ("docs/spark-source.md", "sql"): SPARK,
    ("docs/searches.md", "json"): HERE,
}
"""By document and languages of its blocks, the test that runs them."""
COMMANDS_RUN = {
    "docs/capture.md": ("headrace capture run shop", "headrace capture snapshot"),
    "docs/howto/from-debezium.md": ("headrace capture run trial",),
    "docs/howto/from-rabbitmq.md": ("headrace queue create work", "headrace topic create orders"),
    "docs/operations.md": ("headrace backup create", "sudo useradd"),
    "docs/queues.md": ("headrace queue list", "headrace queue create orders"),
    "docs/searches.md": ('title:"two rooms"',),
}
"""Blocks without a language that tests of this file run, by how they begin."""
NOT_RUN = {
    ("CONTRIBUTING.md", "make check"): "they are how tests are run",
    ("CONTRIBUTING.md", "HEADRACE_TEST_BROKER"): "they are how tests are run",
    ("README.md", "make demo"): "tests/demo run the demo, and the tests are this",
    (
        "docs/capture.md",
        "headrace capture run shop postgresql://app@127.0.0.1/shop --tables public.orders --triggers",
    ): ("tests/capture run captures with triggers on PostgreSQL"),
    ("docs/console.md", "headrace up --http"): "tests/console start it so, on another port",
    ("docs/console.md", "headrace console --bootstrap kafka-1:9092"): "tests/console/test_apache_kafka.py does",
    ("docs/console.md", "headrace console --bootstrap kafka-1:9093"): "needs a cluster with TLS; parsed here",
    ("docs/howto/from-kafka.md", "headrace up --kafka"): "every test starts a broker; this one owns /var/lib",
    ("docs/howto/from-rabbitmq.md", "headrace up "): "every test starts a broker; this one takes a fixed port",
    ("docs/howto/to-a-cluster.md", "export HEADRACE_BOOTSTRAP"): "needs three brokers; tests/cluster have them",
    ("docs/howto/to-a-cluster.md", "headrace run shop.py"): "needs a Spark cluster and S3; parsed here",
    ("docs/index.md", "headrace demo, 87 s"): "what the demo prints; tests/demo look at it",
    ("docs/index.md", "WHAT"): "what the demo prints; tests/demo look at it",
    ("docs/nexmark.md", "make nexmark"): "takes an hour; tests/spark run every query",
    ("docs/operations.md", "headrace up --metrics"): "tests/unit/server/test_endpoints.py does",
    ("docs/operations.md", "# prometheus.yml"): "needs Prometheus; test_endpoints.py reads with its parser",
    (
        "docs/operations.md",
        "$ headrace status",
    ): "an example of another machine; tests of the command compare its lines",
    ("docs/operations.md", "2026-11-20T14"): "an example of a log",
    ("docs/operations.md", "# /etc/logrotate.d"): "needs logrotate and systemd; SIGHUP is tested",
    ("docs/patterns.md", "row 1 ("): "a message; tests of patterns compare it",
    ("docs/patterns.md", "'+' was not"): "a message; tests of patterns compare it",
    ("docs/pipelines.md", "headrace run shop.py\n"): "docs/tutorial.md runs the same command",
    ("docs/pipelines.md", "starting Spark"): "what the command prints; tests of the command compare it",
    ("docs/pipelines.md", "headrace run shop.py --master"): "needs a Spark cluster; parsed here",
    ("docs/queues.md", "headrace up"): "every test starts a broker; this one takes a fixed port",
    ("docs/quickstart.md", "pip install"): "installs from the network",
    ("docs/searches.md", "there is no field"): "a message; tests of searches compare it",
    ("docs/sinks.md", "orders failed"): "a message; tests of sinks compare it",
    ("docs/sinks.md", "headrace rebuild"): "tests/spark/run rebuild tables; parsed here",
    ("docs/state.md", "headrace run shop.py --state"): "tests/spark/run ask for state; parsed here",
    ("docs/time.md", "the watermark is"): "a message; tests of watermarks compare it",
    ("docs/tutorial.md", " shop.db"): "a drawing",
    ("docs/tutorial.md", "pip install"): "installs from the network",
}
"""By document and how the block begins, why no test runs it."""


def every_block() -> Iterator[tuple[str, Block]]:
    for path in DOCUMENTS:
        name = str(path.relative_to(ROOT))
        if not name.startswith(PRINTED):
            yield from ((name, each) for each in blocks(name))


def run_by(document: str, block: Block) -> str | None:
    for (name, languages), test in RUN_BY.items():
        if name == document and block.language in languages.split():
            return test
    begins = COMMANDS_RUN.get(document, ())
    return HERE if not block.language and block.text.startswith(begins) and not is_listed(document, block) else None


def is_listed(document: str, block: Block) -> bool:
    text = " ".join(block.text.replace("\\\n", " ").split(" "))
    return any(name == document and text.startswith(begin) for name, begin in NOT_RUN)


def test_every_block_of_code_is_run_by_a_test_or_listed_with_a_reason() -> None:
    neither = [
        (document, block.language, block.text.splitlines()[0])
        for document, block in every_block()
        if run_by(document, block) is None and not is_listed(document, block)
    ]
    assert neither == []


def test_what_is_listed_is_there_and_the_tests_that_are_named_run_those_documents() -> None:
    there = list(every_block())
    for document, begin in NOT_RUN:
        assert any(name == document and is_listed(name, block) for name, block in there), (document, begin)
    for (document, languages), test in RUN_BY.items():
        assert {block.language for name, block in there if name == document} >= set(languages.split()), document
        if not document.endswith("tutorial.md") or test != HERE:
            assert Path(document).name in (ROOT / test).read_text(), f"{test} does not name {document}"


def test_code_stands_in_fences_where_tests_find_it() -> None:
    for path in DOCUMENTS:
        name, text = str(path.relative_to(ROOT)), BLOCK.sub("", path.read_text())
        assert not re.search(r"^\n {4}\S*(import |headrace |= \(|hr\.)", text, re.MULTILINE), f"indented code in {name}"


# ---- commands -------------------------------------------------------------------------------------------------------


def shown_commands() -> list[tuple[str, list[str]]]:
    """The command lines of all documents, without what a pipe or a comment adds."""
    found = []
    for path in DOCUMENTS:
        if str(path.relative_to(ROOT)) == "docs/cli.md":  # printed from the commands; test_cli_reference.py compares
            continue
        for block in BLOCK.finditer(path.read_text()):
            for line in block[2].replace("\\\n", " ").splitlines():
                for part in re.split(r"\s\|\s|\s&&\s", line):
                    text = re.sub(r"\s{2,}(#|[a-z].*).*$| # .*$", "", part.removeprefix("$ ").strip())
                    if re.match(r"headrace [a-z-]+( |$)", text) and "(" not in text and "…" not in text:
                        found.append((str(path.relative_to(ROOT)), shlex.split(text)[1:]))
    return found


def parse(arguments: list[str]) -> None:
    """Raises click.UsageError where a command or an option does not exist. Nothing is done."""
    context: click.Context = click.Context(cli, info_name="headrace")
    command: click.Command = cli
    while isinstance(command, click.Group):
        if not arguments or arguments[0] in ("-h", "--help", "--version"):
            return
        name, found, arguments = command.resolve_command(context, arguments)
        assert found is not None
        command = found
    command.make_context(name, arguments, parent=context)


def test_every_command_that_a_document_shows_has_options_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    shown = shown_commands()
    assert len(shown) > 50
    wrong = []
    for document, arguments in shown:
        try:
            parse(list(arguments))
        except click.exceptions.Exit:
            pass
        except click.ClickException as error:
            if not re.search("(Path|File|Directory) .* does not exist", error.message):
                wrong.append((document, shlex.join(arguments), error.format_message()))
    assert wrong == []


# ---- blocks that are run here ---------------------------------------------------------------------------------------


def beginning(document: str, start: str, language: str = "") -> str:
    (found,) = {each.text for each in blocks(document) if each.language == language and each.text.startswith(start)}
    return found


def run(command: str, folder: Path, bootstrap: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        env=environment(bootstrap),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def environment(bootstrap: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return {**kept, "HEADRACE_BOOTSTRAP": bootstrap, "PATH": f"{BIN}:{kept['PATH']}", "SALT": "salt"}


@contextmanager
def left_running(command: str, folder: Path, bootstrap: str, until: Callable[[], bool]) -> Iterator[None]:
    """Start a command that does not end by itself, and stop it with Ctrl-C."""
    with (folder / "output.log").open("wb") as output:
        child = subprocess.Popen(
            shlex.split(command.replace("${SALT}", "salt")),
            env=environment(bootstrap),
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def arrived() -> bool:
        assert child.poll() is None, (folder / "output.log").read_text()
        return until()

    try:
        eventually(arrived, pause_s=0.3, patience_s=120)
        yield
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()


def count(bootstrap: str, topic: str, folder: Path) -> int:
    with Client(bootstrap) as client:
        if topic not in {each.name for each in client.topics()}:
            return 0
    return len(run(f"headrace consume {topic} -e", folder, bootstrap).splitlines())


def test_the_programs_about_queues_run() -> None:
    """docs/queues.md: its Python one after the other, as one program."""
    programs = [each.text for each in blocks("docs/queues.md") if each.language == "py"]
    assert len(programs) == 4
    names: dict[str, Any] = {"handle": lambda *_: None}
    with testing.broker(amqp=True) as broker, Client(broker.bootstrap) as client:
        Queues(client).create_queue("dead")
        for program in programs[:3]:
            here = program.replace("127.0.0.1:9092", broker.bootstrap)
            here = here.replace('"127.0.0.1", 5672', f'"127.0.0.1", {broker.amqp_port}')
            exec(compile(here, "queues.md", "exec"), names)
        assert names["body"] == b"hello"
        names["connection"].close()
    exec(compile(f"{programs[3]}    connection.close()\n", "queues.md", "exec"), names)


def test_the_settings_files_about_queues_are_ones_that_headrace_reads(tmp_path: Path) -> None:
    """docs/queues.md"""
    users = tmp_path / "amqp-users"
    users.write_text("shop:secret\n")
    for number, block in enumerate(each for each in blocks("docs/queues.md") if each.language == "toml"):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "headrace.toml").write_text(block.text.replace("/etc/headrace/amqp-users", str(users)))
        printed = run("headrace config --changed", folder, "127.0.0.1:9")
        assert printed.count("file headrace.toml") == 2


def test_the_commands_about_queues_run(tmp_path: Path) -> None:
    """docs/queues.md: administration and replay."""
    with testing.broker(amqp=True) as broker, Client(broker.bootstrap) as client:
        for name in ("dead", "parked", "work"):  # the page's first example declares the last
            Queues(client).create_queue(name)
        replay = beginning("docs/queues.md", "headrace queue create orders")
        for block in (beginning("docs/queues.md", "headrace queue list"), replay):
            # A person is asked whether it is meant; here nobody is there.
            confirmed = re.sub(
                r"^(headrace queue (restore|redrive|move|purge)\b[^#\n]*)", r"\1 --yes ", block, flags=re.M
            )
            run(confirmed, tmp_path, broker.bootstrap)
        assert {each.name for each in Queues(client).list_all()} == {"dead", "parked", "work", "orders"}


def test_queues_move_from_rabbitmq_as_the_page_says(tmp_path: Path) -> None:
    """docs/howto/from-rabbitmq.md, with the queues of a second broker in the place of RabbitMQ's."""
    page = "docs/howto/from-rabbitmq.md"
    with testing.broker(amqp=True) as broker, testing.broker(amqp=True) as old:
        for url, exchange in ((old.amqp_url, ""), (broker.amqp_url, "orders")):
            connection = pika.BlockingConnection(pika.URLParameters(url))
            channel = connection.channel()
            if exchange:
                channel.exchange_declare(exchange, "topic", durable=True)
            else:
                channel.queue_declare("orders", durable=True)
                channel.confirm_delivery()
                for body in (b"one", b"two"):
                    channel.basic_publish("", "orders", body, pika.BasicProperties(delivery_mode=2))
            connection.close()
        run(beginning(page, "headrace queue create work"), tmp_path, broker.bootstrap)
        bridge = beginning(page, "headrace topic create orders").replace(
            "amqp://guest:guest@rabbit:5672/%2F", old.amqp_url
        )
        run(bridge, tmp_path, broker.bootstrap)
        assert run("headrace consume orders -e", tmp_path, broker.bootstrap).split() == ["one", "two"]


def shop_database(postgres: PostgresServer, name: str) -> str:
    with psycopg.connect(postgres.url(), autocommit=True) as session:
        session.execute(f"create database {name}")
    with psycopg.connect(postgres.url(name), autocommit=True) as session:
        session.execute("create table orders (customer_id int, number int primary key, amount numeric(12, 2))")
        session.execute("create table users (id int primary key, password text, email text)")
        session.execute("create table log_web (id int primary key)")
        session.execute("alter table orders replica identity full")
        session.execute("insert into orders values (7, 1, 3.20)")
        session.execute("insert into users values (1, 'secret', 'anna@example.com')")
    return postgres.url(name)


def test_a_capture_replaces_debezium_as_the_page_says(postgres: PostgresServer, tmp_path: Path) -> None:
    """docs/howto/from-debezium.md"""
    url = shop_database(postgres, "from_debezium")
    start, *then = (
        beginning("docs/howto/from-debezium.md", "headrace capture run trial").replace("\\\n", " ").splitlines()
    )
    with testing.broker() as broker:
        start = start.replace("postgresql://app@127.0.0.1/shop", url)
        arrived = lambda: count(broker.bootstrap, "trial.public.orders", tmp_path) == 1  # noqa: E731
        with left_running(start, tmp_path, broker.bootstrap, arrived):
            printed = run("\n".join(then), tmp_path, broker.bootstrap)
            assert '"op":"r"' in printed.replace(" ", "")
            assert "trial" in printed


def test_a_capture_of_chosen_tables_and_columns_runs_as_the_page_says(postgres: PostgresServer, tmp_path: Path) -> None:
    """docs/capture.md: what is captured, and a new snapshot."""
    url = shop_database(postgres, "chosen_tables")
    start = beginning(
        "docs/capture.md", "headrace capture run shop postgresql://app@127.0.0.1/shop \\\n  --tables 'public.*"
    )
    start = start.replace("\\\n", " ").replace("postgresql://app@127.0.0.1/shop", url)
    with testing.broker() as broker:
        arrived = lambda: count(broker.bootstrap, "shop.public.users", tmp_path) == 1  # noqa: E731
        with left_running(start, tmp_path, broker.bootstrap, arrived):
            eventually(lambda: count(broker.bootstrap, "shop.public.orders", tmp_path) == 1, pause_s=0.3)
            users = run("headrace consume shop.public.users -e", tmp_path, broker.bootstrap)
            assert "anna@example.com" not in users
            assert "secret" not in users
            run(beginning("docs/capture.md", "headrace capture snapshot"), tmp_path, broker.bootstrap)
            # The truncation, and the row again.
            eventually(lambda: count(broker.bootstrap, "shop.public.orders", tmp_path) == 3, pause_s=0.3)
        with Client(broker.bootstrap) as client:
            assert "shop.public.log_web" not in {each.name for each in client.topics()}


def test_the_commands_about_backups_and_the_unit_run(tmp_path: Path) -> None:
    """docs/operations.md"""
    page = "docs/operations.md"
    lines = beginning(page, "sudo useradd").replace("\\\n", " ").splitlines()
    (unit,) = [each.split("|")[0] for each in lines if "--print-unit" in each]
    assert "Type=notify" in run(unit.replace("sudo /opt/headrace/bin/", ""), tmp_path, "127.0.0.1:9")
    backups = beginning(page, "headrace backup create").replace("/mnt/backups", "backups")
    with testing.broker(data=tmp_path / "data") as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("orders", partitions=1)
        run(backups.replace("/var/lib/headrace", "again"), tmp_path, broker.bootstrap)
    with testing.broker(data=tmp_path / "again") as again, Client(again.bootstrap) as client:
        assert "orders" in {each.name for each in client.topics()}


def test_the_command_about_state_records_runs(tmp_path: Path) -> None:
    """docs/state-records.md"""
    (block,) = [each for each in blocks("docs/state-records.md") if each.language == "sh"]
    with testing.broker() as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("__headrace_state", partitions=1)
        assert run(block.text, tmp_path, broker.bootstrap) == ""


def test_the_two_forms_of_a_search_that_the_page_shows_are_the_same() -> None:
    """docs/searches.md"""
    from headrace.spark.searches.language import parse_search

    (form,) = [each.text for each in blocks("docs/searches.md") if each.language == "json"]
    line = beginning("docs/searches.md", 'title:"two rooms"')
    place = re.compile(r", (field_)?place=('[^']*'|\d+)")
    assert place.sub("", repr(parse_search(form))) == place.sub("", repr(parse_search(line)))
