"""Whether the calls that only Linux has are used: syncfs, fdatasync, pwritev, posix_fadvise, cachestat, RWF_NOWAIT,
sendfile with a range, PR_SET_PDEATHSIG.

Each has a fallback where it is called, made of what every POSIX system has. ``HEADRACE_PORTABLE=1`` chooses the
fallbacks on Linux too: that is how they are tested.
"""

from __future__ import annotations

import os
import sys
from typing import Final

__all__ = ["HAS_LINUX_CALLS"]

HAS_LINUX_CALLS: Final = sys.platform == "linux" and os.environ.get("HEADRACE_PORTABLE") != "1"
