"""A lock per device: two runs at once would distort each other's timings."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from bench_lib import backends
from bench_lib.backends.sysfs import text
from bench_lib.model import Hardware, UserError

LOOK_AGAIN_S = 0.2
VARIABLE = "BENCH_LIB_LOCKS"
"""Names another folder of locks, as where containers share devices."""
FOLDER = Path("/tmp/bench-lib-locks")  # noqa: S108 - whatever TMPDIR is, all users share it
LOCKS = Path("/proc/locks")


class DeviceBusyError(UserError):
    """Somebody else measures on this device and did not finish in time."""


def place(device: Hardware) -> str:
    """Name a device among those of this host, as its lock is named."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", backends.of(device).lock_name(device))


class DeviceLock:
    """Held from before the first case until after the last; the kernel lets go of it on death."""

    def __init__(self, device: Hardware, folder: Path | None = None) -> None:
        """Lock ``device`` by a file in ``folder``, or in the folder that all users share."""
        self._path = Path(folder or os.environ.get(VARIABLE) or FOLDER, f"{place(device)}.lock")
        self._device = device
        self._lock = FileLock(self._path, mode=0o666, thread_local=False)

    def acquire(self, wait_s: float, on_wait: Callable[[str], None]) -> None:
        """Take the lock, waiting up to ``wait_s`` seconds; ``on_wait`` is called with who holds it.

        Raises DeviceBusyError, also if the lock's file cannot be opened.
        """
        try:
            if not self._path.parent.exists():
                self._path.parent.mkdir(parents=True, exist_ok=True)
                # Not a sticky folder, in which filelock refuses other users' files.
                self._path.parent.chmod(0o777)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                holder = _holder(self._path)
                on_wait(f"waiting up to {wait_s:g} s for {self._device.key}, in use by {holder}")
                self._lock.acquire(timeout=wait_s, poll_interval=LOOK_AGAIN_S)
        except Timeout:
            raise DeviceBusyError(
                f"{self._device.key} ({self._device.uuid or 'this host'}) is in use by "
                f"{_holder(self._path)} and was not free within {wait_s:g} s; wait for that "
                "run to end; pytest waits longer with -o perf_lock_wait=SECONDS"
            ) from None
        except OSError as error:
            raise DeviceBusyError(
                f"cannot lock {self._device.key} with {self._path}: {error.strerror}; set "
                f"{VARIABLE} to a folder in which everybody who measures may create files"
            ) from error

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()


def _holder(path: Path) -> str:
    """Ask the kernel who holds a lock; it does not name processes of other containers."""
    status = path.stat()
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in (text(LOCKS) or "").splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == inode:
            try:
                user = pwd.getpwuid(Path("/proc", fields[4]).stat().st_uid).pw_name
            except (OSError, KeyError):
                return f"process {fields[4]}"
            return f"process {fields[4]} of {user}"
    return "another run"
