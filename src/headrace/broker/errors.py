"""Kafka's code for each error. The log's errors carry none; this is the only place that maps them."""

from __future__ import annotations

from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    LogError,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordListTooLarge,
    StorageError,
)

__all__ = ["LOG_ERROR_CODES", "code_of", "coordinator_code_of"]

LOG_ERROR_CODES: dict[type[LogError], ErrorCode] = {
    OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    StorageError: ErrorCode.KAFKA_STORAGE_ERROR,
    RecordListTooLarge: ErrorCode.RECORD_LIST_TOO_LARGE,
    OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    InvalidTransactionState: ErrorCode.INVALID_TXN_STATE,
}
"""A class stands for its subclasses too."""


def code_of(error: HeadraceError) -> ErrorCode:
    """The code that is sent to the client."""
    if isinstance(error, KafkaError):
        return error.code
    for kind in type(error).__mro__:
        if kind in LOG_ERROR_CODES:
            return LOG_ERROR_CODES[kind]
    return ErrorCode.UNKNOWN_SERVER_ERROR


def coordinator_code_of(error: HeadraceError) -> ErrorCode:
    """The code that a coordinator sends when it cannot write its state, for example on a full disk.

    Clients take KAFKA_STORAGE_ERROR from a coordinator as fatal. This code makes them look for the coordinator and try
    again.
    """
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if isinstance(error, StorageError) else code_of(error)
