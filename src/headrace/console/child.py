"""The console as a child of ``headrace up``: ``python -m headrace.console.child``.

It gets one JSON line on its input: where the broker is, which descriptors to listen on, the token. A secret is not seen
in the list of processes that way. It writes "ready" when it serves. It must not outlive the broker: the kernel ends it
with its owner, and it stops when its input ends.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading

from headrace.child_process import die_with
from headrace.console.serving import serve_console

__all__: list[str] = []


def main() -> int:
    die_with(int(sys.argv[1]))
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    line = sys.stdin.readline()
    if not line.endswith("\n"):  # the owner died before it had written it
        return 2
    job = json.loads(line)
    sockets = [socket.socket(fileno=number) for number in job["descriptors"]]
    for each in sockets:
        each.setblocking(False)

    def ready() -> None:
        sys.stdout.write("ready\n")
        sys.stdout.flush()

    serve_console(
        job["bootstrap"],
        sockets,
        token=job["token"],
        read_only=job["read_only"],
        hosts=job["hosts"],
        on_ready=ready,
        stop_when=wait_for_end_of_input,
    )
    return 0


def wait_for_end_of_input() -> None:
    """Nothing follows the job, so what can be read is the end: the owner is gone, or wants us to stop."""
    sys.stdin.read()


if __name__ == "__main__":
    threading.current_thread().name = "console"
    sys.exit(main())
