"""Redis as a cache that follows: each row a JSON document, under a key of its own or as a field of one hash.

``keys``  ``orders:17`` holds the row; each can expire by itself
``map``   the hash ``orders`` holds all rows by their keys; it can be rebuilt aside and switched by one RENAME

Redis has no transaction that could be as long as a batch. But each row is set or removed as a whole, so a batch that is
cut off is simply written again, to the same end; what counts is that nobody else writes in between. So every group of
rows is a MULTI that Redis carries out only if the fence is still ours (WATCH), and the fence moves with the last group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import redis

from headrace.errors import HeadraceError, UsageError
from headrace.spark.decisions import Refused
from headrace.spark.sinks.address import Address
from headrace.spark.sinks.documents import dumps, identifiers, objects
from headrace.spark.sinks.target import (
    Changes,
    Delivery,
    Fence,
    Outcome,
    Session,
    Target,
    Unavailable,
    Version,
    must_write,
    usable,
)

__all__ = ["RedisTarget"]

GROUP_ROWS = 2000
TIMEOUT_S = 30
FENCE_PREFIX = "headrace:fence:"
NEW = ":headrace-new"
FOR_A_WHILE = ("BUSY", "CLUSTERDOWN", "EXECABORT", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "TRYAGAIN")
"""How answers begin that say nothing against the command."""


@dataclass(frozen=True, slots=True)
class RedisTarget(Target):
    address: Address
    name: str
    key: tuple[str, ...]
    form: Literal["keys", "map"] = "keys"
    expire_s: int | None = None

    def __post_init__(self) -> None:
        if not self.key:
            raise UsageError(f"{self.shown} needs to know what rows are known by", "key=…")
        if self.form not in ("keys", "map"):
            raise UsageError(f"form={self.form!r} must be 'keys' or 'map'")
        if self.expire_s is not None and (self.form != "keys" or self.expire_s < 1):
            raise UsageError("rows expire one by one only with form='keys', after a second or more")

    @property
    def shown(self) -> str:
        return f"{'keys' if self.form == 'keys' else 'hash'} {self.name} at {self.address.shown}"

    def open(self) -> RedisSession:
        return RedisSession(self)

    def version(self) -> Version | None:
        if self.form != "map":
            return None
        beside = replace(self, name=self.name + NEW)
        return Version(beside, lambda: self._with("begin_version"), lambda: self._with("switch"))

    def _with(self, action: str) -> None:
        session = self.open()
        try:
            getattr(session, action)()
        finally:
            session.close()


class RedisSession(Session):
    def __init__(self, target: RedisTarget) -> None:
        self._target = target
        self._client = redis.Redis.from_url(
            target.address.resolved(), socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, decode_responses=True
        )

    def close(self) -> None:
        self._client.close()

    def write(self, delivery: Delivery) -> Outcome:
        target, fence = self._target, delivery.fence
        try:
            if fence is not None and not self._enter(fence):
                delivery.done.replayed = True
                return delivery.done
            for chunk in delivery.counted():
                for group in _groups(usable(chunk, target.key, delivery.letters)):
                    self._apply(group, fence)
            delivery.done.refused = delivery.letters.deliver()
            if fence is not None:
                self._guarded(fence, lambda pipe: pipe.set(self._fence_key(fence.query), _encoded(fence)))
        except redis.RedisError as error:
            raise self._told(error) from error
        return delivery.done

    def _told(self, error: redis.RedisError) -> HeadraceError:
        text = f"{self._target.shown}: {' '.join(str(error).split())}"
        wrong = isinstance(error, redis.ResponseError) and not str(error).startswith(FOR_A_WHILE)
        wrong = wrong and not isinstance(error, redis.ReadOnlyError)
        return UsageError(text) if wrong else Unavailable(f"{text} (it is away, or takes no writes)")

    # ---- the fence --------------------------------------------------------------------------------------------------

    def _fence_key(self, query: str) -> str:
        return f"{FENCE_PREFIX}{self._target.name}:{query}"

    def _enter(self, fence: Fence) -> bool:
        """Whether to write; from then on the fence bears our name, and another run's groups are refused."""
        found = self._client.get(self._fence_key(fence.query))
        last = _decoded(fence.query, str(found)) if found else None
        wanted = must_write(fence, last, keyed=True, where=self._target.shown)
        claimed = replace(last or replace(fence, batch_id=-1, ends=None), owner=fence.owner)
        self._client.set(self._fence_key(fence.query), _encoded(claimed))
        return wanted

    def _guarded(self, fence: Fence | None, fill: Any) -> None:
        """Commands that Redis carries out together, and only while the fence is ours."""
        with self._client.pipeline(transaction=True) as pipe:
            if fence is not None:
                key = self._fence_key(fence.query)
                pipe.watch(key)  # type: ignore[no-untyped-call]
                found = pipe.get(key)
                if not found or _decoded(fence.query, str(found)).owner != fence.owner:
                    raise self._superseded(fence)
                pipe.multi()
            fill(pipe)
            try:
                pipe.execute()
            except redis.WatchError as error:
                assert fence is not None, "nothing is watched without a fence"
                raise self._superseded(fence) from error

    def _superseded(self, fence: Fence) -> Refused:
        return Refused(
            f"{self._target.shown}: another run of query {fence.query} has taken over; this one stops. Run the "
            "pipeline in one place"
        )

    # ---- rows -------------------------------------------------------------------------------------------------------

    def _apply(self, changes: Changes, fence: Fence | None) -> None:
        target = self._target
        upserts, deletes = changes.upserts(), changes.deletes()
        kept = dict(zip(identifiers(upserts, target.key), map(dumps, objects(upserts)), strict=True))
        gone = identifiers(deletes, target.key) if deletes.num_rows else []

        def fill(pipe: Any) -> None:
            if target.form == "map":
                if gone:
                    pipe.hdel(target.name, *gone)
                if kept:
                    pipe.hset(target.name, mapping=kept)
                return
            if gone:
                pipe.unlink(*[target.name + each for each in gone])
            if kept and target.expire_s is None:
                pipe.mset({target.name + name: value for name, value in kept.items()})
            elif kept:
                for name, value in kept.items():
                    pipe.set(target.name + name, value, ex=target.expire_s)

        self._guarded(fence, fill)

    # ---- versions ---------------------------------------------------------------------------------------------------

    def begin_version(self) -> None:
        name = self._target.name + NEW
        self._client.unlink(name, *self._client.scan_iter(match=_escaped(f"{FENCE_PREFIX}{name}:") + "*"))

    def switch(self) -> None:
        """RENAME replaces what was there at one moment. An empty version has no key, so the old one is removed."""
        old, new = self._target.name, self._target.name + NEW
        fences = list(self._client.scan_iter(match=_escaped(f"{FENCE_PREFIX}{new}:") + "*"))
        if not fences:
            return  # an earlier attempt got this far
        with self._client.pipeline(transaction=True) as pipe:
            if self._client.exists(new):
                pipe.rename(new, old)
            else:
                pipe.unlink(old)
            for each in fences:
                pipe.rename(each, str(each).replace(NEW, "", 1))
            pipe.execute()


def _escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in text)


def _groups(changes: Changes) -> Iterator[Changes]:
    for start in range(0, len(changes), GROUP_ROWS):
        yield changes.slice(start, min(GROUP_ROWS, len(changes) - start))


def _encoded(fence: Fence) -> str:
    return json.dumps({"batch": fence.batch_id, "ends": fence.ends, "owner": fence.owner})


def _decoded(query: str, text: str) -> Fence:
    found = json.loads(text)
    return Fence(query, int(found["batch"]), found["ends"], str(found["owner"]))
