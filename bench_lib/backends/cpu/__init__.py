"""The CPU as a device, for machines without a GPU that can be used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench_lib.backends.backend import Backend, Build, Software
from bench_lib.backends.cpu import machine
from bench_lib.backends.looks import Source
from bench_lib.model import Environment, Hardware


class CPU(Backend):
    """The cores that this process may use, as one device."""

    name = "cpu"
    is_gpu = False
    torch_type = "cpu"
    units = "CPUs"
    clock = "CPU clock"
    telemetry_remedy = "let the container see /proc and /sys"
    unknown = {}

    def detect(self, root: Path, environ: Mapping[str, str], *, ask_tools: bool) -> list[Hardware]:
        """Return this machine's CPU."""
        return [machine.device(root)]

    def visibility(self, device: Hardware, environ: Mapping[str, str]) -> dict[str, str]:
        """Return nothing: a worker uses the CPU where every GPU is hidden from it."""
        return {}

    def telemetry(self, device: Hardware, root: Path, ancestor: int) -> Source:
        """Watch in the kernel's files."""
        return machine.source(root)

    def conditions(self, environment: Environment, *, cold: bool) -> dict[str, Any]:
        """Add what sets the clocks."""
        return {"governor": environment.governor}

    def torch_build(self, versions: Mapping[str, str], software: Software) -> Build | None:
        """Return a build where torch was built for no GPU."""
        return None if any(versions.values()) else Build()
