"""Finding the coordinator."""

from __future__ import annotations

from headrace.wire.kafka.schema import array, i8, i16, i32, message, string, struct, structs

__all__ = [
    "Coordinator",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
]


@message(api_key=10, versions=(0, 6), flexible=3)
class FindCoordinatorRequest:
    key: str = string(until=3)
    key_type: int = i8(since=1)
    coordinator_keys: list[str] = array("string", since=4)


@struct
class Coordinator:
    key: str = string(since=4)
    node_id: int = i32(since=4)
    host: str = string(since=4)
    port: int = i32(since=4)
    error_code: int = i16(since=4)
    error_message: str | None = string(since=4, null=4)


@message(api_key=10, versions=(0, 6), flexible=3)
class FindCoordinatorResponse:
    throttle_time_ms: int = i32(since=1)
    error_code: int = i16(until=3)
    error_message: str | None = string(since=1, until=3, null=1)
    node_id: int = i32(until=3)
    host: str = string(until=3)
    port: int = i32(until=3)
    coordinators: list[Coordinator] = structs(Coordinator, since=4)
