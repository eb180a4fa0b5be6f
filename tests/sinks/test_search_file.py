"""The search index in a file: what is written can be found, what is deleted cannot, and both tables agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import UsageError
from headrace.spark import sinks
from headrace.spark.sinks.following import TargetSink
from headrace.targets.search import SearchTarget
from tests.sinks.world import deliver, fence

SCHEMA = pa.schema([("sku", pa.string()), ("title", pa.string()), ("body", pa.string()), ("price", pa.int64())])
PRODUCTS = [
    ("p1", "Espresso machine", "makes strong coffee", 300),
    ("p2", "Kettle", "boils water for tea and coffee", 40),
    ("p3", "Crème brûlée torch", "burns sugar", 25),
]


def index(folder: Path, **options: Any) -> tuple[SearchTarget, str]:
    url = f"sqlite:///{folder}/index.db"
    sink = sinks.search(url, index="products", key="sku", **options)
    assert isinstance(sink, TargetSink)
    assert isinstance(sink.target, SearchTarget)
    return sink.target, url


def found(url: str, text: str) -> list[str]:
    return [row["sku"] for row in sinks.find(url, index="products", text=text)]


def test_rows_are_found_by_words_phrases_prefixes_and_without_accents(tmp_path: Path) -> None:
    target, url = index(tmp_path)
    deliver(target, PRODUCTS, at=fence(0), schema=SCHEMA)
    assert sorted(found(url, "coffee")) == ["p1", "p2"]
    assert found(url, '"strong coffee"') == ["p1"]
    assert found(url, "kett*") == ["p2"]
    assert found(url, "creme brulee") == ["p3"]
    assert found(url, "coffee NOT tea") == ["p1"]
    assert found(url, "nothing") == []


def test_a_file_is_found_whatever_its_name_and_one_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "50% of?all#"
    with pytest.raises(UsageError, match="names no file, or more than a file"):
        sinks.find(f"sqlite:///{folder}/index.db", index="products", text="x")
    address = f"sqlite:///{tmp_path}/50%25 of%3Fall%23"
    with pytest.raises(UsageError, match="there is no such file"):
        sinks.find(f"{address}/index.db", index="products", text="x")
    folder.mkdir()
    target = sinks.search(f"{address}/index.db", index="products", key="sku")
    assert isinstance(target, TargetSink)
    deliver(target.target, PRODUCTS, at=fence(0), schema=SCHEMA)
    assert (folder / "index.db").is_file()
    assert found(f"{address}/index.db", "kett*") == ["p2"]


def test_a_result_is_the_row_with_its_score_and_the_place_that_matched(tmp_path: Path) -> None:
    target, url = index(tmp_path)
    deliver(target, PRODUCTS, at=fence(0), schema=SCHEMA)
    (row,) = sinks.find(url, index="products", text="kettle")
    assert (row["sku"], row["price"], row["snippet"]) == ("p2", 40, "[Kettle]")
    assert row["score"] > 0


def test_updates_and_deletions_reach_the_index_in_the_same_batch(tmp_path: Path) -> None:
    target, url = index(tmp_path)
    deliver(target, PRODUCTS, at=fence(0), schema=SCHEMA)
    deliver(target, [("p1", "Grinder", "grinds beans", 90), ("-", "p2")], at=fence(1), schema=SCHEMA)
    assert found(url, "coffee") == []
    assert found(url, "grinds") == ["p1"]
    assert deliver(target, [("p1", "replayed", "x", 1)], at=fence(1), schema=SCHEMA).replayed
    assert found(url, "replayed") == []


def test_only_the_columns_that_were_named_are_searched(tmp_path: Path) -> None:
    target, url = index(tmp_path, text=["title"])
    deliver(target, PRODUCTS, at=fence(0), schema=SCHEMA)
    assert found(url, "coffee") == []
    assert found(url, "espresso") == ["p1"]


def test_parts_of_words_are_found_on_request(tmp_path: Path) -> None:
    target, url = index(tmp_path, match="parts")
    deliver(target, PRODUCTS, at=fence(0), schema=SCHEMA)
    assert found(url, "press") == ["p1"]


def test_a_new_version_of_the_index_takes_its_place_and_goes_on(tmp_path: Path) -> None:
    target, url = index(tmp_path)
    deliver(target, PRODUCTS, at=fence(5, query="old"), schema=SCHEMA)
    version = target.version()
    version.begin("p")
    deliver(version.target, PRODUCTS[:1], at=fence(0, query="new"), schema=SCHEMA)
    assert sorted(found(url, "coffee")) == ["p1", "p2"]
    version.switch()
    assert found(url, "coffee") == ["p1"]
    deliver(target, [("p9", "Kettle", "coffee again", 1), ("-", "p1")], at=fence(1, query="new"), schema=SCHEMA)
    assert found(url, "coffee") == ["p9"]


def test_a_query_that_is_no_query_is_told_in_one_line(tmp_path: Path) -> None:
    target, url = index(tmp_path)
    deliver(target, PRODUCTS, at=fence(0), schema=SCHEMA)
    with pytest.raises(UsageError, match="cannot be searched for"):
        found(url, 'AND "')


def test_hostile_names_and_texts_are_only_names_and_texts(tmp_path: Path) -> None:
    name = "or\"der'; drop"
    schema = pa.schema([("id", pa.int64()), ('te"xt', pa.string())])
    url = f"sqlite:///{tmp_path}/index.db"
    sink = sinks.search(url, index=name, key="id")
    assert isinstance(sink, TargetSink)
    deliver(sink.target, [(1, "'); DROP TABLE x; -- findme"), (2, 'a "quoted" word')], at=fence(0), schema=schema)
    assert [row["id"] for row in sinks.find(url, index=name, text="findme")] == [1]
    assert [row["id"] for row in sinks.find(url, index=name, text="quoted")] == [2]
