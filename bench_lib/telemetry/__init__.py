"""Clocks, power, temperature and strangers on one device, watched by a process beside it.

A vendor's library that hangs or crashes does so in that process, ``python -m
bench_lib.telemetry``.  `Sampler` starts it, keeps the last ten minutes and answers for the
stretch in which a worker measured; whatever goes wrong, its caller only gets None and one
warning.
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TextIO

from bench_lib.model import Hardware, Telemetry

PERIOD_S = 0.05
KEPT_S = 600.0
STALE_S = 2.0
"""A window's end this far past the newest sample means that sampling has stopped."""
STARTING_S = 10.0
"""So long the process may take to its first sample before that is worth a warning."""


@dataclass(frozen=True)
class Sample:
    """What one look at the device saw; None and empty where it cannot be seen."""

    t: float
    """Seconds on the machine's monotonic clock."""
    source: str = ""
    clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    utilization: float | None = None
    """0 to 1."""
    throttle: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()


def summarise(
    samples: Iterable[Sample], begin: float, end: float, own: Collection[int] = ()
) -> Telemetry | None:
    """Summarise the samples from `begin` to `end`, in seconds; None where there are none.

    Of the processes seen, those not in `own` are foreign, but only where one of `own` was
    seen too: a process of ours is on the device, and a list without it counts in another
    pid namespace (a container's), where equal numbers are other processes.
    """
    inside = [sample for sample in samples if begin <= sample.t <= end]
    if not inside:
        return None
    clocks = [s.clock_mhz for s in inside if s.clock_mhz is not None]
    powers = [s.power_w for s in inside if s.power_w is not None]
    loads = [s.utilization for s in inside if s.utilization is not None]
    pids = {pid for s in inside for pid in s.pids}
    return Telemetry(
        source=inside[-1].source,
        samples=len(inside),
        utilization=statistics.fmean(loads) if loads else None,
        clock_mhz=statistics.median(clocks) if clocks else None,
        clock_min_mhz=min(clocks, default=None),
        power_w=statistics.fmean(powers) if powers else None,
        temperature_c=max(
            (s.temperature_c for s in inside if s.temperature_c is not None), default=None
        ),
        throttle=list(dict.fromkeys(reason for s in inside for reason in s.throttle)),
        foreign_processes=sorted(pids.difference(own)) if pids.intersection(own) else [],
    )


class Sampler:
    """The process beside one device, and what it saw; a context manager."""

    def __init__(self, device: Hardware, command: Sequence[str] | None = None) -> None:
        """Watch `device`; `command` stands in for this module's own process."""
        described = json.dumps(asdict(device))
        self._command = command or (sys.executable, "-m", "bench_lib.telemetry", described)
        self._samples: collections.deque[Sample] = collections.deque(maxlen=int(KEPT_S / PERIOD_S))
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._fault: str | None = None
        self._heard_s = math.inf
        """When the newest sample was taken, or when the first one was due."""
        self._warned = False

    def __enter__(self) -> Sampler:  # noqa: PYI034 - typing.Self is newer than Python 3.10
        """Start the process."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the process."""
        self.close()

    def start(self) -> None:
        """Start the process; one that cannot be started is only never heard of."""
        here = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        except OSError as error:
            self._fault = str(error)
            return
        assert self._process.stdout is not None
        self._heard_s = time.monotonic() + STARTING_S
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name="telemetry", daemon=True
        )
        self._reader.start()

    def window(self, begin_s: float, end_s: float, own: Collection[int] = ()) -> Telemetry | None:
        """Tell what was seen from `begin_s` to `end_s` on the monotonic clock; never waits.

        `own` are the pids that belong there.  None where nothing was seen; the first time
        that is because sampling does not work, a warning names the cause.
        """
        with self._lock:
            samples, fault = list(self._samples), self._fault
        silent = not samples and fault is not None
        if not self._warned and (silent or end_s > self._heard_s + STALE_S):
            self._warned = True
            cause = fault or f"no sample since {self._heard_s:.1f}, now {end_s:.1f}"
            warnings.warn(f"the device is not watched: {cause}", RuntimeWarning, stacklevel=2)
        return summarise(samples, begin_s, end_s, own)

    def close(self) -> None:
        """End the process; again is harmless."""
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
            # Stuck in the driver it ends when the driver lets it, and is not waited for.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
        if self._reader is not None:
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
                self._heard_s = sample.t
        self._fault = self._fault or "the sampling process ended"


def parse(line: str) -> Sample:
    """Read one line of the process; ValueError with the cause where it is no sample."""
    try:
        values = json.loads(line)
        t = _figure(values["t"])
    except (ValueError, TypeError, KeyError, RecursionError):
        values = t = None
    if t is None:
        raise ValueError(f"the sampling process said {line.strip()[:200]!r}")
    if "error" in values:
        raise ValueError(str(values["error"]))
    lists = (values.get(name) for name in ("throttle", "pids"))
    reasons, pids = (found if isinstance(found, list) else [] for found in lists)
    return Sample(
        t=t,
        source=str(values.get("source", "")),
        clock_mhz=_figure(values.get("clock_mhz")),
        power_w=_figure(values.get("power_w")),
        temperature_c=_figure(values.get("temperature_c")),
        utilization=_figure(values.get("utilization")),
        throttle=tuple(reason for reason in reasons if isinstance(reason, str)),
        pids=tuple(pid for pid in pids if isinstance(pid, int)),
    )


def _figure(value: object) -> float | None:
    """Take a finite number as a float and anything else as None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        figure = float(value)
    except OverflowError:
        return None
    return figure if math.isfinite(figure) else None
