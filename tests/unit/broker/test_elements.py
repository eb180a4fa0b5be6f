"""Elements of long answers: encoded once, shared, bounded."""

from __future__ import annotations

from headrace.broker.elements import AnswerTooLarge, Elements
from headrace.config import Settings
from headrace.errors import ErrorCode
from headrace.wire.kafka.codec import read_message, write_message
from headrace.wire.kafka.messages.configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

MIB = 1 << 20


def described(value: str) -> DescribeConfigsResult:
    entry = DescribeConfigsResourceResult(name="retention.ms", value=value, documentation=None)
    return DescribeConfigsResult(error_message=None, resource_type=2, resource_name="t", configs=[entry])


def refused(error: AnswerTooLarge) -> DescribeConfigsResult:
    return DescribeConfigsResult(error_code=error.code, error_message=error.message, resource_name="t")


def elements() -> Elements:
    return Elements(DescribeConfigsResponse, 4, Settings({"response.bytes.max": MIB}))


def test_encoded_elements_are_what_the_structs_would_have_been() -> None:
    found = elements()
    for value in ("1", "2"):
        found.add(described(value), refused)
    encoded = b"".join(write_message(DescribeConfigsResponse(results=found.encoded), 4))
    plain = b"".join(write_message(DescribeConfigsResponse(results=[described("1"), described("2")]), 4))
    assert encoded == plain


def test_a_repeated_element_shares_its_bytes() -> None:
    found = elements()
    assert not found.repeat("t")
    found.add(described("1"), refused, key="t")
    for _ in range(999):
        assert found.repeat("t")
    assert len(found.encoded) == 1000
    assert len({id(each) for each in found.encoded}) == 1
    assert found.size_bytes == 1000 * len(found.encoded[0])


def test_what_does_not_fit_is_refused_element_by_element() -> None:
    found = elements()
    for number in range(20):
        if not found.repeat("t"):
            found.add(described(str(number) * 100_000), refused, key="t")
    assert found.size_bytes < MIB
    answer, _ = read_message(
        DescribeConfigsResponse, 4, b"".join(write_message(DescribeConfigsResponse(results=found.encoded), 4))
    )
    codes = [each.error_code for each in answer.results]
    assert codes == [0] * 7 + [ErrorCode.POLICY_VIOLATION] * 13
    assert "response.bytes.max=1048576" in answer.results[-1].error_message
