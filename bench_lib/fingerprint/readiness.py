"""Whether this machine is fit to measure, one question at a time, each with its remedy."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_lib.fingerprint.environment import driver, rocm, text
from bench_lib.model import Hardware

DISK_NEEDED_BYTES = 5 * 2**30
"""What compilers' caches, traces and checkpoints of a nightly run may fill."""


@dataclass(frozen=True)
class Check:
    """One line of ``bench-lib env``."""

    name: str
    ok: bool | None
    """None where it could not be found out or does not apply."""
    detail: str
    remedy: str = ""
    """What to do; empty unless `ok` is False."""


def _good(name: str, detail: str) -> Check:
    return Check(name, ok=True, detail=detail)


def _bad(name: str, detail: str, remedy: str) -> Check:
    return Check(name, ok=False, detail=detail, remedy=remedy)


def _unknown(name: str, detail: str) -> Check:
    return Check(name, ok=None, detail=detail)


def checks(
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
    devices: Sequence[Hardware] = (),
) -> list[Check]:
    """Look for what keeps a machine from measuring, or from measuring well.

    `devices` is what `bench_lib.hardware.detect` found here.  Which vendor's checks apply
    is decided by the kernel's drivers as well, so that a GPU which is there and cannot be
    used is said so.
    """
    vendors = {device.vendor for device in devices} - {"cpu"} or _vendors(root)
    answers = [_gpus(vendors, devices)]
    if "amd" in vendors:
        answers += [_kfd(root), _groups(root), _amd_driver(root, environ), _amd_processes(root)]
    if "nvidia" in vendors:
        answers.append(_nvidia_driver(root))
    answers += [
        _torch(vendors, rocm(root, environ)),
        _torchvision(),
        _compiler(environ),
        _disk(environ),
        _governor(root),
        _numa(root),
    ]
    return answers


# --- devices -----------------------------------------------------------------------------


def _vendors(root: Path) -> set[str]:
    """Say whose GPUs the kernel has drivers for."""
    amd = (root / "sys/module/amdgpu").is_dir() and (root / "sys/class/kfd/kfd/topology").is_dir()
    nvidia = (root / "proc/driver/nvidia").exists() or any(root.glob("dev/nvidia[0-9]*"))
    return {name for name, present in (("amd", amd), ("nvidia", nvidia)) if present}


def _gpus(vendors: set[str], devices: Sequence[Hardware]) -> Check:
    gpus = [device for device in devices if device.vendor != "cpu"]
    listed = ", ".join(f"{device.index}: {device.key}" for device in gpus)
    if gpus:
        return _good("visible devices", listed)
    if not vendors:
        return _unknown("visible devices", "no GPU in this machine; the CPU is measured")
    variables = "CUDA_VISIBLE_DEVICES"
    if "amd" in vendors:
        variables = "ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES"
    return _bad(
        "visible devices",
        f"a driver is loaded ({', '.join(sorted(vendors))}), but no GPU is visible",
        f"look at {variables}; in a container, grant it the devices",
    )


def _kfd(root: Path) -> Check:
    kfd = root / "dev/kfd"
    if os.access(kfd, os.R_OK | os.W_OK):
        return _good("/dev/kfd", "can be opened")
    if kfd.exists():
        remedy = "add the user to the group that owns it: sudo usermod -aG render,video $USER"
        return _bad("/dev/kfd", "may not be opened by this user", remedy)
    remedy = "start the container with --device=/dev/kfd --device=/dev/dri"
    return _bad("/dev/kfd", "is not there", remedy)


def _groups(root: Path) -> Check:
    """Ask for membership in video and render, where the system has these groups."""
    if os.geteuid() == 0:
        return _good("groups video and render", "root needs none")
    rows = (line.split(":") for line in (text(root / "etc/group") or "").splitlines())
    numbers = {row[0]: int(row[2]) for row in rows if len(row) > 2 and row[2].isdecimal()}
    mine = {*os.getgroups(), os.getegid()}
    missing = [g for g in ("video", "render") if g in numbers and numbers[g] not in mine]
    if not missing:
        return _good("groups video and render", "member of those that exist")
    detail = f"not a member of {' and '.join(missing)}"
    if os.access(root / "dev/kfd", os.R_OK | os.W_OK):
        return _good("groups video and render", f"{detail}, but access is granted otherwise")
    remedy = f"sudo usermod -aG {','.join(missing)} $USER, then log in again"
    return _bad("groups video and render", detail, remedy)


def _amd_driver(root: Path, environ: Mapping[str, str]) -> Check:
    version, installed = driver(root), rocm(root, environ)
    detail = f"{version or 'driver unknown'}, ROCm {installed or 'not installed system-wide'}"
    return _good("AMD driver", detail) if version else _unknown("AMD driver", detail)


