"""One device, one holder: two runs at once would each make the other's timings wrong.

The kernel locks the device's own file in sysfs, which every user of this host can open and nobody
can replace.  The kernel also names the holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import re
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

from bench_lib import backends
from bench_lib.backends.sysfs import ROOT, text, warn_once
from bench_lib.launch.cache import cache_folder
from bench_lib.model import Hardware, UserError

LOOK_AGAIN_S = 0.2
VARIABLE = "BENCH_LIB_LOCKS"
"""Names the folder of locks that an administrator made for containers."""
LOCKS = Path("/proc/locks")


class DeviceBusyError(UserError):
    """Somebody else measures on this device and did not finish in time."""


class DeviceLock:
    """Held from before the first case until after the last; let go of by the kernel on death."""

    def __init__(self, device: Hardware, folder: Path | None = None, root: Path = ROOT) -> None:
        """Lock of ``device``, shared by all users of this host.

        It is a file in ``folder``, or in the one that the environment names; without either the
        device's own file below ``root``.
        """
        named = folder or os.environ.get(VARIABLE)
        own = None if named else backends.of(device).own_file(device, root)
        self._is_own = own is not None
        name = re.sub(r"[^A-Za-z0-9-]+", "-", backends.of(device).lock_name(device))
        self._path = own or Path(named or _users_folder(device), f"{name}.lock")
        self._device = device
        self._file: int | None = None

    def acquire(self, wait_s: float, on_wait: Callable[[str], None]) -> None:
        """Take the lock, waiting up to ``wait_s`` seconds; ``on_wait`` gets the holder.

        Raises DeviceBusyError, also if the lock's file cannot be opened.
        """
        try:
            file = self._open()
        except OSError as error:
            raise DeviceBusyError(
                f"cannot lock {self._device.key} by {self._path}: {error.strerror}"
                f"{_owner(self._path)}; name a folder with {VARIABLE} in which all who measure "
                "may make files"
            ) from error
        try:
            self._take(file, wait_s, on_wait)
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def _open(self) -> int:
        """Open the existing file, which must not be a link; nothing is written to it."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        if self._is_own:
            return os.open(self._path, flags)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Whose file it is does not matter: reading is enough to lock it.
        with contextlib.suppress(FileExistsError):
            made = os.open(self._path, flags | os.O_CREAT | os.O_EXCL, 0o444)
            os.fchmod(made, 0o444)  # whatever the umask
            return made
        found = os.open(self._path, flags)
        if not stat.S_ISREG(os.fstat(found).st_mode):
            os.close(found)
            raise FileExistsError(0, "it is not a file")
        return found

    def _take(self, file: int, wait_s: float, on_wait: Callable[[str], None]) -> None:
        if _is_taken(file):
            return
        on_wait(f"waiting for {self._device.key}, in use by {_holder(file)}")
        deadline = time.monotonic() + wait_s
        while not _is_taken(file):
            if time.monotonic() >= deadline:
                raise DeviceBusyError(
                    f"{self._device.key} ({self._device.uuid or 'this host'}) is in use by "
                    f"{_holder(file)} and was not free within {wait_s:g} s; wait for that "
                    "run to end; pytest waits longer with --perf-lock-wait SECONDS"
                )
            time.sleep(LOOK_AGAIN_S)

    def release(self) -> None:
        """Let go."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _is_taken(file: int) -> bool:
    """Try to lock an open file; return whether it is ours now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: int) -> str:
    """Ask the kernel who holds a lock; it tells of no process in another container."""
    about = os.fstat(file)
    wanted = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    for line in (text(LOCKS) or "").splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == wanted:
            return f"process {words[4]}{_owner(Path('/proc', words[4]))}"
    return "another run"


def _owner(path: Path) -> str:
    """Return `` of USER``; empty where nobody knows."""
    try:
        return f" of {pwd.getpwuid(path.lstat().st_uid).pw_name}"
    except (OSError, KeyError):
        return ""


def _users_folder(device: Hardware) -> Path:
    """Return a folder where nobody else can write, on this host."""
    warn_once(
        f"{device.key} has no file in /sys here, so only your own runs wait for each other; name "
        f"a folder with {VARIABLE} in which all who measure may make files"
    )
    return cache_folder() / "locks" / socket.gethostname()
