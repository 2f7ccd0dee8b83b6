"""The caches of compilers and of MIOpen: emptied, or kept apart."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from bench_lib.files import scratch
from bench_lib.launch.cache import NO_ROOM, cache_folder
from bench_lib.launch.wire import LOGS_VARIABLE
from bench_lib.model import UserError

INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
FOLDERS = {
    INDUCTOR: "inductor",
    "TRITON_CACHE_DIR": "triton",
    "MIOPEN_USER_DB_PATH": "miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": "miopen-kernels",
    "AMD_COMGR_CACHE_DIR": "comgr",
    "PYTORCH_KERNEL_CACHE_PATH": "jiterator",
    "PYTORCH_TUNABLEOP_FILENAME": "tunableop.csv",
}
"""Variables that name the caches' folders and files; each is read when it is first needed.

The driver's own cache is missing, because it is opened with the device."""
COMPILERS = (INDUCTOR, "TRITON_CACHE_DIR")
"""Those of torch.compile."""
RUNNERS = (LOGS_VARIABLE, "BENCH_LIB_RANKS")
"""Variables that name the folder of our runner, which removes it if we are killed."""
UNUSED_S = 3 * 86_400.0
"""A separate cache is removed when unused for longer; a nightly run's survives a weekend."""


@contextlib.contextmanager
def emptied(names: Collection[str] = tuple(FOLDERS)) -> Iterator[None]:
    """Give compilers and MIOpen empty caches, in a process that has not looked for any yet.

    ``names`` chooses among FOLDERS.
    """
    with in_runners_folder() as folder, _in(Path(folder), names):
        yield


def in_runners_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder that our runner removes if it kills us."""
    return scratch(next(filter(None, map(os.environ.get, RUNNERS)), None))


@contextlib.contextmanager
def apart(name: str) -> Iterator[None]:
    """Have torch.compile use only caches of that name in the user's cache folder.

    They are empty the first time, and whenever that folder is not writable.  MIOpen keeps its own,
    or convolutions would lose their tuning.  The process must not have looked for its caches yet.
    Raises OSError if the disk, or the user's share of it, is full.
    """
    folder = cache_folder() / "apart" / name
    own = _in(folder, COMPILERS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        for cache in folder.parent.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process removes them, too
                if time.time() - cache.stat().st_mtime > UNUSED_S:
                    shutil.rmtree(cache, ignore_errors=True)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        own = emptied(COMPILERS)
    with own:
        yield


def _in(folder: Path, names: Collection[str]) -> contextlib.AbstractContextManager[None]:
    return environment({name: str(folder / FOLDERS[name]) for name in names})


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within a block, and undo all changes of the environment in it."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for added in os.environ.keys() - before.keys():
            del os.environ[added]
        os.environ.update(before)


def make_inductor_folder() -> None:
    """Make the folder where torch.compile keeps code before another user can.

    Raises UserError if somebody else made it, or may write to it.
    """
    if os.environ.get(INDUCTOR):
        return
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid_{os.getuid()}"
    folder = Path(tempfile.gettempdir(), f"torchinductor_{user}")
    with contextlib.suppress(OSError):  # the first write there will raise the reason
        folder.mkdir(mode=0o700)
    try:
        status = folder.lstat()
    except OSError:
        return
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_ours or status.st_mode & stat.S_IWOTH:
        raise UserError(
            f"torch.compile would run code from {folder}, where another user can write; remove "
            f"it, or set {INDUCTOR} to a folder of your own"
        )
