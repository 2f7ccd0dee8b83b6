"""Files in the user's cache, and workers' temporary files.

Nothing about the cache fails: a missing or damaged file, or a full disk, costs the time to
determine a fact again.  A full disk for temporary files is not a fault of a case either.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench_lib.files import content, replace, scratch
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.launchers import SHARED_VARIABLE
from bench_lib.model import Fault

MOST_BYTES = 2**30
"""A run's row takes some kB: ten thousand runs take less than 100 MB."""
UNUSED_S = 90 * 86_400.0
"""A file is removed when unused for longer."""
LEAST_FREE_BYTES = 2**20
"""A folder with less space counts as full if an error does not name its file."""
Fact = TypeVar("Fact")


def read(path: Path, kind: type[Fact]) -> Fact | None:
    """Return a fact; None if it is missing or damaged."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeError):
        fact = msgspec.json.decode(content(path, MOST_BYTES), type=kind)
        with contextlib.suppress(OSError):  # a folder that is read-only
            os.utime(path)
        return fact
    return None


def write(path: Path, fact: Any) -> None:
    """Write a fact, whole or not at all, and remove unused files beside it."""
    keep(path, msgspec.json.encode(fact))


def keep(path: Path, data: bytes) -> None:
    """Write a file as ``write`` does."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.iterdir():
            with contextlib.suppress(OSError):  # removed meanwhile, somebody else's, or a folder
                if time.time() - other.stat().st_mtime > UNUSED_S:
                    other.unlink()
        replace(path, data)


def temporary_folder(shared: str | None = None) -> tempfile.TemporaryDirectory[str]:
    """Make a folder for a worker's files, below ``shared`` if given; raises LaunchError."""
    with temporary_files(shared):
        return scratch(shared)


@contextlib.contextmanager
def temporary_files(shared: str | None = None) -> Iterator[None]:
    """Raise LaunchError if a file in such a folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise cannot_write(error, shared) from error


def cannot_write(error: OSError | Fault, shared: str | None = None) -> LaunchError:
    """Return the error of a folder that cannot be written to: its name, the cause, the remedy."""
    cause = error.message if isinstance(error, Fault) else error.strerror or str(error)
    if shared is not None:
        return LaunchError(
            f"{SHARED_VARIABLE} is {shared!r}: {cause}; it must be a folder that all "
            "hosts share and that you may write to"
        )
    # Python sets it once it has found a folder that can be written to.
    folder = f" to {tempfile.tempdir}" if tempfile.tempdir else ""
    return LaunchError(
        f"cannot write temporary files{folder}: {cause}; free some space there, or set "
        "TMPDIR to another folder"
    )


def is_full(fault: Fault) -> bool:
    """Whether a worker's fault is a full folder for temporary files."""
    if fault.kind != "no room":
        return False
    folder = tempfile.gettempdir()
    return folder in fault.message or shutil.disk_usage(folder).free < LEAST_FREE_BYTES
