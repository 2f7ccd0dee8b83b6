"""Caches of compilers and of MIOpen: empty ones, ones apart, and MIOpen's database filled."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from bench_lib.launch.cache import NO_ROOM, cache_folder
from bench_lib.model import UserError

FOLDERS = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "MIOPEN_USER_DB_PATH": "miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": "miopen-kernels",
    "AMD_COMGR_CACHE_DIR": "comgr",
    "PYTORCH_KERNEL_CACHE_PATH": "jiterator",
    "PYTORCH_TUNABLEOP_FILENAME": "tunableop.csv",
}
"""Variables that name the caches' folders and files; each is read when it is first needed.

The driver's own cache is not among them: it is opened with the device."""
COMPILERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Those of torch.compile."""
TUNING = {"MIOPEN_FIND_ENFORCE": "3", "MIOPEN_FIND_MODE": "1"}
"""Search for every convolution that is not in the database yet, among all solvers
(MIOpen's documentation, "Find and immediate mode")."""
MOST_APART_BYTES = 2**30
"""So much of the caches apart stays, those used last."""
LOCK = "lock"
"""The file in each cache apart that a process holds while it uses that, or removes it."""


@contextlib.contextmanager
def emptied(names: Collection[str] = tuple(FOLDERS)) -> Iterator[None]:
    """Have compilers and MIOpen find nothing, in a process in which none has looked yet.

    ``names`` are those of FOLDERS that are meant.
    """
    prefix = "bench-lib-cold-"
    with (
        tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as kept,
        _in(Path(kept), names),
    ):
        yield


@contextlib.contextmanager
def apart(name: str) -> Iterator[None]:
    """Have torch.compile use caches of that name in the user's cache folder, and no others.

    They are empty the first time, and whenever that folder cannot be written.  MIOpen keeps its
    own, or convolutions would lose what was tuned for them.  The process may not have looked for
    its caches yet.  Raises OSError if the disk, or the user's share of it, is full.
    """
    folder = cache_folder() / "apart"
    try:
        with contextlib.ExitStack() as stack:
            own = _in(folder / name, COMPILERS)
            try:
                stack.enter_context(_used(folder / name))
            except OSError as error:
                if error.errno in NO_ROOM:
                    raise
                own = emptied(COMPILERS)
            stack.enter_context(own)
            yield
    finally:
        with contextlib.suppress(OSError):  # another process may be removing them
            _remove_oldest(folder)


@contextlib.contextmanager
def _used(cache: Path) -> Iterator[None]:
    """Make a cache where it is not there, and keep others from removing it; raises OSError."""
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache, fcntl.LOCK_SH):
        os.utime(cache)
        yield


@contextlib.contextmanager
def _locked(cache: Path, how: int) -> Iterator[None]:
    """Hold a cache's lock; raises OSError if another process does, or has removed the cache."""
    with (cache / LOCK).open("a+") as lock:  # NFS wants both ways open
        fcntl.flock(lock, how | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock.fileno()), (cache / LOCK).stat()):
            raise BlockingIOError("it was removed before we had the lock")
        yield


def _remove_oldest(folder: Path) -> None:
    """Remove caches that no process uses until all are within their bytes, the oldest first."""
    sizes = {path: _size_bytes(path) for path in folder.iterdir()}
    too_many = sum(sizes.values()) - MOST_APART_BYTES
    for cache in sorted(sizes, key=lambda path: path.lstat().st_mtime):
        if too_many > 0 and _removed(cache):
            too_many -= sizes[cache]


def _size_bytes(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a compiler renames its files
                total += Path(path, name).lstat().st_size
    return total


def _removed(cache: Path) -> bool:
    """Remove a cache and return True; False if a process uses it, or it is gone."""
    try:
        with _locked(cache, fcntl.LOCK_EX):
            # Whoever looks for it now makes a new one.
            gone = cache.rename(f"{cache}.{os.getpid()}")
    except OSError:
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return True


def _in(folder: Path, names: Collection[str]) -> contextlib.AbstractContextManager[None]:
    return told({name: str(folder / FOLDERS[name]) for name in names})


def searching() -> contextlib.AbstractContextManager[None]:
    """Have MIOpen search for unknown kernels; the user's own setting stands."""
    return told({name: value for name, value in TUNING.items() if name not in os.environ})


def save(path: Path) -> bool:
    """Write what the compiler has made in this process, as torch carries it; False if nothing."""
    import torch

    found = torch.compiler.save_cache_artifacts()
    if found is not None:
        path.write_bytes(found[0])
    return found is not None


def load(path: Path) -> None:
    """Have the compiler find what ``save`` wrote; raises ValueError if torch cannot read it."""
    import torch

    if torch.compiler.load_cache_artifacts(path.read_bytes()) is None:
        raise ValueError(f"torch cannot read the artefacts that it saved in {path}")


@contextlib.contextmanager
def told(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


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
