"""The interface of a vendor's backend, with the answers that most vendors share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench_lib.backends.looks import Source
from bench_lib.backends.profiler import Profilers
from bench_lib.model import Device, Environment, Hardware, UserError

OTHER_PROCESSES = "other processes on the GPUs"


@dataclass(frozen=True)
class Check:
    """One line of ``bench-lib env``."""

    name: str
    ok: bool | None
    """None if unknown or not applicable."""
    detail: str
    remedy: str = ""
    """The remedy; empty unless `ok` is False."""
    fatal: bool = False
    """Whether the suite cannot run here, where `ok` is False; else its results are worse."""


def good(name: str, detail: str) -> Check:
    """Say that all is well."""
    return Check(name, ok=True, detail=detail)


def stops(name: str, detail: str, remedy: str) -> Check:
    """Say what keeps the suite from running, or makes whole groups of its cases errors."""
    return Check(name, ok=False, detail=detail, remedy=remedy, fatal=True)


def warns(name: str, detail: str, remedy: str) -> Check:
    """Say what makes results less steady, fewer or doubtful."""
    return Check(name, ok=False, detail=detail, remedy=remedy)


def unknown(name: str, detail: str) -> Check:
    """Say what could not be found out, or does not apply."""
    return Check(name, ok=None, detail=detail)


def other_processes(pids: list[str]) -> Check:
    """Say which processes have the GPUs open before the suite opens them."""
    if not pids:
        return good(OTHER_PROCESSES, "none")
    remedy = "wait for them or end them; measurements beside them are discarded"
    return warns(OTHER_PROCESSES, f"{len(pids)}: {', '.join(pids[:8])}", remedy)


@dataclass(frozen=True)
class Software:
    """A vendor's software on this machine; unknown parts are None or empty."""

    driver: str | None = None
    """The kernel's driver and its version, as ``amdgpu 6.10.5``."""
    firmware: frozenset[str] = frozenset()
    """Versions of the GPUs' video BIOS."""
    rocm: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    """Versions by the library's name."""


@dataclass(frozen=True)
class Build:
    """The version of a vendor's platform that torch was built for."""

    version: str | None = None
    doubt: str = ""
    """Why it does not go with this machine; empty if it does."""


