"""AMD's software on this machine: driver, ROCm, its libraries, MIOpen's caches, and checks.

MIOpen's databases choose kernels; the kernels that it compiled only make first steps quick.
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
from bench_lib.backends.folders import (
    describe_folder,
    entries,
    hashed,
    place,
    state,
    state_of,
    walk,
)
from bench_lib.backends.sysfs import text
from bench_lib.model import Hardware

_LIBRARY = re.compile(
    r"lib(MIOpen|hipblaslt|rocblas|rccl|amdhip64|hsa-runtime64|aotriton_v2|"
    r"MIOpenCKGroupedConv(?=_))(?:_gfx[\w-]+)?\.so((?:\.\d+)*)"
)
"""MIOpen loads CK's convolutions from a file for each architecture (rocm-libraries,
ck_grouped_conv_interface.hpp); before, they were compiled into it."""

MOUNTS = Path("/proc/self/mounts")
MIOPEN = "miopen"
"""The cache of its databases."""


def is_present(root: Path) -> bool:
    """Whether the kernel lists GPUs, or sees one on the bus that is no display.

    The class of those is 0380 or 1200 (pci.ids).
    """
    listed = (root / "sys/module/amdgpu").is_dir() and (
        root / "sys/class/kfd/kfd/topology"
    ).is_dir()
    return listed or any(
        text(device / "vendor") == "0x1002"
        and (text(device / "class") or "").startswith(("0x0380", "0x1200"))
        for device in root.glob("sys/bus/pci/devices/*")
    )


def software(root: Path, environ: Mapping[str, str]) -> Software:
    """Read the versions of the driver, the video BIOS, ROCm, and its libraries."""
    driver = text(root / "sys/module/amdgpu/version")
    if not driver and (root / "sys/module/amdgpu").is_dir():
        driver = "of the kernel"  # the kernel's own driver has no version but the kernel's
    firmware = map(text, root.glob("sys/bus/pci/drivers/amdgpu/*/vbios_version"))
    found, torch_s = rocm.find(root, environ), rocm.of_torch()
    return Software(
        driver and f"amdgpu {driver}",
        frozenset(filter(None, firmware)),
        (torch_s and torch_s.version) or found.version,
        {**found.wheels, **_libraries(torch_s or found, environ)},
    )


def _libraries(found: rocm.ROCm, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of ROCm's libraries, and folders that replace kernels.

    AOTriton, which computes attention, is among torch's own files.
    """
    files: dict[str, tuple[list[int], os.DirEntry[str]]] = {}
    folders = filter(None, dict.fromkeys((*found.folders, rocm.torch_folder())))
    found_in = itertools.chain.from_iterable(entries(folder / "lib") for folder in folders)
    for entry in sorted(found_in, key=lambda each: each.name):
        if named := _LIBRARY.fullmatch(entry.name):
            numbers = [int(number) for number in (named[2] or "").split(".") if number]
            file = files.setdefault(named[1], (numbers, entry))
            files[named[1]] = max(file, (numbers, entry), key=lambda each: each[0])
    versions = {library: _version(*file) for library, file in files.items()}
    for library in ("hipblaslt", "rocblas"):
        replaced = environ.get(f"{library.upper()}_TENSILE_LIBPATH")
        if replaced and (described := describe_folder(Path(replaced))):
            versions[f"{library} kernels"] = described
    return dict(sorted(versions.items()))


def _version(numbers: list[int], library: os.DirEntry[str]) -> str:
    """Return the version in a file's name, with a hash where the name says too little.

    Wheels and ROCm 7.14 have files such as ``libMIOpen.so.1``.  The hash is of the size and of
    the beginning, which has the sizes of all parts and the linker's own hash if there is one.
    """
    version = ".".join(map(str, numbers))
    if len(numbers) > 2:
        return version
    with contextlib.suppress(OSError), Path(library.path).open("rb") as file:
        beginning = b"%d %b" % (library.stat().st_size, file.read(4096))
        return f"{version} {hashlib.sha256(beginning).hexdigest()[:12]}".strip()
    return version or "unknown"


NETWORKED = ("nfs", "lustre", "ceph", "cifs", "smb", "afs", "coda", "ocfs2")
"""File systems that MIOpen takes for networked (rocm-libraries, filesystem_checker.cpp); one behind
FUSE is none of them."""


