"""Which of Kafka's codes stands for which error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.broker.errors import code_of, coordinator_code_of
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log import errors as log_errors
from headrace.log.errors import CorruptLog, DiskFull, LogError


def leaves(kind: type[LogError]) -> Iterator[type[LogError]]:
    for each in kind.__subclasses__():
        yield each
        yield from leaves(each)


@pytest.mark.parametrize("kind", sorted(leaves(LogError), key=lambda each: each.__name__))
def test_every_error_of_the_log_has_a_code(kind: type[LogError]) -> None:
    assert code_of(kind.__new__(kind)) is not ErrorCode.UNKNOWN_SERVER_ERROR
    assert kind.__name__ in log_errors.__all__


def test_an_error_that_knows_its_code_keeps_it() -> None:
    assert code_of(KafkaError(ErrorCode.ILLEGAL_GENERATION)) is ErrorCode.ILLEGAL_GENERATION
    assert code_of(HeadraceError("what?")) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_full_disk_can_be_retried_and_a_damaged_file_cannot() -> None:
    full, damaged = DiskFull("/data", 100), CorruptLog("/data/00.log", 7, "wrong checksum")
    assert code_of(full) is code_of(damaged) is ErrorCode.KAFKA_STORAGE_ERROR
    assert full.retriable
    assert not damaged.retriable


def test_a_coordinator_that_cannot_write_is_not_available() -> None:
    assert coordinator_code_of(DiskFull("/data", 100)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator_code_of(KafkaError(ErrorCode.ILLEGAL_GENERATION)) is ErrorCode.ILLEGAL_GENERATION
