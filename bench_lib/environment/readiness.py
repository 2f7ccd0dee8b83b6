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

from bench_lib.environment.fingerprint import driver, governor, numa_balancing, rocm
from bench_lib.hardware.sysfs import ROOT, text
from bench_lib.model import Hardware
from bench_lib.rocm import profilers

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
    fatal: bool = False
    """Whether the suite cannot run here, where `ok` is False; else its results are worse."""


def _good(name: str, detail: str) -> Check:
    return Check(name, ok=True, detail=detail)


def _stops(name: str, detail: str, remedy: str) -> Check:
    """Say what keeps the suite from running, or makes whole groups of its cases errors."""
    return Check(name, ok=False, detail=detail, remedy=remedy, fatal=True)


def _spoils(name: str, detail: str, remedy: str) -> Check:
    """Say what makes results less steady, fewer or doubtful."""
    return Check(name, ok=False, detail=detail, remedy=remedy)


def _unknown(name: str, detail: str) -> Check:
    return Check(name, ok=None, detail=detail)


def checks(
    root: Path = ROOT,
    environ: Mapping[str, str] = os.environ,
    devices: Sequence[Hardware] = (),
) -> list[Check]:
    """Look for what keeps a machine from measuring, or from measuring well.

    `devices` is what `bench_lib.hardware.detect` found here.  Which vendor's checks apply
    is decided by the kernel's drivers as well, so that a GPU which is there and cannot be
    used is said so.
    """
    gpus = [device for device in devices if device.vendor != "cpu"]
    vendors = {device.vendor for device in gpus} or _vendors(root)
    answers = [_gpus(vendors, gpus, environ)]
    if "amd" in vendors:
        answers += [
            _kfd(root),
            _groups(root),
            _render_nodes(root),
            _amd_driver(root, environ),
            _amd_processes(root),
            _profiler(environ),
        ]
    if "nvidia" in vendors:
        answers.append(_nvidia_driver(root, gpus))
    answers += [_torch(vendors, rocm(root, environ)), _torchvision()]
    if vendors:
        answers += [_triton(), _c_compiler(environ)]
    answers += [
        _cxx_compiler(environ, measures_cpu=not vendors),
        _disk(environ),
        _governor(root),
        _numa(root),
    ]
    return answers


# --- devices -----------------------------------------------------------------------------


def _vendors(root: Path) -> set[str]:
    """Say whose GPUs the kernel has drivers for, or sees on the bus without one."""
    amd = (root / "sys/module/amdgpu").is_dir() and (root / "sys/class/kfd/kfd/topology").is_dir()
    nvidia = (root / "proc/driver/nvidia").exists() or any(root.glob("dev/nvidia[0-9]*"))
    here = {"amd": amd or _instinct_on_bus(root), "nvidia": nvidia}
    return {name for name, present in here.items() if present}


def _instinct_on_bus(root: Path) -> bool:
    """Look for AMD's GPUs that are no displays: their class is 0380 or 1200 (pci.ids)."""
    return any(
        text(device / "vendor") == "0x1002"
        and (text(device / "class") or "").startswith(("0x0380", "0x1200"))
        for device in root.glob("sys/bus/pci/devices/*")
    )


def _gpus(vendors: set[str], gpus: Sequence[Hardware], environ: Mapping[str, str]) -> Check:
    if gpus:
        listed = ", ".join(f"{device.index}: {device.key}" for device in gpus)
        return _good("visible devices", listed)
    if not vendors:
        return _unknown("visible devices", "no GPU in this machine; the CPU is measured")
    names = ["CUDA_VISIBLE_DEVICES"]
    if "amd" in vendors:
        names = ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", *names]
    hiding = [f"{name}={environ[name]!r}" for name in names if name in environ]
    detail = f"the kernel knows GPUs of {' and '.join(sorted(vendors))}, but none is visible"
    if hiding:
        return _stops("visible devices", detail, f"unset or change {' and '.join(hiding)}")
    remedy = f"none of {', '.join(names)} is set; in a container, grant it the devices"
    return _stops("visible devices", detail, remedy)


