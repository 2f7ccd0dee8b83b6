"""Whether this machine is fit to measure, one question at a time, each with its remedy."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_lib import backends
from bench_lib.backends import Backend
from bench_lib.backends.backend import Check, good, spoils, stops, unknown
from bench_lib.backends.sysfs import ROOT, text
from bench_lib.environment.fingerprint import governor, numa_balancing
from bench_lib.model import Hardware

DISK_NEEDED_BYTES = 5 * 2**30
"""Space for compilers' caches, traces and checkpoints of a nightly run."""


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
        answers += [_triton(), _c_compiler(environ)]
    answers += [
        _cxx_compiler(environ, measures_cpu=not here),
        _disk(environ),
        _governor(root),
        _numa(root),
    ]
    return answers


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
        return spoils("torch", f"{detail}, but {build.doubt}", remedy)
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
        return spoils("torchvision", f"{version} does not go with torch {torch}", remedy)
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


def _c_compiler(environ: Mapping[str, str]) -> Check:
    """Find the C compiler by which Triton builds what launches its kernels."""
    found = _compiler("CC", ("gcc", "clang"), environ)
    if found:
        return good("C compiler", found)
    detail = "not found: compiled cases on the GPU will be errors"
    return stops("C compiler", detail, "install gcc, or set CC to a compiler that is there")


def _cxx_compiler(environ: Mapping[str, str], *, measures_cpu: bool) -> Check:
    """Find the C++ compiler that torch.compile runs for code on the CPU."""
    found = _compiler("CXX", ("g++", "clang++", "c++"), environ)
    if found:
        return good("C++ compiler", found)
    detail = "not found: compiled cases on the CPU will be errors"
    say = stops if measures_cpu else spoils
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
        return spoils("temporary folder", str(error), "set TMPDIR to a folder that exists")
    detail = f"{free / 2**30:.1f} GiB free in {folder}"
    if free >= DISK_NEEDED_BYTES:
        return good("temporary folder", detail)
    needed = DISK_NEEDED_BYTES / 2**30
    return spoils("temporary folder", detail, f"free {needed:g} GiB, or set TMPDIR elsewhere")


def _governor(root: Path) -> Check:
    chosen = governor(root)
    if chosen is None:
        return unknown("CPU governor", "not known")
    if chosen == "performance":
        return good("CPU governor", chosen)
    remedy = "sudo cpupower frequency-set -g performance"
    return spoils("CPU governor", f"{chosen}: host-bound cases will vary", remedy)


def _numa(root: Path) -> Check:
    """Ask for automatic NUMA balancing, which moves pages while kernels are launched."""
    balancing = numa_balancing(root)
    nodes = sum(1 for _ in root.glob("sys/devices/system/node/node[0-9]*"))
    if balancing is None:
        return unknown("NUMA balancing", "not known")
    detail = f"{'on' if balancing else 'off'}, {nodes or 'unknown'} node{'s' * (nodes != 1)}"
    if not balancing or nodes == 1:
        return good("NUMA balancing", detail)
    return spoils("NUMA balancing", detail, "sudo sysctl kernel.numa_balancing=0")
