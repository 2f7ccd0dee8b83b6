"""What ``bench-lib env`` reports, as an answer and as a text file to send to somebody."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench_lib import backends
from bench_lib.backends.backend import Check, good, other_processes, stops, warns
from bench_lib.engine import telemetry
from bench_lib.environment import fingerprint, readiness
from bench_lib.formats import NUMBER, SHARE, many
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.wire import PRELOAD_VARIABLE
from bench_lib.launch.zygote import Zygote
from bench_lib.model import Environment, Hardware
from bench_lib.report import render
from bench_lib.report.answer import Answer, Column, Table, columns
from bench_lib.storage.baselines import BaselineError, load

MOST_AT_ONCE = 16
"""Devices that are sampled at the same time."""
FIX_DETECTION = "fix that if this machine has a GPU that is not listed above"
FIX_BASELINES = "restore the file, or name another folder with --baselines"
FIX_WORKER = "fix the problem that the message above names, then run this again"


@dataclass(frozen=True)
class DeviceLook:
    """A device, one look at it, and what it would be judged by."""

    device: Hardware
    figures: dict[str, Any] = field(default_factory=dict)
    cause: str | None = None
    """Why there are no figures."""
    accepted: int | None = None
    """Cases with accepted values."""
    published: int | None = None
    """Cases with a published figure."""
    problem: str | None = None
    """Why its baselines cannot be read."""


# --- examined ----------------------------------------------------------------------------


def examine(baselines: Path) -> Answer:
    """Look at this machine and start a worker on it; ``baselines`` is the baselines' folder."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        devices = backends.detect()
    # Before anything of ours keeps a CPU or a GPU busy.
    other_programs = telemetry.others_now(devices[0])
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        samples = list(pool.map(telemetry.look_once, devices))
    counts = {key: _counts(baselines, key) for key in {device.key for device in devices}}
    looks = [
        DeviceLook(device, figures or {}, cause, *counts[device.key])
        for device, (figures, cause) in zip(devices, samples, strict=True)
    ]
    environment = fingerprint.collect()
    versions, problem = _worker_versions(devices[0])
    checks = [*readiness.checks(devices=devices), *_telemetry_checks(looks)]
    if other_programs:
        checks.append(warns("other programs", other_programs, telemetry.OTHERS_MEAN))
    checks += [warns("finding devices", str(entry.message), FIX_DETECTION) for entry in caught]
    broken = dict.fromkeys(look.problem for look in looks if look.problem)
    checks += [stops("baselines", problem, FIX_BASELINES) for problem in broken]
    if problem is None:
        checks.append(good("worker starts", f"torch {versions.get('torch')}"))
    else:
        checks.append(stops("worker starts", problem, FIX_WORKER))
    return _answer(looks, fingerprint.with_versions(environment, versions), checks)


def _counts(folder: Path, key: str) -> tuple[int | None, int | None, str | None]:
    """Count a key's accepted and published figures, or say why they cannot be read."""
    try:
        file = load(folder, key)
    except BaselineError as error:
        return None, None, str(error)
    return len(file.measured), len(file.published), None


def _worker_versions(device: Hardware) -> tuple[dict[str, str | None], str | None]:
    """Return a worker's versions, and why it could not start if it could not.

    Nothing is measured in it: it needs no torchvision and no compiler, and any process will do.
    """
    variables = {**backends.visibility(device), PRELOAD_VARIABLE: "torch"}
    try:
        with contextlib.closing(Zygote(environment=variables)) as zygote:
            worker = zygote.fork(tries=1)
            differences = backends.confirm(device, worker.device)
            return {**zygote.versions, "cudnn": worker.cudnn}, "; ".join(differences) or None
    except LaunchError as error:
        return {}, str(error)


def _telemetry_checks(looks: Sequence[DeviceLook]) -> Iterator[Check]:
    """Check that devices can be watched, and, unless readiness did, who else uses them."""
    unwatched = [look for look in looks if not look.figures]
    if unwatched:
        count = f"{len(unwatched)} of {many(len(looks), 'device')}"
        detail = f"{count} cannot be monitored: {unwatched[0].cause}"
        yield warns("telemetry", detail, backends.of(unwatched[0].device).telemetry_remedy)
    else:
        sources = dict.fromkeys(str(look.figures.get("source")) for look in looks)
        yield good("telemetry", ", ".join(sources))
    lists = [
        look.figures["pids"]
        for look in looks
        if not backends.of(look.device).checks_processes and look.figures.get("pids") is not None
    ]
    if lists:
        yield other_processes([str(pid) for pid in sorted({pid for pids in lists for pid in pids})])