def _kfd(root: Path) -> Check:
    kfd = root / "dev/kfd"
    if os.access(kfd, os.R_OK | os.W_OK):
        return _good("/dev/kfd", "can be opened")
    if kfd.exists():
        remedy = "add the user to the group that owns it: sudo usermod -aG render,video $USER"
        return _stops("/dev/kfd", "may not be opened by this user", remedy)
    remedy = "load the driver: sudo modprobe amdgpu; start a container with --device=/dev/kfd"
    return _stops("/dev/kfd", "is not there", remedy)


def _render_nodes(root: Path) -> Check:
    """Ask for the files of /dev/dri, by which the runtime maps the GPUs' memory."""
    name = "/dev/dri/renderD*"
    nodes = sorted(root.glob("dev/dri/renderD*"))
    usable = [node for node in nodes if os.access(node, os.R_OK | os.W_OK)]
    if usable:
        return _good(name, f"{len(usable)} of {len(nodes)} can be opened")
    if nodes:
        remedy = "add the user to the group that owns them: sudo usermod -aG render $USER"
        return _stops(name, f"none of {len(nodes)} may be opened by this user", remedy)
    return _stops(name, "are not there", "start the container with --device=/dev/dri")


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
    return _stops("groups video and render", detail, remedy)


def _amd_driver(root: Path, environ: Mapping[str, str]) -> Check:
    version, installed = driver(root), rocm(root, environ)
    if version is None or "amdgpu" not in version:
        remedy = "sudo modprobe amdgpu; sudo dmesg | grep amdgpu says why where that fails"
        return _stops("AMD driver", "amdgpu is not loaded", remedy)
    return _good("AMD driver", f"{version}, ROCm {installed or 'not installed system-wide'}")


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
    return _spoils("other processes on the GPUs", detail, remedy)


def _profiler(environ: Mapping[str, str]) -> Check:
    """Name ROCm's profiler with the words that its version takes."""
    found = profilers.find(environ)
    if found is None:
        return _unknown("profiler", "none of rocprofv3, rocprofv2 and rocprof is on PATH")
    return _good("profiler", " ".join(found.command(["APP"], Path("FOLDER"), "NAME")))


def _nvidia_driver(root: Path, gpus: Sequence[Hardware]) -> Check:
    version = driver(root)
    if version and "nvidia" in version:
        return _good("NVIDIA driver", version)
    if gpus:
        return _unknown("NVIDIA driver", "answers, but does not tell its version")
    remedy = "see that nvidia-smi answers; in a container, use --gpus all"
    return _stops("NVIDIA driver", "there are devices, but no driver's version", remedy)


# --- software ----------------------------------------------------------------------------


def _torch(vendors: set[str], rocm_version: str | None) -> Check:
    """Ask whether the installed torch was built for this machine's GPUs; it is not imported."""
    series = _series(rocm_version)
    remedy = "pip install --force-reinstall torch torchvision"
    if "amd" in vendors:
        wanted = f"rocm{'.'.join(map(str, series)) if series else '<version>'}"
        remedy += f" from PyTorch's index for {wanted}, which Get Started on pytorch.org names"
    try:
        installed = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return _stops("torch", "not installed", remedy)
    build, version = _build(installed)
    told = f"{build} ({version})" if build and version else build or "what is not known"
    detail = f"{installed.version}, built for {told}"
    # A build for any GPU measures the CPU as well.
    if build is None:
        return _unknown("torch", detail)
    if vendors and build not in vendors:
        detail += f", but the GPU is {' and '.join(sorted(vendors))}'s"
        return _stops("torch", detail, remedy)
    own = _series(version)
    if build == "amd" and None not in (series, own) and series != own:
        # Wheels bring ROCm's libraries; its profilers and amdsmi are those installed here.
        return _spoils("torch", f"{detail}, but ROCm {rocm_version} is installed", remedy)
    return _good("torch", detail)


