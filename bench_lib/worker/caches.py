"""Caches of compilers and of MIOpen: empty ones, and MIOpen's database filled."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

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

The driver's own cache is not among them: it is opened with the device."""
TUNING = {"MIOPEN_FIND_ENFORCE": "3", "MIOPEN_FIND_MODE": "1"}
"""Search for every convolution that is not in the database yet, among all solvers
(MIOpen's documentation, "Find and immediate mode")."""


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


@contextlib.contextmanager
def emptied() -> Iterator[None]:
    """Have compilers and MIOpen find nothing, in a process in which none has looked yet."""
    with contextlib.ExitStack() as stack:
        prefix = "bench-lib-cold-"
        kept = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(kept))
        stack.enter_context(told({name: str(folder / part) for name, part in FOLDERS.items()}))
        yield


def searching() -> contextlib.AbstractContextManager[None]:
    """Have MIOpen search for what it does not know yet; what the user says of it stands."""
    return told({name: value for name, value in TUNING.items() if name not in os.environ})


def save(path: Path) -> bool:
    """Write what the compiler has made in this process, as torch carries it; False if nothing."""
    found = torch.compiler.save_cache_artifacts()
    if found is not None:
        path.write_bytes(found[0])
    return found is not None


def load(path: Path) -> None:
    """Have the compiler find what ``save`` wrote; raises ValueError if torch cannot read it."""
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
