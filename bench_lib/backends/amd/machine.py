"""AMD's software on this machine: driver, ROCm, its libraries, MIOpen's caches, and checks.

MIOpen's databases choose kernels; its compiled kernels only speed up the first step.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench_lib.backends.amd import rocm
from bench_lib.backends.backend import (
    OTHER_PROCESSES,
    Check,
    Software,
    good,
    other_processes,
    stops,
    unknown,
    warns,
)
from bench_lib.backends.folders import describe_folder, entries, hashed, place, state, walk
from bench_lib.backends.sysfs import text
from bench_lib.model import Hardware

_LIBRARY = re.compile(
    r"lib(MIOpen|hipblaslt|rocblas|rccl|amdhip64|hsa-runtime64|aotriton_v2|"
    r"MIOpenCKGroupedConv(?=_))(?:_gfx[\w-]+)?\.so((?:\.\d+)*)"
)
"""MIOpen loads CK's convolutions from one file per architecture (rocm-libraries,
ck_grouped_conv_interface.hpp); earlier versions have them compiled in."""

MOUNTS = Path("/proc/self/mounts")
MIOPEN = "miopen"
"""The name of the cache that holds MIOpen's databases."""


def is_present(root: Path) -> bool:
    """Whether the driver is loaded, or a GPU without a display is on the bus.

    Such a GPU has the class 0380 or 1200 (pci.ids).
    """
    has_driver = (root / "sys/module/amdgpu").is_dir() and (
        root / "sys/class/kfd/kfd/topology"
    ).is_dir()
    return has_driver or any(
        text(device / "vendor") == "0x1002"
        and (text(device / "class") or "").startswith(("0x0380", "0x1200"))
        for device in root.glob("sys/bus/pci/devices/*")
    )


def software(root: Path, environ: Mapping[str, str]) -> Software:
    """Read the versions of the driver, the video BIOS, ROCm, and its libraries."""
    driver = text(root / "sys/module/amdgpu/version")
    if not driver and (root / "sys/module/amdgpu").is_dir():
        driver = "of the kernel"  # the kernel's own driver has no version of its own
    firmware = map(text, root.glob("sys/bus/pci/drivers/amdgpu/*/vbios_version"))
    installed, torch_s = rocm.find(root, environ), rocm.of_torch()
    return Software(
        driver and f"amdgpu {driver}",
        frozenset(filter(None, firmware)),
        (torch_s and torch_s.version) or installed.version,
        {**installed.wheels, **_libraries(torch_s or installed, environ)},
    )


