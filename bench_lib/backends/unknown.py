"""A device that no backend knows: a history file may name one, or its package is not installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_lib.backends.backend import Backend
from bench_lib.backends.looks import Source
from bench_lib.model import Hardware, UserError


class UnknownVendorError(UserError):
    """A device cannot be measured, since no backend knows its vendor."""


class Unknown(Backend):
    """It can be shown and judged, and neither pinned nor watched."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        """Stand for the vendor `name`, where backends are `known` for others."""
        self.name = name
        self.is_gpu = bool(name)  # without a vendor nothing at all is known of the device
        self._known = known

    def detect(self, root: Path, environ: Mapping[str, str], *, ask_tools: bool) -> list[Hardware]:
        """Return none: nobody knows where to look."""
        return []

    def visibility(self, device: Hardware, environ: Mapping[str, str]) -> dict[str, str]:
        """Raise UnknownVendorError: a worker could open any other device."""
        raise self._refusal(device, "cannot be measured")

    def telemetry(self, device: Hardware, root: Path, ancestor: int) -> Source:
        """Raise UnknownVendorError: the device is not watched."""
        raise self._refusal(device, "cannot be watched")

    def _refusal(self, device: Hardware, what: str) -> UnknownVendorError:
        return UnknownVendorError(
            f"{device.key} {what}: no backend here knows the vendor {self.name!r}, only "
            f"{', '.join(self._known)}; install the package that brings one (docs/"
            "adding-a-backend.md)"
        )
