"""For tests, ours and users': a real broker within milliseconds, a clock moved by hand, a disk that fails on demand.

from headrace import testing

with testing.broker() as broker:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
"""

from __future__ import annotations

from headrace.testing.broker import ChildBroker, InProcessBroker, TestBroker, broker
from headrace.testing.clock import VirtualClock
from headrace.testing.disk import SimulatedDisk

__all__ = ["ChildBroker", "InProcessBroker", "SimulatedDisk", "TestBroker", "VirtualClock", "broker"]
