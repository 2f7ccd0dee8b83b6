"""The findings of ``bench-lib env`` on a machine, and the page that shows them."""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from bench_lib import backends
from bench_lib.backends import Backend
from bench_lib.backends.backend import Check, good, other_processes, spoils, stops
from bench_lib.engine import telemetry
from bench_lib.environment import fingerprint, readiness
from bench_lib.formats import many
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.wire import PRELOAD_VARIABLE
from bench_lib.launch.zygote import Zygote
from bench_lib.model import Environment, Hardware
from bench_lib.storage.baselines import BaselineError, load, path_of

WIDTH = 100
MOST_LOOKS = 16
"""Devices that are looked at, all at the same time; partitions beyond them tell nothing new."""

FIGURES = (
    "source",
    "clock_mhz",
    "memory_clock_mhz",
    "power_w",
    "temperature_c",
    "utilization",
    "steal",
    "throttle",
    "counters",
    "pids",
    "names",
)
"""The figures of a look to show; clocks in MHz, power in W, heat in °C, shares from 0 to 1."""
MEND_DETECTION = "mend that if there is a GPU here which is not listed above"
MEND_BASELINES = "restore the file, or name another folder with --baselines"
MEND_WORKER = "mend what the message above names, then run this again"
Rows = Iterable[tuple[str, str | None]]


@dataclass(frozen=True)
class Reference:
    """The baseline file that a hardware key would be judged by."""

    path: str
    exists: bool = False
    measured: int = 0
    """Cases with accepted values."""
    published: int = 0
    """Cases with a figure of somebody else's."""
    problem: str | None = None
    """Why it cannot be read."""


@dataclass(frozen=True)
class DeviceLook:
    """One look at a device, or why there is none."""

    figures: dict[str, Any] | None
    cause: str | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """This machine, and whether the suite can run."""

    devices: list[Hardware]
    baselines: dict[str, Reference]
    """By hardware key."""
    telemetry: list[DeviceLook]
    """In the order of the devices, of the first `MOST_LOOKS`."""
    environment: Environment
    checks: list[Check]
    fit: bool
    """Whether the suite can run here."""


# --- examined ----------------------------------------------------------------------------


def examine(baselines: Path) -> Machine:
    """Look at this machine and start a worker on it; ``baselines`` is the baselines' folder."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        devices = backends.detect()
    # Before anything of ours keeps a CPU or a GPU busy.
    others = telemetry.others_now(devices[0])
    with ThreadPoolExecutor(MOST_LOOKS) as pool:
        answers = list(pool.map(telemetry.look_once, devices[:MOST_LOOKS]))
    seen = [
        DeviceLook(figures and {name: figures.get(name) for name in FIGURES}, cause)
        for figures, cause in answers
    ]
    references = {device.key: _reference(baselines, device.key) for device in devices}
    environment = fingerprint.collect()
    versions, problem = _worker_versions(devices[0])
    checks = [
        *readiness.checks(devices=devices),
        *_telemetry_checks(devices, seen),
        *([spoils("other programs", others, telemetry.OTHERS_MEAN)] if others else []),
        *(spoils("finding devices", str(one.message), MEND_DETECTION) for one in caught),
        *(stops("baselines", r.problem, MEND_BASELINES) for r in references.values() if r.problem),
    ]
    if problem is None:
        checks.append(good("worker starts", f"torch {versions.get('torch')}"))
    else:
        checks.append(stops("worker starts", problem, MEND_WORKER))
    return Machine(
        devices=devices,
        baselines=references,
        telemetry=seen,
        environment=fingerprint.with_versions(environment, versions),
        checks=checks,
        fit=not any(check.ok is False and check.fatal for check in checks),
    )


def _reference(folder: Path, key: str) -> Reference:
    path = path_of(folder, key)
    try:
        file = load(folder, key)
    except BaselineError as error:
        return Reference(str(path), exists=True, problem=str(error))
    return Reference(str(path), path.exists(), len(file.measured), len(file.published))


def _worker_versions(device: Hardware) -> tuple[dict[str, str | None], str | None]:
    """Return what a worker says of its torch, and why it could not start if it could not.

    Nothing is measured in it: it needs neither torchvision nor the compiler, nor is it drawn.
    """
    variables = {**backends.visibility(device), PRELOAD_VARIABLE: "torch"}
    try:
        with Zygote(environment=variables) as zygote:
            context = zygote.context(draws=1)
            differences = backends.confirm(device, context.device)
            return {**zygote.versions, "cudnn": context.cudnn}, "; ".join(differences) or None
    except LaunchError as error:
        return {}, str(error)


def _telemetry_checks(devices: Sequence[Hardware], seen: Sequence[DeviceLook]) -> Iterator[Check]:
    """Ask whether the devices can be watched, and who else is on them, as far as not told yet."""
    looked = list(zip(devices, seen, strict=False))
    blind = [(device, one.cause) for device, one in looked if one.figures is None]
    if blind:
        device, cause = blind[0]
        detail = f"{len(blind)} of {len(looked)} devices cannot be watched: {cause}"
        yield spoils("telemetry", detail, backends.of(device).telemetry_remedy)
    else:
        sources = dict.fromkeys(str((one.figures or {}).get("source")) for one in seen)
        yield good("telemetry", ", ".join(sources))
    lists = [
        one.figures["pids"]
        for device, one in looked
        if not backends.of(device).checks_processes
        and one.figures
        and one.figures.get("pids") is not None
    ]
    if lists:
        yield other_processes([str(pid) for pid in sorted({pid for each in lists for pid in each})])


# --- as a page ---------------------------------------------------------------------------


def page(machine: Machine) -> list[str]:
    """Return the page's lines, none longer than `WIDTH`."""
    here = backends.used_by(machine.devices)
    absent = {name for each in backends.every() if each not in here for name in each.caches_named}
    environment = machine.environment
    sections = [
        ("Devices", _devices(machine.devices, machine.baselines)),
        ("Telemetry", _rows(_telemetry(machine.devices, machine.telemetry))),
        ("Environment", _rows(_environment(environment, here))),
        ("Caches", _rows((n, state) for n, state in environment.caches.items() if n not in absent)),
        ("Variables", _rows(sorted(environment.variables.items())) or ["  none that change speed"]),
        ("Checks", _checks(machine.checks)),
    ]
    for backend in here:
        if backend.untried:
            words = textwrap.wrap(backend.untried, WIDTH - 2, break_on_hyphens=False)
            sections.append(("Not tried yet", [f"  {line}" for line in words]))
    lines = [line for title, section in sections for line in (title, *section, "")]
    return [*lines, *textwrap.wrap(_conclusion(machine.checks), WIDTH)]


