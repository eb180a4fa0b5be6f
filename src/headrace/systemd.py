"""What systemd learns about this process, and the unit that starts it.

A service of ``Type=notify`` says by itself when it is ready, when it stops and, as its watchdog, that its event loop
turns. Each is a datagram to the socket in ``NOTIFY_SOCKET``: lines such as ``READY=1``, as sd_notify(3) sends them.
Where the variable is not set nothing is sent, and a message that cannot be sent is dropped.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress

from headrace.ports import Clock, TimerHandle

__all__ = ["ServiceManager", "unit"]

STATUS_CHARACTERS_MAX = 200
_PLAIN = re.compile(r"[A-Za-z0-9_@:,./+=-]+")


class ServiceManager:
    """Tells the service manager, if there is one."""

    def __init__(self, clock: Clock, environment: Mapping[str, str] = os.environ) -> None:
        self._clock = clock
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self._watchdog_s = _watchdog_s(environment)
        self._timer: TimerHandle | None = None

    def starting(self, status: str) -> None:
        self._send(_status(status))

    def ready(self, status: str) -> None:
        """The process serves. From here on the watchdog is fed by the caller's event loop: one that hangs is restarted,
        if the unit says so."""
        self._send("READY=1", f"MAINPID={os.getpid()}", _status(status))
        if self._address and self._watchdog_s is not None:
            self._feed(self._watchdog_s / 2)

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", _status(status))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _feed(self, interval_s: float) -> None:
        self._send("WATCHDOG=1")
        self._timer = self._clock.call_later(interval_s, lambda: self._feed(interval_s))

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)


def _status(text: str) -> str:
    return f"STATUS={' '.join(text.split())[:STATUS_CHARACTERS_MAX]}"


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """How long the manager waits for a sign of life; None if it does not wait for one of this process."""
    pid = environment.get("WATCHDOG_PID", "")
    if pid and pid != str(os.getpid()):
        return None
    with suppress(ValueError):
        return max(0.1, int(environment["WATCHDOG_USEC"]) / 1e6) if "WATCHDOG_USEC" in environment else None
    return None


def unit(command: Sequence[str], *, user: str, data: str, log_file: str = "") -> str:
    """The text of a unit that runs ``command``. SIGHUP opens a log file again; without one it would stop the process.

    The manager makes directories below ``/var/lib`` and ``/var/log`` for the user. With a private ``/tmp`` a data
    directory there would be an empty one, which goes with the service.
    """
    state = data.removeprefix("/var/lib/") if data.startswith("/var/lib/") else ""
    logs = os.path.dirname(log_file).removeprefix("/var/log/") if log_file.startswith("/var/log/") else ""
    is_temporary = any(path.startswith(("/tmp/", "/var/tmp/")) for path in (data, log_file))
    lines = [
        "[Unit]",
        "Description=headrace",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=notify",
        "NotifyAccess=main",
        f"User={user}",
        *([f"StateDirectory={_quoted(state)}"] if state else []),
        *([f"LogsDirectory={_quoted(logs)}"] if logs and logs != "/var/log" else []),
        f"ExecStart={' '.join(map(_quoted, command))}",
        *(["ExecReload=/bin/kill -HUP $MAINPID"] if log_file else []),
        "Restart=on-failure",
        "RestartSec=2",
        "# 2 is a mistake in the settings: the next start would end in the same way",
        "RestartPreventExitStatus=2",
        "# recovery after a crash reads what was written since the last checkpoint, however much that is",
        "TimeoutStartSec=infinity",
        "TimeoutStopSec=60",
        "# the event loop did not turn for a minute",
        "WatchdogSec=60",
        "LimitNOFILE=65536",
        "NoNewPrivileges=yes",
        *([] if is_temporary else ["PrivateTmp=yes"]),
        "ProtectSystem=full",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _quoted(word: str) -> str:
    """A word as systemd reads it: % and $ stand for themselves, quotes and spaces do not end it."""
    word = word.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(word.replace("%%", "").replace("$$", "") or "x") and word:
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