def _amd_processes(root: Path) -> Check:
    """List processes with AMD GPUs open, as KFD does; the suite has none open itself."""
    try:
        processes = sorted(p.name for p in (root / "sys/class/kfd/kfd/proc").iterdir())
    except OSError:
        return _unknown("other processes on the GPUs", "not known")
    if not processes:
        return _good("other processes on the GPUs", "none")
    detail = f"{len(processes)}: {', '.join(processes[:8])}"
    remedy = "wait for them or end them; measurements beside them are discarded"
    return _bad("other processes on the GPUs", detail, remedy)


def _nvidia_driver(root: Path) -> Check:
    version = driver(root)
    if version and "nvidia" in version:
        return _good("NVIDIA driver", version)
    remedy = "see that nvidia-smi answers; in a container, use --gpus all"
    return _bad("NVIDIA driver", "there are devices, but no driver's version", remedy)


# --- software ----------------------------------------------------------------------------


def _torch(vendors: set[str], rocm_version: str | None) -> Check:
    """Ask whether the installed torch was built for this machine's GPUs; it is not imported."""
    series = re.match(r"\d+\.\d+", rocm_version or "")
    remedy = "pip install --force-reinstall torch torchvision"
    if "amd" in vendors:
        series_of_rocm = f"rocm{series[0] if series else '<version>'}"
        remedy += (
            f" from PyTorch's index for {series_of_rocm}, which Get Started on pytorch.org names"
        )
    try:
        installed = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return _bad("torch", "not installed", remedy)
    build = _build(installed)
    detail = f"{installed.version}, built for {build or 'what is not known'}"
    # A build for any GPU measures the CPU as well.
    if build is None:
        return _unknown("torch", detail)
    if not vendors or build in vendors:
        return _good("torch", detail)
    detail += f", but the GPU is {' and '.join(sorted(vendors))}'s"
    return _bad("torch", detail, remedy)


def _build(torch: importlib.metadata.Distribution) -> str | None:
    """Read ``amd``, ``nvidia`` or ``cpu`` from ``torch/version.py`` without running it."""
    source = text(Path(str(torch.locate_file("torch/version.py")))) or ""
    values = dict(
        re.findall(r"^(cuda|hip)\b[^=\n]*= *(?:None|['\"](.+?)['\"])", source, re.MULTILINE)
    )
    if not values:
        return None
    return "amd" if values.get("hip") else "nvidia" if values.get("cuda") else "cpu"


def _torchvision() -> Check:
    """Ask whether torchvision is there and of the same build as torch."""
    remedy = "install it from the index that torch came from, with --no-deps if torch must stay"
    try:
        version = importlib.metadata.version("torchvision")
    except importlib.metadata.PackageNotFoundError:
        return _bad("torchvision", "not installed", remedy)
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return _unknown("torchvision", f"{version}, without torch")
    suffix, torch_suffix = (v.partition("+")[2] for v in (version, torch))
    if suffix and torch_suffix and suffix != torch_suffix and "git" not in suffix + torch_suffix:
        return _bad("torchvision", f"{version} does not go with torch {torch}", remedy)
    return _good("torchvision", version)


def _compiler(environ: Mapping[str, str]) -> Check:
    """Find the C++ compiler that torch.compile runs for code on the CPU."""
    names = [environ["CXX"]] if environ.get("CXX") else ["g++", "clang++", "c++"]
    for name in names:
        found = shutil.which(name.split()[0], path=environ.get("PATH"))
        if found:
            return _good("C++ compiler", found)
    detail = f"none of {', '.join(names)}: compiled cases on the CPU will be errors"
    return _bad("C++ compiler", detail, "install g++, or set CXX to a compiler")


# --- the machine -------------------------------------------------------------------------


def _disk(environ: Mapping[str, str]) -> Check:
    folder = environ.get("TMPDIR") or tempfile.gettempdir()
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return _bad("temporary folder", str(error), "set TMPDIR to a folder that exists")
    detail = f"{free / 2**30:.1f} GiB free in {folder}"
    if free >= DISK_NEEDED_BYTES:
        return _good("temporary folder", detail)
    needed = DISK_NEEDED_BYTES / 2**30
    return _bad("temporary folder", detail, f"free {needed:g} GiB, or set TMPDIR elsewhere")


def _governor(root: Path) -> Check:
    governor = text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor is None:
        return _unknown("CPU governor", "not known")
    if governor == "performance":
        return _good("CPU governor", governor)
    remedy = "sudo cpupower frequency-set -g performance"
    return _bad("CPU governor", f"{governor}: host-bound cases will vary", remedy)


def _numa(root: Path) -> Check:
    """Ask for automatic NUMA balancing, which moves pages while kernels are launched."""
    value = text(root / "proc/sys/kernel/numa_balancing")
    nodes = sum(1 for _ in root.glob("sys/devices/system/node/node[0-9]*"))
    if value is None:
        return _unknown("NUMA balancing", "not known")
    detail = f"{'off' if value == '0' else 'on'}, {nodes or 'unknown'} node{'s' * (nodes != 1)}"
    if value == "0" or nodes == 1:
        return _good("NUMA balancing", detail)
    return _bad("NUMA balancing", detail, "sudo sysctl kernel.numa_balancing=0")
