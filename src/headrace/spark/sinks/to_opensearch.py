"""OpenSearch or Elasticsearch: an index that follows, through the bulk API.

Documents are written under external versions, so whatever comes late or twice does not replace what is newer. The
version of a document is that of its row where the user names a column for it; otherwise it counts batches::

    generation << 32 | batch + 1        a query that takes the index over from another begins a new generation

There is no transaction over a batch. Each document is written as a whole, so a batch that is cut off is written again
to the same end; the fence, a document in the index ``headrace-fences``, is written after it, and only over the fence
that was read before (by its sequence number), which keeps two drivers from writing in turn.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from headrace.errors import UsageError
from headrace.spark.decisions import Refused
from headrace.spark.sinks.address import Address
from headrace.spark.sinks.documents import dumps, identifiers, objects
from headrace.spark.sinks.http import Answer, HttpConnection
from headrace.spark.sinks.target import (
    Changes,
    Delivery,
    Fence,
    Letters,
    Outcome,
    Session,
    Target,
    Unavailable,
    Version,
    must_write,
    usable,
)

__all__ = ["OpenSearchTarget", "find_on_server"]

FENCES = "headrace-fences"
BATCH_BITS = 32
"""Versions are 63 bits wide; the generations below need 28 of them until 2036, and have 31."""
REQUEST_BYTES = 8 * 1024 * 1024
NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}
BUSY = (408, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class OpenSearchTarget(Target):
    address: Address
    index: str
    key: tuple[str, ...]
    version_column: str | None = None
    fence_name: str = ""

    def __post_init__(self) -> None:
        if not self.key:
            raise UsageError(f"{self.shown} needs to know what rows are known by", "key=…")
        if not self.index or self.index != self.index.lower() or set(self.index) & set('\\/*?"<>| ,#:'):
            raise UsageError(f"{self.index!r} is no name of an index", "small letters, digits, '-', '_' and '.'")

    @property
    def shown(self) -> str:
        return f"index {self.index} at {self.address.shown}"

    def open(self) -> OpenSearchSession:
        return OpenSearchSession(self)

    def version(self) -> Version:
        """An index of its own behind an alias; the alias moves at one moment."""
        fresh = f"{self.index}-{time.time_ns() // 1_000_000}"
        beside = replace(self, index=fresh, fence_name=self.index)
        return Version(beside, lambda: None, lambda: self._switch(fresh))

    def _switch(self, fresh: str) -> None:
        session = self.open()
        try:
            session.switch(fresh)
        finally:
            session.close()


@dataclass(slots=True)
class _Held:
    """The fence as it was found, with what an update of it must name."""

    fence: Fence | None
    generation: int
    place: dict[str, int]


class OpenSearchSession(Session):
    def __init__(self, target: OpenSearchTarget) -> None:
        self._target = target
        self._http = HttpConnection(target.address)
        self._base = target.address.parts().path.rstrip("/")

    def close(self) -> None:
        self._http.close()

    def call(self, method: str, path: str, body: str = "", headers: Any = None, *, also: Sequence[int] = ()) -> Answer:
        """Statuses in ``also`` are answers too; others are errors, of the server or of ours."""
        answer = self._http.request(method, self._base + path, body.encode(), headers or JSON)
        if answer.status < 300 or answer.status in also:
            return answer
        text = f"{self._target.shown} answered {answer.status}: {answer.body[:300].decode(errors='replace')}"
        raise Unavailable(text) if answer.status in BUSY else UsageError(text)

    def write(self, delivery: Delivery) -> Outcome:
        fence, target = delivery.fence, self._target
        version = 0
        held = None
        if fence is not None:
            held = self._held(fence)
            delivery.done.replayed = not must_write(fence, held.fence, keyed=True, where=target.shown)
            self._move(held, replace(held.fence or replace(fence, batch_id=-1, ends=None), owner=fence.owner))
            if delivery.done.replayed:
                return delivery.done
            version = (held.generation << BATCH_BITS) | (fence.batch_id + 1)
        for chunk in delivery.counted():
            self._bulk(usable(chunk, target.key, delivery.letters, target.version_column), version, delivery.letters)
        delivery.done.refused = delivery.letters.deliver()
        if fence is not None and held is not None:
            self._move(held, fence)
        return delivery.done

    # ---- documents --------------------------------------------------------------------------------------------------

    def _bulk(self, changes: Changes, version: int, letters: Letters) -> None:
        if not len(changes):
            return
        names = identifiers(changes.rows, self._target.key)
        gone = changes.deleted.to_pylist() if changes.deleted is not None else [False] * len(changes)
        lines, rows, size = [], [], 0
        for row, document in enumerate(objects(changes.rows)):
            text = self._action(names[row], document, gone[row], version)
            lines.append(text)
            rows.append(row)
            size += len(text)
            if size >= REQUEST_BYTES:
                self._send(changes, lines, rows, letters)
                lines, rows, size = [], [], 0
        self._send(changes, lines, rows, letters)

    def _action(self, name: str, document: dict[str, Any], gone: bool, version: int) -> str:
        column = self._target.version_column
        at = int(document[column]) if column and document[column] is not None else version
        about: dict[str, Any] = {"_index": self._target.index, "_id": name}
        if at:
            about |= {"version": at, "version_type": "external_gte"}
        if gone:
            return dumps({"delete": about}) + "\n"
        return dumps({"index": about}) + "\n" + dumps(document) + "\n"

    def _send(self, changes: Changes, lines: list[str], rows: list[int], letters: Letters) -> None:
        """An item that is older than what is there (409), or a deletion of nothing (404), is as good as done."""
        if not lines:
            return
        answer = json.loads(self.call("POST", "/_bulk", "".join(lines), NDJSON).body)
        if not answer.get("errors"):
            return
        for row, item in zip(rows, answer["items"], strict=True):
            ((action, result),) = item.items()
            status = int(result["status"])
            if status < 300 or status == 409 or (action == "delete" and status == 404):
                continue
            error = result.get("error", {})
            reason = f"{error.get('type', status)}: {error.get('reason', '')}"
            if status in BUSY:
                raise Unavailable(f"{self._target.shown} is busy: {reason}")
            letters.refuse(changes.slice(row, 1), reason)

    # ---- the fence --------------------------------------------------------------------------------------------------

    def _fence_path(self, query: str) -> str:
        """By the name that people use, so that it stays when a new version is switched in."""
        name = f"{self._target.fence_name or self._target.index}\0{query}"
        return f"/{FENCES}/_doc/{hashlib.sha256(name.encode()).hexdigest()}"

    def _held(self, fence: Fence) -> _Held:
        answer = self.call("GET", self._fence_path(fence.query), also=(404,))
        found = json.loads(answer.body)
        if answer.status == 404 or not found.get("found"):
            return _Held(None, self._next_generation(), {})
        source = found["_source"]
        last = Fence(fence.query, int(source["batch"]), source["ends"], source["owner"])
        place = {"if_seq_no": found["_seq_no"], "if_primary_term": found["_primary_term"]}
        return _Held(last, int(source["generation"]), place)

    def _next_generation(self) -> int:
        """Seconds: later than any query that wrote into the index before."""
        return int(time.time()) - 1_600_000_000

    def _move(self, held: _Held, fence: Fence) -> None:
        document = {"batch": fence.batch_id, "ends": fence.ends, "owner": fence.owner, "generation": held.generation}
        document |= {"index": self._target.fence_name or self._target.index, "query": fence.query}
        condition = "&".join(f"{name}={value}" for name, value in held.place.items()) or "op_type=create"
        answer = self.call("PUT", f"{self._fence_path(fence.query)}?{condition}", dumps(document), also=(409,))
        if answer.status == 409:
            raise Refused(
                f"{self._target.shown}: another run of query {fence.query} has taken over; this one stops. Run the "
                "pipeline in one place"
            )
        written = json.loads(answer.body)
        held.place = {"if_seq_no": written["_seq_no"], "if_primary_term": written["_primary_term"]}

    # ---- versions ---------------------------------------------------------------------------------------------------

    def switch(self, fresh: str) -> None:
        """The name leaves what it stood for, an alias or an index itself, and stands for the new index, at once."""
        name = self._target.index
        self.call("POST", f"/{quote(fresh)}/_refresh")
        answer = self.call("GET", f"/_alias/{quote(name)}", also=(404,))
        old = list(json.loads(answer.body)) if answer.status == 200 else []
        actions: list[dict[str, Any]] = [{"remove_index": {"index": each}} for each in old if each != fresh]
        if not old and self.call("HEAD", f"/{quote(name)}", also=(404,)).status == 200:
            actions.append({"remove_index": {"index": name}})
        actions.append({"add": {"index": fresh, "alias": name}})
        self.call("POST", "/_aliases", dumps({"actions": actions}))

    def search(self, text: str, limit: int) -> list[dict[str, Any]]:
        query = {"query": {"simple_query_string": {"query": text, "default_operator": "and"}}, "size": limit}
        answer = json.loads(self.call("POST", f"/{quote(self._target.index)}/_search", dumps(query)).body)
        return [{**hit["_source"], "score": hit["_score"]} for hit in answer["hits"]["hits"]]


def find_on_server(address: Address, index: str, text: str, limit: int) -> list[dict[str, Any]]:
    """The documents that match, best first."""
    session = OpenSearchTarget(address, index, ("_id",)).open()
    try:
        return session.search(text, limit)
    finally:
        session.close()
