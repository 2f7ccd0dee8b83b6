"""AMD's GPUs: detected in the kernel's files, monitored there or through ROCm's package."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_lib.backends.amd import devices as listed
from bench_lib.backends.amd import machine, package, rocm, sensors
from bench_lib.backends.backend import Backend, Build, Check, Software
from bench_lib.backends.folders import state_of
from bench_lib.backends.looks import NothingToldError, Source, cause_of, tells
from bench_lib.backends.profiler import Profilers
from bench_lib.formulas.arithmetic import why_no_tf32_on_amd
from bench_lib.model import Device, Environment, Hardware

WAYS: Mapping[str, Callable[[Hardware, Path], Source]] = {
    "the kernel's files": sensors.source,
    "the amdsmi package": package.source,
}
"""Sources of telemetry, the cheapest first: the package reads the kernel's files too, some of them
ten times per look."""


class AMD(Backend):
    """GPUs that ROCm supports; torch calls them ``cuda``, like NVIDIA's."""

    name = "amd"
    variables = (*listed.VARIABLES, "GPU_DEVICE_ORDINAL")
    # "-1", not "": HIP ignores an empty variable.
    hidden = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
    clock = "GFX clock"
    telemetry_remedy = (
        "let the container see /sys, or install ROCm's Python package amdsmi from AMD's wheel "
        "rocm-sdk-core; the package amdsmi on PyPI is a different one"
    )
    checks_processes = True
    untried = (
        "No AMD Instinct has run this suite yet. It follows the sources of the kernel and of ROCm, "
        "and its tests use stand-in machines. The published figures in baselines/ are for "
        "comparison only and fail no case. If your GPU is the first, run bench-lib env --report "
        "FILE (seconds), bench-lib selfcheck (85 s on an H200) and bench-lib baseline record "
        "--reason 'first baseline' (five runs of the gate tier, each 2 to 4 minutes on an H200). "
        "Then open an issue for this project with FILE, the output of selfcheck and the new file "
        "in baselines/. FILE has no host name, home folder or serial number."
    )

    visibility = staticmethod(listed.only)
    is_present = staticmethod(machine.is_present)
    software = staticmethod(machine.software)
    caches = staticmethod(machine.caches)

    def detect(self, root: Path, environ: Mapping[str, str]) -> list[Hardware]:
        """List the GPUs that ROCR_ and then HIP_ or CUDA_VISIBLE_DEVICES leave.

        As in torch, a variable that is set but empty hides all GPUs.
        """
        return listed.left(listed.devices(root), environ)

    def as_detected(self, device: Hardware, seen: Device) -> Device:
        """Return HIP's description in the kernel's spelling and units."""
        units = seen.compute_units
        # RDNA pairs its compute units, and HIP calls each pair a multiprocessor.
        in_pairs = (device.arch or "").startswith("gfx1") and device.compute_units == 2 * (
            units or 0
        )
        # An MI300A shares its memory with the host, and the kernel and the runtime each have a
        # setting of their own for how much of it is the GPU's.
        shares_memory = device.key.startswith("mi300a")
        return replace(
            seen,
            arch=seen.arch and seen.arch.partition(":")[0],  # ``gfx942:sramecc+:xnack-``
            uuid=_serial_number(seen.uuid),
            memory_bytes=None if shares_memory else seen.memory_bytes,
            compute_units=device.compute_units if in_pairs else units,
        )

    def is_arch(self, arch: str) -> bool:
        """Whether an architecture is AMD's."""
        return arch.startswith("gfx")

    def lock_name(self, device: Hardware) -> str:
        """Add the PCI address: partitions may share their card's uuid, but not its function."""
        name = super().lock_name(device)
        return f"{name}-{device.bdf}" if device.bdf else name

    def telemetry(self, device: Hardware, root: Path, ancestor: int) -> Source:
        """Return the first source that has a clock or a power, or else one that has any figure.

        Raises NothingToldError with each source's cause if there is none.
        """
        causes, fallback = [], None
        for name, source_of in WAYS.items():
            try:
                source = source_of(device, root)
                sample = source.look(with_pids=False)
            except Exception as error:  # noqa: BLE001 - vendors' libraries raise exceptions of any type
                causes.append(f"{name}: {cause_of(error)}")
                continue
            if tells(sample, "clock_mhz", "power_w"):
                return source
            fallback = fallback or (source if tells(sample) else None)
            causes.append(f"{name}: it reports neither a clock nor a power")
        if fallback is None:
            raise NothingToldError("; ".join(causes))
        return fallback

    def conditions(self, environment: Environment, *, cold: bool) -> dict[str, Any]:
        """Add whether MIOpen's database, which chooses kernels, was filled before the run."""
        if cold or machine.MIOPEN not in environment.caches:
            return {}
        return {"miopen_cache": state_of(environment.caches[machine.MIOPEN])}

    def has_tf32(self, device: Hardware) -> bool:
        """Return False: workers refuse it for networks, whose convolutions do not use it."""
        return why_no_tf32_on_amd(device.arch or "", {}, "", products=False) is None

    def profilers(self) -> Profilers:
        """Return ROCm's profilers."""
        from bench_lib.backends.amd import profilers

        return profilers

    def checks(
        self, root: Path, environ: Mapping[str, str], devices: Sequence[Hardware]
    ) -> list[Check]:
        """Check the driver, its device files, ROCm's profiler, and torch's kernels."""
        return machine.checks(root, environ, devices)

    def torch_build(self, versions: Mapping[str, str], software: Software) -> Build | None:
        """Return the ROCm version that torch was built for, or else HIP's.

        The two share major and minor version only before 7.14: ROCm 10.0.0 has HIP 7.15.
        """
        hip = versions.get("hip")
        if not hip:
            return None
        version = versions.get("rocm") or rocm.built_for()
        if version is None and (rocm.release(hip) or (0,)) >= rocm.FIRST_OF_CORE:
            return Build(f"HIP {hip}")
        own, installed = (rocm.release(item) for item in (version or hip, software.rocm))
        differs = own is not None and installed is not None and own[:2] != installed[:2]
        return Build(version or hip, f"ROCm {software.rocm} is installed" if differs else "")

    def torch_index(self, software: Software) -> str:
        """Name PyTorch's index for the installed ROCm, or AMD's index if ROCm is in wheels."""
        if rocm.WHEELS[0] in software.libraries:
            return f" and ROCm {software.rocm} from AMD's index, whose wheels need each other"
        series = rocm.release(software.rocm)
        index = f"rocm{'.'.join(map(str, series[:2])) if series else '<version>'}"
        return f" from PyTorch's index for {index}; see Get Started on pytorch.org"


def _serial_number(uuid: str | None) -> str | None:
    """Decode HIP's uuid, of which torch prints the codes of its 16 characters.

    The characters are the hexadecimal serial number: the kernel's ``GPU-9a…`` is torch's ``3961…``.
    """
    digits = (uuid or "").replace("-", "")
    if not re.fullmatch(r"[0-9a-fA-F]{32}", digits):
        return uuid
    characters = bytes.fromhex(digits).decode("latin-1").lower()
    return characters if re.fullmatch(r"[0-9a-f]{16}", characters) else uuid
