"""The pytest plugin of benchmarks/faults.py: stand-in devices and workers, and what they leave.

Everything else is the project's own: its plugin, runner, zygotes' and ranks' launching, telemetry,
locks and history.  Readings of the process go to ``readings-<who>.jsonl`` in ``$FAULTS_STATE``.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import resource
import signal
import threading
from pathlib import Path
from typing import NoReturn

import pytest
from faults import devices

import bench_lib.backends
from bench_lib.engine import engine
from bench_lib.engine.device import HeldDevice
from bench_lib.engine.settings import Side
from bench_lib.engine.telemetry import Sampler
from bench_lib.launch import ranks
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.zygote import Zygote
from bench_lib.model import Hardware
from bench_lib.plugin import session

STATE = Path(os.environ["FAULTS_STATE"])
BIN = STATE.parent / "bin"
EVERY = 100
"""Cases between two readings."""


def _watch(device: Hardware) -> Sampler:
    return Sampler(device, [str(BIN / "worker"), "telemetry", str(device.index)])


def _start(side: Side, device: Hardware) -> Zygote:
    told = {**bench_lib.backends.visibility(device), **side.environment}
    return Zygote(python=str(BIN / "worker"), environment=told)


def _share_none(*_: object) -> NoReturn:
    """Have each worker of xdist start its own: the stand-in serves one runner."""
    raise LaunchError("not shared")


def _stand_in() -> None:
    """Put devices and programs instead of real ones, and wait less where somebody is dead."""
    bench_lib.backends.detect = lambda **_: devices()
    session.network_sizes = dict
    engine.HeldDevice = functools.partial(HeldDevice, start=_start, watch=_watch)
    engine.processes.share = _share_none
    Zygote.exit_code.__defaults__ = (0.2,)
    ranks.LINGER_S, ranks.KNOWN_LINGER_S = 0.2, 0.1
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it


_stand_in()


class Readings:
    """What this process holds, from time to time."""

    def __init__(self, who: str) -> None:
        """Keep them under a name."""
        self._path = STATE / f"readings-{who}.jsonl"
        self._at_start = _open_files()
        self.done = 0

    def take(self, kind: str) -> None:
        """Write one down."""
        gc.collect()
        reading = {
            "kind": kind,
            "pid": os.getpid(),
            "cases": self.done,
            "rss": _resident(),
            "files": len(list(Path("/proc/self/fd").iterdir())),
            "threads": threading.active_count(),
        }
        if kind == "end":
            reading["left_open"] = sorted(_open_files() - self._at_start)
            reading["left_running"] = sorted(
                t.name for t in threading.enumerate() if t is not threading.main_thread()
            )
        with self._path.open("a") as file:
            file.write(json.dumps(reading) + "\n")


def _resident() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _open_files() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add(f"{entry.name} {entry.readlink()}")
    return found


READINGS = pytest.StashKey[Readings]()


def _who(config: pytest.Config) -> str:
    return getattr(config, "workerinput", {}).get("workerid", "controller")


def pytest_configure(config: pytest.Config) -> None:
    """Take the first reading."""
    config.stash[READINGS] = Readings(_who(config))
    config.stash[READINGS].take("start")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Count the cases that are done."""
    session.config.pluginmanager.register(_Count(session.config), "faults.count")


class _Count:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """Take a reading every so many cases."""
        readings = self._config.stash[READINGS]
        readings.done += 1
        if readings.done % EVERY == 0:
            readings.take("cases")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Take the last reading, when the plugin has closed what it had."""
    config.stash[READINGS].take("end")