class Backend(Protocol):
    """One vendor's devices.  A subclass gives the abstract parts, and any others that differ.

    The answers here fit a GPU of a vendor that needs nothing of its own.  Nothing may raise because
    a driver is missing or broken: an unreadable value is None, or empty.
    """

    name: str
    """``Hardware.vendor`` of its devices."""
    variables: Sequence[str] = ()
    """Environment variables that hide or renumber its devices."""
    hidden: Mapping[str, str] = {}
    """Variables that hide all of its devices from a worker."""
    is_gpu: bool = True
    torch_type: str = "cuda"
    """Torch's name for its devices."""
    clock: str = "clock"
    """The clock in telemetry, in words."""
    telemetry_remedy: str = ""
    """The remedy if a device cannot be watched."""
    is_measured: bool = False
    """Whether the constants that were measured on an H200 may decide on its devices."""
    untried: str = ""
    """What nobody has tried on its devices, and what their first owner can do about it."""
    checks_processes: bool = False
    """Whether `checks` lists the processes that have its devices open."""

    # --- finding and pinning ---------------------------------------------------------------

    @abstractmethod
    def detect(self, root: Path, environ: Mapping[str, str]) -> list[Hardware]:
        """List the devices that torch would show in this environment, numbered from 0.

        `root` is the folder of ``/sys``, ``/proc`` and ``/dev``.
        """

    @abstractmethod
    def visibility(self, device: Hardware, environ: Mapping[str, str]) -> dict[str, str]:
        """Choose variables that leave a worker only `device`; ValueError where none can.

        `device` was detected under the same `environ`.
        """

    def as_detected(self, device: Hardware, seen: Device) -> Device:
        """Return what a context saw in the words and units in which `device` was detected."""
        return seen

    def is_arch(self, arch: str) -> bool:
        """Whether an architecture that torch names can be this vendor's."""
        return True

    def lock_name(self, device: Hardware) -> str:
        """Return what identifies a device among all of this host."""
        return device.uuid or f"{device.key}-{device.index}"

    # --- watching and comparing ------------------------------------------------------------

    @abstractmethod
    def telemetry(self, device: Hardware, root: Path, ancestor: int) -> Source:
        """Choose how to watch a device; raises with the cause if there is no way.

        Descendants of the process `ancestor` are not asked whether they are busy.
        """

    def conditions(self, environment: Environment, *, cold: bool) -> dict[str, Any]:
        """Return what else has to be equal for a comparison.

        `cold` says that the case was measured with empty caches.
        """
        return {}

    def has_tf32(self, device: Hardware) -> bool:
        """Whether networks in TF32 are worth measuring on a device."""
        return "tf32" in device.peak_tflops

    def profilers(self) -> Profilers | None:
        """Return the profilers that can watch a whole application; None without any."""
        return None

    # --- what this machine has -------------------------------------------------------------

    def is_present(self, root: Path) -> bool:
        """Whether the kernel has a driver for its devices, or sees one on the bus without."""
        return False

    def software(self, root: Path, environ: Mapping[str, str]) -> Software:
        """Read the versions of what the vendor has installed."""
        return Software()

    def caches(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Say how full each of its caches is, as `bench_lib.backends.folders` words it."""
        return {}

    # --- what bench-lib env asks -----------------------------------------------------------

    def checks(
        self,
        root: Path,
        environ: Mapping[str, str],
        devices: Sequence[Hardware],
    ) -> list[Check]:
        """Look for what keeps its devices from measuring; `devices` are those detected."""
        return []

    def torch_build(
        self,
        versions: Mapping[str, str],
        software: Software,
    ) -> Build | None:
        """Return torch's build, by ``torch/version.py``; None if it is not for this vendor."""
        return None

    def torch_index(self, software: Software) -> str:
        """Say where pip finds a torch for this machine; empty for the usual place."""
        return ""


class UnknownVendorError(UserError):
    """A device cannot be measured, since no backend knows its vendor."""


class Unknown(Backend):
    """A device that no backend knows: a history file names it, or its package is not installed.

    It can be shown and judged, and neither pinned nor watched.
    """

    def __init__(self, name: str, known: Sequence[str]) -> None:
        """Stand for the vendor `name`, where backends are `known` for others."""
        self.name = name
        self.is_gpu = bool(name)  # without a vendor nothing at all is known of the device
        self._known = known

    def detect(self, root: Path, environ: Mapping[str, str]) -> list[Hardware]:
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


# --- variables that hide devices and renumber them ---------------------------------------


def named(words: Iterable[str], devices: Sequence[Hardware]) -> list[Hardware]:
    """Find the devices that indices or starts of uuids mean, up to the first of no meaning."""
    found = []
    for word in words:
        if word.isdecimal():
            alike = list(devices[int(word) : int(word) + 1])
        else:
            # Shorter than "GPU-" and a digit is no uuid, to either runtime.
            prefix = word.lower() if len(word) > 4 else None
            alike = [d for d in devices if prefix and (d.uuid or "").lower().startswith(prefix)]
        if len(alike) != 1:
            break
        found += alike
    return found


def word_for(device: Hardware, name: str, value: str | None) -> str:
    """Choose what the variable `name`, now `value`, must say to mean `device` alone.

    Raises ValueError where the value shows fewer devices than were detected.
    """
    if value is None:
        return str(device.index)
    words = list(dict.fromkeys(value.split(","))) if value else []
    if device.index >= len(words):
        raise ValueError(
            f"{device.key} is device {device.index}, but {name}={value!r} shows "
            f"{len(words)}; detect the devices again after changing that variable"
        )
    return words[device.index]
