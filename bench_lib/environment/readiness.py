"""Checks whether this machine is fit to measure; each check has a remedy."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench_lib import backends
from bench_lib.backends import Backend
from bench_lib.backends.backend import Check, good, stops, unknown, warns
from bench_lib.backends.sysfs import ROOT, text
from bench_lib.environment.fingerprint import governor, numa_balancing
from bench_lib.model import Hardware


def checks(
    root: Path = ROOT,
    environ: Mapping[str, str] = os.environ,
    devices: Sequence[Hardware] = (),
) -> list[Check]:
    """Look for obstacles to measuring, or to measuring well.

    `devices` is what `bench_lib.backends.detect` found here.  The kernel's drivers also decide
    whose vendor's checks apply, so that a GPU which is there and cannot be used is reported.
    """
    gpus = [device for device in devices if backends.is_gpu(device)]
    here = backends.used_by(gpus) or [each for each in backends.every() if each.is_present(root)]
    answers = [_gpus(here, gpus, environ)]
    for backend in here:
        own = [device for device in gpus if backends.of(device) is backend]
        answers += backend.checks(root, environ, own)
    answers += [_torch(here, root, environ), _torchvision()]
    if here:
        c = _compiler("C compiler", "CC", ("gcc", "clang"), environ, target="GPU", is_needed=True)
        answers += [_triton(), c]
    programs = ("g++", "clang++", "c++")
    answers.append(
        _compiler("C++ compiler", "CXX", programs, environ, target="CPU", is_needed=not here)
    )
    return [*answers, *_unsteady(root)]


# --- devices -----------------------------------------------------------------------------


def _gpus(here: Sequence[Backend], gpus: Sequence[Hardware], environ: Mapping[str, str]) -> Check:
    if gpus:
        listed = ", ".join(f"{device.index}: {device.key}" for device in gpus)
        return good("visible devices", listed)
    if not here:
        return unknown("visible devices", "no GPU in this machine; the CPU is measured")
    names = list(dict.fromkeys(name for backend in here for name in backend.variables))
    hiding = [f"{name}={environ[name]!r}" for name in names if name in environ]
    detail = f"the kernel knows GPUs of {_names(here)}, but none is visible"
    if hiding:
        return stops("visible devices", detail, f"unset or change {' and '.join(hiding)}")
    remedy = f"none of {', '.join(names)} is set; in a container, grant it the devices"
    return stops("visible devices", detail, remedy)


def _names(here: Sequence[Backend]) -> str:
    return " and ".join(sorted(backend.name for backend in here))


# --- software ----------------------------------------------------------------------------


def _torch(here: Sequence[Backend], root: Path, environ: Mapping[str, str]) -> Check:
    """Ask whether the installed torch was built for this machine's GPUs; it is not imported."""
    remedy = "pip install --force-reinstall torch torchvision"
    remedy += "".join(backend.torch_index(backend.software(root, environ)) for backend in here)
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
        return unknown("torch", f"{installed.version}, built for what is not known")
    name, build = next(iter(built.items()))
    told = f"{name} ({build.version})" if build.version else name
    detail = f"{installed.version}, built for {told}"
    # A build for any GPU measures the CPU as well.
    if here and name not in {backend.name for backend in here}:
        return stops("torch", f"{detail}, but the GPU is {_names(here)}'s", remedy)
    if build.doubt:
        return warns("torch", f"{detail}, but {build.doubt}", remedy)
    return good("torch", detail)


def _platforms(torch: importlib.metadata.Distribution) -> dict[str, str]:
    """Read the platforms that ``torch/version.py`` names; "" where it was not built for one.

    The file is not run.
    """
    source = text(Path(str(torch.locate_file("torch/version.py")))) or ""
    return dict(
        re.findall(
            r"^(cuda|hip|rocm|xpu)\b[^=\n]*= *(?:None|['\"](.+?)['\"])", source, re.MULTILINE
        )
    )


def _torchvision() -> Check:
    """Ask whether torchvision is there and of the same build as torch."""
    remedy = "install it from the index that torch came from, with --no-deps if torch must stay"
    version, torch = _version("torchvision"), _version("torch")
    if version is None:
        return stops("torchvision", "not installed", remedy)
    if torch is None:
        return unknown("torchvision", f"{version}, without torch")
    suffix, torch_suffix = (v.partition("+")[2] for v in (version, torch))
    if suffix and torch_suffix and suffix != torch_suffix and "git" not in suffix + torch_suffix:
        return warns("torchvision", f"{version} does not go with torch {torch}", remedy)
    return good("torchvision", version)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _triton() -> Check:
    """Ask for the compiler of GPU kernels behind torch.compile, under any of its names."""
    for name in ("triton", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton"):
        if version := _version(name):
            return good("triton", version)
    detail = "not installed: compiled cases on the GPU will be errors"
    return stops("triton", detail, "install the one that torch's index has for this torch")


def _compiler(
    name: str,
    variable: str,
    programs: Sequence[str],
    environ: Mapping[str, str],
    *,
    target: str,
    is_needed: bool,
) -> Check:
    """Find a compiler that torch.compile or Triton runs, for kernels of the CPU or their launch."""
    words = environ.get(variable, "").split()
    found = (shutil.which(n, path=environ.get("PATH")) for n in words[:1] or programs)
    if path := next(filter(None, found), None):
        return good(name, path)
    say = stops if is_needed else warns
    detail = f"not found: compiled cases on the {target} will be errors"
    return say(
        name, detail, f"install {programs[0]}, or set {variable} to a compiler that is there"
    )


# --- the machine -------------------------------------------------------------------------


def _unsteady(root: Path) -> Iterator[Check]:
    """Yield the settings of the kernel that make times vary."""
    chosen = governor(root)
    if chosen not in (None, "performance"):
        remedy = "sudo cpupower frequency-set -g performance"
        yield warns("CPU governor", f"{chosen}: host-bound cases will vary", remedy)
    nodes = sum(1 for _ in root.glob("sys/devices/system/node/node[0-9]*"))
    if numa_balancing(root) and nodes != 1:  # it moves pages while kernels are launched
        yield warns("NUMA balancing", f"on, {nodes} nodes", "sudo sysctl kernel.numa_balancing=0")
