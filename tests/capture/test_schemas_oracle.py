"""With ``--schemas``, a column of PostgreSQL has the type and the name that real Debezium gives it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from headrace.capture import CaptureOptions
from tests.capture.conftest import Database
from tests.capture.test_debezium_oracle import TYPES
from tests.capture.test_debezium_samples import AS_DEBEZIUM
from tests.capture.world import catch_up, committed
from tests.servers.debezium import debezium, debezium_python
from tests.skips import or_skip

pytestmark = [pytest.mark.servers, pytest.mark.slow]

WITH_SCHEMAS = {f"{each}converter.schemas.enable": "true" for each in ("", "key.", "value.")}


def columns_of(message: Any, part: str) -> dict[str, Any]:
    """The types of the columns of a row, or of a key, without what docs/debezium.md lists as different."""
    schema = json.loads(message)["schema"]
    fields = schema["fields"]
    if part:
        (fields,) = [each["fields"] for each in fields if each["field"] == part]
    return {each["field"]: described(each) for each in fields}


def described(kind: dict[str, Any]) -> dict[str, Any]:
    found = {name: kind[name] for name in ("type", "name", "version") if name in kind}
    if kind["type"] == "array":
        found["items"] = described(kind["items"])
    if kind["type"] == "struct":
        found["fields"] = {each["field"]: described(each) for each in kind["fields"]}
        found.pop("version", None)
    if "scale" in kind.get("parameters", {}):
        found["scale"] = kind["parameters"]["scale"]
    return found


@pytest.mark.timeout(900)  # Debezium is installed on first use
def test_columns_have_the_types_and_names_that_debezium_gives_them(log: str, database: Database) -> None:
    with or_skip():
        debezium_python()
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    database.run("create type mood as enum ('happy', 'sad')", "create domain price as numeric(8,2)")
    database.run(f"create table types (id int primary key, {columns})")
    name, topic = database.name, f"{database.name}.public.types"
    capture = CaptureOptions(name=name, url=database.url, snapshot=False, schemas=True, **AS_DEBEZIUM)
    catch_up(log, capture)
    with debezium(database.url, name, more=WITH_SCHEMAS) as other:
        while not database.all(f"select 1 from pg_replication_slots where slot_name = 'debezium_{name}' and active"):
            assert other.child.poll() is None, "Debezium has ended"
            time.sleep(0.1)
        database.run(f"insert into types values (1, {', '.join(value for _, value in TYPES.values())})")
        theirs = other.wait_for(lambda lines: any(line[0] == topic for line in lines))
    catch_up(log, capture)
    _, key, value, *_ = next(line for line in theirs if line[0] == topic)
    (ours,) = committed(log, topic)
    assert columns_of(ours.key, "") == columns_of(key, "")
    mine, other_types = columns_of(ours.value, "after"), columns_of(value, "after")
    assert {each: mine[each] for each in mine if mine[each] != other_types[each]} == {}
