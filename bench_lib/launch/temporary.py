"""Files for workers in the folder for temporary files, which may be full: no fault of a case."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Iterator

from bench_lib.launch.faults import LaunchError
from bench_lib.launch.launchers import SHARED_VARIABLE
from bench_lib.model import Fault

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""A disk is full, or a user's share of it."""
LEAST_FREE_BYTES = 2**20
"""A folder with less is full, where an error does not name its file."""


def temporary_folder(shared: str | None = None) -> tempfile.TemporaryDirectory[str]:
    """Make a folder for a worker's files, below ``shared`` where given; raises LaunchError."""
    try:
        # A container's user, or another host, may leave files there that are not ours to remove.
        return tempfile.TemporaryDirectory(
            prefix="bench-lib-", dir=shared, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise cannot_write(error, shared) from error


@contextlib.contextmanager
def temporary_files() -> Iterator[None]:
    """Raise LaunchError where a file in such a folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise cannot_write(error) from error


def cannot_write(error: OSError | Fault, shared: str | None = None) -> LaunchError:
    """Return the error of a folder that cannot be written to: its name, the cause, the remedy."""
    why = error.message if isinstance(error, Fault) else error.strerror or str(error)
    if shared is not None:
        return LaunchError(
            f"{SHARED_VARIABLE} is {shared!r}: {why}; it has to be a folder that all "
            "hosts see and you may write to"
        )
    # Python knows its folder once it found one that can be written to.
    folder = f" to {tempfile.tempdir}" if tempfile.tempdir else ""
    return LaunchError(
        f"cannot write temporary files{folder}: {why}; free some space there, or name another "
        "folder with TMPDIR"
    )


def is_full(fault: Fault) -> bool:
    """Whether a worker's fault is that the folder for temporary files is full."""
    if fault.kind != "no room":
        return False
    folder = tempfile.gettempdir()
    return folder in fault.message or shutil.disk_usage(folder).free < LEAST_FREE_BYTES
