"""Addresses of databases and other servers: where they are, as whom, and what of that may be printed.

A password may have any character. In a URL some of them mean something else (``@``, ``/``, ``?``, ``#``, ``%``), and
clients cut a URL at different places. So the user and the password are found here, by the last ``@`` before the host,
and handed on in their encoded form. What comes from the environment is taken as it is; what is written in the URL may
be percent-encoded or not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, unquote, urlsplit

from headrace.errors import BadArgument, UsageError

__all__ = ["Address"]

ENVIRONMENT = re.compile(r"\$\{(\w+)\}")
WITH_PATHS = ("http", "https")
"""Schemes whose paths may have an ``@``; elsewhere the path is the name of a database."""
OPTIONS = re.compile(r"\?(?:[A-Za-z_][\w.-]*=[^&]*&)*[A-Za-z_][\w.-]*=[^&]*$")
"""At the end of a URL; a ``?`` that no names and values follow is part of a password."""
HIDDEN = "***"


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """A URL; ``${NAME}`` in it stands for an environment variable, read when it is used and never kept."""

    text: str

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    @property
    def shown(self) -> str:
        """As it may be printed: without a password, and without options, which may hold one."""
        scheme, who, where = _cut(self.text)
        if not scheme and "@" in where:  # no URL, but somebody may have meant one
            who, _, where = where.rpartition("@")
        if who and ":" in who and scheme.removesuffix("://") not in WITH_PATHS:
            where = where.rpartition("@")[2]  # what seems to be an option may be the rest of a password
        plain = where.partition("?")[0].partition("#")[0]
        return scheme + plain if who is None else f"{scheme}{who.partition(':')[0]}@{plain}"

    @property
    def scheme(self) -> str:
        whole = self.resolved() if self.text.startswith("${") else self.text
        return urlsplit(whole).scheme

    def resolved(self) -> str:
        """With the environment filled in, and with user and password encoded."""
        scheme, who, where = _cut(self.text)
        if who is None and self.text.startswith("${"):
            return _encoded(self._filled(self.text))
        if who is None:
            return self._filled(self.text)
        user, colon, password = who.partition(":")
        return f"{scheme}{self._quoted(user)}{colon}{self._quoted(password)}@{self._filled(where).replace(' ', '%20')}"

    def must_be(self, schemes: Collection[str], what: str, example: str, *, needs_host: bool = False) -> None:
        """Refuse what cannot be the address of ``what``. What comes from the environment is not looked at."""
        if ENVIRONMENT.match(self.text):
            return
        scheme, _, where = _cut(self.text)
        if scheme.removesuffix("://") not in schemes or "://" not in scheme:
            raise BadArgument(f"{self.shown} is no {what}", example)
        if "${" in where or "," in where:  # several hosts are for the client to read
            return
        try:
            host, _ = urlsplit(f"//{where}").hostname, urlsplit(f"//{where}").port
        except ValueError:
            raise BadArgument(f"{self.shown} has no port that is a number up to 65535", example) from None
        if needs_host and not host:
            raise BadArgument(f"{self.shown} names no host", example)

    def _quoted(self, text: str) -> str:
        """Words of the URL are decoded first, values of the environment are not."""
        pieces = ENVIRONMENT.split(text)  # words and names in turn
        words = [self._value(piece) if index % 2 else unquote(piece) for index, piece in enumerate(pieces)]
        return quote("".join(words), safe="")

    def _filled(self, text: str) -> str:
        return ENVIRONMENT.sub(lambda found: self._value(found[1]), text)

    def _value(self, name: str) -> str:
        if name not in os.environ:
            raise UsageError(f"{self.shown} needs the environment variable {name}", f"export {name}=…")
        return os.environ[name]

    @property
    def has_password(self) -> bool:
        """Whether the text has one, or the name of one."""
        return ":" in (_cut(self.text)[1] or "")

    @property
    def written_password(self) -> str | None:
        """A password as it stands in the text; None where there is none, or only a name in the environment."""
        _, who, _ = _cut(self.text)
        _, colon, password = (who or "").partition(":")
        return password if colon and not ENVIRONMENT.fullmatch(password) else None

    def with_password(self, written: str | None) -> str:
        """The text with this password as it stands, or with none; everything else stays."""
        scheme, who, where = _cut(self.text)
        if who is None:
            return self.text
        user = who.partition(":")[0]
        return f"{scheme}{user}@{where}" if written is None else f"{scheme}{user}:{written}@{where}"

    @property
    def options(self) -> str:
        """What stands after the ``?``."""
        return _cut(self.text)[2].partition("?")[2]

    def parts(self) -> SplitResult:
        return urlsplit(self.resolved())

    def user(self) -> str | None:
        name = self.parts().username
        return None if name is None else unquote(name)

    def password(self) -> str | None:
        word = self.parts().password
        return None if word is None else unquote(word)

    def hidden_in(self, text: str) -> str:
        """A message of a client, without the password that it may quote."""
        try:
            word = self.password()
        except (UsageError, ValueError):
            return text
        for each in (word, quote(word, safe="")) if word else ():
            text = text.replace(each, HIDDEN)
        return text


def _cut(text: str) -> tuple[str, str | None, str]:
    """The scheme with its slashes, user and password if there are any, and the rest."""
    head, slashes, rest = text.partition("://")
    if not slashes:
        return "", None, text
    end = _end_of_user(head, rest)
    return head + slashes, rest[:end] if end >= 0 else None, rest[end + 1 :]


def _end_of_user(scheme: str, rest: str) -> int:
    """Where the ``@`` before the host is; -1 where nobody is named."""
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if not host:
        return -1  # a file
    port = host.rpartition(":")[2]
    if ":" in host and "@" not in host and not port.isdecimal() and not host.endswith("]"):
        return rest.rfind("@")  # no port but a password that the host was cut in
    if scheme in WITH_PATHS:
        return host.rfind("@")
    options = OPTIONS.search(rest)
    return rest.rfind("@", 0, options.start() if options else None)


def _encoded(url: str) -> str:
    scheme, who, where = _cut(url)
    if who is None:
        return url
    user, colon, password = (quote(unquote(each), safe="") if each != ":" else each for each in who.partition(":"))
    return f"{scheme}{user}{colon}{password}@{where}"
