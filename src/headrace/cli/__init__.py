"""The command ``headrace``."""

from __future__ import annotations

from headrace.cli.main import main

__all__ = ["main"]
