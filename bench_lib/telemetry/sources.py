"""Looking at one device: NVML, the kernel's files of an AMD GPU, or those of the CPU."""

from __future__ import annotations

import importlib
import os
import re
import statistics
import struct
from pathlib import Path
from typing import Any, Protocol

from bench_lib.model import Hardware


class Look(Protocol):
    """One look at the device: the fields of a sample, as JSON will carry them."""

    def __call__(self, *, with_pids: bool) -> dict[str, Any]:
        """Look now, and for processes as well if so asked."""


def look_at(device: Hardware, root: Path = Path("/")) -> Look:
    """Prepare to look at `device`; raises what NVML raises where there is no way."""
    if device.vendor == "nvidia":
        return nvml_look(device, importlib.import_module("pynvml"))
    if device.vendor == "amd":
        return amdgpu_look(device, root)
    return cpu_look(root)


NVML_REASONS = {
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


def nvml_look(device: Hardware, nvml: Any) -> Look:
    """Look through NVML, figure by figure since not every GPU has every one."""
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

    def look(*, with_pids: bool) -> dict[str, Any]:
        power_mw = ask("nvmlDeviceGetPowerUsage")
        rates = ask("nvmlDeviceGetUtilizationRates")
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # the name before driver 535
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        seen: dict[str, Any] = {
            "source": "nvml",
            "clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "power_w": power_mw / 1000 if power_mw is not None else None,
            "temperature_c": ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            "utilization": rates.gpu / 100 if rates is not None else None,
            "throttle": [name for bit, name in NVML_REASONS.items() if (reasons or 0) & bit],
        }
        if with_pids:
            seen["pids"] = [p.pid for p in ask("nvmlDeviceGetComputeRunningProcesses") or ()]
        return seen

    return look


def amdgpu_look(device: Hardware, root: Path) -> Look:
    """Look at an AMD card's files in sysfs; a partition sees its whole card's figures.

    Processes are KFD's, which counts each one's memory on each device.
    """
    slot, _, function = (device.bdf or "").rpartition(".")
    bus = root / "sys/bus/pci/devices"
    pci = bus / f"{slot}.{function}" if (bus / f"{slot}.{function}").exists() else bus / f"{slot}.0"
    hwmon = next(iter(sorted(pci.glob("hwmon/hwmon*"))), pci / "hwmon")
    labels = {_text(path): path for path in sorted(hwmon.glob("temp*_label"))}
    # An MI300 has no edge sensor; where both are, the hottest spot is what throttles.
    label = next((labels[n] for n in ("junction", "hotspot", "edge") if n in labels), None)
    sensor = label.with_name(label.name.replace("label", "input")) if label else None
    processes, kfd_id = root / "sys/class/kfd/kfd/proc", _kfd_id(root, device.bdf or "")
    throttle = ThrottleMeter()

    def look(*, with_pids: bool) -> dict[str, Any]:
        clock_hz = _number(hwmon / "freq1_input")
        power_uw = _number(hwmon / "power1_average") or _number(hwmon / "power1_input")
        heat_mc = _number(sensor) if sensor else None
        busy = _number(pci / "gpu_busy_percent")
        seen: dict[str, Any] = {
            "source": "amdgpu",
            "clock_mhz": clock_hz / 1e6 if clock_hz is not None else None,
            # The second die of an MI250X has no sensor of its own and says 0.
            "power_w": power_uw / 1e6 if power_uw else None,
            "temperature_c": heat_mc / 1000 if heat_mc is not None else None,
            "utilization": busy / 100 if busy is not None else None,
            "throttle": throttle.reasons(_bytes(pci / "gpu_metrics")),
        }
        if with_pids and kfd_id is not None:
            used = [
                file.parent.name for file in processes.glob(f"*/vram_{kfd_id}") if _number(file)
            ]
            seen["pids"] = [int(pid) for pid in used if pid.isdecimal()]
        return seen

    return look


_COUNTERS = ("prochot", "power cap", "thermal", "thermal, regulator", "thermal, memory")
_COUNTERS_AT = {6: 36, 7: 44, 8: 44}
"""Offset in bytes of the five counters, by the table's revision."""
_FLAGS = ("power cap", "current limit", "thermal")
_FLAGS_AT = 112


class ThrottleMeter:
    """Why an AMD GPU slowed down since the last look, from its ``gpu_metrics`` file.

    Layouts from the kernel's kgd_pp_interface.h, told apart by the header.  Since 1.6
    (MI300) five counters grow while a reason holds; 1.3 (MI200) has a word of flags with
    sixteen bits each for power, current and temperature (amdgpu_smu.h).  Others do not say.
    """

    def __init__(self) -> None:
        """Start without a last look, so that the first one knows no counter's growth."""
        self._last: tuple[int, ...] | None = None

    def reasons(self, table: bytes) -> list[str]:
        """Find the reasons in one reading of the file; none where it is torn or unknown."""
        if len(table) < 4:
            return []
        size, layout, revision = struct.unpack_from("<HBB", table)
        if layout != 1 or len(table) < size:
            return []
        if revision == 3 and size >= _FLAGS_AT + 8:
            (flags,) = struct.unpack_from("<Q", table, _FLAGS_AT)
            if flags == 2**64 - 1:  # not supported
                return []
            return [name for n, name in enumerate(_FLAGS) if flags >> 16 * n & 0xFFFF]
        at = _COUNTERS_AT.get(revision)
        if at is None or size < at + 20:
            return []
        last, self._last = self._last, struct.unpack_from("<5I", table, at)
        grown = zip(_COUNTERS, self._last, last or self._last, strict=True)
        return [name for name, now, before in grown if now != before]


def cpu_look(root: Path) -> Look:
    """Look at the CPUs that this process may use: how busy since last, and how fast."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    usable = sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
    # Every reading of a frequency interrupts that CPU; a few tell enough.
    cpus = root / "sys/devices/system/cpu"
    clocks = [cpus / f"cpu{n}/cpufreq/scaling_cur_freq" for n in usable[:8]]
    names = {f"cpu{n}" for n in usable}
    last: list[int] = [0, 0]

    def look(*, with_pids: bool) -> dict[str, Any]:  # noqa: ARG001 - a CPU has all processes
        idle = total = 0
        for line in (_text(root / "proc/stat") or "").splitlines():
            name, *ticks = line.split() or [""]
            if name in names and len(ticks) >= 5 and all(tick.isdecimal() for tick in ticks):
                # user nice system idle iowait irq softirq steal; guests are in user already
                total += sum(map(int, ticks[:8]))
                idle += int(ticks[3]) + int(ticks[4])
        passed, rested = total - last[1], idle - last[0]
        load = 1 - rested / passed if last[1] and passed > 0 else None
        last[:] = idle, total
        khz = [frequency for path in clocks if (frequency := _number(path))]
        return {
            "source": "proc",
            "utilization": min(max(load, 0.0), 1.0) if load is not None else None,
            "clock_mhz": statistics.fmean(khz) / 1000 if khz else None,
        }

    return look


def _kfd_id(root: Path, bdf: str) -> int | None:
    """Find KFD's number of the device at `bdf`, whose function is its partition."""
    for node in (root / "sys/class/kfd/kfd/topology/nodes").glob("*"):
        lines = (_text(node / "properties") or "").splitlines()
        values = dict(line.split() for line in lines if re.fullmatch(r"\w+ \d+", line))
        domain, location = int(values.get("domain", 0)), int(values.get("location_id", 0))
        slot = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"
        if location and f"{slot}.{location >> 28 or location & 7}" == bdf:
            return _number(node / "gpu_id")
    return None


def _bytes(path: Path) -> bytes:
    """Read a file; empty where unreadable."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _text(path: Path) -> str | None:
    """Read a file without surrounding space; None where unreadable or empty."""
    return _bytes(path).decode("utf-8", "replace").strip() or None


def _number(path: Path) -> int | None:
    """Read a file that holds one decimal number; None for ``N/A`` and the like."""
    text = _text(path) or ""
    return int(text) if text.isdecimal() else None
