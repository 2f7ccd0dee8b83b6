"""AMD's software on this machine: amdgpu, ROCm, its libraries, and MIOpen's caches.

MIOpen's databases choose kernels; the kernels that it compiled only make first steps quick.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from bench_lib.backends.backend import Software
from bench_lib.backends.folders import (
    describe_folder,
    hashed,
    place,
    searched,
    state,
    state_of,
    walk,
)
from bench_lib.backends.sysfs import text

_LIBRARY = re.compile(
    r"lib(MIOpen|hipblaslt|rocblas|rccl|amdhip64|hsa-runtime64)\.so\.(\d+(?:\.\d+)+)"
)

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
    rocm = Path(environ.get("ROCM_PATH") or "/opt/rocm")
    folder = root / rocm.relative_to(rocm.anchor)
    return Software(
        driver and f"amdgpu {driver}",
        frozenset(filter(None, firmware)),
        text(folder / ".info/version"),
        _libraries(folder / "lib", environ),
    )


def _libraries(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Tell ROCm's libraries by their file names, and folders that replace their kernels."""
    versions: dict[str, str] = {}
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names only
    except OSError:
        names = []
    for name in names:
        if found := _LIBRARY.fullmatch(name):
            library, version = found.groups()
            versions[library] = max(versions.get(library, ""), version, key=_as_tuple)
    for library in ("hipblaslt", "rocblas"):
        replaced = environ.get(f"{library.upper()}_TENSILE_LIBPATH")
        if replaced and (described := describe_folder(Path(replaced))):
            versions[f"{library} kernels"] = described
    return dict(sorted(versions.items()))


def _as_tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)


def caches(environ: Mapping[str, str]) -> dict[str, str]:
    """Say how full MIOpen's find and performance databases are, and how many kernels there are."""
    databases = place(environ, "MIOPEN_USER_DB_PATH", "~/.config/miopen")
    kernels = place(environ, "MIOPEN_CUSTOM_CACHE_DIR", "~/.cache/miopen")
    names = re.compile(r".*\.u[fp]?db\.txt")  # a record a line; *.udb.txt was once *.updb.txt
    others = (".txt", ".udb", ".lock", ".time")  # the folder is often the databases' as well
    return {
        MIOPEN: hashed([file for file in walk(databases) if names.fullmatch(file.name)]),
        "miopen kernels": state(
            sum(not file.name.endswith(others) for file in walk(kernels)), "file"
        ),
    }


def conditions(filled: Mapping[str, str]) -> dict[str, str]:
    """Return whether the database was cold, warm or tuned, by the caches that a run found."""
    if MIOPEN not in filled:
        return {}
    is_tuned = searched(MIOPEN) in filled
    return {"miopen_cache": "tuned" if is_tuned else state_of(filled[MIOPEN])}
