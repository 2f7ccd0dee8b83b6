"""The user's cache folder."""

from __future__ import annotations

import errno
import functools
import os
from pathlib import Path

from bench_lib.files import scratch

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""A disk is full, or a user's share of it."""


def cache_folder() -> Path:
    """Return the folder, by the XDG convention; it may not exist yet.

    A user without a home, as in some containers, gets a temporary one.
    """
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "bench-lib"
    try:
        return Path.home() / ".cache" / "bench-lib"
    except RuntimeError:
        return Path(_for_now().name)


_for_now = functools.cache(scratch)
