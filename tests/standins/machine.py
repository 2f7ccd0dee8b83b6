"""A machine with four GPUs that answer at once, for whole commands as they stand in the docs.

In this process by ``take_the_place_of``; in pytest sessions that a command starts by
``-p standins.machine`` and BENCH_LIB_STANDIN, the folder for locks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import make_environment, make_measurement

from bench_lib.engine.device import HeldDevice
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.settings import Settings
from bench_lib.model import Case, Hardware, Measurement, RankSample
from standins.worker import Context, Contexts, Watch, gpus, nobody_shares, ranks_that

DEVICES = gpus(4)
UNIT_S = 2e-9
"""What one unit of a planted delay takes."""


def seconds_of(case: Case) -> float:
    """Return what a step takes: 10 ms, less on more ranks that share it, and what is planted."""
    delay_s = float(case.params.get("delay_units", 0)) * UNIT_S
    return delay_s if case.workload == "delay" else 0.010 + delay_s


def measured(case: Case) -> Measurement:
    """Return twenty steps of a case, alike but for a thousandth, on as many ranks as it has."""
    times = [seconds_of(case) * (1 + i % 3 / 1000) for i in range(20)]
    ranks = case.launch.ranks
    return make_measurement(
        case_id=case.id,
        iteration_s=times,
        items_per_step=4 * ranks,
        device_uuid=DEVICES[0].uuid,
        per_rank=[RankSample(i, i, None, times, None) for i in range(ranks)] if ranks > 1 else [],
    )


class Worker(Context):
    """A context whose steps all take what they should."""

    def measure(self, case: Case, *_: object) -> Measurement:
        return measured(case)


class Workers(Contexts):
    """What forks such contexts."""

    def __init__(self, device: Hardware) -> None:
        super().__init__({}, device)

    def fork(self, *, tries: int | None = None) -> Context:
        self.forks += 1
        return Worker(self, f"context-{self.forks}")


def seams(folder: Path) -> dict[str, Any]:
    """Return by the name of each thing what takes its place; locks lie in the folder."""

    def hold(device: Hardware, settings: Settings, **options: Any) -> HeldDevice:
        return HeldDevice(
            device,
            settings,
            start=lambda _side, _device: Workers(device),
            watch=lambda _device: Watch(),
            lock_of=lambda each: DeviceLock(each, folder),
            **options,
        )

    def order(_case: Case, into: Path, _asked: Any, _python: str = "") -> list[str]:
        into.mkdir(parents=True, exist_ok=True)
        return [
            sys.executable,
            "-IS",
            str(Path(__file__).with_name("profiled.py")),
            str(into),
        ]

    return {
        "bench_lib.backends.detect": lambda **_: DEVICES,
        "bench_lib.environment.fingerprint.collect": lambda **_: make_environment(),
        "bench_lib.launch.catalogue.network_sizes": _sizes,
        "bench_lib.plugin.session.network_sizes": _sizes,
        "bench_lib.engine.engine.HeldDevice": hold,
        "bench_lib.engine.processes.share": nobody_shares,
        "bench_lib.engine.device.Ranks": ranks_that(lambda case, **_: measured(case)),
        "bench_lib.engine.telemetry.look_once": lambda _device: ({"source": "amdsmi"}, None),
        "bench_lib.environment.readiness.checks": lambda **_: [],
        "bench_lib.cli.machine._worker_versions": lambda *_: ({"torch": "2.9.0"}, None),
        "bench_lib.launch.profiled.order": order,
    }


def _sizes() -> dict[str, int]:
    return dict.fromkeys(("resnet18", "resnet50"), 224)


def take_the_place_of(replace: Callable[[str, Any], None], folder: Path) -> None:
    """Put everything in its place with ``replace``, which takes a name and a value."""
    for name, value in seams(folder).items():
        replace(name, value)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Be this machine for as long as a pytest session lasts that runs apart."""
    if folder := os.environ.get("BENCH_LIB_STANDIN"):
        take_the_place_of(pytest.MonkeyPatch().setattr, Path(folder))
