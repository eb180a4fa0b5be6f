"""Integers that must not be mixed up (they cost nothing when the program runs; mypy tells them apart), and words that
several packages must spell alike."""

from __future__ import annotations

from typing import NewType

__all__ = ["FILE_START", "FIRST_OFFSET", "UNAVAILABLE", "Epoch", "Offset", "Position"]

Offset = NewType("Offset", int)
"""The number of a record in its partition."""

FIRST_OFFSET = Offset(0)

Position = NewType("Position", int)
"""A byte in a file."""

FILE_START = Position(0)

Epoch = NewType("Epoch", int)
"""A leader's epoch: it rises with each start of the broker."""

UNAVAILABLE = "__debezium_unavailable_value"
"""What Debezium and capture write for a value that the database did not send again."""
