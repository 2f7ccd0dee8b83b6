"""Looking at an NVIDIA GPU through NVML."""

from __future__ import annotations

from typing import Any

from bench_lib.backends.looks import LOW_UTILIZATION, Source, described, kin
from bench_lib.model import Hardware

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
"""Clocks-event reasons (nvml.h) that slow a device; idle and application clocks do not count."""

POLICIES = {
    "NVML_PERF_POLICY_POWER": "power cap",
    "NVML_PERF_POLICY_THERMAL": "thermal",
    "NVML_PERF_POLICY_SYNC_BOOST": "sync boost",
    "NVML_PERF_POLICY_BOARD_LIMIT": "board limit",
    "NVML_PERF_POLICY_LOW_UTILIZATION": LOW_UTILIZATION,
    "NVML_PERF_POLICY_RELIABILITY": "reliability",
}
"""The reasons whose time NVML counts; a driver may refuse each."""

NOT_FOUND = 6
"""NVML_ERROR_NOT_FOUND (nvml.h): no process has run anything."""


def source(device: Hardware, nvml: Any, ancestor: int = 0) -> Source:
    """Look through NVML, figure by figure since not every GPU has every one.

    Raises what NVML raises where it or the device is not there.
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

    def violation(policy: str) -> Any:
        number = getattr(nvml, policy, None)
        return None if number is None else ask("nvmlDeviceGetViolationStatus", number)

    counted = {policy: name for policy, name in POLICIES.items() if violation(policy) is not None}

    asked_us = 0

    def look(*, with_pids: bool) -> dict[str, Any]:
        power_mw = ask("nvmlDeviceGetPowerUsage")
        rates = ask("nvmlDeviceGetUtilizationRates")
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # the name before driver 535
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        seen: dict[str, Any] = {
            "clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "power_w": power_mw / 1000 if power_mw is not None else None,
            "temperature_c": ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            "utilization": rates.gpu / 100 if rates is not None else None,
            "throttle": [name for bit, name in REASONS.items() if (reasons or 0) & bit],
        }
        if with_pids:
            seen |= counters() | processes()
        return seen

    def counters() -> dict[str, Any]:
        # On an H200 each of these calls took 0.9 ms, sixty times as long as a clock's.
        times = {name: violation(policy) for policy, name in counted.items()}
        told = {name: time for name, time in times.items() if time is not None}
        return {
            "counters": {name: time.violationTime for name, time in told.items()},
            # nvmlViolationTime_t: violationTime in nanoseconds, referenceTime in microseconds
            "ticks": next((time.referenceTime * 1000 for time in told.values()), None),
        }

    def processes() -> dict[str, Any]:
        running = ask("nvmlDeviceGetComputeRunningProcesses")
        if running is None:
            return {}
        memory = {process.pid: getattr(process, "usedGpuMemory", None) for process in running}
        return {
            "pids": list(memory),
            "names": {pid: described(pid, memory=used) for pid, used in memory.items()},
            # It takes 2 ms, and nobody asks where all are ours.
            "busy": busy() if len(kin(memory, ancestor)) < len(memory) else None,
        }

    def busy() -> list[int] | None:
        """Return the processes that have used the multiprocessors since this was last asked."""
        nonlocal asked_us
        try:
            told = nvml.nvmlDeviceGetProcessUtilization(handle, asked_us)
        except nvml.NVMLError as error:
            return [] if getattr(error, "value", None) == NOT_FOUND else None
        except AttributeError:
            return None
        asked_us = max((one.timeStamp for one in told), default=asked_us)
        return sorted({one.pid for one in told if one.smUtil})

    return Source("nvml", look)
