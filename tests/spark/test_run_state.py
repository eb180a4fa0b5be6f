"""``headrace run FILE.py --state``: what checkpoints hold, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import headrace.spark as hr
from headrace.cli.run import show_state
from headrace.errors import UsageError
from headrace.spark.run.session import state_in
from headrace.spark.state.inspection import key_of
from tests.spark.test_state import Lane

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(900)]


@pytest.mark.parametrize("named_once", [True, False], ids=["headrace run", "hr.session"])
def test_the_state_of_pipelines_is_shown_in_all_and_by_key(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], named_once: bool
) -> None:
    def once(rows: DataFrame) -> DataFrame:
        return hr.dedup(rows, ["user", "amount"], within="1 hour", event_time="at", buckets=2)

    lane = Lane(spark, tmp_path)
    lane.checkpoint = tmp_path / "checkpoints" / "orders" / "spark"
    lane.add([("anna", 0, 1), ("anna", 1, 1), ("ben", 2, 7)])
    with state_in(spark, "disk", named_once=named_once):
        lane.run(once)
    folder = str(tmp_path / "checkpoints")

    show_state(spark, ["orders", "visits"], folder, "", "table")
    shown = capsys.readouterr()
    titles, line = shown.out.splitlines()
    assert titles.split() == ["PIPELINE", "OPERATOR", "KEYED", "BY", "KEYS", "TIMERS", "BYTES", "LATE", "ROWS"]
    assert line.split()[:6] == ["orders", "0", "user:", "string,", "amount:", "int64"]
    assert line.split()[6:8] == ["2", "2"]
    assert "visits holds no state by keys" in shown.err

    show_state(spark, ["orders"], folder, "user=anna,amount=1", "json")
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["pipeline"], found["operator"]) == ("orders", 0)
    assert len(found["state"]["kept"]) == 1
    assert found["expire"].startswith("2026-01-31 11:00:00")

    show_state(spark, ["orders"], folder, '{"user": "carl", "amount": 3}', "json")
    shown = capsys.readouterr()
    assert json.loads(shown.out) == []
    assert "orders holds nothing of" in shown.err
    with pytest.raises(UsageError, match="'much' is no int64, as which amount is kept"):
        show_state(spark, ["orders"], folder, "user=anna,amount=much", "json")


def test_keys_are_written_as_people_write_them() -> None:
    assert key_of("anna", ["user"]) == key_of("user=anna", ["user"]) == {"user": "anna"}
    assert key_of("a=b", ["user"]) == {"user": "a=b"}
    assert key_of("shop=7, user=anna", ["shop", "user"]) == {"shop": "7", "user": "anna"}
    assert key_of('{"shop": 7, "user": null}', ["shop", "user"]) == {"shop": 7, "user": None}
    with pytest.raises(UsageError, match=r"does not say which column.*the key is shop, user"):
        key_of("anna", ["shop", "user"])
    with pytest.raises(UsageError, match="no JSON object"):
        key_of("{anna", ["user"])
