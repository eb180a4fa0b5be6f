"""A small client for any Kafka broker: embedded or Apache Kafka, one thread, blocking sockets.

    with Client("127.0.0.1:9092") as client:
        with Producer(client) as producer:
            producer.send("orders", b"one", key=b"a")
        consumer = Consumer(client)
        consumer.assign(start_offsets(client, [TopicPartition("orders", 0)]))
        print(consumer.poll(timeout_ms=1000))

Errors are ``headrace.errors.KafkaError`` with the wire's code, and refinements of it:

    KafkaError
    ├── BrokerUnreachable      nobody listens there
    ├── TlsFailed              a certificate is not trusted, or one side does not speak TLS
    ├── AuthenticationFailed   the broker does not let us in
    ├── ConnectionLost         an open connection ended; whether the request took effect is unknown
    ├── RequestTimedOut        no answer in time; the same
    ├── UnsupportedByBroker    the broker does not know the request
    ├── NoQueues               the broker is not headrace's, and so has no queues
    ├── OffsetOutOfRange       the log has it no more; ``earliest`` and ``latest`` tell what it has
    ├── TopicReplaced          a topic was deleted and made again while it was read
    ├── DeliveryFailed         records were given up
    └── TransactionLost        a transaction timed out, or its id was taken over

The parts load when they are first used: a command that lists topics does not pay for the producer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client.accumulator import PreparedRecords
    from headrace.client.admin import Admin, ConfigEntry, ConfigSource, LogDir, ResourceKind
    from headrace.client.client import Client, ClientOptions, PartitionInfo, TopicInfo, TopicPartition
    from headrace.client.connection import (
        BrokerUnreachable,
        ConnectionLost,
        RequestTimedOut,
        TlsFailed,
        UnsupportedByBroker,
    )
    from headrace.client.consumer import Consumer, ConsumerOptions, Polled
    from headrace.client.fetch import Fetched, FetchOptions, fetch_batches
    from headrace.client.group_consumer import GroupConsumer, GroupOptions
    from headrace.client.groups import Group, GroupListing, GroupMember, Groups, PartitionLag
    from headrace.client.kafka_config import KAFKA_CONFIG_NAMES
    from headrace.client.offsets import (
        EARLIEST,
        LATEST,
        MAX_TIMESTAMP,
        OffsetAt,
        end_offsets,
        list_offsets,
        start_offsets,
    )
    from headrace.client.partitioner import partition_for_key
    from headrace.client.positioned import PositionedProducer
    from headrace.client.producer import Delivery, DeliveryFailed, Producer, ProducerOptions
    from headrace.client.queues import (
        BindingInfo,
        ExchangeInfo,
        LaneInfo,
        MoveResult,
        NoQueues,
        QueuedMessage,
        QueueInfo,
        Queues,
    )
    from headrace.client.ranges import OffsetOutOfRange, RangeOptions, RawBatch, TopicReplaced, fetch_range, raw_batches
    from headrace.client.scram import AuthenticationFailed
    from headrace.client.security import Security
    from headrace.client.state_records import (
        STATE_TOPIC,
        StatePublisher,
        StateReader,
        StateRecord,
        read_state_records,
        remove_state_record,
    )
    from headrace.client.transactional import TransactionalProducer
    from headrace.client.transactions import (
        Outcome,
        ProducerIdentity,
        TransactionInfo,
        TransactionLost,
        add_partitions,
        describe_transaction,
        end_transaction,
        end_transactions,
        init_producer_id,
        list_transactions,
    )

__all__ = [
    "EARLIEST",
    "KAFKA_CONFIG_NAMES",
    "LATEST",
    "MAX_TIMESTAMP",
    "STATE_TOPIC",
    "Admin",
    "AuthenticationFailed",
    "BindingInfo",
    "BrokerUnreachable",
    "Client",
    "ClientOptions",
    "ConfigEntry",
    "ConfigSource",
    "ConnectionLost",
    "Consumer",
    "ConsumerOptions",
    "Delivery",
    "DeliveryFailed",
    "ExchangeInfo",
    "FetchOptions",
    "Fetched",
    "Group",
    "GroupConsumer",
    "GroupListing",
    "GroupMember",
    "GroupOptions",
    "Groups",
    "LaneInfo",
    "LogDir",
    "MoveResult",
    "NoQueues",
    "OffsetAt",
    "OffsetOutOfRange",
    "Outcome",
    "PartitionInfo",
    "PartitionLag",
    "Polled",
    "PositionedProducer",
    "PreparedRecords",
    "Producer",
    "ProducerIdentity",
    "ProducerOptions",
    "QueueInfo",
    "QueuedMessage",
    "Queues",
    "RangeOptions",
    "RawBatch",
    "RequestTimedOut",
    "ResourceKind",
    "Security",
    "StatePublisher",
    "StateReader",
    "StateRecord",
    "TlsFailed",
    "TopicInfo",
    "TopicPartition",
    "TopicReplaced",
    "TransactionInfo",
    "TransactionLost",
    "TransactionalProducer",
    "UnsupportedByBroker",
    "add_partitions",
    "describe_transaction",
    "end_offsets",
    "end_transaction",
    "end_transactions",
    "fetch_batches",
    "fetch_range",
    "init_producer_id",
    "list_offsets",
    "list_transactions",
    "partition_for_key",
    "raw_batches",
    "read_state_records",
    "remove_state_record",
    "start_offsets",
]

_MODULES = {
    "accumulator": ("PreparedRecords",),
    "admin": (
        "Admin",
        "ConfigEntry",
        "ConfigSource",
        "LogDir",
        "ResourceKind",
    ),
    "client": (
        "Client",
        "ClientOptions",
        "PartitionInfo",
        "TopicInfo",
        "TopicPartition",
    ),
    "connection": (
        "BrokerUnreachable",
        "ConnectionLost",
        "RequestTimedOut",
        "TlsFailed",
        "UnsupportedByBroker",
    ),
    "consumer": (
        "Consumer",
        "ConsumerOptions",
        "Polled",
    ),
    "fetch": (
        "Fetched",
        "FetchOptions",
        "fetch_batches",
    ),
    "group_consumer": (
        "GroupConsumer",
        "GroupOptions",
    ),
    "groups": (
        "Group",
        "GroupListing",
        "GroupMember",
        "Groups",
        "PartitionLag",
    ),
    "offsets": (
        "EARLIEST",
        "LATEST",
        "MAX_TIMESTAMP",
        "OffsetAt",
        "end_offsets",
        "list_offsets",
        "start_offsets",
    ),
    "partitioner": ("partition_for_key",),
    "positioned": ("PositionedProducer",),
    "producer": (
        "Delivery",
        "DeliveryFailed",
        "Producer",
        "ProducerOptions",
    ),
    "queues": (
        "BindingInfo",
        "ExchangeInfo",
        "LaneInfo",
        "MoveResult",
        "NoQueues",
        "QueueInfo",
        "QueuedMessage",
        "Queues",
    ),
    "ranges": (
        "OffsetOutOfRange",
        "RangeOptions",
        "RawBatch",
        "TopicReplaced",
        "fetch_range",
        "raw_batches",
    ),
    "kafka_config": ("KAFKA_CONFIG_NAMES",),
    "scram": ("AuthenticationFailed",),
    "security": ("Security",),
    "state_records": (
        "STATE_TOPIC",
        "StatePublisher",
        "StateReader",
        "StateRecord",
        "read_state_records",
        "remove_state_record",
    ),
    "transactional": ("TransactionalProducer",),
    "transactions": (
        "Outcome",
        "ProducerIdentity",
        "TransactionInfo",
        "TransactionLost",
        "add_partitions",
        "describe_transaction",
        "end_transaction",
        "end_transactions",
        "init_producer_id",
        "list_transactions",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
