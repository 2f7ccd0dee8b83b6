"""The pytest plugin of benchmarks/soak.py: stand-in devices and workers, and what is left of them.

Everything else is the project's own: its plugin, runner, zygotes' and ranks' launching, telemetry,
locks and history.  Readings of the process go to ``readings-<who>.jsonl`` in ``$SOAK_STATE``.
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
import tracemalloc
import warnings
from pathlib import Path
from typing import NoReturn

import pytest
from soak import devices

import bench_lib.backends
from bench_lib.engine import engine
from bench_lib.engine.device import HeldDevice
from bench_lib.engine.settings import Side
from bench_lib.engine.telemetry import Sampler
from bench_lib.launch import ranks
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.zygote import Zygote
from bench_lib.model import Hardware, MachineWarning
from bench_lib.plugin import session
from bench_lib.plugin.measuring import SESSION

STATE = Path(os.environ["SOAK_STATE"])
BIN = STATE.parent / "bin"
EVERY = 100
"""Cases between two readings."""
ROOM = 300
"""Bytes that a full disk has left: less than a line."""


def _watch(device: Hardware) -> Sampler:
    return Sampler(device, [str(BIN / "worker"), "telemetry", str(device.index)])


def _start(side: Side, device: Hardware) -> Zygote:
    told = {**bench_lib.backends.visibility(device), **side.environment}
    return Zygote(python=str(BIN / "worker"), environment=told)


def _share_none(*_: object) -> NoReturn:
    """Have each worker of xdist start its own: the stand-in serves one runner."""
    raise LaunchError("not shared")


def _detect(*_: object) -> list[Hardware]:
    """Find the stand-ins, also when vendors' tools say what they like."""
    if "SOAK_TOOLS" in os.environ:
        with warnings.catch_warnings(action="ignore", category=MachineWarning):
            DETECT(Path("/nowhere"), ask_tools=True)
    return devices()


DETECT = bench_lib.backends.detect


def _stand_in() -> None:
    """Put devices and programs in place of real ones, and wait less where somebody is dead."""
    bench_lib.backends.detect = _detect
    session.network_sizes = dict
    engine.HeldDevice = functools.partial(HeldDevice, start=_start, watch=_watch)
    engine.processes.share = _share_none
    Zygote.exit_code.__defaults__ = (0.2,)
    ranks.LINGER_S, ranks.TELLING_S = 0.2, 0.1
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
    """Take the first reading, and say whom to interrupt."""
    if "SOAK_TRACE" in os.environ:
        tracemalloc.start(12)
    config.stash[READINGS] = Readings(_who(config))
    config.stash[READINGS].take("start")
    if _who(config) == "controller":
        (STATE / "controller.pid").write_text(str(os.getpid()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what earlier sessions have measured."""
    left = set((STATE / "left").read_text().split())
    items[:] = [item for item in items if item.callspec.params["case"].id in left]  # type: ignore[attr-defined]  # items that are functions


class _Disk:
    """Full from some case on, where the history is written."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Leave room for the beginning of a line."""
        # The setup's report brings what was measured, and the others wait for the verdict.
        if report.when != "setup" or "fills-disk" not in report.nodeid:
            return
        try:
            (STATE / "fill.once").touch(exist_ok=False)
        except FileExistsError:
            return
        path = self._config.stash[SESSION].engine.suite.writer.path
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + ROOM, hard))


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Come before the plugin's own recorder, which was registered earlier."""
    if _who(session.config) == "controller":
        session.config.pluginmanager.register(_Disk(session.config), "soak.disk")
    session.config.pluginmanager.register(_Count(session.config), "soak.count")


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
            if tracemalloc.is_tracing():
                name = f"trace-{_who(self._config)}-{readings.done}"
                tracemalloc.take_snapshot().dump(str(STATE / name))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Take the last reading, when the plugin has closed what it had."""
    config.stash[READINGS].take("end")
