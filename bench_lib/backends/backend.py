"""The interface of a vendor's backend, with defaults that suit most vendors."""

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
    """Empty unless `ok` is False."""
    fatal: bool = False
    """If `ok` is False: whether the suite cannot run, rather than run with worse results."""


def good(name: str, detail: str) -> Check:
    """Return a check that passed."""
    return Check(name, ok=True, detail=detail)


def stops(name: str, detail: str, remedy: str) -> Check:
    """Return a problem that keeps the suite, or whole groups of its cases, from running."""
    return Check(name, ok=False, detail=detail, remedy=remedy, fatal=True)


def warns(name: str, detail: str, remedy: str) -> Check:
    """Return a problem that makes results noisier, fewer or less reliable."""
    return Check(name, ok=False, detail=detail, remedy=remedy)


def unknown(name: str, detail: str) -> Check:
    """Return a check whose answer is unknown or that does not apply."""
    return Check(name, ok=None, detail=detail)


def other_processes(pids: list[str]) -> Check:
    """List the processes that have the GPUs open before the suite opens them."""
    if not pids:
        return good(OTHER_PROCESSES, "none")
    remedy = "wait for them or stop them; until then, measurements are discarded"
    return warns(OTHER_PROCESSES, f"{len(pids)}: {', '.join(pids[:8])}", remedy)


@dataclass(frozen=True)
class Software:
    """A vendor's software on this machine; unknown values are None or empty."""

    driver: str | None = None
    """The kernel driver and its version, such as ``amdgpu 6.10.5``."""
    firmware: frozenset[str] = frozenset()
    """Versions of the GPUs' video BIOS."""
    rocm: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    """Version by library name."""


@dataclass(frozen=True)
class Build:
    """The version of a vendor's platform that torch was built for."""

    version: str | None = None
    doubt: str = ""
    """Why it may not match this machine; empty if it matches."""


