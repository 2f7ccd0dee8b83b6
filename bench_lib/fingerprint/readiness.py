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

_WHEELS = "https://download.pytorch.org/whl"


@dataclass(frozen=True)
class Check:
    """One line of ``bench-lib env``."""

    name: str
    ok: bool | None
    """None where it could not be found out or does not apply."""
    detail: str
    remedy: str = ""
    """What to do; empty unless `ok` is False."""


def checks(
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
    devices: Sequence[Hardware] = (),
) -> list[Check]:
    """Everything that keeps a machine from measuring, or from measuring well.

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
    """Whose GPUs the kernel has drivers for."""
    amd = (root / "sys/module/amdgpu").is_dir() and (root / "sys/class/kfd/kfd/topology").is_dir()
    nvidia = (root / "proc/driver/nvidia").exists() or any(root.glob("dev/nvidia[0-9]*"))
    return {name for name, present in (("amd", amd), ("nvidia", nvidia)) if present}


def _gpus(vendors: set[str], devices: Sequence[Hardware]) -> Check:
    gpus = [device for device in devices if device.vendor != "cpu"]
    listed = ", ".join(f"{device.index}: {device.key}" for device in gpus)
    if gpus:
        return Check("visible devices", True, listed)
    if not vendors:
        return Check("visible devices", None, "no GPU in this machine; the CPU is measured")
    variables = "CUDA_VISIBLE_DEVICES"
    if "amd" in vendors:
        variables = "ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES"
    return Check(
        "visible devices",
        False,
        f"a driver is loaded ({', '.join(sorted(vendors))}), but no GPU is visible",
        f"look at {variables}; in a container, grant it the devices",
    )


def _kfd(root: Path) -> Check:
    kfd = root / "dev/kfd"
    if os.access(kfd, os.R_OK | os.W_OK):
        return Check("/dev/kfd", True, "can be opened")
    if kfd.exists():
        remedy = "add the user to the group that owns it: sudo usermod -aG render,video $USER"
        return Check("/dev/kfd", False, "may not be opened by this user", remedy)
    remedy = "start the container with --device=/dev/kfd --device=/dev/dri"
    return Check("/dev/kfd", False, "is not there", remedy)


def _groups(root: Path) -> Check:
    """Membership in video and render, where the system has these groups."""
    if os.geteuid() == 0:
        return Check("groups video and render", True, "root needs none")
    rows = (line.split(":") for line in (text(root / "etc/group") or "").splitlines())
    numbers = {row[0]: int(row[2]) for row in rows if len(row) > 2 and row[2].isdecimal()}
    mine = {*os.getgroups(), os.getegid()}
    missing = [g for g in ("video", "render") if g in numbers and numbers[g] not in mine]
    if not missing:
        return Check("groups video and render", True, "member of those that exist")
    detail = f"not a member of {' and '.join(missing)}"
    if os.access(root / "dev/kfd", os.R_OK | os.W_OK):
        return Check("groups video and render", True, f"{detail}, but access is granted otherwise")
    remedy = f"sudo usermod -aG {','.join(missing)} $USER, then log in again"
    return Check("groups video and render", False, detail, remedy)


def _amd_driver(root: Path, environ: Mapping[str, str]) -> Check:
    version, installed = driver(root), rocm(root, environ)
    detail = f"{version or 'driver unknown'}, ROCm {installed or 'not installed system-wide'}"
    return Check("AMD driver", None if version is None else True, detail)


def _amd_processes(root: Path) -> Check:
    """Processes with AMD GPUs open, as KFD counts them; the suite has none open itself."""
    try:
        processes = sorted(p.name for p in (root / "sys/class/kfd/kfd/proc").iterdir())
    except OSError:
        return Check("other processes on the GPUs", None, "not known")
    if not processes:
        return Check("other processes on the GPUs", True, "none")
    detail = f"{len(processes)}: {', '.join(processes[:8])}"
    remedy = "wait for them or end them; measurements beside them are discarded"
    return Check("other processes on the GPUs", False, detail, remedy)


def _nvidia_driver(root: Path) -> Check:
    version = driver(root)
    if version and "nvidia" in version:
        return Check("NVIDIA driver", True, version)
    remedy = "see that nvidia-smi answers; in a container, use --gpus all"
    return Check("NVIDIA driver", False, "there are devices, but no driver's version", remedy)


# --- software ----------------------------------------------------------------------------


def _torch(vendors: set[str], rocm_version: str | None) -> Check:
    """Whether the installed torch was built for this machine's GPUs; it is not imported."""
    series = re.match(r"\d+\.\d+", rocm_version or "")
    wheels = f"{_WHEELS}/rocm{series[0] if series else '<version>'}"
    remedy = "pip install --force-reinstall torch torchvision"
    if "amd" in vendors:
        remedy += f" --index-url {wheels}"
    try:
        installed = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return Check("torch", False, "not installed", remedy)
    build = _build(installed)
    detail = f"{installed.version}, built for {build or 'what is not known'}"
    # A build for any GPU measures the CPU as well.
    if build is None or not vendors or build in vendors:
        return Check("torch", None if build is None else True, detail)
    detail += f", but the GPU is {' and '.join(sorted(vendors))}'s"
    return Check("torch", False, detail, remedy)


