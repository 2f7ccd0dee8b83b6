"""Checks whether this machine can measure well, with a remedy for each problem."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench_lib import backends
from bench_lib.backends.backend import Backend, Check, good, stops, unknown, warns
from bench_lib.backends.sysfs import ROOT, text
from bench_lib.environment.fingerprint import governor, numa_balancing
from bench_lib.model import Hardware


def checks(
    root: Path = ROOT,
    environ: Mapping[str, str] = os.environ,
    devices: Sequence[Hardware] = (),
) -> list[Check]:
    """Check what measuring, or measuring well, needs.

    `devices` are those that `bench_lib.backends.detect` found.  Without GPUs among them, the checks
    are those of the vendors whose driver is loaded, to report why their GPUs cannot be used.
    """
    gpus = [device for device in devices if backends.is_gpu(device)]
    vendors = backends.used_by(gpus) or [item for item in backends.every() if item.is_present(root)]
    results = [_gpus(vendors, gpus, environ)]
    for backend in vendors:
        own = [device for device in gpus if backends.of(device) is backend]
        results += backend.checks(root, environ, own)
    results += [_torch(vendors, root, environ), _torchvision()]
    if vendors:
        c = _compiler("C compiler", "CC", ("gcc", "clang"), environ, target="GPU", is_needed=True)
        results += [_triton(), c]
    programs = ("g++", "clang++", "c++")
    results.append(
        _compiler("C++ compiler", "CXX", programs, environ, target="CPU", is_needed=not vendors)
    )
    return [*results, *_noise(root)]


# --- devices -----------------------------------------------------------------------------


def _gpus(
    vendors: Sequence[Backend], gpus: Sequence[Hardware], environ: Mapping[str, str]
) -> Check:
    if gpus:
        keys = ", ".join(f"{device.index}: {device.key}" for device in gpus)
        return good("visible devices", keys)
    if not vendors:
        return unknown("visible devices", "no GPU in this machine; the CPU is measured")
    names = list(dict.fromkeys(name for backend in vendors for name in backend.variables))
    hiding = [f"{name}={environ[name]!r}" for name in names if name in environ]
    detail = f"the kernel lists {_names(vendors)} GPUs, but none is visible"
    if hiding:
        return stops("visible devices", detail, f"unset or change {' and '.join(hiding)}")
    remedy = f"none of {', '.join(names)} is set; give a container access to the devices"
    return stops("visible devices", detail, remedy)


def _names(vendors: Sequence[Backend]) -> str:
    return " and ".join(sorted(backend.name for backend in vendors))


# --- software ----------------------------------------------------------------------------


def _torch(vendors: Sequence[Backend], root: Path, environ: Mapping[str, str]) -> Check:
    """Check, without importing torch, that it was built for this machine's GPUs."""
    remedy = "pip install --force-reinstall torch torchvision"
    remedy += "".join(backend.torch_index(backend.software(root, environ)) for backend in vendors)
    try:
        installed = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return stops("torch", "not installed", remedy)
    versions = _platforms(installed)
    built = {
        backend.name: build
        for backend in (backends.every() if versions else ())
        if (build := backend.torch_build(versions, backend.software(root, environ)))
    }
    if not built:
        return unknown("torch", f"{installed.version}, built for an unknown platform")
    name, build = next(iter(built.items()))
    platform = f"{name} ({build.version})" if build.version else name
    detail = f"{installed.version}, built for {platform}"
    # Builds for GPUs can also measure the CPU.
    if vendors and name not in {backend.name for backend in vendors}:
        return stops("torch", f"{detail}, but the GPU is {_names(vendors)}'s", remedy)
    if build.doubt:
        return warns("torch", f"{detail}, but {build.doubt}", remedy)
    return good("torch", detail)


def _platforms(torch: importlib.metadata.Distribution) -> dict[str, str]:
    """Parse the platforms in ``torch/version.py``; "" if torch was not built for one."""
    source = text(Path(str(torch.locate_file("torch/version.py")))) or ""
    return dict(
        re.findall(
            r"^(cuda|hip|rocm|xpu)\b[^=\n]*= *(?:None|['\"](.+?)['\"])", source, re.MULTILINE
        )
    )


def _torchvision() -> Check:
    """Check that torchvision is installed, from the same kind of build as torch."""
    remedy = "install it from torch's index, with --no-deps to keep the installed torch"
    version, torch = _version("torchvision"), _version("torch")
    if version is None:
        return stops("torchvision", "not installed", remedy)
    if torch is None:
        return unknown("torchvision", f"{version}, without torch")
    suffix, torch_suffix = (v.partition("+")[2] for v in (version, torch))
    if suffix and torch_suffix and suffix != torch_suffix and "git" not in suffix + torch_suffix:
        return warns("torchvision", f"{version} does not match torch {torch}", remedy)
    return good("torchvision", version)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _triton() -> Check:
    """Check for torch.compile's compiler of GPU kernels, under any of its package names."""
    for name in ("triton", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton"):
        if version := _version(name):
            return good("triton", version)
    detail = "not installed: compiled cases on the GPU will end in ERROR"
    return stops("triton", detail, "install the version for this torch from torch's index")


def _compiler(
    name: str,
    variable: str,
    programs: Sequence[str],
    environ: Mapping[str, str],
    *,
    target: str,
    is_needed: bool,
) -> Check:
    """Check for a compiler that torch.compile (CPU kernels) or Triton (launchers) runs."""
    command = environ.get(variable, "").split()
    paths = (shutil.which(n, path=environ.get("PATH")) for n in command[:1] or programs)
    if path := next(filter(None, paths), None):
        return good(name, path)
    problem = stops if is_needed else warns
    detail = f"not found: compiled cases on the {target} will end in ERROR"
    return problem(name, detail, f"install {programs[0]}, or set {variable} to another compiler")


# --- the machine -------------------------------------------------------------------------


def _noise(root: Path) -> Iterator[Check]:
    """Yield the kernel settings that make times vary."""
    current = governor(root)
    if current not in (None, "performance"):
        remedy = "sudo cpupower frequency-set -g performance"
        yield warns("CPU governor", f"{current}: host-bound cases will vary", remedy)
    nodes = sum(1 for _ in root.glob("sys/devices/system/node/node[0-9]*"))
    if numa_balancing(root) and nodes != 1:  # pages migrate while kernels are launched
        yield warns("NUMA balancing", f"on, {nodes} nodes", "sudo sysctl kernel.numa_balancing=0")
