"""``bench-lib env``: what is here, what is missing or suspicious, and what to do about it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bench_lib.cli.output import DEFAULT_BASELINES, BaselinesDir, Json, print_json
from bench_lib.launch.faults import LaunchError

if TYPE_CHECKING:
    from bench_lib.backends.checks import Check
    from bench_lib.cli.page import DeviceLook, Machine, Reference
    from bench_lib.model import Hardware

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
"""What of a look is shown; clocks in MHz, power in W, heat in °C, shares from 0 to 1."""


def env(*, baselines: BaselinesDir = DEFAULT_BASELINES, json: Json = False) -> None:
    """Show hardware, versions, variables and caches.

    Exit status 1 where the suite cannot run.
    """
    machine = _examine(baselines)
    if json:
        from bench_lib.cli.documents.seen import Env

        print_json(Env(**vars(machine)))
    else:
        from bench_lib.cli.page import page

        for line in page(machine):
            print(line)
    raise typer.Exit(0 if machine.fit else 1)


def _examine(baselines: Path) -> Machine:
    from bench_lib import backends
    from bench_lib.cli.page import Machine
    from bench_lib.environment import fingerprint, readiness

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        devices = backends.detect()
    environment = fingerprint.collect()
    # Before a worker of ours is on the device.
    seen = _looks(devices[:MOST_LOOKS])
    checks = [*readiness.checks(devices=devices), *_telemetry_checks(devices, seen)]
    versions, problem = _worker_versions(devices[0])
    references = {device.key: _reference(baselines, device.key) for device in devices}
    checks += [
        *_detection_checks([str(warning.message) for warning in caught]),
        *_tool_checks(devices),
        *_baseline_checks(references),
        _worker_check(versions, problem),
    ]
    return Machine(
        devices,
        references,
        seen,
        fingerprint.with_versions(environment, versions),
        checks,
        not any(check.ok is False and check.fatal for check in checks),
    )


def _looks(devices: Sequence[Hardware]) -> list[DeviceLook]:
    from concurrent.futures import ThreadPoolExecutor

    from bench_lib.cli.page import DeviceLook
    from bench_lib.engine import telemetry

    with ThreadPoolExecutor(len(devices)) as pool:
        answers = list(pool.map(telemetry.look_once, devices))
    return [
        DeviceLook(figures and {name: figures.get(name) for name in FIGURES}, cause)
        for figures, cause in answers
    ]


def _reference(folder: Path, key: str) -> Reference:
    from bench_lib.cli.page import Reference
    from bench_lib.storage.baselines import BaselineError, load, path_of

    path = path_of(folder, key)
    try:
        file = load(folder, key)
    except BaselineError as error:
        return Reference(str(path), exists=True, problem=str(error))
    return Reference(str(path), path.exists(), len(file.measured), len(file.published))


def _worker_versions(device: Hardware) -> tuple[dict[str, str | None], str | None]:
    """Return what a worker says of its torch, and why it could not start if it could not."""
    from bench_lib import backends
    from bench_lib.launch.zygote import Zygote

    try:
        with Zygote(environment=backends.visibility(device)) as zygote:
            context = zygote.context()
            differences = backends.confirm(device, context.device)
            return {**zygote.versions, "cudnn": context.cudnn}, "; ".join(differences) or None
    except LaunchError as error:
        return {}, str(error)


# --- the checks that need more than the kernel's files -----------------------------------


def _worker_check(versions: dict[str, str | None], problem: str | None) -> Check:
    from bench_lib.backends.checks import Check

    if problem is None:
        return Check("worker starts", ok=True, detail=f"torch {versions.get('torch')}")
    remedy = "mend what the message above names, then run this again"
    return Check("worker starts", ok=False, detail=problem, remedy=remedy, fatal=True)


def _telemetry_checks(devices: Sequence[Hardware], seen: Sequence[DeviceLook]) -> Iterator[Check]:
    """Ask whether the devices can be watched, and who else is on them, as far as not told yet."""
    from bench_lib import backends
    from bench_lib.backends.checks import Check, other_processes

    looked = list(zip(devices, seen, strict=False))
    blind = [(device, one.cause) for device, one in looked if one.figures is None]
    if blind:
        device, cause = blind[0]
        detail = f"{len(blind)} of {len(looked)} devices cannot be watched: {cause}"
        remedy = backends.of(device).telemetry_remedy
        yield Check("telemetry", ok=False, detail=detail, remedy=remedy)
    else:
        sources = dict.fromkeys(str((one.figures or {}).get("source")) for one in seen)
        yield Check("telemetry", ok=True, detail=", ".join(sources))
    lists = [
        one.figures["pids"]
        for device, one in looked
        if not backends.of(device).checks_processes
        and one.figures
        and one.figures.get("pids") is not None
    ]
    if lists:
        yield other_processes([str(pid) for pid in sorted({pid for each in lists for pid in each})])


def _detection_checks(causes: Sequence[str]) -> Iterator[Check]:
    """Name what stood in the way of finding the devices."""
    from bench_lib.backends.checks import Check

    remedy = "mend that if there is a GPU here which is not listed above"
    for cause in causes:
        yield Check("finding devices", ok=False, detail=cause, remedy=remedy)


def _tool_checks(devices: Sequence[Hardware]) -> Iterator[Check]:
    """Ask the vendors' tools whether they contradict what was detected."""
    from bench_lib import backends

    for backend in backends.used_by(devices):
        own = [device for device in devices if backends.of(device) is backend]
        yield from backend.tool_checks(own, os.environ)


def _baseline_checks(references: dict[str, Reference]) -> Iterator[Check]:
    """Name baseline files that cannot be read: pytest stops at them."""
    from bench_lib.backends.checks import Check

    for reference in references.values():
        if reference.problem is not None:
            remedy = "restore the file, or name another folder with --baselines"
            yield Check("baselines", ok=False, detail=reference.problem, remedy=remedy, fatal=True)