def _build(torch: importlib.metadata.Distribution) -> str | None:
    """``amd``, ``nvidia`` or ``cpu``, from ``torch/version.py`` without running it."""
    source = text(Path(str(torch.locate_file("torch/version.py")))) or ""
    values = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *(?:None|['\"](.+?)['\"])", source, re.M))
    if not values:
        return None
    return "amd" if values.get("hip") else "nvidia" if values.get("cuda") else "cpu"


def _torchvision() -> Check:
    """Whether torchvision is there and of the same build as torch."""
    remedy = "install it from the index that torch came from, with --no-deps if torch must stay"
    try:
        version = importlib.metadata.version("torchvision")
    except importlib.metadata.PackageNotFoundError:
        return Check("torchvision", False, "not installed", remedy)
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Check("torchvision", None, f"{version}, without torch")
    suffix, torch_suffix = (v.partition("+")[2] for v in (version, torch))
    if suffix and torch_suffix and suffix != torch_suffix and "git" not in suffix + torch_suffix:
        return Check("torchvision", False, f"{version} does not go with torch {torch}", remedy)
    return Check("torchvision", True, version)


def _compiler(environ: Mapping[str, str]) -> Check:
    """The C++ compiler that torch.compile runs for code on the CPU."""
    names = [environ["CXX"]] if environ.get("CXX") else ["g++", "clang++", "c++"]
    for name in names:
        found = shutil.which(name.split()[0], path=environ.get("PATH"))
        if found:
            return Check("C++ compiler", True, found)
    detail = f"none of {', '.join(names)}: compiled cases on the CPU will be errors"
    return Check("C++ compiler", False, detail, "install g++, or set CXX to a compiler")


# --- the machine -------------------------------------------------------------------------


def _disk(environ: Mapping[str, str]) -> Check:
    folder = environ.get("TMPDIR") or tempfile.gettempdir()
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check("temporary folder", False, str(error), "set TMPDIR to a folder that exists")
    detail = f"{free / 2**30:.1f} GiB free in {folder}"
    if free >= DISK_NEEDED_BYTES:
        return Check("temporary folder", True, detail)
    needed = DISK_NEEDED_BYTES / 2**30
    return Check("temporary folder", False, detail, f"free {needed:g} GiB, or set TMPDIR elsewhere")


def _governor(root: Path) -> Check:
    governor = text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor in (None, "performance"):
        return Check("CPU governor", None if governor is None else True, governor or "not known")
    remedy = "sudo cpupower frequency-set -g performance"
    return Check("CPU governor", False, f"{governor}: host-bound cases will vary", remedy)


def _numa(root: Path) -> Check:
    """Automatic NUMA balancing, which moves pages while kernels are launched."""
    value = text(root / "proc/sys/kernel/numa_balancing")
    nodes = sum(1 for _ in root.glob("sys/devices/system/node/node[0-9]*"))
    if value is None or value == "0" or nodes == 1:
        return Check("NUMA balancing", None if value is None else True, _numa_detail(value, nodes))
    remedy = "sudo sysctl kernel.numa_balancing=0"
    return Check("NUMA balancing", False, _numa_detail(value, nodes), remedy)


def _numa_detail(value: str | None, nodes: int) -> str:
    if value is None:
        return "not known"
    return f"{'off' if value == '0' else 'on'}, {nodes or 'unknown'} node{'s' * (nodes != 1)}"