def _libraries(installed: rocm.ROCm, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of ROCm's libraries, and of folders that replace their kernels.

    AOTriton, which computes attention, is in torch's folder.
    """
    files: dict[str, tuple[list[int], os.DirEntry[str]]] = {}
    folders = filter(None, dict.fromkeys((*installed.folders, rocm.torch_folder())))
    candidates = itertools.chain.from_iterable(entries(folder / "lib") for folder in folders)
    for entry in sorted(candidates, key=lambda entry: entry.name):
        if match := _LIBRARY.fullmatch(entry.name):
            numbers = [int(number) for number in (match[2] or "").split(".") if number]
            file = files.setdefault(match[1], (numbers, entry))
            files[match[1]] = max(file, (numbers, entry), key=lambda file: file[0])
    versions = {library: _version(*file) for library, file in files.items()}
    for library in ("hipblaslt", "rocblas"):
        replacement = environ.get(f"{library.upper()}_TENSILE_LIBPATH")
        if replacement and (description := describe_folder(Path(replacement))):
            versions[f"{library} kernels"] = description
    return dict(sorted(versions.items()))


def _version(numbers: list[int], library: os.DirEntry[str]) -> str:
    """Return the version in a file's name, with a hash if it has fewer than three numbers.

    Wheels and ROCm 7.14 have files such as ``libMIOpen.so.1``.  The hash covers the file's size and
    its beginning, which has the sizes of all sections and the linker's build id, if any.
    """
    version = ".".join(map(str, numbers))
    if len(numbers) > 2:
        return version
    with contextlib.suppress(OSError), Path(library.path).open("rb") as file:
        beginning = b"%d %b" % (library.stat().st_size, file.read(4096))
        return f"{version} {hashlib.sha256(beginning).hexdigest()[:12]}".strip()
    return version or "unknown"


NETWORKED = ("nfs", "lustre", "ceph", "cifs", "smb", "afs", "coda", "ocfs2")
"""File systems that MIOpen treats as networked (rocm-libraries, filesystem_checker.cpp); file
systems behind FUSE are not among them."""


def caches(environ: Mapping[str, str]) -> dict[str, str]:
    """Describe how full MIOpen's find and performance databases and its kernel cache are."""
    home = "~"
    if _networked_home(environ):
        home = environ.get("TMPDIR") or tempfile.gettempdir()
    databases = place(environ, "MIOPEN_USER_DB_PATH", f"{home}/.config/miopen")
    kernels = place(environ, "MIOPEN_CUSTOM_CACHE_DIR", f"{home}/.cache/miopen")
    names = re.compile(r".*\.u[fp]?db\.txt")  # one record per line; *.udb.txt used to be *.updb.txt
    no_kernels = (".txt", ".udb", ".lock", ".time")  # databases are often in the same folder
    return {
        MIOPEN: hashed([file for file in walk(databases) if names.fullmatch(file.name)]),
        "miopen kernels": state(
            sum(not file.name.endswith(no_kernels) for file in walk(kernels)), "file"
        ),
    }


def _networked_home(environ: Mapping[str, str]) -> str | None:
    """Return the file system of HOME if it is networked, else None.

    There MIOpen uses the temporary folder for ``~``, so that nodes do not share a database.
    """
    rows = (line.split() for line in (text(MOUNTS) or "").splitlines())
    kinds = {row[1].replace("\\040", " "): row[2] for row in rows if len(row) > 2}
    home = Path(environ.get("HOME") or "/").resolve()
    mount = next((folder for folder in (home, *home.parents) if str(folder) in kinds), None)
    kind = kinds[str(mount)] if mount else ""
    return kind if kind.startswith(NETWORKED) else None


# --- checks of bench-lib env -------------------------------------------------------------


def checks(root: Path, environ: Mapping[str, str], devices: Sequence[Hardware] = ()) -> list[Check]:
    """Check the driver, its device files, other processes, ROCm's profiler, and kernels."""
    container = "start a container with --device="
    archs = sorted({device.arch for device in devices if device.arch})
    return [
        _files(root, "/dev/kfd", f"sudo modprobe amdgpu; {container}/dev/kfd"),
        _groups(root),
        _files(root, "/dev/dri/renderD*", f"{container}/dev/dri"),
        _driver(root, environ),
        _processes(root),
        _profiler(environ),
        *_databases(environ),
        *(check for arch in archs if (check := _kernels(arch))),
    ]


def _databases(environ: Mapping[str, str]) -> Iterator[Check]:
    """Warn if each node has MIOpen databases of its own."""
    kind = _networked_home(environ)
    if kind and not environ.get("MIOPEN_USER_DB_PATH"):
        detail = f"HOME is on {kind}, so they are in each node's temporary folder"
        remedy = "set MIOPEN_USER_DB_PATH to a permanent folder, or later runs search again"
        yield warns("MIOpen's databases", detail, remedy)


def _kernels(arch: str) -> Check | None:
    """Return the missing kernel packages of a multi-architecture torch as a check, or None."""
    absent = rocm.absent_kernels(arch)
    if not absent:
        return None
    detail = f"torch has no kernels for {arch} without {' and '.join(absent)}"
    remedy = f"pip install {' '.join(absent)} from AMD's index, for torch's version of ROCm"
    return stops("kernels", detail, remedy)


def _files(root: Path, name: str, remedy: str) -> Check:
    """Check the device files of a name, through which the runtime finds the GPUs."""
    files = sorted(root.glob(name.removeprefix("/")))
    usable = [file for file in files if os.access(file, os.R_OK | os.W_OK)]
    if usable:
        return good(name, f"{len(usable)} of {len(files)} can be opened")
    if not files:
        return stops(name, "not there", remedy)
    remedy = (
        "add the user to the group that owns it: sudo usermod -aG render,video $USER; start a "
        f"container with --group-add {files[0].stat().st_gid}"
    )
    return stops(name, f"none of {len(files)} can be opened by this user", remedy)


def _groups(root: Path) -> Check:
    """Check membership in video and render, if the system has these groups."""
    if os.geteuid() == 0:
        return good("groups video and render", "not needed by root")
    rows = (line.split(":") for line in (text(root / "etc/group") or "").splitlines())
    numbers = {row[0]: int(row[2]) for row in rows if len(row) > 2 and row[2].isdecimal()}
    mine = {*os.getgroups(), os.getegid()}
    missing = [g for g in ("video", "render") if g in numbers and numbers[g] not in mine]
    if not missing:
        return good("groups video and render", "member of those that exist")
    detail = f"not a member of {' and '.join(missing)}"
    if os.access(root / "dev/kfd", os.R_OK | os.W_OK):
        return good("groups video and render", f"{detail}, but has access anyway")
    remedy = f"sudo usermod -aG {','.join(missing)} $USER, then log in again"
    return stops("groups video and render", detail, remedy)


def _driver(root: Path, environ: Mapping[str, str]) -> Check:
    installed = software(root, environ)
    if installed.driver is None:
        remedy = "sudo modprobe amdgpu; if that fails, sudo dmesg | grep amdgpu has the reason"
        return stops("AMD driver", "amdgpu is not loaded", remedy)
    return good("AMD driver", f"{installed.driver}, ROCm {installed.rocm or 'not found'}")


def _processes(root: Path) -> Check:
    """List the processes that KFD serves; the suite has not opened a GPU yet."""
    try:
        processes = sorted(p.name for p in (root / "sys/class/kfd/kfd/proc").iterdir())
    except OSError:
        return unknown(OTHER_PROCESSES, "unknown")
    return other_processes(processes)


def _profiler(environ: Mapping[str, str]) -> Check:
    """Show the command line of ROCm's profiler."""
    from bench_lib.backends.amd import profilers

    profiler = profilers.find(environ)
    if profiler is None:
        return unknown("profiler", "rocprofv3 is not on PATH, next to Python or in ROCm's folder")
    return good("profiler", " ".join(profiler.command(["APP"], Path("FOLDER"))))
