"""Patterns of tables and columns: ``*`` any characters, ``?`` one, ``[a-c]`` one of them. Case matters."""

from __future__ import annotations

from fnmatch import fnmatchcase

__all__ = ["is_pattern", "matches"]


def is_pattern(text: str) -> bool:
    """Whether it may match more than the name that it spells."""
    return any(each in text for each in "*?[")


def matches(pattern: str, name: str) -> bool:
    """A name always matches itself, also one that looks like a pattern."""
    return pattern == name or fnmatchcase(name, pattern)
