"""NVIDIA's GPUs: detected and monitored through NVML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_lib.backends.backend import Backend, Build, Check, Software, good, stops, unknown
from bench_lib.backends.looks import Source
from bench_lib.backends.nvidia import devices as listed
from bench_lib.backends.sysfs import text
from bench_lib.model import Hardware


class NVIDIA(Backend):
    """GPUs that CUDA runs."""

    name = "nvidia"
    variables = (listed.VARIABLE,)
    hidden = {listed.VARIABLE: "-1"}
    clock = "SM clock"
    telemetry_remedy = "pip install nvidia-ml-py, and check that nvidia-smi works"

    is_measured = True

    visibility = staticmethod(listed.only)
    is_present = staticmethod(listed.is_present)

    def detect(self, root: Path, environ: Mapping[str, str]) -> list[Hardware]:
        """List the GPUs that CUDA_VISIBLE_DEVICES leaves.

        If the models differ, indices follow this order only with CUDA_DEVICE_ORDER=PCI_BUS_ID, and
        a warning says so.
        """
        return listed.left(listed.devices(root), environ)

    def is_arch(self, arch: str) -> bool:
        """Whether an architecture is NVIDIA's."""
        return arch.startswith("sm_")

    def telemetry(self, device: Hardware, root: Path, ancestor: int) -> Source:
        """Read NVML; raises NVML's exceptions if it does not know the device."""
        import pynvml

        return listed.source(device, pynvml, ancestor)

    def has_tf32(self, device: Hardware) -> bool:
        """Return True: all supported GPUs have it."""
        return True

    def software(self, root: Path, environ: Mapping[str, str]) -> Software:
        """Read the versions of the driver and of the video BIOS."""
        banner = text(root / "proc/driver/nvidia/version") or ""
        match = re.search(r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)\s", banner)
        version = match[1] if match else text(root / "sys/module/nvidia/version")
        lines = (
            re.search(r"^Video BIOS:[ \t]*([0-9A-Fa-f.]+)$", text(file) or "", re.MULTILINE)
            for file in root.glob("proc/driver/nvidia/gpus/*/information")
        )
        firmware = frozenset(line[1] for line in lines if line)
        return Software(f"nvidia {version}" if version else None, firmware)

    def checks(
        self, root: Path, environ: Mapping[str, str], devices: Sequence[Hardware]
    ) -> list[Check]:
        """Check the driver."""
        driver = self.software(root, environ).driver
        if driver:
            return [good("NVIDIA driver", driver)]
        if devices:
            return [unknown("NVIDIA driver", "works, but does not report its version")]
        remedy = "check that nvidia-smi works; in a container, use --gpus all"
        return [stops("NVIDIA driver", "there are devices, but no driver version", remedy)]

    def torch_build(self, versions: Mapping[str, str], software: Software) -> Build | None:
        """Return the CUDA version that torch was built for."""
        is_own = versions.get("cuda") and not versions.get("hip")
        return Build(versions["cuda"]) if is_own else None
