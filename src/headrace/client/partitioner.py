"""Which partition a record goes to: the same one that the Java client would choose for the same key."""

from __future__ import annotations

import struct
from functools import lru_cache

__all__ = ["murmur2", "partition_for_key"]

_MIX = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 (seed 0x9747b28c), as an unsigned 32-bit number."""
    length = len(data)
    hashed = (_SEED ^ length) & _MASK
    words = length // 4
    for word in struct.unpack_from(f"<{words}I", data):
        word = word * _MIX & _MASK
        word = (word ^ word >> 24) * _MIX & _MASK
        hashed = hashed * _MIX & _MASK ^ word
    tail = data[words * 4 :]
    if tail:
        hashed = (hashed ^ int.from_bytes(tail, "little")) * _MIX & _MASK
    hashed = (hashed ^ hashed >> 13) * _MIX & _MASK
    return hashed ^ hashed >> 15


@lru_cache(maxsize=16_384)
def _positive_hash(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


KEY_BYTES_CACHED_MAX = 64


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a key, as the Java client and librdkafka's murmur2 partitioners choose it."""
    # Short keys repeat, so their hashes are cached; the bound on their length bounds the memory.
    hashed = _positive_hash(key) if len(key) <= KEY_BYTES_CACHED_MAX else murmur2(key) & 0x7FFFFFFF
    return hashed % partition_count
