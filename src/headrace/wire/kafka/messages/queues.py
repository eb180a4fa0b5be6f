"""Queues and exchanges: requests that only headrace has.

AMQP can declare, purge and delete, and nothing else: not list, not look without taking, not move, not restore. These
requests can. Their keys begin at ``OWN_KEYS``, far from Kafka's, and ApiVersions shows them to headrace's client only.

``arguments`` are field tables and ``properties`` content headers, both as AMQP encodes them. A *place* is the number of
a lane (there is one per priority) and an offset in the lane's log.
"""

from __future__ import annotations

from headrace.wire.kafka.schema import bits, boolean, i8, i16, i32, i64, message, string, struct, structs

__all__ = [
    "OWN_KEYS",
    "AlterBindingsRequest",
    "AlterBindingsResponse",
    "BindingChange",
    "CreateExchangeRequest",
    "CreateExchangeResponse",
    "CreateQueueRequest",
    "CreateQueueResponse",
    "DeleteExchangeRequest",
    "DeleteExchangeResponse",
    "DeleteQueueRequest",
    "DeleteQueueResponse",
    "DescribeExchangesRequest",
    "DescribeExchangesResponse",
    "DescribeQueuesRequest",
    "DescribeQueuesResponse",
    "DescribedBinding",
    "DescribedExchange",
    "DescribedLane",
    "DescribedQueue",
    "LanePlaces",
    "LaneRange",
    "MoveMessagesRequest",
    "MoveMessagesResponse",
    "PurgeQueueRequest",
    "PurgeQueueResponse",
    "QueueMessage",
    "ReadQueueRequest",
    "ReadQueueResponse",
    "RestoreMessagesRequest",
    "RestoreMessagesResponse",
]

OWN_KEYS = 10_000


@struct
class DescribedBinding:
    """From an exchange. ``is_to_exchange``: the destination is an exchange and not a queue."""

    source: str = string()
    is_to_exchange: bool = boolean()
    destination: str = string()
    routing_key: str = string()
    arguments: bytes = bits()


@struct
class DescribedLane:
    """``start`` is the first offset that the log has, ``floor`` the first that is not gone with all before it,
    ``cursor`` the first that was not handed out, ``end`` the next that will be written and flushed."""

    start: int = i64()
    floor: int = i64()
    cursor: int = i64()
    end: int = i64()
    bytes_on_disk: int = i64()


@struct
class DescribedQueue:
    """``error``: why it cannot be served; then nothing else of it is known. ``id`` is another one when a queue was
    deleted and one of its name was made."""

    name: str = string()
    error: str | None = string(null=0, default=None)
    is_durable: bool = boolean()
    is_auto_delete: bool = boolean()
    is_exclusive: bool = boolean()
    arguments: bytes = bits()
    ready: int = i64()
    unacknowledged: int = i64()
    consumers: int = i32()
    lanes: list[DescribedLane] = structs(DescribedLane)
    bindings: list[DescribedBinding] = structs(DescribedBinding)
    id: str = string(tag=0)


@message(api_key=10_000, versions=(0, 0), flexible=0)
class DescribeQueuesRequest:
    """Queues by name: one, or those after ``after``, at most ``count_max``."""

    virtual_host: str = string()
    name: str | None = string(null=0, default=None)
    after: str = string()
    count_max: int = i32(default=1_000)


@message(api_key=10_000, versions=(0, 0), flexible=0)
class DescribeQueuesResponse:
    """``is_last``: there are no queues after these."""

    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)
    is_last: bool = boolean()
    queues: list[DescribedQueue] = structs(DescribedQueue)


@message(api_key=10_001, versions=(0, 0), flexible=0)
class ReadQueueRequest:
    """Messages of a lane from an offset on, also of those that are gone; nothing is taken."""

    virtual_host: str = string()
    queue: str = string()
    lane: int = i8()
    offset: int = i64()
    end: int = i64(default=-1)
    count_max: int = i32(default=1_000)
    bytes_max: int = i32(default=1 << 20)
    body_bytes_max: int = i32(default=-1)


@struct
class QueueMessage:
    """``state``: 0 ready, 1 unacknowledged, 2 gone, 3 being moved. ``body_bytes`` is its size, also if it was cut."""

    offset: int = i64()
    state: int = i8()
    enqueued_ms: int = i64()
    exchange: bytes = bits()
    routing_key: bytes = bits()
    properties: bytes = bits()
    body: bytes = bits()
    body_bytes: int = i32()


@message(api_key=10_001, versions=(0, 0), flexible=0)
class ReadQueueResponse:
    """``next_offset`` is where to go on; it is ``end`` when there is no more."""

    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)
    start: int = i64()
    end: int = i64()
    next_offset: int = i64()
    messages: list[QueueMessage] = structs(QueueMessage)


