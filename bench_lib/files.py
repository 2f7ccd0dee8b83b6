"""Safe reading and writing of files in folders that other users can write to.

Anyone who can write to a folder of runs, baselines or profiles can put anything there under any
name: a link to a private file, a pipe that never ends, 300 GB of zeros.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path, limit: int) -> BinaryIO:
    """Open a regular file of at most ``limit`` bytes for reading; links are not followed.

    Raises OSError, whose ``strerror`` says what the path holds instead.
    """
    file = os.fdopen(_regular(path, os.O_RDONLY), "rb")
    if (size := os.fstat(file.fileno()).st_size) > limit:
        file.close()
        reason = f"it holds {size / 1e6:.0f} MB; the limit is {limit / 1e6:.0f} MB"
        raise _refusal(path, reason)
    return file


def content(path: Path, limit: int) -> bytes:
    """Return the bytes of a regular file; raises OSError as ``open_regular`` does."""
    with open_regular(path, limit) as file:
        return file.read(limit)


def replace(path: Path, data: bytes) -> None:
    """Write a file atomically: on a full disk the old file stays.

    Raises OSError, also if the path is anything but a regular file.
    """
    with replacing(path) as part, part.open("xb") as file:  # does not follow a link either
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield an unguessable temporary path in the same folder; that file then replaces ``path``.

    A suffix ``.gz`` is kept.  Raises OSError as ``replace`` does.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise _refusal(path, "it is not a regular file; name another")
    packed = ".gz" if path.suffix == ".gz" else ""
    part = path.with_name(f".part-{secrets.token_hex(8)}{packed}")
    try:
        yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def append(path: Path, data: bytes) -> None:
    """Append to a file, and create it if needed; raises OSError as ``replace`` does."""
    with os.fdopen(_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
        file.write(data)


def scratch(within: str | None = None) -> tempfile.TemporaryDirectory[str]:
    """Create a private temporary folder, by default in the system's folder for temporary files.

    It is removed when it is closed or the process exits, also by a signal, which our programs turn
    into an exception.  A worker gets killed, so it needs a folder ``within`` its runner's.
    """
    # A container's user or another host may leave files there that we may not remove.
    return tempfile.TemporaryDirectory(prefix="bench-lib-", dir=within, ignore_cleanup_errors=True)


def _regular(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            reason = "it is a link; name the file itself, or replace the link with it"
            raise _refusal(path, reason) from error
        if error.errno == errno.ENXIO:
            raise _refusal(path, "it is not a regular file") from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise _refusal(path, "it is not a regular file")


def _refusal(path: Path, why: str) -> OSError:
    return OSError(errno.EINVAL, why, str(path))
