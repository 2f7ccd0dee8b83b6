"""NVIDIA GPUs as NVML reports them, and the variable that hides and renumbers them.

NVML runs in a child process because it can hang in the driver.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_lib.backends import catalogue, tool
from bench_lib.backends.backend import named, word_for
from bench_lib.backends.looks import Source, described, kin
from bench_lib.backends.sysfs import warn_once
from bench_lib.backends.tool import ToolError
from bench_lib.model import Hardware

TIMEOUT_S = 20.0
"""Time limit of the child; a healthy NVML answers in less than a second."""

PEAKS = Path(__file__).with_name("peaks.toml")

VARIABLE = "CUDA_VISIBLE_DEVICES"

_SM_CLOCK = 1
"""NVML_CLOCK_SM (nvml.h)."""

_CUDA_CORES_PER_SM = {"sm_60": 64, "sm_70": 64, "sm_75": 64, "sm_80": 64}
"""CUDA programming guide, compute capabilities; all others since 5.0 have 128."""


def is_present(root: Path) -> bool:
    """Whether the driver is loaded."""
    return (root / "proc/driver/nvidia").exists() or any(root.glob("dev/nvidia[0-9]*"))


def devices(root: Path) -> list[Hardware]:
    """List all of NVML's GPUs in PCI order, also hidden ones; empty without a driver."""
    if not is_present(root):
        return []
    try:
        return [_device(entry) for entry in _ask(TIMEOUT_S)]
    except (ToolError, ValueError, TypeError, KeyError) as error:
        warn_once(f"no NVIDIA GPU is used: {error or type(error).__name__}")
        return []


def ask_here() -> None:
    """Query NVML in this process for what `devices` needs, and print it as JSON."""
    print(json.dumps(_answer()))  # noqa: T201 - the answer


def _answer() -> dict[str, Any]:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except Exception as error:  # noqa: BLE001 - any error is the answer
        return {"error": f"NVML: {error}"}

    def ask(function: str, *arguments: object) -> Any:
        """Return a value, or None if this GPU, driver or pynvml does not have it."""
        try:
            answer = getattr(nvml, function)(*arguments)
        except (nvml.NVMLError, AttributeError):
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    entries = []
    for index in range(count):
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:  # fallen off the bus, or not granted to this container
            continue
        pci = ask("nvmlDeviceGetPciInfo", handle)
        bus_id = getattr(pci, "busId", None)
        capability = ask("nvmlDeviceGetCudaComputeCapability", handle)
        limit_mw = ask("nvmlDeviceGetEnforcedPowerLimit", handle)
        entries.append(
            {
                "name": ask("nvmlDeviceGetName", handle),
                "uuid": ask("nvmlDeviceGetUUID", handle),
                "bdf": bus_id.decode() if isinstance(bus_id, bytes) else bus_id,
                "pci_id": getattr(pci, "pciDeviceId", None),
                "arch": "sm_{}{}".format(*capability) if capability else None,
                "cuda_cores": ask("nvmlDeviceGetNumGpuCores", handle),
                "memory_bytes": getattr(ask("nvmlDeviceGetMemoryInfo", handle), "total", None),
                "power_cap_w": limit_mw / 1000 if limit_mw else None,
                "sm_clock_mhz": ask("nvmlDeviceGetApplicationsClock", handle, _SM_CLOCK),
                "default_sm_clock_mhz": ask(
                    "nvmlDeviceGetDefaultApplicationsClock", handle, _SM_CLOCK
                ),
                "mig": bool((ask("nvmlDeviceGetMigMode", handle) or [0])[0]),
            }
        )
    return {"devices": entries}


def _device(entry: Mapping[str, Any]) -> Hardware:
    bdf = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+:[0-9a-f.]+)", str(entry["bdf"] or "").lower())
    cores, arch, mig = entry["cuda_cores"], entry["arch"], entry["mig"]
    return catalogue.identify(
        Hardware(
            vendor="nvidia",
            name=str(entry["name"] or ""),
            key="",
            arch=arch,
            # NVML's id has the device in its upper half and the vendor in its lower half.
            pci_device_id=f"{entry['pci_id'] >> 16:04x}" if entry["pci_id"] else None,
            bdf=f"{int(bdf[1], 16):04x}:{bdf[2]}" if bdf else None,
            uuid=entry["uuid"],
            # CUDA shows one instance of a split GPU, and these values are the whole GPU's.
            compute_units=cores // _CUDA_CORES_PER_SM.get(arch, 128) if cores and not mig else None,
            memory_bytes=entry["memory_bytes"] if not mig else None,
            compute_partition="MIG" if mig else None,
            power_cap_w=entry["power_cap_w"],
            clock_policy=_clock_policy(
                entry.get("sm_clock_mhz"), entry.get("default_sm_clock_mhz")
            ),
        ),
        catalogue.read(PEAKS),
    )


def _clock_policy(clock_mhz: int | None, default_mhz: int | None) -> str | None:
    """Describe the application clocks; NVML does not report other clock locks."""
    if not clock_mhz or not default_mhz:
        return None
    return "default" if clock_mhz == default_mhz else f"sm {clock_mhz} MHz"


