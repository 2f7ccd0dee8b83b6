"""Workers that answer at once, in the place of torch, for sessions of pytest on a laid-out machine.

As a plugin, ``-p standins.rocm.answering``.  What finds, watches and describes the devices is the
real thing: the devices are at work while a case is measured.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from pathlib import Path
from typing import Any

import pytest
from builders import make_measurement

from bench_lib.engine import engine
from bench_lib.engine.device import HeldDevice
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.settings import Settings
from bench_lib.model import Case, Hardware, Measurement
from standins.rocm import kernel
from standins.rocm.present import Present
from standins.worker import Context, Contexts, nobody_shares

MACHINE = Present(Path(os.environ["BENCH_LIB_ROOT"]).parent)
STEPS, STEP_S = 10, 0.01


class Worker(Context):
    """A context whose steps all take the same time, in which the device works."""

    def measure(self, case: Case, *_: object) -> Measurement:
        """Have the device work for as long as the steps take."""
        began = time.monotonic()
        (device,) = (d for d in MACHINE.devices if self.device.uuid == f"GPU-{d['hip_uuid']}")
        MACHINE.work_until(device, began + STEPS * STEP_S)
        kernel.write(MACHINE, device["card"])
        time.sleep(STEPS * STEP_S)
        return make_measurement(
            case_id=case.id,
            context_id=self.name,
            device_uuid=self.device.uuid,
            iteration_s=[STEP_S] * STEPS,
            window_s=(began, time.monotonic()),
        )


class Workers(Contexts):
    """What forks such contexts, of the machine's torch."""

    def __init__(self, device: Hardware) -> None:
        """Have the versions that a worker tells."""
        super().__init__({}, device)
        found = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
        self.versions |= {"torch": found["torch"], "hip": MACHINE.hip}
        self.versions["rocm"] = found.get("rocm-sdk-core")

    def context(self, *, draws: int | None = None) -> Context:
        """Fork."""
        self.forks += 1
        return Worker(self, f"context-{self.forks}")


def hold(device: Hardware, settings: Settings, **options: Any) -> HeldDevice:
    """Hold a device with such workers, watched as ever; locks are the machine's own."""
    return HeldDevice(
        device,
        settings,
        start=lambda _side, _device: Workers(device),
        lock_of=lambda each: DeviceLock(each, MACHINE.state),
        **options,
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Be these workers for as long as the session lasts."""
    replace = pytest.MonkeyPatch().setattr
    replace(engine, "HeldDevice", hold)
    replace(engine.processes, "share", nobody_shares)
