"""Machines with AMD's GPUs that nobody has, laid out in a folder.

What stands in: the kernel's files, ROCm's Python package and profilers, and what torch does on a
device.  Everything else, bench-lib first of all, is the real thing.  How the
stand-ins answer is that of ROCm's tools; the figures are made up.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from . import kernel
from .present import Present
from .profilers import write_program

HERE = Path(__file__).parent
PARTS = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4, "CPX": 8}
MIB = 2**20


@dataclass(frozen=True)
class Card:
    """One GPU of a machine: an MI300X by default; of an MI250X one of its two dies."""

    serial: str
    """16 hexadecimal digits."""
    bdf: str
    name: str = "AMD Instinct MI300X"
    pci_id: str = "74a1"
    arch: str = "gfx942"
    units: int = 304
    memory_mib: int = 196_560
    dies: int = 8
    board_w: int = 750
    cap_w: int = 750
    max_clock_mhz: int = 2100
    clock_mhz: int = 2100
    """The clock under load."""
    memory_clock_mhz: int = 1300
    compute_partition: str | None = "SPX"
    memory_partition: str | None = "NPS1"
    is_secondary: bool = False
    """The die of an MI250X that has no sensors of power."""
    held_back: Mapping[str, float] = field(default_factory=dict)
    """For which share of the time the card is throttled, by reason."""
    rank: int | None = None
    """Place among the kernel's nodes, which need not be that on the bus."""
    revision: int = 6
    """Content revision of the card's table of metrics: 3, or 4 to 9."""
    ptl: tuple[str, str] | None = None
    """What the files of the peak TOPS limiter say: its state, and the formats."""
    is_virtual: bool = False
    """Whether it is a virtual function: its sensors are those of the table alone."""
    quirks: Sequence[str] = ()
    """What it gets wrong: ``repeated clock``, ``hotspot flag``, ``slow die``."""

    @property
    def devices(self) -> list[dict[str, Any]]:
        """Every device that the card shows, but for what depends on its neighbours."""
        parts = PARTS[self.compute_partition or "SPX"]
        about = dataclasses.asdict(self)
        for name in ("rank", "memory_mib"):
            del about[name]
        return [
            {
                **about,
                "bdf": f"{self.bdf[:-1]}{part}",
                "partition": part,
                "units": self.units // parts,
                "dies": self.dies // parts,
                "card_memory": self.memory_mib * MIB,
                "memory": self.memory_mib // parts * MIB,
                "hip_uuid": f"{int(self.serial, 16) + part:016x}",
            }
            for part in range(parts)
        ]


