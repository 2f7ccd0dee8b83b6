"""Clocks, power, temperature and other processes of a device, read by a process beside it.

A vendor's library that hangs or crashes does so in that process.  Whatever goes wrong, its caller
only gets None and one warning or cause.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from bench_lib import backends
from bench_lib.backends.looks import PERIOD_S
from bench_lib.backends.sysfs import ROOT
from bench_lib.backends.tool import ToolError, ask, finding_us
from bench_lib.backends.tool import parse as parse_answer
from bench_lib.engine.telemetry.samples import TelemetrySample, parse, share, summarise
from bench_lib.model import Hardware, MachineWarning, Telemetry
from bench_lib.verdict import validity

KEPT_S = 600.0
STALE_S = 2.0
"""A window's end this far past when a sample was due means that sampling has stopped."""
STARTING_S = 15.0
"""Longest wait for the process's first sample before a warning."""
AROUND_S = 0.25
"""How long the CPUs are watched before a run: ticks of 10 ms resolve a few per cent of it."""
OTHERS_MEAN = "they slow cases down or make them INVALID, so stop them or wait until they end"
ONCE_S = 30.0
"""Longest wait for a single look."""


def look_once(
    device: Hardware, *, timeout_s: float = ONCE_S, command: Sequence[str] | None = None
) -> tuple[dict[str, Any] | None, str | None]:
    """Return the fields of a single look, among them its ``source``, or None and the cause.

    `command` stands in for this module's own process.
    """
    argv, label = [*(command or _command(device)), "once"], "the query of the device"
    try:
        output = ask(argv, timeout_s=timeout_s, environ=finding_us(), what=label)
        values = parse_answer(output, label)
    except ToolError as error:
        return None, str(error)
    if not isinstance(values, dict) or "error" in values:
        return None, str(values["error"] if isinstance(values, dict) else values)
    return {**values, "utilization": share(values.get("utilization"))}, None


def others_now(
    device: Hardware, root: Path = ROOT, sleep: Callable[[float], None] = time.sleep
) -> str | None:
    """Say how busy other programs keep the CPUs that are to be measured; None for a GPU.

    Nothing of ours may run meanwhile.
    """
    if backends.is_gpu(device):
        return None
    look = backends.of(device).telemetry(device, root, os.getpid()).look
    look(with_pids=False)
    sleep(AROUND_S)
    return validity.others_on_cpus(share(look(with_pids=False).get("utilization")))


def _command(device: Hardware) -> tuple[str, ...]:
    return sys.executable, "-m", "bench_lib.engine.telemetry", json.dumps(asdict(device))


class Sampler:
    """The process beside one device, and its readings."""

    def __init__(self, device: Hardware, command: Sequence[str] | None = None) -> None:
        """Watch `device`; `command` stands in for this module's own process."""
        self._samples: collections.deque[TelemetrySample] = collections.deque(
            maxlen=int(KEPT_S / PERIOD_S)
        )
        self._lock = threading.Lock()
        self._fault: str | None = None
        self._trouble: str | None = None
        self._warned = False
        self._process: subprocess.Popen[str] | None = subprocess.Popen(
            command or _command(device),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=finding_us(),
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._due_s = time.monotonic() + STARTING_S
        """When the next sample is due."""
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name="telemetry", daemon=True
        )
        self._reader.start()

    def window(self, begin_s: float, end_s: float, own: Collection[int] = ()) -> Telemetry | None:
        """Return the telemetry from `begin_s` to `end_s` on the monotonic clock; never waits.

        `own` are the pids that belong there.  None without readings; the first time that sampling
        does not work, a warning names the cause.
        """
        with self._lock:
            samples, fault, trouble = list(self._samples), self._fault, self._trouble
        silent = not samples and fault is not None
        if not self._warned and (silent or trouble or end_s > self._due_s + STALE_S):
            self._warned = True
            cause = trouble or fault or f"no sample since {self._due_s:.1f} s; now {end_s:.1f} s"
            warnings.warn(f"the device is not monitored: {cause}", MachineWarning, stacklevel=2)
        return summarise(samples, begin_s, end_s, own)

    def samples(self) -> list[TelemetrySample]:
        """Return the samples of the last ten minutes; never waits."""
        with self._lock:
            return list(self._samples)

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self._warned = True  # a measurement that is interrupted still asks, and this is no fault
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # One that is stuck in the driver ends when the driver lets it: do not wait for that.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
        self._reader.join(timeout=1)
        if not self._reader.is_alive():
            process.stdout.close()

    def _read(self, stdout: TextIO) -> None:
        """Take in what the process prints until it ends; the reader thread's work."""
        # Bounded, so that a stream without line ends does not fill the memory.
        while line := stdout.readline(65536):
            try:
                sample = parse(line)
            except ValueError as error:
                self._fault = str(error)
                continue
            with self._lock:
                self._samples.append(sample)
                self._trouble = self._trouble or sample.trouble
                self._due_s = sample.t if sample.due is None else sample.due
        self._fault = self._fault or "the sampling process ended"
