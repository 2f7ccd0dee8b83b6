"""Whether this machine's AMD GPUs can be measured: driver, files, groups, ROCm's tools."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_lib.backends.amd import machine, visible
from bench_lib.backends.amd.rocprof import profilers
from bench_lib.backends.amd.tools import identity
from bench_lib.backends.checks import (
    OTHER_PROCESSES,
    Check,
    good,
    other_processes,
    stops,
    unknown,
)
from bench_lib.backends.sysfs import text
from bench_lib.model import Hardware


def checks(root: Path, environ: Mapping[str, str]) -> list[Check]:
    """Check the driver, the files that it opens, other users, and ROCm's profiler."""
    return [
        _kfd(root),
        _groups(root),
        _render_nodes(root),
        _driver(root, environ),
        _processes(root),
        _profiler(environ),
    ]


def _kfd(root: Path) -> Check:
    kfd = root / "dev/kfd"
    if os.access(kfd, os.R_OK | os.W_OK):
        return good("/dev/kfd", "can be opened")
    if kfd.exists():
        remedy = "add the user to the group that owns it: sudo usermod -aG render,video $USER"
        return stops("/dev/kfd", "may not be opened by this user", remedy)
    remedy = "load the driver: sudo modprobe amdgpu; start a container with --device=/dev/kfd"
    return stops("/dev/kfd", "is not there", remedy)


def _render_nodes(root: Path) -> Check:
    """Ask for the files of /dev/dri, by which the runtime maps the GPUs' memory."""
    name = "/dev/dri/renderD*"
    nodes = sorted(root.glob("dev/dri/renderD*"))
    usable = [node for node in nodes if os.access(node, os.R_OK | os.W_OK)]
    if usable:
        return good(name, f"{len(usable)} of {len(nodes)} can be opened")
    if nodes:
        remedy = "add the user to the group that owns them: sudo usermod -aG render $USER"
        return stops(name, f"none of {len(nodes)} may be opened by this user", remedy)
    return stops(name, "are not there", "start the container with --device=/dev/dri")


def _groups(root: Path) -> Check:
    """Ask for membership in video and render, where the system has these groups."""
    if os.geteuid() == 0:
        return good("groups video and render", "root needs none")
    rows = (line.split(":") for line in (text(root / "etc/group") or "").splitlines())
    numbers = {row[0]: int(row[2]) for row in rows if len(row) > 2 and row[2].isdecimal()}
    mine = {*os.getgroups(), os.getegid()}
    missing = [g for g in ("video", "render") if g in numbers and numbers[g] not in mine]
    if not missing:
        return good("groups video and render", "member of those that exist")
    detail = f"not a member of {' and '.join(missing)}"
    if os.access(root / "dev/kfd", os.R_OK | os.W_OK):
        return good("groups video and render", f"{detail}, but access is granted otherwise")
    remedy = f"sudo usermod -aG {','.join(missing)} $USER, then log in again"
    return stops("groups video and render", detail, remedy)


def _driver(root: Path, environ: Mapping[str, str]) -> Check:
    found = machine.software(root, environ)
    if found.driver is None:
        remedy = "sudo modprobe amdgpu; sudo dmesg | grep amdgpu says why where that fails"
        return stops("AMD driver", "amdgpu is not loaded", remedy)
    return good("AMD driver", f"{found.driver}, ROCm {found.rocm or 'not installed system-wide'}")


def _processes(root: Path) -> Check:
    """List processes with AMD GPUs open, as KFD does; the suite has none open itself."""
    try:
        processes = sorted(p.name for p in (root / "sys/class/kfd/kfd/proc").iterdir())
    except OSError:
        return unknown(OTHER_PROCESSES, "not known")
    return other_processes(processes)


def _profiler(environ: Mapping[str, str]) -> Check:
    """Name ROCm's profiler with the words that its version takes."""
    found = profilers.find(environ)
    if found is None:
        return unknown("profiler", "none of rocprofv3, rocprofv2 and rocprof is on PATH")
    return good("profiler", " ".join(found.command(["APP"], Path("FOLDER"))))


# --- ROCm's tools against the kernel -----------------------------------------------------


def tools_check(devices: Sequence[Hardware], environ: Mapping[str, str]) -> Check:
    """Say where ROCm's tools contradict the devices."""
    found = disagreements(devices, environ)
    remedy = "the kernel is believed, else the first that answered; see that the tools and the "
    remedy += "driver are of one release"
    detail = "; ".join(found) if found else "say nothing else"
    return Check("ROCm's tools", ok=not found, detail=detail, remedy=remedy if found else "")


def disagreements(devices: Sequence[Hardware], environ: Mapping[str, str]) -> list[str]:
    """Say where ROCm's tools contradict the devices that were detected in this environment.

    Asks each tool on PATH, which takes seconds.  Only what a key rests on is compared; a
    tool that does not answer is named with the cause.  Empty where there is no tool.
    """
    said = []
    for told in identity.answers(environ):
        said += told.remarks
        if not told.gpus and told.remarks:
            continue
        gpus = visible.left(told.gpus, environ)
        if len(gpus) != len(devices) and _can_name(told.gpus, environ):
            said.append(f"{told.tool} shows {len(gpus)} AMD GPUs, {len(devices)} can be used")
        matches = identity.counterparts(devices, gpus or told.gpus)
        said += [
            f"device {device.index}, {device.key}: {word} {here}, {there} by {told.tool}"
            for device, match in zip(devices, matches, strict=True)
            if match is not None
            for word, here, there in identity.differences(device, match)
        ]
    return said


def _can_name(gpus: Sequence[Hardware], environ: Mapping[str, str]) -> bool:
    """Whether these descriptions suffice to read the variables that hide GPUs."""
    by_uuid = any("GPU-" in environ.get(name, "").upper() for name in visible.VARIABLES)
    return not by_uuid or all(gpu.uuid for gpu in gpus)
