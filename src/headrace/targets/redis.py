"""Redis as a cache that follows: each row a JSON document, under its own key or as a field of one hash.

``keys``  ``orders:17`` holds the row; each can expire by itself
``map``   the hash ``orders`` holds all rows by their keys; it can be rebuilt aside and switched by one RENAME

Redis has no transaction that could be as long as a batch. But each row is set or removed as a whole, so a batch that is
cut off is simply written again, to the same end; what counts is that nobody else writes in between. So every group of
rows is a MULTI that Redis carries out only if the fence is still ours (WATCH), and the fence moves with the last group.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import redis

from headrace.address import Address
from headrace.errors import HeadraceError, UsageError
from headrace.targets.changes import Changes
from headrace.targets.documents import dumps, identifiers, objects
from headrace.targets.target import (
    NO_BATCH,
    Delivery,
    Fence,
    Outcome,
    Session,
    Target,
    Unavailable,
    Version,
    login_refused,
    must_write,
    now_text,
    refuse_other_pipelines,
    superseded,
    usable,
)

__all__ = ["RedisTarget"]

GROUP_ROWS = 2000
TIMEOUT_S = 30
CLAIMS_MAX = 20
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
        self.address.must_be(("redis", "rediss", "unix"), "address of Redis", "redis://HOST:PORT/0")
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

    def check(self) -> None:
        self.address.resolved()

    def version(self) -> Version | None:
        if self.form != "map":
            return None
        beside = replace(self, name=self.name + NEW)
        return Version(
            beside,
            begin=lambda pipeline: self._with(lambda session: session.begin_version(pipeline)),
            switch=lambda: self._with(RedisSession.switch),
            abandon=lambda: self._with(RedisSession.abandon_version),
        )

    def _with(self, action: Callable[[RedisSession], None]) -> None:
        session = self.open()
        try:
            action(session)
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
                self._guarded(fence, lambda pipe: pipe.set(self._fence_key(fence), _encoded(fence, self._target.name)))
        except redis.RedisError as error:
            raise self._told(error) from error
        return delivery.done

    def _told(self, error: redis.RedisError) -> HeadraceError:
        if isinstance(error, redis.AuthenticationError | redis.exceptions.AuthorizationError):
            reason = " ".join(str(error).split())
            return login_refused(self._target.shown, self._target.address.hidden_in(reason))
        text = f"{self._target.shown}: {' '.join(str(error).split())}"
        wrong = isinstance(error, redis.ResponseError) and not str(error).startswith(FOR_A_WHILE)
        wrong = wrong and not isinstance(error, redis.ReadOnlyError)
        return UsageError(text) if wrong else Unavailable(f"{text} (it is away, or takes no writes)")

    # ---- the fence --------------------------------------------------------------------------------------------------

    def _fence_key(self, fence: Fence) -> str:
        return f"{FENCE_PREFIX}{self._target.name}:{fence.name}"

    def _enter(self, fence: Fence) -> bool:
        """Whether to write. From then on the fence has our name, and groups of another run are refused.

        A run that changes the fence between our look and our claim makes us look again.
        """
        key = self._fence_key(fence)
        for _ in range(CLAIMS_MAX):
            with self._client.pipeline(transaction=True) as pipe:
                pipe.watch(key)  # type: ignore[no-untyped-call]
                last = _decoded(fence, pipe.get(key))
                wanted = must_write(fence, last, keyed=True, where=self._target.shown)
                same_query = last is not None and last.query == fence.query
                claimed = replace(last, owner=fence.owner) if last is not None and same_query else _nothing_yet(fence)
                pipe.multi()
                pipe.set(key, _encoded(claimed, self._target.name))
                try:
                    pipe.execute()
                except redis.WatchError:
                    continue
                return wanted
        raise Unavailable(f"{self._target.shown}: other runs of pipeline {fence.name} keep claiming it")

    def _guarded(self, fence: Fence | None, fill: Any) -> None:
        """Commands that Redis carries out together, and only while the fence is ours."""
        with self._client.pipeline(transaction=True) as pipe:
            if fence is not None:
                key = self._fence_key(fence)
                pipe.watch(key)  # type: ignore[no-untyped-call]
                self._check_owner(fence, _decoded(fence, pipe.get(key)))
                pipe.multi()
            fill(pipe)
            try:
                pipe.execute()
            except redis.WatchError:
                assert fence is not None, "nothing is watched without a fence"
                self._check_owner(fence, _decoded(fence, self._client.get(self._fence_key(fence))))
                raise

    def _check_owner(self, fence: Fence, last: Fence | None) -> None:
        if last is None or last.owner != fence.owner:
            raise superseded(fence, last.owner if last else "", self._target.shown)

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

    def begin_version(self, pipeline: str) -> None:
        prefix = f"{FENCE_PREFIX}{self._target.name}:"
        kept = [
            json.loads(str(self._client.get(each))) for each in self._client.scan_iter(match=_escaped(prefix) + "*")
        ]
        others = [each["pipeline"] for each in kept if each["batch"] > NO_BATCH and each["target"] == self._target.name]
        refuse_other_pipelines(self._target.shown, pipeline, others)
        self.abandon_version()

    def abandon_version(self) -> None:
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
                self._hand_over(pipe, str(each), str(each).replace(NEW, "", 1))
            pipe.execute()

    def _hand_over(self, pipe: Any, filled: str, kept: str) -> None:
        """The fence of the batches that filled the version, with the query that it replaces."""
        found, before = (json.loads(str(self._client.get(each) or "{}")) for each in (filled, kept))
        pipe.set(kept, json.dumps(found | {"target": self._target.name, "replaced": before.get("query", "")}))
        pipe.unlink(filled)


def _escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in text)


def _groups(changes: Changes) -> Iterator[Changes]:
    for start in range(0, len(changes), GROUP_ROWS):
        yield changes.slice(start, min(GROUP_ROWS, len(changes) - start))


def _nothing_yet(fence: Fence) -> Fence:
    return replace(fence, batch_id=NO_BATCH, ends=None)


def _encoded(fence: Fence, target: str) -> str:
    kept = {"target": target} | {
        "query": fence.query,
        "batch": fence.batch_id,
        "ends": fence.ends,
        "owner": fence.owner,
    }
    kept |= {"pipeline": fence.name, "replaced": fence.replaced, "written_at": now_text()}
    return json.dumps(kept)


def _decoded(fence: Fence, text: Any) -> Fence | None:
    if not text:
        return None
    found = json.loads(text)
    return replace(
        fence,
        query=str(found["query"]),
        batch_id=int(found["batch"]),
        ends=found["ends"],
        owner=str(found["owner"]),
        replaced=str(found["replaced"]),
        written_at=str(found["written_at"]),
    )
