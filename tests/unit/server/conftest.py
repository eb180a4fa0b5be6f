"""A folder whose files have pages that the kernel can drop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """``make check`` keeps temporary files in memory, where nothing is ever cold. /var/tmp outlives a restart."""
    with TemporaryDirectory(dir="/var/tmp", prefix="headrace-") as folder:
        yield Path(folder)
