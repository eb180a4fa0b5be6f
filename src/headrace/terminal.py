"""Whether output may be drawn over itself and coloured: only a terminal that knows escape sequences can show that."""

from __future__ import annotations

import os
from typing import TextIO

__all__ = ["is_dumb", "is_live"]


def is_dumb() -> bool:
    """``TERM=dumb``: an editor's shell or a serial line, where escape sequences would stand as text."""
    return os.environ.get("TERM") == "dumb"


def is_live(stream: TextIO) -> bool:
    """A terminal on which lines can be drawn again. Everything else gets lines that stay."""
    return stream.isatty() and not is_dumb()
