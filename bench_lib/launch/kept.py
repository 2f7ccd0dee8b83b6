"""Facts that can be found out again: small files of JSON in folders of the user's cache.

A fact that nobody used for a season is removed when another is written.  Nothing here fails: a
missing or damaged file, or a full disk, costs the time to find a fact out again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path
from typing import Any, TypeVar

import msgspec

MOST_FILES = 4096
"""So many files of a folder stay, those used last."""
UNUSED_S = 90 * 86_400.0
"""A file that nobody used for longer is removed."""
DAMAGED = ".damaged"
"""The end of a damaged file's name; whoever wonders may look into it."""

Fact = TypeVar("Fact")


def read(path: Path, kind: type[Fact]) -> Fact | None:
    """Return a fact; None if it is missing or damaged.  A damaged file is set aside."""
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        try:
            fact = msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeError):
            path.replace(path.with_suffix(DAMAGED))
            return None
        with contextlib.suppress(OSError):  # a folder that is read-only
            os.utime(path)
        return fact
    return None


def write(path: Path, fact: Any) -> None:
    """Write a fact, whole or not at all, and remove what is too old or too many beside it."""
    text = msgspec.json.encode(fact)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # another process removes them, too
            _make_room(path.parent)
        try:
            beside.write_bytes(text)
            beside.replace(path)
        except OSError:
            beside.unlink(missing_ok=True)


def _make_room(folder: Path) -> None:
    """Remove files that are too old, and the oldest until there is room for one more."""
    with os.scandir(folder) as entries:
        used_s = {entry.path: entry.stat().st_mtime for entry in entries}
    newest_first = sorted(used_s, key=used_s.__getitem__, reverse=True)
    too_old_s = time.time() - UNUSED_S
    for number, path in enumerate(newest_first, start=1):
        if number >= MOST_FILES or used_s[path] < too_old_s:
            with contextlib.suppress(OSError):  # somebody else's, or a folder
                Path(path).unlink()