def as_report(machine: Machine) -> str:
    """Return the page and all of its figures as a text to send to somebody.

    Host, home folder and the devices' serial numbers are left out.
    """
    document = msgspec.json.format(msgspec.json.encode(vars(machine)), indent=2).decode()
    text = "\n".join([f"bench-lib {version('bench-lib')}", "", *page(machine), "", document, ""])
    private = {str(Path.home()): "~", machine.environment.host: "HOST"}
    private |= {device.uuid: f"UUID-{n}" for n, device in enumerate(machine.devices) if device.uuid}
    for words, stand_in in private.items():
        text = re.sub(rf"(?<![\w.-]){re.escape(words)}(?![\w-])", stand_in, text)
    return text


def _rows(pairs: Rows, indent: int = 2) -> list[str]:
    """Align names and values; unknown values are left out, long ones are wrapped."""
    known = [(name, value) for name, value in pairs if value]
    column = indent + 2 + max((len(name) for name, _ in known), default=0)
    return [
        line
        for name, value in known
        for line in _wrapped(f"{'':{indent}}{name}".ljust(column), value)
    ]


def _wrapped(start: str, value: str) -> list[str]:
    return textwrap.wrap(
        value,
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_on_hyphens=False,
    ) or [start.rstrip()]


def _joined(parts: Iterable[str | None]) -> str:
    return ", ".join(filter(None, parts))


def _number(value: float | None, unit: str) -> str | None:
    return f"{value:g} {unit}" if value else None


# --- devices -----------------------------------------------------------------------------


def _devices(devices: Sequence[Hardware], references: Mapping[str, Reference]) -> Iterator[str]:
    """Describe devices that are alike once, then say where each is."""
    for alike in _groups(devices):
        first = alike[0]
        count = f", {len(alike)} devices" if len(alike) > 1 else ""
        yield from _wrapped("  ", f"{first.key}: {first.name}{count}")
        where = ((f"device {device.index}", _place(device)) for device in alike)
        yield from _rows([*_about(first, references[first.key]), *where], indent=4)


def _groups(devices: Sequence[Hardware]) -> list[list[Hardware]]:
    groups: list[list[Hardware]] = []
    for device in devices:
        for group in groups:
            own = replace(group[0], index=device.index, bdf=device.bdf, uuid=device.uuid)
            if own == device:
                group.append(device)
                break
        else:
            groups.append([device])
    return groups


def _place(device: Hardware) -> str | None:
    if not backends.is_gpu(device):
        return None
    return _joined([device.bdf or "PCI address unknown", device.uuid or "uuid unknown"])