def caches(environ: Mapping[str, str]) -> dict[str, str]:
    """Say how full MIOpen's find and performance databases are, and how many kernels there are."""
    home = "~"
    if _network_of_home(environ):
        home = environ.get("TMPDIR") or tempfile.gettempdir()
    databases = place(environ, "MIOPEN_USER_DB_PATH", f"{home}/.config/miopen")
    kernels = place(environ, "MIOPEN_CUSTOM_CACHE_DIR", f"{home}/.cache/miopen")
    names = re.compile(r".*\.u[fp]?db\.txt")  # a record a line; *.udb.txt was once *.updb.txt
    others = (".txt", ".udb", ".lock", ".time")  # the folder is often the databases' as well
    return {
        MIOPEN: hashed([file for file in walk(databases) if names.fullmatch(file.name)]),
        "miopen kernels": state(
            sum(not file.name.endswith(others) for file in walk(kernels)), "file"
        ),
    }


def _network_of_home(environ: Mapping[str, str]) -> str | None:
    """Return the networked file system of HOME; None if it is none.

    There MIOpen takes the temporary folder for ``~``, as nodes would write to one database at once.
    """
    rows = (line.split() for line in (text(MOUNTS) or "").splitlines())
    kinds = {row[1].replace("\\040", " "): row[2] for row in rows if len(row) > 2}
    home = Path(environ.get("HOME") or "/").resolve()
    mounted = next((each for each in (home, *home.parents) if str(each) in kinds), None)
    kind = kinds[str(mounted)] if mounted else ""
    return kind if kind.startswith(NETWORKED) else None


def conditions(filled: Mapping[str, str]) -> dict[str, str]:
    """Return whether the database was cold or warm, by the caches that a run found."""
    if MIOPEN not in filled:
        return {}
    return {"miopen_cache": state_of(filled[MIOPEN])}


# --- whether they can be measured --------------------------------------------------------


def checks(root: Path, environ: Mapping[str, str], devices: Sequence[Hardware] = ()) -> list[Check]:
    """Check the driver, the files that it opens, other users, ROCm's profiler, and kernels."""
    archs = sorted({device.arch for device in devices if device.arch})
    return [
        _kfd(root),
        _groups(root),
        _render_nodes(root),
        _driver(root, environ),
        _processes(root),
        _profiler(environ),
        *_databases(environ),
        *(check for arch in archs if (check := _kernels(arch))),
    ]


def _databases(environ: Mapping[str, str]) -> Iterator[Check]:
    """Name the place of MIOpen's databases where it is another one on every node."""
    kind = _network_of_home(environ)
    if kind and not environ.get("MIOPEN_USER_DB_PATH"):
        detail = f"HOME is on {kind}, so that they are in each node's temporary folder"
        remedy = "set MIOPEN_USER_DB_PATH to a folder that lasts, or later runs search anew"
        yield warns("MIOpen's databases", detail, remedy)


def _kernels(arch: str) -> Check | None:
    """Ask for the packages of a torch for many architectures; None if it needs none."""
    absent = rocm.absent_kernels(arch)
    if not absent:
        return None
    detail = f"torch has none for {arch} without {' and '.join(absent)}"
    remedy = f"pip install {' '.join(absent)}, from AMD's index and in torch's version of ROCm"
    return stops("kernels", detail, remedy)


def _kfd(root: Path) -> Check:
    kfd = root / "dev/kfd"
    if os.access(kfd, os.R_OK | os.W_OK):
        return good("/dev/kfd", "can be opened")
    if kfd.exists():
        remedy = (
            "add the user to the group that owns it: sudo usermod -aG render,video $USER; start a "
            f"container with --group-add {kfd.stat().st_gid}"
        )
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
        remedy = (
            "add the user to the group that owns them: sudo usermod -aG render $USER; start a "
            f"container with --group-add {nodes[0].stat().st_gid}"
        )
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
    found = software(root, environ)
    if found.driver is None:
        remedy = "sudo modprobe amdgpu; sudo dmesg | grep amdgpu says why where that fails"
        return stops("AMD driver", "amdgpu is not loaded", remedy)
    return good("AMD driver", f"{found.driver}, ROCm {found.rocm or 'not found'}")


def _processes(root: Path) -> Check:
    """List processes with AMD GPUs open, as KFD does; the suite has none open itself."""
    try:
        processes = sorted(p.name for p in (root / "sys/class/kfd/kfd/proc").iterdir())
    except OSError:
        return unknown(OTHER_PROCESSES, "not known")
    return other_processes(processes)


def _profiler(environ: Mapping[str, str]) -> Check:
    """Name ROCm's profiler with the words that its version takes."""
    from bench_lib.backends.amd import profilers

    found = profilers.find(environ)
    if found is None:
        return unknown("profiler", "rocprofv3 is not on PATH, beside Python or in ROCm's folder")
    return good("profiler", " ".join(found.command(["APP"], Path("FOLDER"))))
