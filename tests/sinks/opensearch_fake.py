"""What of OpenSearch the sink talks to, written from its documentation: documents, the bulk API, aliases, a search.

Kept as the documentation has them: external versions (``external``, ``external_gte``; a deletion keeps its version),
conditions by sequence number, the answers of single bulk items, the newline that must end a bulk body, atomic alias
changes. The search knows words and nothing more.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Document:
    version: int
    seq_no: int
    source: dict[str, Any] | None  # None: deleted


@dataclass
class OpenSearch:
    """The state of a node. ``numbers`` are fields mapped as numbers; ``busy`` answers that many requests with 429."""

    port: int = 0
    indexes: dict[str, dict[str, Document]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    numbers: tuple[str, ...] = ()
    busy: int = 0
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    seq_no: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def documents(self, name: str) -> dict[str, Any]:
        found = self.indexes.get(self.aliases.get(name, name), {})
        return {each: document.source for each, document in sorted(found.items()) if document.source is not None}

    # ---- requests ---------------------------------------------------------------------------------------------------

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, Any]:
        parts = urlsplit(target)
        path = [unquote(each) for each in parts.path.split("/") if each]
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        with self.lock:
            self.requests.append(f"{method} {parts.path}")
            if self.busy:
                self.busy -= 1
                return 429, {"error": {"type": "circuit_breaking_exception", "reason": "Data too large"}, "status": 429}
            if path == ["_bulk"]:
                return self._bulk(body)
            if path == ["_aliases"]:
                return self._aliases(json.loads(body))
            if path[:1] == ["_alias"]:
                name = path[1]
                if name not in self.aliases:
                    return 404, {"error": f"alias [{name}] missing", "status": 404}
                return 200, {self.aliases[name]: {"aliases": {name: {}}}}
            return self._in_index(method, path, query, body)

    def _in_index(self, method: str, path: list[str], query: dict[str, str], body: bytes) -> tuple[int, Any]:
        name = self.aliases.get(path[0], path[0])
        if path[1:2] == ["_doc"]:
            if method == "GET":
                return self._get(name, path[2])
            if method == "DELETE":
                return (200, {}) if self.indexes.get(name, {}).pop(path[2], None) else (404, {})
            return self._put(name, path[2], query, json.loads(body))
        if method == "PUT" and len(path) == 1:
            self.indexes.setdefault(name, {})
            self.made[name] = json.loads(body)
            return 200, {"acknowledged": True}
        if name not in self.indexes:
            return 404, {"error": {"type": "index_not_found_exception"}, "status": 404}
        if method == "DELETE":
            del self.indexes[name]
            return 200, {"acknowledged": True}
        if method == "GET" and len(path) == 1:
            names = {alias: {} for alias, index in self.aliases.items() if index == name}
            return 200, {name: {"aliases": names, **self.made.get(name, {})}}
        if path[1:] == ["_search"]:
            return self._search(name, json.loads(body))
        return 200, {}

    def _get(self, index: str, name: str) -> tuple[int, Any]:
        found = self.indexes.get(index, {}).get(name)
        if found is None or found.source is None:
            return 404, {"_index": index, "_id": name, "found": False}
        place = {"_seq_no": found.seq_no, "_primary_term": 1, "_version": found.version}
        return 200, {"_index": index, "_id": name, **place, "found": True, "_source": found.source}

    def _put(self, index: str, name: str, query: dict[str, str], source: dict[str, Any]) -> tuple[int, Any]:
        documents = self.indexes.setdefault(index, {})
        found = documents.get(name)
        exists = found is not None and found.source is not None
        stale = "if_seq_no" in query and (found is None or found.seq_no != int(query["if_seq_no"]))
        if stale or (query.get("op_type") == "create" and exists):
            return 409, {"error": {"type": "version_conflict_engine_exception"}, "status": 409}
        self.seq_no += 1
        documents[name] = Document((found.version if found else 0) + 1, self.seq_no, source)
        return 200 if exists else 201, {"_id": name, "_seq_no": self.seq_no, "_primary_term": 1}

    def _bulk(self, body: bytes) -> tuple[int, Any]:
        if not body.endswith(b"\n"):
            return 400, {"error": {"type": "illegal_argument_exception", "reason": "must be terminated by a newline"}}
        lines = iter(body.splitlines())
        items = []
        for line in lines:
            ((action, about),) = json.loads(line).items()
            source = None if action == "delete" else json.loads(next(lines))
            items.append({action: self._item(action, about, source)})
        errors = any("error" in result for item in items for result in item.values())
        return 200, {"took": 1, "errors": errors, "items": items}

    def _item(self, action: str, about: dict[str, Any], source: dict[str, Any] | None) -> dict[str, Any]:
        index = self.aliases.get(about["_index"], about["_index"])
        documents = self.indexes.setdefault(index, {})
        found = documents.get(about["_id"])
        answer: dict[str, Any] = {"_index": index, "_id": about["_id"]}
        for name in self.numbers if source else ():
            if not isinstance(source.get(name), int | float | None):
                reason = f"failed to parse field [{name}] of type [long] in document with id '{about['_id']}'"
                return answer | {"status": 400, "error": {"type": "mapper_parsing_exception", "reason": reason}}
        version = about.get("version", (found.version if found else 0) + 1)
        assert 0 <= version < 2**63, f"{version} is no version"
        kind = about.get("version_type", "internal")
        assert kind in ("internal", "external", "external_gte"), f"{kind} is no type of a version"
        if found is not None and (version < found.version or (kind == "external" and version == found.version)):
            reason = f"version conflict, current version [{found.version}] is higher than the one provided [{version}]"
            return answer | {"status": 409, "error": {"type": "version_conflict_engine_exception", "reason": reason}}
        existed = found is not None and found.source is not None
        self.seq_no += 1
        documents[about["_id"]] = Document(version, self.seq_no, source)
        if action == "delete":
            return answer | {"status": 200 if existed else 404, "result": "deleted" if existed else "not_found"}
        return answer | {"status": 200 if existed else 201, "result": "updated" if existed else "created"}

    def _aliases(self, body: dict[str, Any]) -> tuple[int, Any]:
        for action in body["actions"]:
            ((kind, about),) = action.items()
            if about["index"] not in self.indexes:
                return 404, {"error": {"type": "index_not_found_exception"}, "status": 404}
            if kind == "remove_index":
                del self.indexes[about["index"]]
                self.aliases = {name: index for name, index in self.aliases.items() if index != about["index"]}
            elif kind == "add":
                self.aliases[about["alias"]] = about["index"]
        return 200, {"acknowledged": True}

    def _search(self, index: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked = body["query"].get("simple_query_string", {"query": ""})
        words = asked["query"].lower().split()
        hits = []
        for name, source in self.documents(index).items():
            text = " ".join(str(value) for value in source.values()).lower().split()
            if all(word in text for word in words):
                hits.append({"_id": name, "_score": 1.0, "_source": source})
        return 200, {"hits": {"hits": hits[: body["size"]]}}


@contextmanager
def opensearch(**options: Any) -> Iterator[OpenSearch]:
    """A node on its own port."""
    node = OpenSearch(**options)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, found = node.answer(self.command, self.path, body)
            content = b"" if self.command == "HEAD" else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_PUT = do_POST = do_HEAD = do_DELETE = do_GET  # noqa: N815 names that the base class looks for

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 as the base class has it
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    node.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield node
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
