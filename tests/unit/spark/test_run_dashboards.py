"""A dashboard is one line next to a pipeline. What is wrong with it is said before Spark starts, with its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace import testing
from headrace.cli.run import command
from headrace.client import Admin, Client, StatePublisher, read_state_records
from headrace.errors import UsageError
from headrace.spark.run import dashboards
from headrace.spark.run.before_spark import check_topics, load_early
from headrace.spark.run.dashboards import collected, dashboard
from headrace.spark.run.pipelines import load_file

FILE = """import headrace.spark as hr
@hr.pipeline(sink=hr.sinks.topic("revenue"))
def revenue(spark): ...
hr.dashboard("Revenue", topic="TOPIC", x="minute", y="amount", series="shop", refresh="1 minute", unit="€")
"""


def file(folder: Path, text: str) -> Path:
    path = folder / "shop.py"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with testing.broker() as broker:
        yield broker.bootstrap


def test_a_dashboard_of_a_file_is_found_with_its_place(tmp_path: Path) -> None:
    (found,) = load_file(file(tmp_path, FILE.replace("TOPIC", "revenue"))).dashboards
    assert (found.title, found.kind, found.y, found.refresh_s, found.by_key) == (
        "Revenue",
        "line",
        ("amount",),
        60,
        False,
    )
    assert found.origin.endswith("shop.py:4")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"topic": "t"}, "table"),
        ({"topic": "t", "y": "a"}, "number"),
        ({"topic": "t", "x": "a", "y": "b"}, "line"),
        ({"view": "t", "kind": "bar", "x": "a", "y": ["b", "c"]}, "bar"),
    ],
)
def test_what_is_given_says_what_kind_it_is(given: dict[str, Any], kind: str) -> None:
    with collected() as found:
        dashboard("d", **given)
    assert [each.kind for each in found] == [kind]
    assert found[0].by_key == ("view" in given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "of a topic= or of a view="),
        ({"topic": "a", "view": "b"}, "one of the two"),
        ({"topic": "no topic"}, "cannot be the name of a topic"),
        ({"topic": "t", "kind": "pie"}, "must be one of line, bar, table, number"),
        ({"topic": "t", "kind": "line", "x": "a"}, "a line needs x= and y="),
        ({"topic": "t", "kind": "bar", "y": "a"}, "a bar needs x= and y="),
        ({"topic": "t", "kind": "number", "y": ["a", "b"]}, "needs one y="),
        ({"topic": "t", "x": "a", "y": ["b", "c"], "series": "d"}, "and not from both"),
        ({"topic": "t", "x": "a", "y": "b", "columns": ["c"]}, "columns= is for a table"),
        ({"topic": "t", "last": 0}, r"last=0 is outside \[1, 10000\]"),
        ({"topic": "t", "refresh": "often"}, "refresh='often' is no time"),
        ({"topic": "t", "refresh": "0 seconds"}, "is no time"),
        ({"topic": "t", "columns": [""]}, "are texts"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], told: str) -> None:
    with collected(), pytest.raises(UsageError, match=told):
        dashboard("d", **given)


@pytest.mark.parametrize("title", ["", "  ", "x" * 101, "a\nb"])
def test_a_title_is_one_line(title: str) -> None:
    with collected(), pytest.raises(UsageError, match="cannot be a dashboard's title"):
        dashboard(title, topic="t")


def test_two_dashboards_of_one_title_are_refused_with_both_places(tmp_path: Path) -> None:
    text = FILE.replace("TOPIC", "revenue") + "hr.dashboard('Revenue', topic='revenue')\n"
    with pytest.raises(UsageError, match=r"two dashboards are called 'Revenue': .*shop.py:4 and .*shop.py:5"):
        load_file(file(tmp_path, text))


def test_a_topic_that_is_neither_there_nor_written_by_the_file_is_refused_before_spark_starts(
    tmp_path: Path, bootstrap: str
) -> None:
    with Client(bootstrap) as client:
        Admin(client).create_topic("revenues", partitions=1)
    path = file(tmp_path, FILE.replace("TOPIC", "revenuse"))
    with pytest.raises(UsageError, match=r"shop.py:4: there is no topic 'revenuse'.*did you mean revenues\?"):
        check_topics(path, load_early(path, ()), bootstrap)
    for topic in ("revenue", "revenues"):
        path = file(tmp_path, FILE.replace("TOPIC", topic))
        check_topics(path, load_early(path, ()), bootstrap)


def test_what_a_file_shows_no_more_is_removed_and_other_files_dashboards_stay(tmp_path: Path, bootstrap: str) -> None:
    with Client(bootstrap) as client:

        def publish(name: str, *titles: str) -> set[str]:
            with collected() as found:
                for each in titles:
                    dashboard(each, topic="t")
            with StatePublisher(bootstrap) as publisher:
                dashboards.publish(publisher, client, tmp_path / name, found)
            return set(read_state_records(client, "dashboard"))

        assert publish("a.py", "One", "Two") == {"One", "Two"}
        assert publish("b.py", "Three") == {"One", "Two", "Three"}
        assert publish("a.py", "Two") == {"Two", "Three"}
        record = read_state_records(client, "dashboard")["Two"]
        assert record.details["topic"] == "t"
        assert not record.is_lost(record.at_ms + 10**9)


def test_dashboards_are_there_before_spark_starts(
    tmp_path: Path, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes most of a minute; a console that is open meanwhile shows what comes, and charts of other topics."""

    def no_spark(*_: object, **__: object) -> None:
        raise UsageError("Spark does not start here")

    monkeypatch.setattr("headrace.spark.run.launch.open_session", no_spark)
    path = file(tmp_path, FILE.replace("TOPIC", "revenue").replace('"Revenue"', '"Early revenue"'))
    places = ["--log", str(tmp_path / "run.log"), "--checkpoints", str(tmp_path / "checkpoints")]
    ended = CliRunner().invoke(command, [str(path), "-b", bootstrap, *places])
    assert "Spark does not start here" in str(ended.exception)
    with Client(bootstrap) as client:
        assert "Early revenue" in read_state_records(client, "dashboard")
