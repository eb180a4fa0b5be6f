"""A raw Kafka client for tests.

Requests as plain dicts in, answers as plain dicts out, and nothing retried or hidden.
"""

from __future__ import annotations

import importlib
import pkgutil
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any

import headrace.wire.kafka.messages as message_modules
from headrace.wire.kafka.codec import read_message, write_message
from headrace.wire.kafka.schema import Field, MessageSpec, fields_of, spec_of
from tests.waiting import PATIENCE_S

Answer = dict[str, Any]

# Versions that our declarations know and Apache Kafka 4.3 keeps for itself: it does not advertise them as stable.
KAFKA_VERSION_MAX = {"ApiVersions": 4, "DeleteGroups": 2, "InitProducerId": 5, "TxnOffsetCommit": 5}


def declared_messages() -> Iterator[tuple[str, type]]:
    for info in pkgutil.iter_modules(message_modules.__path__):
        module = importlib.import_module(f"{message_modules.__name__}.{info.name}")
        for name, value in vars(module).items():
            if isinstance(value, type) and is_dataclass(value) and name.endswith(("Request", "Response")):
                yield name, value


MESSAGES = dict(declared_messages())


def request_class(api: str) -> type:
    return MESSAGES[f"{api}Request"]


def version_max(api: str) -> int:
    last = spec_of(request_class(api)).last_version
    return min(last, KAFKA_VERSION_MAX.get(api, last))


def from_dict(cls: type, values: dict[str, Any]) -> Any:
    """Build a message from nested dicts; a name that the message does not have is a mistake in the test."""
    made = cls()
    fields = {name: field for name, field, _ in fields_of(cls)}
    for name, value in values.items():
        setattr(made, name, value_for(fields[name], value))
    return made


def value_for(field: Field, value: Any) -> Any:
    if value is None:
        return None
    if field.kind == "struct" and isinstance(value, dict):
        assert field.type is not None
        return from_dict(field.type, value)
    if field.kind == "array" and field.item is not None and field.item.kind == "struct":
        return [value_for(field.item, each) for each in value]
    return value


def to_dict(message: Any, version: int) -> Answer:
    """Only the fields that travel in this version.

    Defaults of the others would compare equal without being an answer.
    """
    return {
        name: plain(getattr(message, name), version)
        for name, field, _ in fields_of(type(message))
        if field.present(version)
    }


def plain(value: Any, version: int) -> Any:
    if is_dataclass(value):
        return to_dict(value, version)
    if isinstance(value, list):
        return [plain(each, version) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


@dataclass(frozen=True, slots=True)
class Asked:
    api: str
    version: int
    correlation_id: int


class RawClient:
    """One connection.

    ``ask`` waits for the answer; ``send`` and ``receive`` are its halves, for requests that block.
    """

    def __init__(self, address: tuple[str, int], client_id: str = "differential") -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)
        self.client_id = client_id
        self.correlation_id = 0

    def close(self) -> None:
        self.socket.close()

    def ask(self, api: str, version: int | None = None, **values: Any) -> Answer:
        return self.receive(self.send(api, version, **values))

    def send(self, api: str, version: int | None = None, **values: Any) -> Asked:
        version = version_max(api) if version is None else version
        cls = request_class(api)
        body = b"".join(bytes(chunk) for chunk in write_message(from_dict(cls, values), version))
        return self.send_body(api, version, spec_of(cls), body)

    def send_body(self, api: str, version: int, spec: MessageSpec, body: bytes) -> Asked:
        self.correlation_id += 1
        name = self.client_id.encode()
        header = struct.pack(">hhih", spec.api_key, version, self.correlation_id, len(name)) + name
        if version >= spec.flexible:
            header += b"\x00"
        self.send_frame(header + body)
        return Asked(api, version, self.correlation_id)

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self, asked: Asked) -> Answer:
        """The answer, or ``{"connection": "closed"}`` when the broker hung up."""
        frame = self.receive_frame()
        if frame is None:
            return {"connection": "closed"}
        response = MESSAGES[f"{asked.api}Response"]
        position = 4
        assert struct.unpack_from(">i", frame)[0] == asked.correlation_id
        if asked.version >= spec_of(response).flexible and asked.api != "ApiVersions":
            assert frame[4] == 0, "a response header without tagged fields"
            position = 5
        message, end = read_message(response, asked.version, frame, position)
        assert end == len(frame), f"{len(frame) - end} bytes behind the answer to {asked}"
        return to_dict(message, asked.version)

    def receive_frame(self) -> bytes | None:
        size = self.receive_exactly(4)
        return None if size is None else self.receive_exactly(struct.unpack(">i", size)[0])

    def receive_exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                chunk = self.socket.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            data += chunk
        return data
