"""Addresses of targets: where they are, as whom, and what of that may be printed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from headrace.errors import UsageError

__all__ = ["Address"]

ENVIRONMENT = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """A URL; ``${NAME}`` in it stands for an environment variable, read when it is used and never kept."""

    text: str

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    @property
    def shown(self) -> str:
        """As it may be printed: without a password, and without options, which may hold one."""
        plain = self.text.partition("?")[0].partition("#")[0]
        who, at, _ = urlsplit(plain).netloc.rpartition("@")
        return plain.replace(f"{who}@", f"{who.partition(':')[0]}@", 1) if at else plain

    @property
    def scheme(self) -> str:
        return urlsplit(self.text).scheme

    def resolved(self) -> str:
        """With the environment filled in."""

        def value(found: re.Match[str]) -> str:
            if found[1] not in os.environ:
                raise UsageError(f"{self.shown} needs the environment variable {found[1]}", f"export {found[1]}=…")
            return os.environ[found[1]]

        return ENVIRONMENT.sub(value, self.text)

    def parts(self) -> SplitResult:
        return urlsplit(self.resolved())

    def user(self) -> str | None:
        name = self.parts().username
        return None if name is None else unquote(name)

    def password(self) -> str | None:
        word = self.parts().password
        return None if word is None else unquote(word)
