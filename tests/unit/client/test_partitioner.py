"""Keys go where the Java client would send them."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.partitioner import KEY_BYTES_CACHED_MAX, murmur2, partition_for_key

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas in a deprecated way
    from kafka.partitioner.default import murmur2 as reference

# From the tests of Apache Kafka's own implementation, where the numbers are signed.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", JAVA)
def test_the_hash_is_the_one_java_computes(key: bytes) -> None:
    assert murmur2(key) == JAVA[key] & 0xFFFFFFFF


@given(st.binary(max_size=3 * KEY_BYTES_CACHED_MAX))
def test_any_key_hashes_as_another_client_hashes_it(key: bytes) -> None:
    assert murmur2(key) == reference(key) & 0xFFFFFFFF


@given(st.binary(max_size=3 * KEY_BYTES_CACHED_MAX), st.integers(1, 1000))
def test_a_partition_is_the_positive_hash_modulo_the_count(key: bytes, count: int) -> None:
    assert partition_for_key(key, count) == (reference(key) & 0x7FFFFFFF) % count
