"""A GPU whose ROCm changes: what ``installed`` in a folder says, or what a side of ab brings.

In this process by ``take_the_place_of``; in pytest sessions that a command starts by
``-p upgraded_machine`` and BENCH_LIB_UPGRADED, the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from builders import make_environment, make_measurement
from scripted import Context, Contexts, Watch, gpus

from bench_lib.engine.device import HeldDevice
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.settings import Settings, Side
from bench_lib.launch import inquiry
from bench_lib.model import Case, Environment, Hardware, Measurement

OLD, NEW = "6.4.3", "7.2.4"
SLOWER = "resnet50-b64-fp16-eager-infer"
FASTER = "resnet50-b64-fp16-eager-train"
FACTORS = {SLOWER: 1.05, FASTER: 0.95}
"""What the new version makes of a step of 10 ms."""
DEVICE = gpus(1)[0]


def measured(case: Case, rocm: str, number: int) -> Measurement:
    """Return twenty steps of a case under a ROCm, in the context of a number."""
    factor = FACTORS.get(case.id, 1.0) if rocm == NEW else 1.0
    step_s = 0.010 * factor + float(case.params.get("delay_units", 0)) * 2e-9
    step_s *= 1 + number % 5 / 5000
    times = [step_s * (1 + i % 3 / 1000) for i in range(20)]
    return make_measurement(case_id=case.id, iteration_s=times, device_uuid=DEVICE.uuid)


def environment(rocm: str, variables: Mapping[str, str] | None = None) -> Environment:
    """Return what a run under a ROCm says of itself."""
    find = {name: value for name, value in (variables or {}).items() if name.startswith("MIOPEN_")}
    return make_environment(rocm=rocm, torch=f"2.10.0+rocm{rocm[:3]}", variables=find)


class Worker(Context):
    """A context of one version of ROCm."""

    def measure(self, case: Case, *_: object) -> Measurement:
        """Take no time."""
        assert isinstance(self.contexts, Workers)
        return measured(case, self.contexts.rocm, self.contexts.forks)


class Workers(Contexts):
    """What forks such contexts."""

    def __init__(self, device: Hardware, rocm: str) -> None:
        """Be of one device and one version."""
        super().__init__({}, device)
        self.rocm = rocm
        self.versions = {"torch": environment(rocm).torch, "python": "3.11.7"}

    def context(self, *, draws: int | None = None) -> Context:
        """Fork."""
        self.forks += 1
        return Worker(self, f"context-{self.forks}")


def take_the_place_of(
    replace: Callable[[str, Any], None], folder: Path, sides: list[Side] | None = None
) -> None:
    """Put everything in its place with ``replace``; the sides of comparisons are noted."""

    def installed() -> str:
        return (folder / "installed").read_text().strip()

    def brought(side: Side) -> str:
        told = " ".join((*side.command_prefix, side.python))
        return NEW if "IMAGE_B" in told or "rocm7" in told else OLD

    def hold(device: Hardware, settings: Settings, **options: Any) -> HeldDevice:
        is_paired = len(settings.sides) > 1
        if sides is not None and is_paired:
            sides.extend(settings.sides.values())
        return HeldDevice(
            device,
            settings,
            start=lambda side, _: Workers(device, brought(side) if is_paired else installed()),
            watch=lambda _device: Watch(),
            lock_of=lambda each: DeviceLock(each, folder),
            **options,
        )

    def ask(python: str, *_: Any, **__: Any) -> inquiry.Installed:
        rocm = NEW if "rocm7" in python else OLD
        packages = [f"torch {environment(rocm).torch}"]
        return inquiry.Installed(["3.11.7", "/usr"], torch=True, installed=packages, requires={})

    def sizes() -> dict[str, int]:
        return {"resnet50": 224}

    for name, value in {
        "bench_lib.backends.detect": lambda *_: [DEVICE],
        "bench_lib.environment.fingerprint.collect": lambda **told: environment(
            installed(), told.get("environ")
        ),
        "bench_lib.environment.readiness.checks": lambda **_: [],
        "bench_lib.engine.telemetry.look_once": lambda _device: ({"source": "amdsmi"}, None),
        "bench_lib.cli.machine._worker_versions": lambda *_: ({"torch": "2.10.0"}, None),
        "bench_lib.launch.catalogue.network_sizes": sizes,
        "bench_lib.plugin.session.network_sizes": sizes,
        "bench_lib.engine.engine.HeldDevice": hold,
        "bench_lib.launch.inquiry.ask": ask,
    }.items():
        replace(name, value)


def pytest_configure(config: pytest.Config) -> None:
    """Be this machine for as long as a pytest session lasts that runs apart."""
    if folder := os.environ.get("BENCH_LIB_UPGRADED"):
        take_the_place_of(pytest.MonkeyPatch().setattr, Path(folder))