@dataclass(frozen=True)
class Machine:
    """Some cards, and the ROCm that is installed beside them."""

    cards: Sequence[Card]
    rocm: str = "7.1.0"
    torch_rocm: str | None = None
    """ROCm that torch was built for, where it is another."""
    torch_brings_rocm: bool = False
    """Whether torch has ROCm's libraries among its own files, as from PyTorch's index."""
    has_wheels: bool = False
    """Whether ROCm is in AMD's wheels, instead of packages of the system."""
    legacy: str | None = None
    """A ROCm in ``/opt/rocm`` that somebody left there beside the wheels."""
    kernels: Sequence[str] | None = None
    """Architectures whose kernels a torch for many has; None where it is built for one."""
    has_package: bool = False
    """Whether ROCm's Python package is installed."""
    driver: str | None = "6.16.4"
    """Version of amdgpu; None for the kernel's own, which has none."""
    kernel_us: float = 4000.0
    """What a convolution or a product of matrices takes at full clock."""

    @property
    def devices(self) -> list[dict[str, Any]]:
        """Every device of the machine, in HIP's order."""
        cards = list(enumerate(self.cards))
        by_node = sorted(cards, key=lambda pair: pair[0] if pair[1].rank is None else pair[1].rank)
        devices = [{**device, "card": n} for n, card in by_node for device in card.devices]
        on_bus = sorted(range(len(devices)), key=lambda n: str(devices[n]["bdf"]))
        return [
            {
                **device,
                "hip": n,
                "node": n + 2,
                "smi": on_bus.index(n),
                "kfd_id": 51_000 + 17 * n,
            }
            for n, device in enumerate(devices)
        ]

    def lay_out(self, folder: Path) -> Site:
        """Write the machine into a folder."""
        lib = folder / "lib"
        for made in ("state/holders", "state/looks", "tmp", f"lib/{HERE.name}"):
            (folder / made).mkdir(parents=True)
        shutil.copytree(HERE / "site", folder / "site", ignore=shutil.ignore_patterns("__*"))
        for module in ("__init__.py", "present.py", "kernel.py", "gpu_metrics.py"):
            shutil.copy(HERE / module, lib / HERE.name)
        for package in ("torch", "torchvision"):
            self._write_build(package, folder / "site")
        if self.has_wheels:
            rocm = self._wheels(folder)
            if self.legacy is not None:
                system_rocm(folder / "root", self.legacy)
        else:
            rocm = system_rocm(folder / "root", self.rocm)
        if self.has_package:
            source, target = HERE / "rocm_package", rocm / "share/amd_smi"
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        site = Site(self, folder)
        site.write()
        return site

    def _write_build(self, package: str, site: Path) -> None:
        """Have the package manager say that a package is a build for ROCm."""
        series = ".".join((self.torch_rocm or self.rocm).split(".")[:2])
        version = f"{metadata.version(package).partition('+')[0]}+rocm{series}"
        archs = [] if self.kernels is None else ["gfx90a", "gfx942", "gfx950"]
        needs = [f"amd-torch-device-{arch}; extra == 'device-{arch}'" for arch in archs]
        install_wheel(site, package, version, needs)
        # Without an __init__.py this is no package, and torch's own is found.
        (site / package).mkdir()
        words = f"__version__ = {version!r}\ncuda = None\nhip = '{hip_of(series)}'\n"
        (site / package / "version.py").write_text(words)
        if package == "torch":
            (site / "torch/lib").mkdir()
            (site / "torch/lib/libaotriton_v2.so.0.11.2").touch()
        if package == "torch" and self.torch_brings_rocm:
            write_libraries(site / "torch/lib", ["amdhip64", "MIOpen"], "")

    def _wheels(self, folder: Path) -> Path:
        """Install AMD's wheels beside a Python of their own; return the core's folder."""
        site, programs = folder / "site", folder / "venv/bin"
        for name in ("rocm-sdk-core", "rocm-sdk-libraries", "rocm-profiler"):
            install_wheel(site, name, self.rocm)
        for arch in self.kernels or ():
            install_wheel(site, f"amd-torch-device-{arch}", self.rocm)
            install_wheel(site, f"rocm-sdk-device-{arch}", self.rocm)
        core, libraries = site / "_rocm_sdk_core", site / "_rocm_sdk_libraries"
        write_libraries(core / "lib", ["amdhip64"], ".7")
        write_libraries(libraries / "lib", LIBRARIES, ".1")
        write_libraries(libraries / "lib", [CK], "")
        programs.mkdir(parents=True)
        (programs / "python").symlink_to(sys.executable)
        for name in ("rocprofv3", "amd-smi"):
            # As pip writes it; a first start takes longer than anybody waits, and unpacks.
            (programs / name).write_text(
                f"#!{programs}/python\nimport pathlib\npathlib.Path(__file__ + '.ran').touch()\n"
                f"from rocm_sdk_core._cli import {name.replace('-', '_')}\n"
            )
            (programs / name).chmod(0o755)
        return core


LIBRARIES = ("MIOpen", "hipblaslt", "rocblas", "rccl")
CK = "MIOpenCKGroupedConv_gfx942"


