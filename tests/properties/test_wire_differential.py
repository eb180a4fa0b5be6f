"""Our bytes against kafka-python's codec, which was made from Apache Kafka's schemas by somebody else.

What we write, it reads; and what it then writes are the same bytes again.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from headrace.wire.kafka.codec import write_message
from tests.unit.wire.strategies import MESSAGES, versioned_messages

PACKAGES = ("admin", "consumer", "metadata", "producer")


@cache
def kafka_python_messages() -> dict[str, Any]:
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kafka-python reads its schemas in a way that Python 3.11 calls deprecated
        for package in PACKAGES:
            outer = importlib.import_module(f"kafka.protocol.{package}")
            for info in pkgutil.iter_modules(outer.__path__):
                module = importlib.import_module(f"kafka.protocol.{package}.{info.name}")
                found.update(
                    {name: each for name, each in vars(module).items() if name.endswith(("Request", "Response"))}
                )
    return found


APART = {
    "ApiVersionsResponse": "kafka-python reads an answer that carries an error as version 0, whatever was asked",
    "DeleteTopicsRequest": "kafka-python's class writes another form of itself and only with a header",
}

COMPARED = [cls for cls in MESSAGES if cls.__name__ in kafka_python_messages() and cls.__name__ not in APART]


def test_most_messages_can_be_compared() -> None:
    assert len(COMPARED) > 70


@pytest.mark.parametrize("cls", COMPARED, ids=lambda cls: cls.__name__)
def test_kafka_python_reads_what_we_write_and_writes_the_same_bytes(cls: type) -> None:
    theirs = kafka_python_messages()[cls.__name__]

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(versioned_messages(cls))
    def check(case: tuple[Any, int]) -> None:
        message, version = case
        if not theirs.min_version <= version <= theirs.max_version:
            return
        ours = b"".join(bytes(chunk) for chunk in write_message(message, version))
        again = theirs.decode(ours, version=version).encode()
        assert bytes(again) == ours

    check()
