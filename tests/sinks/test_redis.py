"""Redis follows: rows under keys and in one hash, fences, two drivers, and a server that is killed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from redis import Redis

from headrace.errors import Refused, UsageError
from headrace.spark import sinks
from headrace.spark.sinks.following import TargetSink
from headrace.targets.changes import JSON_FIELD
from headrace.targets.redis import RedisTarget
from headrace.targets.target import Unavailable
from tests.servers.redis import RedisServer, redis_server
from tests.sinks.world import Refusals, deliver, deliver_overtaken, fence

pytestmark = pytest.mark.servers
names = itertools.count()


class Cache:
    def __init__(self, server: RedisServer, client: Redis) -> None:
        self.server = server
        self.client: Any = client
        self.name = f"c{next(names)}:"

    def target(self, form: str = "keys", **options: Any) -> RedisTarget:
        sink = sinks.redis(self.server.url(), name=self.name, key="id", form=form, **options)  # type: ignore[arg-type]
        assert isinstance(sink, TargetSink)
        assert isinstance(sink.target, RedisTarget)
        return sink.target

    def rows(self, form: str = "keys") -> dict[str, Any]:
        if form == "map":
            return {key: json.loads(value)["name"] for key, value in self.client.hgetall(self.name).items()}
        keys = sorted(self.client.scan_iter(match=self.name + "*"))
        return {key.removeprefix(self.name): json.loads(self.client.get(key))["name"] for key in keys}


@pytest.fixture
def cache(redis: RedisServer) -> Iterator[Cache]:
    with Redis.from_url(redis.url(), decode_responses=True) as client:
        yield Cache(redis, client)


@pytest.mark.parametrize("form", ["keys", "map"])
def test_rows_are_set_replaced_and_removed_by_key_and_a_replay_changes_nothing(cache: Cache, form: str) -> None:
    target = cache.target(form)
    deliver(target, [(1, "a"), (2, "b"), (3, "c")], at=fence(0))
    deliver(target, [(2, "B"), ("-", 3), (4, "first"), (4, "last")], at=fence(1))
    assert cache.rows(form) == {"1": "a", "2": "B", "4": "last"}
    assert deliver(target, [(1, "again")], at=fence(1)).replayed
    assert cache.rows(form) == {"1": "a", "2": "B", "4": "last"}


def test_a_document_has_every_type_in_a_form_that_json_has(cache: Cache) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("amount", pa.decimal128(12, 2)),
            ("at", pa.timestamp("us", tz="Asia/Tokyo")),
            ("raw", pa.binary()),
            ("odd", pa.float64()),
            pa.field("lines", pa.string(), metadata=JSON_FIELD),
        ]
    )
    moment = datetime(2026, 1, 31, 10, tzinfo=UTC)
    row = (1, "ä☃", Decimal("1.50"), moment, b"\0\xff", float("nan"), '[{"n": 1}]')
    deliver(cache.target(), [row], at=fence(0), schema=schema)
    assert json.loads(cache.client.get(cache.name + "1")) == {
        "id": 1,
        "name": "ä☃",
        "amount": "1.50",
        "at": "2026-01-31T10:00:00.000000Z",
        "raw": "AP8=",
        "odd": "nan",
        "lines": [{"n": 1}],
    }


def test_keys_of_several_columns_cannot_be_mistaken_for_one_another(cache: Cache) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("name", pa.string())])
    sink = sinks.redis(cache.server.url(), name=cache.name, key=["a", "b"])
    assert isinstance(sink, TargetSink)
    deliver(sink.target, [("x:", "y", "one"), ("x", ":y", "two")], at=fence(0), schema=schema)
    assert sorted(cache.rows().values()) == ["one", "two"]


def test_rows_expire_on_request(cache: Cache) -> None:
    deliver(cache.target(expire_s=3600), [(1, "a")], at=fence(0))
    assert 0 < cache.client.ttl(cache.name + "1") <= 3600
    with pytest.raises(UsageError, match="only with form='keys'"):
        cache.target("map", expire_s=5)


def test_many_rows_go_in_groups_and_all_arrive(cache: Cache) -> None:
    deliver(cache.target(), [(number, str(number)) for number in range(5000)], at=fence(0))
    assert cache.rows() == {str(number): str(number) for number in range(5000)}


def test_a_run_that_another_has_taken_over_from_stops(cache: Cache) -> None:
    deliver(cache.target(), [(1, "old")], at=fence(0, owner="first"))
    deliver(cache.target(), [(1, "new")], at=fence(1, owner="second"))
    with pytest.raises(Refused, match="has taken over"):
        deliver(cache.target(), [(1, "stale")], at=fence(2, owner="first", first=False))
    assert cache.rows() == {"1": "new"}


def test_a_run_that_another_takes_over_from_in_mid_batch_writes_nothing_more(cache: Cache) -> None:
    with pytest.raises(Refused, match="has taken over: second"):
        deliver_overtaken(cache.target())
    assert cache.rows() == {"1": "new"}


def test_a_row_without_its_key_goes_to_the_dead_letters(cache: Cache) -> None:
    refusals = Refusals()
    deliver(cache.target(), [(None, "nobody"), (1, "a")], at=fence(0), refusals=refusals)
    assert (cache.rows(), len(refusals.rows)) == ({"1": "a"}, 1)


def test_a_new_version_of_a_hash_takes_its_place_at_once(cache: Cache) -> None:
    target = cache.target("map")
    deliver(target, [(1, "wrong"), (2, "left over")], at=fence(7, query="old"))
    version = target.version()
    assert version is not None
    version.begin("p")
    deliver(version.target, [(1, "right")], at=fence(0, query="new"))
    assert cache.rows("map") == {"1": "wrong", "2": "left over"}
    version.switch()
    version.switch()
    assert cache.rows("map") == {"1": "right"}
    assert deliver(target, [(1, "x")], at=fence(0, query="new")).replayed


def test_a_hash_that_another_pipeline_writes_is_not_rebuilt(cache: Cache) -> None:
    target = cache.target(form="map")
    deliver(target, [(1, "mine")], at=fence(0))
    deliver(target, [(2, "theirs")], at=fence(0, query="other", pipeline="others"))
    version = target.version()
    assert version is not None
    with pytest.raises(UsageError, match=r"has rows of other pipelines too \(others\)"):
        version.begin("p")


def test_rows_under_keys_of_their_own_have_no_version(cache: Cache) -> None:
    assert cache.target().version() is None


def test_a_server_that_is_killed_is_told_and_takes_the_batch_when_it_is_back() -> None:
    with redis_server() as server, Redis.from_url(server.url(), decode_responses=True) as client:
        cache = Cache(server, client)
        deliver(cache.target(), [(1, "a")], at=fence(0))
        server.kill()
        with pytest.raises(Unavailable, match="it is away"):
            deliver(cache.target(), [(1, "b")], at=fence(1))
        server.start()
        deliver(cache.target(), [(1, "b")], at=fence(1))
        assert cache.rows() == {"1": "b"}


def test_a_run_whose_first_batch_is_a_replay_has_taken_over_and_goes_on(cache: Cache) -> None:
    target = cache.target()
    deliver(target, [(1, "a")], at=fence(0, owner="first run"))
    assert deliver(target, [(1, "a")], at=fence(0, owner="second run")).replayed
    assert not deliver(target, [(1, "b")], at=fence(1, owner="second run", first=False)).replayed
    with pytest.raises(Refused, match="has taken over"):
        deliver(target, [(1, "stale")], at=fence(1, "other", owner="first run", first=False))