def write_libraries(folder: Path, names: Sequence[str], suffix: str) -> None:
    """Write libraries without any code, whose names end in ``.so`` and the suffix."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"lib{name}.so{suffix}").write_text(f"{name} as it was built\n")


def install_wheel(site: Path, name: str, version: str, needs: Sequence[str] = ()) -> None:
    """Have the package manager say that a package is installed."""
    about = site / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    words = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    words += "".join(f"Requires-Dist: {need}\n" for need in needs)
    (about / "METADATA").write_text(words)


def system_rocm(root: Path, version: str) -> Path:
    """Install a ROCm as the system's packages do, in ``/opt``; return its folder.

    Since 7.14 it is in ``/opt/rocm/core-X.Y``, with links to it in ``/opt/rocm``.
    """
    numbers = [int(number) for number in version.split(".")]
    top = folder = root / "opt/rocm"
    suffix = f".1.0.{numbers[0]}{numbers[1]:02}{numbers[2]:02}"
    if tuple(numbers) >= (7, 14):
        folder, suffix = top / f"core-{numbers[0]}.{numbers[1]}", ".1"
        folder.mkdir(parents=True)
        (top / "core").symlink_to(folder.name)
        for name in ("bin", "lib", "share"):
            (top / name).symlink_to(f"core/{name}")
    for made in ("bin", ".info", "share"):
        (folder / made).mkdir(parents=True)
    (folder / ".info/version").write_text(f"{version}\n")
    write_libraries(folder / "lib", LIBRARIES, suffix)
    if tuple(numbers) >= (7, 14):
        write_libraries(folder / "lib", [CK], "")
    write_program(folder / "bin/rocprofv3")
    return folder


def hip_of(rocm: str) -> str:
    """Return the version of HIP in a ROCm, which since 10.0 is another than ROCm's."""
    return "7.15.26333" if rocm.startswith("10.") else f"{rocm}.25424"


@dataclass(frozen=True)
class Site:
    """A machine in its folder."""

    machine: Machine
    folder: Path

    def write(self) -> None:
        """Describe the machine to its stand-ins."""
        about = {
            "devices": self.machine.devices,
            "rocm": self.machine.rocm,
            "torch_rocm": self.machine.torch_rocm or self.machine.rocm,
            "hip": hip_of(self.machine.torch_rocm or self.machine.rocm),
            "kernel_us": self.machine.kernel_us,
            "driver": self.machine.driver,
        }
        (self.folder / "machine.json").write_text(json.dumps(about, indent=1))
        (self.folder / "state/work").write_bytes(bytes(8 * len(self.machine.devices)))
        kernel.make(Present(self.folder))

    def rest(self) -> None:
        """Let the devices come to rest, as they do in a second without work."""
        (self.folder / "state/work").write_bytes(bytes(8 * len(self.machine.devices)))
        kernel.write(Present(self.folder))

    def environ(self, **variables: str) -> dict[str, str]:
        """Return the environment of a login on this machine, with nothing of the real one's."""
        told = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HIP_", "ROCR_", "CUDA_", "HSA_", "PYTEST_", "ROCM_", "BENCH_"))
        }
        root = self.folder / "root"
        ways = [
            way
            for way in os.environ["PATH"].split(os.pathsep)
            if not Path(way, "rocprofv3").exists()
        ]
        return {
            **told,
            "BENCH_LIB_ROOT": str(root),
            "PATH": os.pathsep.join(
                [str(self.folder / "venv/bin"), str(root / "opt/rocm/bin"), *ways]
            ),
            "PYTHONPATH": os.pathsep.join(str(self.folder / name) for name in ("site", "lib")),
            "TMPDIR": str(self.folder / "tmp"),
            **variables,
        }

    def hold(self, pid: int, hip: int, name: str, memory: int = 3 << 30) -> None:
        """Have another process hold a device."""
        about = {"hip": hip, "memory": memory, "name": name}
        (self.folder / "state/holders" / str(pid)).write_text(json.dumps(about))
        comm = self.folder / "root/proc" / str(pid) / "comm"
        comm.parent.mkdir(parents=True)
        comm.write_text(f"{name}\n")

    @property
    def opened(self) -> list[dict[str, Any]]:
        """Every context that was opened: its process, its device and its variables."""
        log = self.folder / "state/opened.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


# --- the machines of the tests; no serial or address is any real card's


NO_CHANGES: Mapping[str, Any] = MappingProxyType({})


def mi300x(*, card: Mapping[str, Any] = NO_CHANGES, **changes: Any) -> Machine:
    """One MI300X."""
    return Machine(
        [Card(**{"serial": "5eed300000000010", "bdf": "0000:1b:00.0", **card})], **changes
    )


def mi300x_vf(*, card: Mapping[str, Any] = NO_CHANGES, **changes: Any) -> Machine:
    """One virtual function of an MI300X, whose table lists attributes."""
    own = {"pci_id": "74b5", "is_virtual": True, "revision": 9, "name": "AMD Instinct MI300X VF"}
    return mi300x(card={**own, **card}, **{"driver": "6.16.13", **changes})