def _about(device: Hardware, reference: Reference) -> Iterator[tuple[str, str | None]]:
    backend, is_gpu = backends.of(device), backends.is_gpu(device)
    unknown = "unknown" if is_gpu else None
    memory = f"{device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes else None
    bandwidth = _number(device.peak_gb_per_s, "GB/s at best")
    peaks = _joined(f"{name} {value:.5g}" for name, value in sorted(device.peak_tflops.items()))
    yield "PCI id", _joined([device.pci_device_id, device.arch]) if is_gpu else None
    yield "partition", backend.part_of_card(device)
    yield "units", _number(device.compute_units, backend.units)
    yield "memory", _joined([memory, bandwidth]) or unknown
    yield "power cap", _number(device.power_cap_w, "W") or unknown
    yield "clock policy", device.clock_policy or unknown
    yield "TOPS limiter", device.ptl
    yield "peak TFLOPS", peaks or (is_gpu and "unknown: not in the catalogue") or None
    yield "baselines", _on_reference(reference)


def _on_reference(reference: Reference) -> str:
    if reference.problem is not None:
        return reference.problem
    if not reference.exists:
        return f"{reference.path} is not there yet; bench-lib baseline record makes it"
    cases = many(reference.measured, "case")
    figures = f"{reference.published} published" if reference.published else None
    return f"{reference.path}: {_joined([cases, figures])}"


# --- telemetry ---------------------------------------------------------------------------

_NAMED = {
    "clock_mhz": ("clock", "{:.0f} MHz"),
    "memory_clock_mhz": ("memory clock", "{:.0f} MHz"),
    "power_w": ("power", "{:.0f} W"),
    "temperature_c": ("temperature", "{:.0f} °C"),
    "utilization": ("utilization", "{:.0%}"),
    "steal": ("stolen by the hypervisor", "{:.0%}"),
}


def _telemetry(devices: Sequence[Hardware], seen: Sequence[DeviceLook]) -> Rows:
    digits = len(str(len(seen) - 1))
    for device, one in zip(devices, seen, strict=False):
        name = f"{device.index:>{digits}}  {(one.figures or {}).get('source', 'none')}"
        yield name, _figures(one.figures) if one.figures else one.cause or "nothing can be seen"
    if len(devices) > len(seen):
        yield "…", f"{len(devices) - len(seen)} more, not looked at"


def _figures(figures: dict[str, Any]) -> str:
    words = [
        f"{name} {form.format(figures[field])}"
        for field, (name, form) in _NAMED.items()
        if isinstance(figures.get(field), (int, float))
    ]
    held_back = figures.get("throttle")
    if held_back:
        words.append(f"held back by {' and '.join(map(str, held_back))}")
    return _joined(words) or "no figure is known"


# --- environment -------------------------------------------------------------------------


def _environment(environment: Environment, here: Sequence[Backend]) -> Rows:
    unknown = {name: words for backend in here for name, words in backend.unknown.items()}
    count = _number(environment.cpu_count, "CPUs for this process")
    options = environment.kernel_options
    told = _joined(n if value == "set" else f"{n}={value}" for n, value in (options or {}).items())
    commit = environment.commit and environment.commit[:12]
    if commit and environment.dirty:
        commit += ", with uncommitted changes"
    balancing = {None: None, False: "off", True: "on"}
    return [
        ("host", environment.host),
        ("CPU", _joined([environment.cpu, count])),
        ("kernel", environment.kernel),
        ("kernel options", told or (options == {} and "none of note") or None),
        ("CPU governor", environment.governor),
        ("NUMA balancing", balancing[environment.numa_balancing]),
        ("huge pages", environment.huge_pages),
        ("driver", environment.driver or unknown.get("driver")),
        ("GPU firmware", environment.firmware),
        ("ROCm", environment.rocm or unknown.get("rocm")),
        ("ROCm libraries", _joined(f"{n} {v}" for n, v in environment.libraries.items())),
        ("Python", environment.python),
        ("torch", environment.torch or "unknown"),
        ("torchvision", environment.torchvision),
        ("triton", environment.triton),
        ("torchao", environment.torchao),
        ("HIP", environment.hip),
        ("CUDA", environment.cuda),
        ("MIOpen" if environment.hip else "cuDNN", environment.cudnn),
        ("commit", commit),
    ]


# --- checks ------------------------------------------------------------------------------


def _checks(checks: Sequence[Check]) -> list[str]:
    lines = []
    column = max(len(check.name) for check in checks) + 2
    for check in checks:
        mark = "-" if check.ok is None else "ok" if check.ok else "FAIL" if check.fatal else "warn"
        start = f"  {mark:<4}  {check.name:<{column}}"
        lines += _wrapped(start, check.detail)
        if check.remedy:
            lines += _wrapped(f"{'':{len(start)}}-> ", check.remedy)
    return lines


def _conclusion(checks: Sequence[Check]) -> str:
    failed = [check.name for check in checks if check.ok is False and check.fatal]
    warned = sum(check.ok is False and not check.fatal for check in checks)
    if failed:
        return f"The suite cannot run here; mend first: {', '.join(failed)}."
    if warned:
        return f"The suite can run here; {many(warned, 'warning')} above."
    return "The suite can run here."
