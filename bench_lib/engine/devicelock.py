"""One device, one holder: two runs at once would each make the other's timings wrong."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from bench_lib import backends
from bench_lib.model import Hardware, UserError

LOOK_AGAIN_S = 0.2


class DeviceBusyError(UserError):
    """Somebody else measures on this device and did not finish in time."""


class DeviceLock:
    """Held from before the first case until after the last; let go of by the kernel on death."""

    def __init__(self, device: Hardware, folder: Path | None = None) -> None:
        """Lock of ``device``, shared by all users of this host; raises DeviceBusyError."""
        name = re.sub(r"[^A-Za-z0-9-]+", "-", backends.of(device).lock_name(device))
        try:
            self._folder = folder or Path(tempfile.gettempdir(), "bench-lib-locks")
        except OSError as error:  # none that can be written to
            raise DeviceBusyError(
                f"cannot lock {device.key}: {error.strerror}; free some space there, or name "
                "another folder for temporary files with TMPDIR"
            ) from error
        # Several devices are measured in threads, which let go of what the main one took.
        self._lock = FileLock(self._folder / f"{name}.lock", mode=0o666, thread_local=False)
        self._holder = self._folder / f"{name}.holder"
        self._device = device

    def acquire(self, wait_s: float, on_wait: Callable[[str], None]) -> None:
        """Take the lock, waiting up to ``wait_s`` seconds; ``on_wait`` is told for whom.

        Raises DeviceBusyError, also where the lock's file cannot be made.
        """
        try:
            self._folder.mkdir(mode=0o1777, parents=True, exist_ok=True)
            with contextlib.suppress(PermissionError):
                self._folder.chmod(0o1777)
            self._acquire(wait_s, on_wait)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "free some space" if full else "let everybody write"
            raise DeviceBusyError(
                f"cannot lock {self._device.key} in {self._folder}: {error.strerror}; {remedy} "
                "there, or name another folder for temporary files with TMPDIR"
            ) from error
        with contextlib.suppress(OSError):
            self._holder.write_text(f"process {os.getpid()}")

    def _acquire(self, wait_s: float, on_wait: Callable[[str], None]) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            on_wait(f"waiting for {self._device.key}, in use by {self.holder()}")
            try:
                self._lock.acquire(timeout=wait_s, poll_interval=LOOK_AGAIN_S)
            except Timeout:
                raise DeviceBusyError(
                    f"{self._device.key} ({self._device.uuid or 'this host'}) is in use by "
                    f"{self.holder()} and was not free within {wait_s:g} s; wait for that "
                    "run to end; pytest waits longer with --perf-lock-wait SECONDS"
                ) from None

    def holder(self) -> str:
        """Say who holds the lock, as far as known."""
        try:
            return self._holder.read_text().strip() or "another run"
        except OSError:
            return "another run"

    def release(self) -> None:
        """Let go."""
        self._lock.release()
