"""Describes a cache's folder: how full it is, and a hash of the content that chooses kernels."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

CONTENT_BYTES = 4 * 2**20
"""Databases up to this size are hashed by content, larger ones by file names and sizes."""
MOST_FILES = 10_000
"""The limit of files that are counted in a folder; there may be more."""
COLD = "cold"


def place(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """Return the folder in a variable, or else the default; a leading ``~`` is HOME."""
    home = environ.get("HOME") or "/"
    return Path(re.sub(r"^~(?=/|$)", lambda _: home, environ.get(variable) or default))


def state_of(cache: str) -> str:
    """Return ``cold`` or ``warm`` from a cache's description, in the current or the first form.

    The first form was ``none``, ``41 entries`` or ``2 files, 0123456789ab``.
    """
    return COLD if cache in (COLD, "none") else "warm"


def describe_folder(folder: Path) -> str | None:
    """Count a folder's files and hash their names and sizes; None if there are none."""
    files = list(walk(folder))
    return f"{_counted(len(files), 'file')}, {_digest(_listed(files))}" if files else None


def hashed(files: Sequence[os.DirEntry[str]], uncounted: bytes | None = None) -> str:
    """Count and hash the lines of files, or only the files above `CONTENT_BYTES` together.

    Lines that begin with `uncounted` are hashed but not counted.
    """
    if sum(map(_size, files)) > CONTENT_BYTES:
        return f"{state(len(files), 'file')}, {_digest(_listed(files))}"
    lines = [
        (os.fsencode(file.name), line)
        for file in files
        for line in _content(file).splitlines()
        if line.strip()
    ]
    count = sum(uncounted is None or not line.startswith(uncounted) for _, line in lines)
    if not count:
        return COLD
    return f"{state(count)}, {_digest(b'%b %b' % line for line in lines)}"


def state(count: int, noun: str = "entry") -> str:
    """Describe a cache with `count` entries or files."""
    return f"warm, {_counted(count, noun)}" if count else COLD


def _counted(count: int, noun: str) -> str:
    nouns = {"entry": "entries", "file": "files"}
    return f"{count} {noun if count == 1 else nouns[noun]}"


def _digest(parts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\n".join(sorted(parts))).hexdigest()[:12]


def _listed(files: Sequence[os.DirEntry[str]]) -> list[bytes]:
    return [b"%b %d" % (os.fsencode(file.name), _size(file)) for file in files]


def entries(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    """List a folder; empty if it does not exist or cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the files below a folder, at most `MOST_FILES`."""
    left, folders = MOST_FILES, [entries(folder)]
    while folders:
        for entry in folders.pop():
            if entry.is_dir(follow_symlinks=False):
                folders.append(entries(entry))
            elif not left:
                return
            elif entry.is_file():
                left -= 1
                yield entry


def _size(file: os.DirEntry[str]) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _content(file: os.DirEntry[str]) -> bytes:
    try:
        return Path(file.path).read_bytes()
    except OSError:  # deleted meanwhile, or no permission
        return b""
