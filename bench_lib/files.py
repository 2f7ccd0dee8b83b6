"""The one door for files: those that others may have put there are opened, and any is written.

Whoever may write to a folder of runs, baselines or profiles can put anything there under any name:
a link to a private file, a pipe that never ends, 300 GB of nothing.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path, limit: int) -> BinaryIO:
    """Open a regular file of at most ``limit`` bytes for reading; links are not followed.

    Raises OSError, whose ``strerror`` says what is there instead.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise _refusal(path, "it is a link; name the file itself") from error
        if error.errno == errno.ENXIO:
            raise _refusal(path, "it is no regular file") from error
        raise
    about = os.fstat(descriptor)
    if stat.S_ISREG(about.st_mode) and about.st_size <= limit:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if not stat.S_ISREG(about.st_mode):
        raise _refusal(path, "it is no regular file")
    size, most = (f"{number / 1e6:.0f} MB" for number in (about.st_size, limit))
    raise _refusal(path, f"it holds {size}, and no more than {most} are read")


def content(path: Path, limit: int) -> bytes:
    """Return the bytes of such a file; raises OSError as ``open_regular`` does."""
    with open_regular(path, limit) as file:
        return file.read(limit)


def replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: on a full disk the old one stays.

    Raises OSError, also where something else than a regular file has its name.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise _refusal(path, "it is no regular file; name another")
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    with part.open("xb") as file:  # which follows no link either
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink()
            raise


def _refusal(path: Path, why: str) -> OSError:
    return OSError(errno.EINVAL, why, str(path))