@struct
class LaneRange:
    """The offsets from ``first`` to before ``end``."""

    first: int = i64()
    end: int = i64()


@struct
class LanePlaces:
    """Places of one lane, in ascending order."""

    lane: int = i8()
    ranges: list[LaneRange] = structs(LaneRange)


@message(api_key=10_002, versions=(0, 0), flexible=0)
class MoveMessagesRequest:
    """``way``: 0 to an exchange, with a routing key or each message's; 1 to the queue that each was a dead letter of;
    2 nowhere: they are gone."""

    virtual_host: str = string()
    queue: str = string()
    way: int = i8()
    exchange: str = string()
    routing_key: str | None = string(null=0, default=None)
    places: list[LanePlaces] = structs(LanePlaces)


@message(api_key=10_002, versions=(0, 0), flexible=0)
class MoveMessagesResponse:
    """``moved`` are gone from the queue. The others are as they were: not ready; without a queue to go to; refused by
    a queue that is full."""

    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)
    moved: int = i32()
    not_ready: int = i32()
    unroutable: int = i32()
    refused: int = i32()


@message(api_key=10_003, versions=(0, 0), flexible=0)
class RestoreMessagesRequest:
    """Make messages ready again that are gone and that the log still has."""

    virtual_host: str = string()
    queue: str = string()
    places: list[LanePlaces] = structs(LanePlaces)


@message(api_key=10_003, versions=(0, 0), flexible=0)
class RestoreMessagesResponse:
    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)
    restored: int = i32()


@message(api_key=10_004, versions=(0, 0), flexible=0)
class PurgeQueueRequest:
    """All that is ready goes, at once."""

    virtual_host: str = string()
    queue: str = string()


@message(api_key=10_004, versions=(0, 0), flexible=0)
class PurgeQueueResponse:
    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)
    purged: int = i64()


@message(api_key=10_005, versions=(0, 0), flexible=0)
class CreateQueueRequest:
    """As ``queue.declare``: one that exists must be the same."""

    virtual_host: str = string()
    queue: str = string()
    is_durable: bool = boolean(default=True)
    is_auto_delete: bool = boolean()
    arguments: bytes = bits()


@message(api_key=10_005, versions=(0, 0), flexible=0)
class CreateQueueResponse:
    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)


@message(api_key=10_006, versions=(0, 0), flexible=0)
class DeleteQueueRequest:
    virtual_host: str = string()
    queue: str = string()
    if_unused: bool = boolean()
    if_empty: bool = boolean()


@message(api_key=10_006, versions=(0, 0), flexible=0)
class DeleteQueueResponse:
    """``deleted`` messages were ready."""

    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)
    deleted: int = i64()


@struct
class DescribedExchange:
    name: str = string()
    kind: str = string()
    is_durable: bool = boolean()
    is_auto_delete: bool = boolean()
    is_internal: bool = boolean()
    arguments: bytes = bits()
    bindings: list[DescribedBinding] = structs(DescribedBinding)


@message(api_key=10_007, versions=(0, 0), flexible=0)
class DescribeExchangesRequest:
    """As ``DescribeQueuesRequest``."""

    virtual_host: str = string()
    name: str | None = string(null=0, default=None)
    after: str = string()
    count_max: int = i32(default=1_000)


@message(api_key=10_007, versions=(0, 0), flexible=0)
class DescribeExchangesResponse:
    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)
    is_last: bool = boolean()
    exchanges: list[DescribedExchange] = structs(DescribedExchange)


@message(api_key=10_008, versions=(0, 0), flexible=0)
class CreateExchangeRequest:
    """As ``exchange.declare``: one that exists must be the same."""

    virtual_host: str = string()
    exchange: str = string()
    kind: str = string()
    is_durable: bool = boolean(default=True)
    is_auto_delete: bool = boolean()
    is_internal: bool = boolean()
    arguments: bytes = bits()


@message(api_key=10_008, versions=(0, 0), flexible=0)
class CreateExchangeResponse:
    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)


@message(api_key=10_009, versions=(0, 0), flexible=0)
class DeleteExchangeRequest:
    virtual_host: str = string()
    exchange: str = string()
    if_unused: bool = boolean()


@message(api_key=10_009, versions=(0, 0), flexible=0)
class DeleteExchangeResponse:
    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)


@struct
class BindingChange:
    """``is_removed``: it goes; else it comes."""

    is_removed: bool = boolean()
    source: str = string()
    is_to_exchange: bool = boolean()
    destination: str = string()
    routing_key: str = string()
    arguments: bytes = bits()


@message(api_key=10_010, versions=(0, 0), flexible=0)
class AlterBindingsRequest:
    virtual_host: str = string()
    changes: list[BindingChange] = structs(BindingChange)


@message(api_key=10_010, versions=(0, 0), flexible=0)
class AlterBindingsResponse:
    """The changes before the first that fails are made."""

    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)
