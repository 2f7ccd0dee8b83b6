"""The one door for files: those that others may have put there are opened, and any is written.

Whoever may write to a folder of runs, baselines or profiles can put anything there under any name:
a link to a private file, a pipe that never ends, 300 GB of nothing.
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

    Raises OSError, whose ``strerror`` says what is there instead.
    """
    file = os.fdopen(_regular(path, os.O_RDONLY), "rb")
    if (there := os.fstat(file.fileno()).st_size) > limit:
        file.close()
        size, most = (f"{number / 1e6:.0f} MB" for number in (there, limit))
        raise _refusal(path, f"it holds {size}, and no more than {most} are read")
    return file


def content(path: Path, limit: int) -> bytes:
    """Return the bytes of such a file; raises OSError as ``open_regular`` does."""
    with open_regular(path, limit) as file:
        return file.read(limit)


def replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: on a full disk the old one stays.

    Raises OSError, also where something else than a regular file has its name.
    """
    with replacing(path) as part, part.open("xb") as file:  # which follows no link either
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Lend a name beside a file that nobody can guess; what is written there replaces the file.

    It ends as the file's if that is compressed.  Raises OSError as ``replace`` does.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise _refusal(path, "it is no regular file; name another")
    packed = ".gz" if path.suffix == ".gz" else ""
    part = path.with_name(f".part-{secrets.token_hex(8)}{packed}")
    try:
        yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def append(path: Path, data: bytes) -> None:
    """Write to the end of a file, which is made where there is none; raises OSError likewise."""
    with os.fdopen(_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
        file.write(data)


def scratch(within: str | None = None) -> tempfile.TemporaryDirectory[str]:
    """Make a folder for files of ours alone, in that for temporary files or else ``within``.

    It goes when it is closed, or with this process: programs of ours take a signal that ends them
    for an exception.  A worker is killed, so it takes a folder within its runner's.
    """
    # A container's user, or another host, may leave files there that are not ours to remove.
    return tempfile.TemporaryDirectory(prefix="bench-lib-", dir=within, ignore_cleanup_errors=True)


def _regular(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise _refusal(path, "it is a link; name the file itself, or put it there") from error
        if error.errno == errno.ENXIO:
            raise _refusal(path, "it is no regular file") from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise _refusal(path, "it is no regular file")


def _refusal(path: Path, why: str) -> OSError:
    return OSError(errno.EINVAL, why, str(path))
