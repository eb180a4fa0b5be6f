"""Mistakes in a file of pipelines that are found before Spark starts. No JVM is started."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.run import publish_dashboards
from headrace.client import Admin, BrokerUnreachable, Client, StatePublisher
from headrace.errors import UsageError
from headrace.spark.run.before_spark import TopicRead, check_sinks, check_topics, load_early, topics_read
from headrace.testing import TestBroker, broker

HEAD = "import headrace.spark as hr\nfrom pyspark.sql import functions as F\n"
READING = (
    HEAD
    + """
ORDERS = "shop.orders"

@hr.pipeline
def revenue(spark):
    return hr.stream(spark, ORDERS, schema="id long")

@hr.pipeline(sink=hr.sinks.topic("clean"))
def clean(spark):
    return hr.stream(spark, "raw,more", "id long", maxOffsetsPerTrigger=10)

@hr.pipeline
def follows(spark):
    return hr.stream(spark, "clean")

@hr.pipeline
def elsewhere(spark):
    return hr.stream(spark, "other", bootstrap="kafka-1:9092")

@hr.pipeline
def secured(spark):
    return hr.stream(spark, "secret", **{"kafka.security.protocol": "SSL"})
"""
)


@pytest.fixture(scope="module")
def running() -> Iterator[TestBroker]:
    with broker() as started:
        with Client(started.bootstrap) as client:
            for topic in ("shop.orders", "raw"):
                Admin(client).create_topic(topic)
        yield started


def file(folder: Path, text: str) -> Path:
    path = folder / "shop.py"
    path.write_text(text)
    return path


def test_topics_are_found_where_they_stand_as_plain_names() -> None:
    found = topics_read(READING)
    assert found == [
        TopicRead("shop.orders", 8, "revenue"),
        TopicRead("raw", 12, "clean"),
        TopicRead("more", 12, "clean"),
        TopicRead("", 16, "follows"),
        TopicRead("other", 20, "elsewhere", "kafka-1:9092"),
    ]


HELPED = (
    HEAD
    + """
import httpx
from headrace.spark import table as latest

def orders(spark):
    return hr.changes(raw(spark, "id long"), key="id")

def raw(spark, schema):
    return hr.stream(spark, topic="shop.main.orders", schema=schema, value_format="debezium")

def prices(spark):
    httpx.stream("GET", "https://example.com")
    return latest(spark, "prices")

@hr.pipeline
def totals(spark):
    return hr.view(orders(spark), "id", {"orders": "count"})

def made(name, topic):
    @hr.pipeline(name=name)
    def inner(spark):
        return hr.stream(spark, topic).join(prices(spark), "id")
    return inner