class Backend(Protocol):
    """One vendor's devices.  A subclass implements the abstract methods and overrides defaults.

    The defaults suit a GPU without special needs.  No method may raise because a driver is missing
    or broken, unless its docstring says so: a value that cannot be read is None or empty.
    """

    name: str
    """``Hardware.vendor`` of its devices."""
    variables: Sequence[str] = ()
    """Environment variables that hide or renumber its devices."""
    hidden: Mapping[str, str] = {}
    """Environment variables, with values, that hide all of its devices from a worker."""
    is_gpu: bool = True
    torch_type: str = "cuda"
    """Torch's name for its devices."""
    clock: str = "clock"
    """What reports call the clock in its telemetry."""
    telemetry_remedy: str = ""
    """The remedy if a device's telemetry cannot be read."""
    is_measured: bool = False
    """Whether constants that were measured on an H200 apply to its devices."""
    untried: str = ""
    """What is untested on its devices, and how their first user can help; empty if nothing."""
    checks_processes: bool = False
    """Whether `checks` lists the processes that have its devices open."""

    # --- detection and visibility ---------------------------------------------------------------

    @abstractmethod
    def detect(self, root: Path, environ: Mapping[str, str]) -> list[Hardware]:
        """List the devices as torch numbers them in this environment, starting at 0.

        `root` is the folder of ``/sys``, ``/proc`` and ``/dev``.
        """

    @abstractmethod
    def visibility(self, device: Hardware, environ: Mapping[str, str]) -> dict[str, str]:
        """Return environment variables under which a worker sees only `device`.

        `device` was detected under the same `environ`.  Raises ValueError if none can do it.
        """

    def as_detected(self, device: Hardware, seen: Device) -> Device:
        """Return `seen`, as a process reports it, in the spelling and units of `device`."""
        return seen

    def is_arch(self, arch: str) -> bool:
        """Whether an architecture, in torch's spelling, can be this vendor's."""
        return True

    def lock_name(self, device: Hardware) -> str:
        """Return a name that no other device of this host has."""
        return device.uuid or f"{device.key}-{device.index}"

    # --- telemetry and comparison ----------------------------------------------------------

    @abstractmethod
    def telemetry(self, device: Hardware, root: Path, ancestor: int) -> Source:
        """Return a source of a device's telemetry; raises with the cause if there is none.

        Descendants of the process `ancestor` need not be checked for being busy.
        """

    def conditions(self, environment: Environment, *, cold: bool) -> dict[str, Any]:
        """Return further conditions that must be equal for a comparison.

        `cold` means that the case was measured with empty caches.
        """
        return {}

    def has_tf32(self, device: Hardware) -> bool:
        """Whether networks in TF32 are worth measuring on a device."""
        return "tf32" in device.peak_tflops

    def profilers(self) -> Profilers | None:
        """Return the vendor's profilers of whole applications; None if it has none."""
        return None

    # --- this machine's software -----------------------------------------------------------

    def is_present(self, root: Path) -> bool:
        """Whether the kernel has the vendor's driver, or a device of it without a driver."""
        return False

    def software(self, root: Path, environ: Mapping[str, str]) -> Software:
        """Read the versions of the vendor's installed software."""
        return Software()

    def caches(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Describe how full each of its caches is, in the form of `bench_lib.backends.folders`."""
        return {}

    # --- checks of bench-lib env -----------------------------------------------------------

    def checks(
        self,
        root: Path,
        environ: Mapping[str, str],
        devices: Sequence[Hardware],
    ) -> list[Check]:
        """Check what its devices need to be measured; `devices` are those detected."""
        return []

    def torch_build(
        self,
        versions: Mapping[str, str],
        software: Software,
    ) -> Build | None:
        """Return torch's build, from ``torch/version.py``; None if it is for another vendor."""
        return None

    def torch_index(self, software: Software) -> str:
        """Say where pip finds a torch for this machine; empty for the default index."""
        return ""


class Unknown(Backend):
    """A vendor without a backend, from a history file or a package that is not installed.

    Its devices can be shown and judged, but not measured.
    """

    def __init__(self, name: str, known: Sequence[str]) -> None:
        """Stand for the vendor `name`; `known` are the vendors that have backends."""
        self.name = name
        self.is_gpu = bool(name)  # without a vendor, nothing is known about the device
        self._known = known

    def detect(self, root: Path, environ: Mapping[str, str]) -> list[Hardware]:
        """Return an empty list: there is no way to search."""
        return []

    def visibility(self, device: Hardware, environ: Mapping[str, str]) -> dict[str, str]:
        """Raise UserError: a worker could open any other device."""
        raise self._refusal(device, "cannot be measured")

    def telemetry(self, device: Hardware, root: Path, ancestor: int) -> Source:
        """Raise UserError: the device has no telemetry."""
        raise self._refusal(device, "cannot be monitored")

    def _refusal(self, device: Hardware, what: str) -> UserError:
        return UserError(
            f"{device.key} {what}: there is no backend for the vendor {self.name!r}, only for "
            f"{', '.join(self._known)}; install a package that provides one (docs/"
            "adding-a-backend.md)"
        )


# --- variables that hide and renumber devices --------------------------------------------


def named(words: Iterable[str], devices: Sequence[Hardware]) -> list[Hardware]:
    """Return the devices with these indices or uuid prefixes, up to the first that matches none."""
    chosen = []
    for word in words:
        if word.isdecimal():
            matches = list(devices[int(word) : int(word) + 1])
        else:
            # Both runtimes ignore a prefix that is shorter than "GPU-" and a digit.
            prefix = word.lower() if len(word) > 4 else None
            matches = [d for d in devices if prefix and (d.uuid or "").lower().startswith(prefix)]
        if len(matches) != 1:
            break
        chosen += matches
    return chosen


def word_for(device: Hardware, name: str, value: str | None) -> str:
    """Return the setting of the variable `name`, now `value`, that shows only `device`.

    Raises ValueError if `value` shows fewer devices than were detected.
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
