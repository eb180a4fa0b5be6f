"""Random changes, with capture ending at random moments in between: the topic folds into the table, whatever they are.

Unlike the kills of ``kills.py``, a failure here shrinks to the fewest steps that show it.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.capture import Capture, CaptureOptions
from tests.capture.conftest import Database, drop_slot
from tests.capture.test_postgres import AfterSome, Died
from tests.capture.world import catch_up, check_numbering, check_order, events, fold

pytestmark = [pytest.mark.servers, pytest.mark.slow]

keys = st.integers(1, 12)
statements = st.one_of(
    st.builds(
        "insert into {{t}} values ({}, 'a') on conflict (id) do update set body = {{t}}.body || 'x'".format, keys
    ),
    st.builds("update {{t}} set body = body || 'u' where id = {}".format, keys),
    st.builds("update {{t}} set body = repeat('large', 1000) where id = {}".format, keys),
    st.builds("delete from {{t}} where id = {}".format, keys),
    st.builds(
        "update {{t}} set id = {} where id = {} and not exists (select from {{t}} where id = {})".format,
        keys,
        keys,
        keys,
    ).filter(lambda text: text.split()[5] == text.split()[-1].rstrip(")")),
    st.builds("insert into {{t}} select i, 'many' from generate_series({}, 200) i on conflict do nothing".format, keys),
    st.just("truncate {t}"),
    st.builds("alter table {{t}} add column if not exists c{} int".format, st.integers(1, 2)),
)
transactions = st.builds(
    lambda work, ends: [*work, ends],
    st.lists(statements, min_size=1, max_size=4),
    st.sampled_from(["commit"] * 5 + ["rollback"]),
)
sessions = st.one_of(st.builds(lambda often: ("die", often), st.integers(1, 8)), st.just(("catch up", 0)))
steps = st.lists(st.one_of(transactions, transactions, sessions), min_size=1, max_size=12)
numbers = itertools.count(1)


@settings(
    max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], database=None
)
@given(before=st.lists(statements, max_size=3), work=steps)
def test_the_topic_folds_into_the_table_wherever_capture_died(
    log: str, database: Database, before: list[str], work: list[Any]
) -> None:
    number = next(numbers)
    table = f"t{number}"
    options = CaptureOptions(
        name=f"{database.name}_{number}",
        url=database.url,
        tables=(f"public.{table}",),
        chunk_rows=50,
        streaming=number % 2 == 0,
        triggers=number % 3 == 0,
    )
    database.run(f"create table {table} (id int primary key, body text)", *(each.format(t=table) for each in before))
    try:
        for step in work:
            if isinstance(step, list):
                database.run("begin", *(each.format(t=table) for each in step))
            elif step[0] == "catch up":
                catch_up(log, options)
            else:
                with pytest.raises(Died):
                    Capture(log, options).run(AfterSome(step[1], Died()))
        catch_up(log, options)
        found = events(log, f"{options.name}.public.{table}")
        folded = {
            key: {name: each for name, each in row.items() if each is not None} for key, row in fold(found).items()
        }
        assert folded == rows_of(database, table)
        check_numbering(found)
        check_order([each for each in found if each.op != "r"])
    finally:
        drop_slot(database, f"headrace_{options.name}")


def rows_of(database: Database, table: str) -> dict[str, Any]:
    rows = [row[0] for row in database.all(f"select to_jsonb({table}) from {table}")]
    found: dict[str, Any] = {}
    for row in rows:
        assert isinstance(row, dict)
        found[json.dumps({"id": row["id"]})] = {name: each for name, each in row.items() if each is not None}
    return found
