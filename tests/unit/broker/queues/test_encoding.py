"""Messages become the records that the rest of the log reads, and come back as they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import batch_without_records, build_batch, reseal
from headrace.broker.queues.encoding import batch_of, messages_of
from headrace.broker.queues.message import Message
from headrace.record import CorruptRecords, Record, decode_records
from headrace.wire.amqp.properties import encode_properties

NAMES = st.binary(max_size=40)
MESSAGES = st.builds(
    Message,
    NAMES,
    NAMES,
    st.sampled_from([encode_properties({}), encode_properties({"expiration": "5"})]),
    st.binary(max_size=300),
    st.integers(1_000, 100_000),
)


def record_of(message: Message) -> Record:
    """As Kafka clients see a message in a queue's log."""
    headers = (
        ("exchange", message.exchange),
        ("routing-key", message.routing_key),
        ("properties", message.properties),
    )
    return Record(key=None, value=message.body, timestamp=message.enqueued_ms, headers=headers)


@given(messages=st.lists(MESSAGES, min_size=1, max_size=80))
def test_a_batch_of_messages_is_the_bytes_that_the_record_encoder_writes(messages: list[Message]) -> None:
    assert batch_of(messages).data == build_batch([record_of(message) for message in messages]).data


@given(messages=st.lists(MESSAGES, min_size=1, max_size=80), base=st.integers(0, 2**40))
def test_messages_come_back_with_their_offsets(messages: list[Message], base: int) -> None:
    batch = batch_of(messages)
    batch.base_offset = base  # type: ignore[assignment]
    assert list(messages_of(batch)) == [(base + delta, message) for delta, message in enumerate(messages)]
    assert [record.value for record in decode_records(batch, 1 << 20)] == [message.body for message in messages]


@given(cut=st.integers(1, 30))
def test_records_that_end_early_are_an_error_and_nothing_else(cut: int) -> None:
    whole = batch_of([Message(b"e", b"k", encode_properties({}), b"body", 1_000)])
    batch = batch_without_records(
        attributes=0,
        record_count=1,
        base_timestamp=1_000,
        max_timestamp=1_000,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
    reseal(batch, whole.body[40:-cut])
    with pytest.raises(CorruptRecords):
        list(messages_of(batch))
