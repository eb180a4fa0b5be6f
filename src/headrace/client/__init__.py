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
    ├── ConnectionLost         an open connection ended; whether the request took effect is unknown
    ├── RequestTimedOut        no answer in time; the same
    ├── UnsupportedByBroker    the broker does not know the request
    └── DeliveryFailed         records were given up
"""

from __future__ import annotations

from headrace.client.admin import Admin, ConfigEntry, ConfigSource, ResourceKind
from headrace.client.client import Client, ClientOptions, PartitionInfo, TopicInfo, TopicPartition
from headrace.client.connection import BrokerUnreachable, ConnectionLost, RequestTimedOut, UnsupportedByBroker
from headrace.client.consumer import Consumer, ConsumerOptions, Polled
from headrace.client.fetch import Fetched, FetchOptions, fetch
from headrace.client.group_consumer import GroupConsumer, GroupOptions
from headrace.client.groups import Group, GroupListing, GroupMember, Groups, PartitionLag
from headrace.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAt, end_offsets, list_offsets, start_offsets
from headrace.client.partitioner import partition_for_key
from headrace.client.producer import Delivery, DeliveryFailed, Producer, ProducerOptions

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
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
    "FetchOptions",
    "Fetched",
    "Group",
    "GroupConsumer",
    "GroupListing",
    "GroupMember",
    "GroupOptions",
    "Groups",
    "OffsetAt",
    "PartitionInfo",
    "PartitionLag",
    "Polled",
    "Producer",
    "ProducerOptions",
    "RequestTimedOut",
    "ResourceKind",
    "TopicInfo",
    "TopicPartition",
    "UnsupportedByBroker",
    "end_offsets",
    "fetch",
    "list_offsets",
    "partition_for_key",
    "start_offsets",
]