def _series(version: str | None) -> tuple[int, int] | None:
    """Return major and minor, as numbers: 7.13 is newer than 7.2."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else None


def _build(torch: importlib.metadata.Distribution) -> tuple[str | None, str | None]:
    """Read ``amd``, ``nvidia`` or ``cpu``, and of what version, from ``torch/version.py``.

    It is not run.  HIP's major and minor version are ROCm's.
    """
    source = text(Path(str(torch.locate_file("torch/version.py")))) or ""
    values = dict(
        re.findall(r"^(cuda|hip|rocm)\b[^=\n]*= *(?:None|['\"](.+?)['\"])", source, re.MULTILINE)
    )
    if not values:
        return None, None
    if values.get("hip"):
        return "amd", values.get("rocm") or values["hip"]
    return ("nvidia", values["cuda"]) if values.get("cuda") else ("cpu", None)


def _torchvision() -> Check:
    """Ask whether torchvision is there and of the same build as torch."""
    remedy = "install it from the index that torch came from, with --no-deps if torch must stay"
    version, torch = _version("torchvision"), _version("torch")
    if version is None:
        return _stops("torchvision", "not installed", remedy)
    if torch is None:
        return _unknown("torchvision", f"{version}, without torch")
    suffix, torch_suffix = (v.partition("+")[2] for v in (version, torch))
    if suffix and torch_suffix and suffix != torch_suffix and "git" not in suffix + torch_suffix:
        return _spoils("torchvision", f"{version} does not go with torch {torch}", remedy)
    return _good("torchvision", version)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _triton() -> Check:
    """Ask for the compiler of GPU kernels behind torch.compile, under any of its names."""
    for name in ("triton", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton"):
        if version := _version(name):
            return _good("triton", version)
    detail = "not installed: compiled cases on the GPU will be errors"
    return _stops("triton", detail, "install the one that torch's index has for this torch")


def _c_compiler(environ: Mapping[str, str]) -> Check:
    """Find the C compiler by which Triton builds what launches its kernels."""
    found = _compiler("CC", ("gcc", "clang"), environ)
    if found:
        return _good("C compiler", found)
    detail = "not found: compiled cases on the GPU will be errors"
    return _stops("C compiler", detail, "install gcc, or set CC to a compiler that is there")


def _cxx_compiler(environ: Mapping[str, str], *, measures_cpu: bool) -> Check:
    """Find the C++ compiler that torch.compile runs for code on the CPU."""
    found = _compiler("CXX", ("g++", "clang++", "c++"), environ)
    if found:
        return _good("C++ compiler", found)
    detail = "not found: compiled cases on the CPU will be errors"
    say = _stops if measures_cpu else _spoils
    return say("C++ compiler", detail, "install g++, or set CXX to a compiler that is there")


def _compiler(variable: str, names: Sequence[str], environ: Mapping[str, str]) -> str | None:
    words = environ.get(variable, "").split()
    found = (shutil.which(n, path=environ.get("PATH")) for n in words[:1] or names)
    return next(filter(None, found), None)


# --- the machine -------------------------------------------------------------------------


def _disk(environ: Mapping[str, str]) -> Check:
    folder = environ.get("TMPDIR") or tempfile.gettempdir()
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return _spoils("temporary folder", str(error), "set TMPDIR to a folder that exists")
    detail = f"{free / 2**30:.1f} GiB free in {folder}"
    if free >= DISK_NEEDED_BYTES:
        return _good("temporary folder", detail)
    needed = DISK_NEEDED_BYTES / 2**30
    return _spoils("temporary folder", detail, f"free {needed:g} GiB, or set TMPDIR elsewhere")


def _governor(root: Path) -> Check:
    chosen = governor(root)
    if chosen is None:
        return _unknown("CPU governor", "not known")
    if chosen == "performance":
        return _good("CPU governor", chosen)
    remedy = "sudo cpupower frequency-set -g performance"
    return _spoils("CPU governor", f"{chosen}: host-bound cases will vary", remedy)


def _numa(root: Path) -> Check:
    """Ask for automatic NUMA balancing, which moves pages while kernels are launched."""
    balancing = numa_balancing(root)
    nodes = sum(1 for _ in root.glob("sys/devices/system/node/node[0-9]*"))
    if balancing is None:
        return _unknown("NUMA balancing", "not known")
    detail = f"{'on' if balancing else 'off'}, {nodes or 'unknown'} node{'s' * (nodes != 1)}"
    if not balancing or nodes == 1:
        return _good("NUMA balancing", detail)
    return _spoils("NUMA balancing", detail, "sudo sysctl kernel.numa_balancing=0")
