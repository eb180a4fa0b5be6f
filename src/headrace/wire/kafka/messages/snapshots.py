"""Snapshots of the data directory: a request that only headrace has; see ``headrace.wire.kafka.messages.queues``."""

from __future__ import annotations

from headrace.wire.kafka.schema import i16, message, string

__all__ = ["CreateSnapshotRequest", "CreateSnapshotResponse"]


@message(api_key=10_011, versions=(0, 0), flexible=0)
class CreateSnapshotRequest:
    """Keep the data directory as it is now, for a process on the same machine that copies it."""


@message(api_key=10_011, versions=(0, 0), flexible=0)
class CreateSnapshotResponse:
    """``path``: the directory of the snapshot on the broker's machine."""

    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)
    path: str = string()