# --- as an answer ------------------------------------------------------------------------


def _figure(name: str, unit: str = NUMBER, heading: str | None = None) -> Column[DeviceLook]:
    return Column(name, lambda look: look.figures.get(name), unit, heading)


def _fact(name: str, unit: str = NUMBER, heading: str | None = None) -> Column[DeviceLook]:
    return Column(name, lambda look: getattr(look.device, name), unit, heading)


_SHOWN = [
    _fact("index", heading="device"),
    _fact("key"),
    _fact("name"),
    _fact("bdf", heading="PCI address"),
    _fact("memory_bytes", "B", "memory"),
    _fact("power_cap_w", "W", "power cap"),
    _fact("clock_policy"),
    _fact("ptl", heading="TOPS limiter"),
    _fact("compute_partition", heading="partition"),
    _fact("memory_partition"),
]
_UNSHOWN = {fact.name for fact in fields(Hardware)} - {column.name for column in _SHOWN}
DEVICES: list[Column[DeviceLook]] = [
    *_SHOWN,
    Column("accepted", lambda look: look.accepted, heading="accepted cases"),
    Column("published", lambda look: look.published, heading="published figures"),
    *columns("device", " ".join(sorted(_UNSHOWN))),
]
TELEMETRY: list[Column[DeviceLook]] = [
    _fact("index", heading="device"),
    _figure("source"),
    _figure("clock_mhz", "MHz", "clock"),
    _figure("memory_clock_mhz", "MHz", "memory clock"),
    _figure("power_w", "W", "power"),
    _figure("temperature_c", "°C", "temperature"),
    _figure("utilization", SHARE),
    _figure("steal", SHARE, "stolen by the hypervisor"),
    _figure("throttle", heading="throttled by"),
    Column("cause", lambda look: look.cause, heading="cannot be monitored"),
]


def _answer(
    looks: Sequence[DeviceLook], environment: Environment, checks: Sequence[Check]
) -> Answer:
    untried = {backend.untried for backend in backends.used_by([look.device for look in looks])}
    failed = [check.name for check in checks if check.ok is False and check.fatal]
    return Answer(
        command="env",
        heading=_facts(environment),
        tables={"devices": Table(DEVICES, looks), "telemetry": Table(TELEMETRY, looks)},
        notes=[*_obstacles(checks), *filter(None, untried), _conclusion(checks, failed)],
        about={"environment": environment, "checks": checks, "fit": not failed},
        exit_status=1 if failed else 0,
    )


def _facts(environment: Environment) -> list[str]:
    """Return a line for each known fact of the environment."""
    facts = asdict(environment)
    if environment.hip:
        facts["MIOpen"] = facts.pop("cudnn")
    for name, value in facts.items():
        if isinstance(value, dict):
            facts[name] = ", ".join(f"{key}={item}" for key, item in value.items())
    cells = {name.replace("_", " "): render.cell(value) for name, value in facts.items()}
    return [f"{name:<16}{value}" for name, value in cells.items() if value]


def _obstacles(checks: Sequence[Check]) -> Iterator[str]:
    """Yield what passed in a line, and a line for what did not, with its remedy."""
    yield f"ok    {', '.join(check.name for check in checks if check.ok)}"
    for check in checks:
        if check.ok is None:
            yield f"-     {check.name}: {check.detail}"
        elif not check.ok:
            mark = "FAIL" if check.fatal else "warn"
            yield f"{mark}  {check.name}: {check.detail} -> {check.remedy}"


def _conclusion(checks: Sequence[Check], failed: Sequence[str]) -> str:
    if failed:
        return f"The suite cannot run here; fix first: {', '.join(failed)}."
    if warned := sum(check.ok is False for check in checks):
        return f"The suite can run here; {many(warned, 'warning')} above."
    return "The suite can run here."


def as_report(answer: Answer) -> str:
    """Return an answer as a text to send to somebody, with all of its figures.

    Host, home folder and the devices' serial numbers are left out.
    """
    shown, document = render.as_text(answer, render.WIDTH), render.as_json(answer)
    text = f"bench-lib {version('bench-lib')}\n\n{shown}\n\n{document}\n"
    private = {answer.about["environment"].host: "HOST"}
    with contextlib.suppress(RuntimeError):  # a user without a home, as in some containers
        private[str(Path.home())] = "~"
    for number, look in enumerate(answer.tables["devices"].rows):
        if look.device.uuid:
            private[look.device.uuid] = f"UUID-{number}"
    for secret, stand_in in private.items():
        text = re.sub(rf"(?<![\w.-]){re.escape(secret)}(?![\w-])", stand_in, text)
    return text
