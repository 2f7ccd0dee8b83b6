"""Caches of compilers and of MIOpen: empty ones, ones apart, and MIOpen's database filled."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench_lib.launch.cache import cache_folder

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
TUNING = {"MIOPEN_FIND_ENFORCE": "3", "MIOPEN_FIND_MODE": "1"}
"""Search for every convolution that is not in the database yet, among all solvers
(MIOpen's documentation, "Find and immediate mode")."""
MOST_APART = 16
"""So many of the folders apart stay, those used last."""
IN_USE_S = 86_400.0
"""A folder that was used later than this ago may still be in use."""


@contextlib.contextmanager
def emptied() -> Iterator[None]:
    """Have compilers and MIOpen find nothing, in a process in which none has looked yet."""
    with contextlib.ExitStack() as stack:
        prefix = "bench-lib-cold-"
        kept = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
        stack.enter_context(_in(Path(stack.enter_context(kept))))
        yield


def apart(name: str) -> contextlib.AbstractContextManager[None]:
    """Have compilers and MIOpen use caches of that name in the user's cache folder, and no others.

    They are empty the first time, and whenever that folder cannot be written.  No process may have
    looked for its caches yet.
    """
    folder = cache_folder() / "apart"
    try:
        (folder / name).mkdir(parents=True, exist_ok=True)
        os.utime(folder / name)
    except OSError:
        return emptied()
    with contextlib.suppress(OSError):  # another process may be removing them
        _remove_oldest(folder)
    return _in(folder / name)


def _remove_oldest(folder: Path) -> None:
    used_s = {path: path.stat().st_mtime for path in folder.iterdir()}
    oldest_first = sorted(used_s, key=used_s.__getitem__)
    for path in oldest_first[:-MOST_APART]:
        if used_s[path] < time.time() - IN_USE_S:
            shutil.rmtree(path, ignore_errors=True)


def _in(folder: Path) -> contextlib.AbstractContextManager[None]:
    return told({name: str(folder / part) for name, part in FOLDERS.items()})


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