def _ask(timeout_s: float) -> list[Any]:
    """Query NVML in a child process; raises ToolError with the cause if there is no answer."""
    command = [sys.executable, "-c", f"from {__name__} import {ask_here.__name__} as ask; ask()"]
    output = tool.ask(command, timeout_s=timeout_s, environ=tool.finding_us(), what="NVML")
    answer = tool.parse(output, "the process that queries NVML")
    if isinstance(answer, dict) and isinstance(answer.get("devices"), list):
        return list(answer["devices"])
    cause = answer.get("error") if isinstance(answer, dict) else None
    raise ToolError(cause or f"the process that queries NVML answered {output.strip()[:200]!r}")


# --- visibility --------------------------------------------------------------------------


def left(gpus: Sequence[Hardware], environ: Mapping[str, str]) -> list[Hardware]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order.

    The rules are torch.cuda's: an index ends at its last digit, an item that matches no device ends
    the list, and a repeated device empties it.
    """
    visible, value = list(gpus), environ.get(VARIABLE)
    if value is not None:
        items = value.split(",")
        if not value.startswith("GPU-"):
            indices = (re.match(r"\s*\+?(\d+)", item) for item in items)
            items = [index[1] if index else "" for index in indices]
            if environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({g.key for g in gpus}) > 1:
                warn_once(
                    "this machine has different NVIDIA GPUs and CUDA numbers them by speed; set "
                    "CUDA_DEVICE_ORDER=PCI_BUS_ID so that CUDA_VISIBLE_DEVICES counts as NVML does"
                )
        visible = named(items, gpus)
        if any(device in visible[:n] for n, device in enumerate(visible)):
            visible = []
    return [replace(device, index=index) for index, device in enumerate(visible)]


def only(device: Hardware, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variable under which a worker sees only `device`.

    It has the uuid if there is one, because an index depends on CUDA_DEVICE_ORDER.
    """
    return {VARIABLE: device.uuid or word_for(device, VARIABLE, environ.get(VARIABLE))}


# --- telemetry ---------------------------------------------------------------------------

REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal, by software",
    0x40: "thermal, by hardware",
    0x80: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
"""Clocks-event reasons (nvml.h) that slow a device, without idle and application clocks."""


def source(device: Hardware, nvml: Any, ancestor: int = 0) -> Source:
    """Return a source that reads NVML; values that a GPU does not have are None.

    Raises NVML's exceptions if it does not work or does not know the device.
    """
    nvml.nvmlInit()
    if device.uuid is not None:
        handle = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
    else:
        handle = nvml.nvmlDeviceGetHandleByPciBusId(device.bdf or "")

    def ask(function: str, *arguments: object) -> Any:
        try:
            return getattr(nvml, function)(handle, *arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    asked_us = 0

    def look(*, with_pids: bool) -> dict[str, Any]:
        power_mw = ask("nvmlDeviceGetPowerUsage")
        rates = ask("nvmlDeviceGetUtilizationRates")
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        sample: dict[str, Any] = {
            "clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "power_w": power_mw / 1000 if power_mw is not None else None,
            "temperature_c": ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            "utilization": rates.gpu / 100 if rates is not None else None,
            "throttle": [name for bit, name in REASONS.items() if (reasons or 0) & bit],
        }
        if with_pids:
            sample |= counters() | processes()
        return sample

    def counters() -> dict[str, Any]:
        # Heat is the only reason with a counter in NVML that makes a measurement invalid.  On an
        # H200 the call took 0.9 ms, sixty times as long as reading a clock.
        time = ask("nvmlDeviceGetViolationStatus", nvml.NVML_PERF_POLICY_THERMAL)
        if time is None:
            return {}
        # nvmlViolationTime_t: violationTime in nanoseconds, referenceTime in microseconds
        return {"counters": {"thermal": time.violationTime}, "ticks": time.referenceTime * 1000}

    def processes() -> dict[str, Any]:
        running = ask("nvmlDeviceGetComputeRunningProcesses")
        if running is None:
            return {}
        memory = {process.pid: getattr(process, "usedGpuMemory", None) for process in running}
        return {
            "pids": list(memory),
            "names": {pid: described(pid, memory=used) for pid, used in memory.items()},
            # It takes 2 ms, and is not needed if all processes are ours.
            "busy": busy() if len(kin(memory, ancestor)) < len(memory) else None,
        }

    def busy() -> list[int] | None:
        """Return the pids that have used the multiprocessors since the last call."""
        nonlocal asked_us
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, asked_us)
        except nvml.NVMLError as error:
            # NVML_ERROR_NOT_FOUND (nvml.h): no process has run anything.
            return [] if getattr(error, "value", None) == 6 else None
        except AttributeError:
            return None
        asked_us = max((sample.timeStamp for sample in samples), default=asked_us)
        return sorted({sample.pid for sample in samples if sample.smUtil})

    return Source("nvml", look)
