"""Who may open AMQP connections: the user ``guest``, or the users of a file (``amqp.users.file``).

The file has a line ``NAME:PASSWORD`` for each user, and ``NAME:PASSWORD:HOST,HOST`` for one who may use these virtual
hosts only. Lines that begin with ``#`` are comments. A file that others on the machine can read is refused.
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import BadArgument
from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.tables import BadTable, decode_table

__all__ = ["AmqpUsers", "credentials_of"]

FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class _User:
    password: bytes
    hosts: frozenset[str] | None
    """None: all of them."""


class AmqpUsers:
    """Names, passwords and virtual hosts."""

    def __init__(self, users: Mapping[str, _User] | None = None) -> None:
        self._users = {"guest": _User(b"guest", None)} if users is None else dict(users)

    @classmethod
    def of(cls, file: str, hosts: Collection[str]) -> AmqpUsers:
        """RabbitMQ's default user where no file is given. ``hosts`` are all virtual hosts. Raises BadArgument."""
        return cls(_read(Path(file), hosts)) if file else cls()

    def accept(self, user: bytes, password: bytes) -> bool:
        """Whether they belong together. It takes as long for a user who is not there."""
        found = self._users.get(user.decode("utf-8", "surrogateescape"))
        known = os.urandom(16) if found is None else found.password
        return hmac.compare_digest(password, known) and found is not None

    def may_use(self, user: str, host: str) -> bool:
        hosts = self._users[user].hosts
        return hosts is None or host in hosts


def _read(path: Path, known: Collection[str]) -> dict[str, _User]:
    try:
        if stat.S_IMODE(path.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
            raise BadArgument(f"amqp.users.file {path} can be read by others", f"chmod 600 {path}")
        text = path.read_bytes()[:FILE_BYTES_MAX].decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadArgument(f"amqp.users.file {path} cannot be read: {error}", "give a file of NAME:PASSWORD") from None
    users = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        password, _, hosts = rest.partition(":")
        if not name or not password:
            raise BadArgument(f"amqp.users.file {path}, line {number}, has no user", "write NAME:PASSWORD")
        named = [each.strip() for each in hosts.split(",")] if hosts else None
        for host in named or ():
            if host not in known:
                raise BadArgument(
                    f"amqp.users.file {path}, line {number}, names virtual host {host!r}, which does not exist",
                    "add it to amqp.vhosts, or correct the line; passwords have no colon",
                )
        users[name] = _User(password.encode(), None if named is None else frozenset(named))
    if not users:
        raise BadArgument(f"amqp.users.file {path} has no users", "write NAME:PASSWORD")
    return users


def credentials_of(mechanism: str, response: bytes) -> tuple[bytes, bytes]:
    """User and password of a login; empty ones where they cannot be read. Raises AmqpError."""
    if mechanism == "PLAIN":
        parts = response.split(b"\x00")
        return (parts[1], parts[2]) if len(parts) == 3 else (b"", b"")
    if mechanism == "AMQPLAIN":
        try:
            table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0, len(response) + 4)
        except BadTable as error:
            raise AmqpError(ReplyCode.SYNTAX_ERROR, f"AMQPLAIN cannot be read: {error}") from error
        user, password = (str(table.get(name, "")).encode("utf-8", "surrogateescape") for name in ("LOGIN", "PASSWORD"))
        return user, password
    raise AmqpError(ReplyCode.COMMAND_INVALID, f"unknown authentication mechanism '{mechanism}'")
