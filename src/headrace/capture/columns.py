"""Which columns of a table are written, how they are masked, and which of them make the key of its messages.

    --exclude-columns 'public.users.password'     is not in the row; a column of the key stays in the key
    --include-columns 'public.*.id'               only what matches is in the row, of every table
    --mask 'public.users.email=hash'              the row and the key have the mask instead of the value
    --key-columns 'public.orders:customer,number' the key of the messages; the table's own key identifies rows

A mask of a column that is part of the key must keep distinct values distinct, so only ``hash`` is taken there.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.capture.patterns import matches
from headrace.errors import BadArgument, UsageError

__all__ = ["Mask", "Render", "is_shown", "mask_of", "masked"]

Render = Callable[[Any], bytes]
_FORMS = re.compile(r"(?P<null>null)|(?P<hash>hash)(?::(?P<salt>.+))?|truncate:(?P<length>\d{1,6})|(?P<stars>\*+)")
_REFERENCE = re.compile(r"\$\{(\w+)\}")


class Mask:
    """One way to hide a value, applied to its JSON. A null stays a null.

    ``hash``         SHA-256 in hexadecimal digits, of a text itself, of anything else as its JSON. ``hash:SALT`` is
                     keyed with the salt (HMAC); ``${NAME}`` in it is read from the environment. Without a salt, values
                     that can be guessed can be found out
    ``null``         null
    ``truncate:N``   the first N characters of a text; what is no text becomes null
    ``****``         these asterisks
    """

    def __init__(self, how: str) -> None:
        found = _FORMS.fullmatch(how)
        if found is None:
            raise BadArgument(f"{how!r} is no mask", "use hash, hash:SALT, null, truncate:N or ****")
        self._salt = found["salt"] or ""
        self.keeps_distinct = found["hash"] is not None
        """Whether different values stay different."""
        self.makes_texts = found["null"] is None
        self.apply: Render
        if found["hash"]:
            self.apply = self._hash
        elif found["length"]:
            self._length = int(found["length"])
            self.apply = self._truncate
        else:
            constant = b'"%b"' % how.encode() if found["stars"] else b"null"
            self.apply = lambda rendered: constant

    def check(self) -> None:
        """Refuse a salt that the environment does not have."""
        self._key()

    def _hash(self, rendered: bytes) -> bytes:
        text = json.loads(rendered).encode(errors="surrogatepass") if rendered[:1] == b'"' else rendered
        if not self._salt:
            return b'"%b"' % hashlib.sha256(text).hexdigest().encode()
        return b'"%b"' % hmac.new(self._key(), text, hashlib.sha256).hexdigest().encode()

    def _key(self) -> bytes:
        return _REFERENCE.sub(lambda found: _from_environment(found[1]), self._salt).encode()

    def _truncate(self, rendered: bytes) -> bytes:
        if rendered[:1] != b'"':
            return b"null"
        return json.dumps(json.loads(rendered)[: self._length]).encode()


def _from_environment(name: str) -> str:
    """An empty salt would be no salt."""
    if not (value := os.environ.get(name)):
        raise UsageError(f"a mask needs the environment variable {name}", f"export {name}=…")
    return value


def mask_of(masks: Mapping[str, str], column: str) -> Mask | None:
    """The mask of SCHEMA.TABLE.COLUMN: the first whose pattern matches."""
    return next((Mask(how) for pattern, how in masks.items() if matches(pattern, column)), None)


def masked(render: Render | None, mask: Mask) -> Render:
    if render is None:
        return mask.apply
    return lambda value: mask.apply(render(value))


def is_shown(column: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether the row has SCHEMA.TABLE.COLUMN."""
    if include and not any(matches(each, column) for each in include):
        return False
    return not any(matches(each, column) for each in exclude)
