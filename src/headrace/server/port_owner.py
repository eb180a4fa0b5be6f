"""Which process listens on a port of this machine: for the message that a port is taken. Linux tells it in /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["port_owner"]

_LISTENS = "0A"
"""The state of a socket that listens, in /proc/net/tcp."""


def port_owner(port: int) -> str:
    """``process 811 (headrace up --data x)``, or nothing where the system does not tell: another user's, or none."""
    inodes = _listening(port)
    for entry in Path("/proc").glob("[0-9]*") if inodes else []:
        if not inodes.isdisjoint(_open_files(entry)):
            return f"process {entry.name} ({_command(entry)})"
    return ""


def _open_files(process: Path) -> set[str]:
    """What the descriptors of a process lead to, of those that are still open when they are read."""
    found = set()
    with suppress(OSError):
        for each in list((process / "fd").iterdir()):
            with suppress(OSError):
                found.add(os.readlink(each))
    return found


def _listening(port: int) -> set[str]:
    """The sockets that listen on a port, as the links in /proc/PID/fd name them."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found


def _command(process: Path) -> str:
    text = ""
    with suppress(OSError):
        text = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
    return text if len(text) <= 100 else text[:99] + "…"
