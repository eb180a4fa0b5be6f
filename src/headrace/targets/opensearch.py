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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from headrace.address import Address
from headrace.errors import UsageError
from headrace.targets.changes import Changes
from headrace.targets.documents import dumps, identifiers, objects
from headrace.targets.http import Answer, HttpConnection
from headrace.targets.target import (
    NO_BATCH,
    Delivery,
    Fence,
    Outcome,
    RefusedRows,
    Session,
    Target,
    Unavailable,
    Version,
    must_write,
    now_text,
    refuse_other_pipelines,
    superseded,
    usable,
)

__all__ = ["OpenSearchTarget", "find_on_server"]

FENCES = "headrace-fences"
BATCH_BITS = 32
"""Versions are 63 bits wide; the generations have the other 31, which last until 2088."""
REQUEST_BYTES = 8 * 1024 * 1024
NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}
FENCES_MAX = 10_000
SETTINGS_OF_ONE_INDEX = ("creation_date", "provided_name", "uuid", "version")
BUSY = (408, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class OpenSearchTarget(Target):
    address: Address
    index: str
    key: tuple[str, ...]
    version_column: str | None = None
    pipelines: set[str] = field(default_factory=set, compare=False, repr=False)
    """Those that have written through this object, for the switch of a new version."""

    def __post_init__(self) -> None:
        self.address.must_be(("http", "https"), "address of HTTP", "https://HOST:9200", needs_host=True)
        if not self.key:
            raise UsageError(f"{self.shown} needs to know what rows are known by", "key=…")
        if not self.index or self.index != self.index.lower() or set(self.index) & set('\\/*?"<>| ,#:'):
            raise UsageError(f"{self.index!r} is no name of an index", "small letters, digits, '-', '_' and '.'")

    @property
    def shown(self) -> str:
        return f"index {self.index} at {self.address.shown}"

    def open(self) -> OpenSearchSession:
        return OpenSearchSession(self)

    def check(self) -> None:
        self.address.resolved()

    def version(self) -> Version:
        """A separate index behind an alias; the alias moves at one moment."""
        fresh = f"{self.index}-{time.time_ns() // 1_000_000}"
        beside = replace(self, index=fresh, pipelines=set())
        return Version(
            beside,
            begin=lambda pipeline: self._with(lambda session: session.begin_version(pipeline, fresh)),
            switch=lambda: self._with(lambda session: session.switch(beside)),
            abandon=lambda: self._with(lambda session: session.abandon_version(beside)),
        )

    def _with(self, action: Callable[[OpenSearchSession], None]) -> None:
        session = self.open()
        try:
            action(session)
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
            target.pipelines.add(fence.name)
            held = self._held(fence)
            delivery.done.replayed = not must_write(fence, held.fence, keyed=True, where=target.shown)
            same_query = held.fence is not None and held.fence.query == fence.query
            kept = held.fence if held.fence is not None and same_query else replace(fence, batch_id=NO_BATCH, ends=None)
            self._move(held, replace(kept, owner=fence.owner))
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

    def _bulk(self, changes: Changes, version: int, letters: RefusedRows) -> None:
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
        at = self._version_of(document, gone, version)
        about: dict[str, Any] = {"_index": self._target.index, "_id": name}
        if at is not None:
            about |= {"version": at, "version_type": "external_gte"}
        if gone:
            return dumps({"delete": about}) + "\n"
        return dumps({"index": about}) + "\n" + dumps(document) + "\n"

    def _version_of(self, document: dict[str, Any], gone: bool, version: int) -> int | None:
        """``version``: of the batch. A row without its own replaces no other; a deletion counts where it stands."""
        column = self._target.version_column
        if column is None:
            return version or None
        if document[column] is not None:
            return int(document[column])
        return None if gone else 0

    def _send(self, changes: Changes, lines: list[str], rows: list[int], letters: RefusedRows) -> None:
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

    def _fence_path(self, pipeline: str, index: str = "") -> str:
        name = f"{index or self._target.index}\0{pipeline}"
        return f"/{FENCES}/_doc/{hashlib.sha256(name.encode()).hexdigest()}"

    def _held(self, fence: Fence) -> _Held:
        answer = self.call("GET", self._fence_path(fence.name), also=(404,))
        found = json.loads(answer.body)
        if answer.status == 404 or not found.get("found"):
            return _Held(None, self._next_generation(), {})
        source = found["_source"]
        last = replace(
            fence,
            query=source["query"],
            batch_id=int(source["batch"]),
            ends=source["ends"],
            owner=source["owner"],
            replaced=source["replaced"],
            written_at=source["written_at"],
        )
        place = {"if_seq_no": found["_seq_no"], "if_primary_term": found["_primary_term"]}
        same_query = last.query == fence.query
        return _Held(last, int(source["generation"]) if same_query else self._next_generation(), place)

    def _next_generation(self) -> int:
        """Seconds: later than any query that wrote into the index before."""
        return int(time.time()) - 1_600_000_000

    def _move(self, held: _Held, fence: Fence) -> None:
        """Only over the fence that was read: of two runs that claim it at once, one fails."""
        document = {"batch": fence.batch_id, "ends": fence.ends, "owner": fence.owner, "generation": held.generation}
        document |= {"index": self._target.index, "query": fence.query}
        document |= {"pipeline": fence.name, "replaced": "", "written_at": now_text()}
        condition = "&".join(f"{name}={value}" for name, value in held.place.items()) or "op_type=create"
        answer = self.call("PUT", f"{self._fence_path(fence.name)}?{condition}", dumps(document), also=(409,))
        if answer.status == 409:
            now = self._held(fence).fence
            raise superseded(fence, now.owner if now else "", self._target.shown)
        written = json.loads(answer.body)
        held.place = {"if_seq_no": written["_seq_no"], "if_primary_term": written["_primary_term"]}

    # ---- versions ---------------------------------------------------------------------------------------------------

    def begin_version(self, pipeline: str, fresh: str) -> None:
        """An index with the settings and the mapping of the one in use."""
        refuse_other_pipelines(self._target.shown, pipeline, self._writers())
        answer = self.call("GET", f"/{quote(self._target.index)}", also=(404,))
        found: dict[str, Any] = json.loads(answer.body) if answer.status == 200 else {}
        for about in found.values():
            settings = about.get("settings", {}).get("index", {})
            kept = {name: value for name, value in settings.items() if name not in SETTINGS_OF_ONE_INDEX}
            wanted = {"settings": {"index": kept}, "mappings": about.get("mappings", {})}
            self.call("PUT", f"/{quote(fresh)}", dumps(wanted))

    def _writers(self) -> list[str]:
        """The pipelines whose batches are in the index."""
        self.call("POST", f"/{FENCES}/_refresh", also=(404,))
        answer = self.call(
            "POST", f"/{FENCES}/_search", dumps({"query": {"match_all": {}}, "size": FENCES_MAX}), also=(404,)
        )
        if answer.status == 404:
            return []
        fences = [each["_source"] for each in json.loads(answer.body)["hits"]["hits"]]
        return [each["pipeline"] for each in fences if each["index"] == self._target.index and each["batch"] > NO_BATCH]

    def abandon_version(self, filled: OpenSearchTarget) -> None:
        self.call("DELETE", f"/{quote(filled.index)}", also=(404,))
        for pipeline in sorted(filled.pipelines):
            self.call("DELETE", self._fence_path(pipeline, filled.index), also=(404,))

    def switch(self, filled: OpenSearchTarget) -> None:
        """The name leaves what it stood for, an alias or an index itself, and stands for the new index, at once."""
        name, fresh = self._target.index, filled.index
        self.call("POST", f"/{quote(fresh)}/_refresh")
        answer = self.call("GET", f"/_alias/{quote(name)}", also=(404,))
        old = list(json.loads(answer.body)) if answer.status == 200 else []
        actions: list[dict[str, Any]] = [{"remove_index": {"index": each}} for each in old if each != fresh]
        if not old and self.call("HEAD", f"/{quote(name)}", also=(404,)).status == 200:
            actions.append({"remove_index": {"index": name}})
        actions.append({"add": {"index": fresh, "alias": name}})
        for each in self._other_aliases(name):
            actions.append({"add": {"index": fresh, **each}})
        self.call("POST", "/_aliases", dumps({"actions": actions}))
        for pipeline in sorted(filled.pipelines):
            self._hand_over_fence(pipeline, fresh)

    def _other_aliases(self, name: str) -> list[dict[str, Any]]:
        """What else the index in use is called, with the filters and routings of these names."""
        answer = self.call("GET", f"/{quote(name)}", also=(404,))
        found: dict[str, Any] = json.loads(answer.body) if answer.status == 200 else {}
        aliases = {alias: about for each in found.values() for alias, about in each.get("aliases", {}).items()}
        return [{"alias": alias, **about} for alias, about in aliases.items() if alias != name]

    def _hand_over_fence(self, pipeline: str, fresh: str) -> None:
        """The fence of the batches that filled the index, with the query that it replaces."""
        found = json.loads(self.call("GET", self._fence_path(pipeline, fresh)).body)["_source"]
        kept = json.loads(self.call("GET", self._fence_path(pipeline), also=(404,)).body)
        before = kept["_source"]["query"] if kept.get("found") else ""
        self.call("PUT", self._fence_path(pipeline), dumps(found | {"index": self._target.index, "replaced": before}))
        self.call("DELETE", self._fence_path(pipeline, fresh), also=(404,))

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