made("priced", "orders")
"""
)


def test_topics_are_found_in_the_functions_that_a_pipeline_calls_and_not_in_others() -> None:
    assert topics_read(HELPED, {"totals"}) == [TopicRead("shop.main.orders", 11, "raw")]
    assert topics_read(HELPED, {"inner"}) == [TopicRead("prices", 15, "prices"), TopicRead("", 24, "made")]
    assert topics_read(HELPED, set()) == []


def test_a_topic_that_a_helper_reads_is_refused_before_spark_starts(tmp_path: Path, running: TestBroker) -> None:
    """As in the tutorial, where one function reads the orders for all pipelines."""
    path = file(tmp_path, HELPED.replace("import httpx", ""))
    with pytest.raises(UsageError, match=r"shop.py:11: there is no topic 'shop.main.orders'"):
        check_topics(path, load_early(path, ("totals",)), running.bootstrap)


def test_a_broker_that_is_away_is_refused_also_where_no_topic_has_a_plain_name(tmp_path: Path) -> None:
    text = HEAD + "@hr.pipeline\ndef copied(spark):\n    return hr.stream(spark, '-'.join(['a', 'b']))\n"
    path = file(tmp_path, text)
    with pytest.raises(BrokerUnreachable):
        check_topics(path, load_early(path, ()), "127.0.0.1:1")


def test_a_topic_that_is_not_there_is_refused_with_the_line_that_reads_it(tmp_path: Path, running: TestBroker) -> None:
    path = file(tmp_path, READING)
    with pytest.raises(UsageError, match=r"shop.py:12: there is no topic 'more' at .*headrace topic create more"):
        check_topics(path, None, running.bootstrap)
    check_topics(path, load_early(path, ("revenue",)), running.bootstrap)


def test_a_mistyped_topic_is_told_with_the_one_that_was_meant(tmp_path: Path, running: TestBroker) -> None:
    path = file(tmp_path, READING.replace("shop.orders", "shop.order"))
    with pytest.raises(UsageError, match=r"no topic 'shop.order'.*did you mean shop.orders\?"):
        check_topics(path, None, running.bootstrap)


def test_a_broker_that_is_away_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnreachable):
        check_topics(file(tmp_path, READING), None, "127.0.0.1:1")


def test_a_broker_that_accepts_and_never_answers_is_refused_within_three_seconds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start_s = time.monotonic()
        with pytest.raises(UsageError, match=r"did not answer .* within 2 s.*is it a Kafka listener"):
            check_topics(file(tmp_path, READING), None, f"127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - start_s < 3


def test_another_broker_that_a_pipeline_names_is_looked_at_too(tmp_path: Path, running: TestBroker) -> None:
    elsewhere = READING.replace("more", "raw").replace("kafka-1:9092", running.bootstrap)
    with pytest.raises(UsageError, match=rf"shop.py:20: there is no topic 'other' at {running.bootstrap}"):
        check_topics(file(tmp_path, elsewhere), None, running.bootstrap)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UsageError, match=rf"{there} did not answer .* within 2 s"):
            check_topics(file(tmp_path, elsewhere.replace(running.bootstrap, there)), None, running.bootstrap)


@pytest.mark.timeout(20)
def test_dashboards_are_not_published_to_a_broker_that_never_answers_and_nothing_waits_for_it(tmp_path: Path) -> None:
    path = file(tmp_path, READING + 'hr.dashboard("Orders", topic="orders", kind="table")\n')
    loaded = load_early(path, ())
    assert loaded is not None
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = f"127.0.0.1:{silent.getsockname()[1]}"
        publish_dashboards(StatePublisher(there), there, path, loaded)


def test_a_name_that_no_topic_can_have_is_told_as_that(tmp_path: Path, running: TestBroker) -> None:
    path = file(tmp_path, READING.replace('"raw,more"', '"raw,my topic"'))
    with pytest.raises(UsageError, match=r"shop.py:12: 'my topic' cannot be the name of a topic"):
        check_topics(path, None, running.bootstrap)


def test_a_password_that_the_environment_does_not_have_is_missed_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "hr.sinks.sql('postgresql://me:${SHOP_PASSWORD}@db/shop', table='t', key='id')"
    sinks = (table, f"{table}.transform(lambda rows: rows)", f"[hr.sinks.console(), {table}]")
    for number, sink in enumerate(sinks):
        words = f"sink{'s' if sink.startswith('[') else ''}={sink}, name='p{number}'"
        loaded = load_early(file(tmp_path, HEAD + f"\n@hr.pipeline({words})\ndef totals(spark): ...\n"), ())
        with pytest.raises(UsageError, match=rf"pipeline 'p{number}': .* needs the environment variable SHOP_PASSWORD"):
            check_sinks(loaded)
        with monkeypatch.context() as patch:
            patch.setenv("SHOP_PASSWORD", "p@ss/${word}")
            check_sinks(loaded)
    check_sinks(None)


def test_an_address_from_the_environment_is_looked_at_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_URL", "oracle://me:word@db/shop")
    text = HEAD + "\n@hr.pipeline(sink=hr.sinks.sql('${SHOP_URL}', table='t', key='id'))\ndef totals(spark): ...\n"
    with pytest.raises(UsageError, match=r"oracle://me@db/shop is no database"):
        check_sinks(load_early(file(tmp_path, text), ()))


def test_a_file_that_reads_no_plain_topic_needs_no_broker(tmp_path: Path) -> None:
    text = HEAD + "@hr.pipeline\ndef numbers(spark):\n    return spark.range(3)\n"
    check_topics(file(tmp_path, text), None, "127.0.0.1:1")


@pytest.mark.parametrize(
    ("text", "only", "told"),
    [
        ("import no_such_module_at_all\n", (), "shop.py:1: ModuleNotFoundError"),
        ("x = 1\n", (), "has no pipeline"),
        (HEAD + "\nhr.sinks.sql('oracle://x', table='t', wides=1)\n", (), "shop.py:4: a sink knows no 'wides'"),
        (HEAD + "\nhr.sinks.sql('oracle://me:word@x/y', table='t')\n", (), "shop.py:4: oracle://me@x/y is no database"),
        (HEAD + "\n@hr.pipeline(sinks=hr.sinks.console())\ndef a(spark): ...\n", (), "shop.py:4: sinks=.* is no list"),
        (READING, ("revenu",), "there is no pipeline 'revenu'"),
    ],
)
def test_what_is_wrong_with_the_file_is_found_by_running_it(
    tmp_path: Path, text: str, only: tuple[str, ...], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        load_early(file(tmp_path, text), only)


def test_a_file_whose_top_level_needs_spark_is_run_later(tmp_path: Path) -> None:
    assert load_early(file(tmp_path, HEAD + "amount = F.col('amount')\n"), ()) is None
    assert load_early(file(tmp_path, HEAD + "spark = hr.session()\n"), ()) is None
