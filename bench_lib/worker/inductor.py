"""The folder of torch.compile's code; imports no torch, which would run it."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import stat
import tempfile
from pathlib import Path

from bench_lib.model import UserError

INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"


def make_inductor_folder() -> None:
    """Make the folder where torch.compile keeps code before another user can.

    Raises UserError where somebody else has made it, or may write to it.
    """
    if os.environ.get(INDUCTOR):
        return
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid_{os.getuid()}"
    folder = Path(tempfile.gettempdir(), f"torchinductor_{user}")
    with contextlib.suppress(OSError):  # who writes there will say why it cannot be
        folder.mkdir(mode=0o700)
    try:
        found = folder.lstat()
    except OSError:
        return
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & stat.S_IWOTH:
        raise UserError(
            f"torch.compile would run code from {folder}, where another user may put it; remove "
            f"it, or name a folder of your own with {INDUCTOR}"
        )