def mi300a(*, card: Mapping[str, Any] = NO_CHANGES, **changes: Any) -> Machine:
    """One MI300A, of six dies."""
    own = {
        "name": "AMD Instinct MI300A",
        "pci_id": "74a0",
        "units": 228,
        "memory_mib": 131_072,
        "dies": 6,
        "board_w": 550,
        "cap_w": 550,
    }
    return mi300x(card={**own, **card}, **changes)


def mi350x(*, card: Mapping[str, Any] = NO_CHANGES, **changes: Any) -> Machine:
    """One MI350X."""
    own = {
        "name": "AMD Instinct MI350X",
        "pci_id": "75a0",
        "arch": "gfx950",
        "units": 256,
        "memory_mib": 294_896,
        "board_w": 1000,
        "cap_w": 1000,
        "max_clock_mhz": 2200,
        "clock_mhz": 2200,
        "memory_clock_mhz": 2000,
        "revision": 8,
    }
    return mi300x(card={**own, **card}, **changes)


MI355X: Mapping[str, Any] = MappingProxyType(
    {
        "name": "AMD Instinct MI355X",
        "pci_id": "75a3",
        "board_w": 1400,
        "cap_w": 1400,
        "max_clock_mhz": 2400,
        "clock_mhz": 2400,
    }
)


def mi355x_dpx(*, card: Mapping[str, Any] = NO_CHANGES, **changes: Any) -> Machine:
    """One MI355X that is divided into two devices, and so is its memory."""
    own = {**MI355X, "compute_partition": "DPX", "memory_partition": "NPS2"}
    return mi350x(card={**own, **card}, **changes)


def mi355x(count: int = 8, *, card: Mapping[str, Any] = NO_CHANGES, **changes: Any) -> Machine:
    """So many MI355X."""
    (one,) = mi350x(card={**MI355X, **card}).cards
    places = [(f"5eed3550000000{n}0", f"0000:{n}5:00.0") for n in range(count)]
    cards = [dataclasses.replace(one, serial=serial, bdf=bdf) for serial, bdf in places]
    return Machine(cards, **changes)


def mi325x(count: int = 8, *, card: Mapping[str, Any] = NO_CHANGES, **changes: Any) -> Machine:
    """So many MI325X, whose nodes are in another order than their places on the bus.

    Each has a clock of its own, so that the time of a step tells where it was made.
    """
    order = [n for n in (3, 2, 0, 1, 7, 6, 4, 5) if n < count]
    cards = [
        Card(
            f"5eed3250000000{16 * n:02x}",
            f"0000:{0x0B + 0x12 * n:02x}:00.0",
            name="AMD Instinct MI325X",
            pci_id="74a5",
            memory_mib=262_080,
            board_w=1000,
            cap_w=1000,
            clock_mhz=2100 - 30 * n,
            rank=order[n],
        )
        for n in range(count)
    ]
    return Machine([dataclasses.replace(each, **card) for each in cards], **changes)


def mi250x(*, card: Mapping[str, Any] = NO_CHANGES, **changes: Any) -> Machine:
    """One MI250X, which is two devices."""
    die = Card(
        "5eed250000000010",
        "0000:c3:00.0",
        name="AMD Instinct MI250X",
        pci_id="7408",
        arch="gfx90a",
        units=110,
        memory_mib=65_500,
        dies=1,
        board_w=560,
        cap_w=560,
        max_clock_mhz=1700,
        clock_mhz=1700,
        memory_clock_mhz=1600,
        compute_partition=None,
        memory_partition=None,
        revision=3,
    )
    die = dataclasses.replace(die, **card)
    other = dataclasses.replace(
        die, serial="5eed250000000020", bdf="0000:c8:00.0", is_secondary=True
    )
    # Wheels of torch bring ROCm's libraries along; the tools are those of the machine.
    return Machine([die, other], **{"rocm": "6.3.2", "torch_rocm": "7.1.0", **changes})


def mi300x_cpx(*, card: Mapping[str, Any] = NO_CHANGES, **changes: Any) -> Machine:
    """One MI300X that is divided into eight devices, and its memory into four parts."""
    own = {
        "serial": "5eed300000000c00",
        "bdf": "0000:2a:00.0",
        "compute_partition": "CPX",
        "memory_partition": "NPS4",
    }
    return mi300x(card={**own, **card}, **changes)
