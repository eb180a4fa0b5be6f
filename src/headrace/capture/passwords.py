"""Passwords of captures: in a file that only this user can read, and never in the log.

The log keeps an address without its password, since everybody who may read topics could read it there. The file has it
as it stood in the address. ``${NAME}`` in an address is the other way: it is kept as it stands, and the environment has
the password.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from headrace.capture.options import CaptureOptions

__all__ = ["forget_password", "keep_password", "with_password"]


def _file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "headrace" / "capture-passwords.json"


def _read() -> dict[str, str]:
    try:
        kept: dict[str, str] = json.loads(_file().read_text())
    except FileNotFoundError:
        return {}
    return kept


def _write(kept: dict[str, str]) -> None:
    """The new file is written beside the old one, readable by nobody else from its first byte."""
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        json.dump(kept, out)
    fresh.replace(file)


def keep_password(name: str, password: str) -> Path:
    _write({**_read(), name: password})
    return _file()


def forget_password(name: str) -> None:
    kept = _read()
    if kept.pop(name, None) is not None:
        _write(kept)


def with_password(options: CaptureOptions) -> CaptureOptions:
    """The options with the password that was kept for them, if any."""
    kept = _read().get(options.name)
    if kept is None or options.database.has_password:
        return options
    return replace(options, url=options.database.with_password(kept))
