"""A store for one bucket, in memory."""

from __future__ import annotations

from headrace.spark.state_bucket import Manifest


class MemoryStore:
    def __init__(self) -> None:
        self.chunks: dict[str, bytes] = {}
        self.written: bytes | None = None
        self.chunks_read = 0

    def manifest(self) -> bytes | None:
        return self.written

    def manifest_value(self) -> Manifest:
        return Manifest() if self.written is None else Manifest.decode(self.written)

    def chunk(self, chunk_id: str) -> bytes:
        self.chunks_read += 1
        return self.chunks[chunk_id]

    def put_chunk(self, chunk_id: str, data: bytes) -> None:
        self.chunks[chunk_id] = data

    def remove_chunk(self, chunk_id: str) -> None:
        del self.chunks[chunk_id]

    def put_manifest(self, data: bytes) -> None:
        self.written = data

    def copy(self) -> MemoryStore:
        other = MemoryStore()
        other.chunks, other.written = dict(self.chunks), self.written
        return other
