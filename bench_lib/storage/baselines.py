"""Baseline files: ``baselines/<hardware key>.json``, one per hardware key.

They are written only when runs are accepted or cases are quarantined, and laid out so that a pull
request shows what changed: sorted keys, one short line per process.  A published figure stands in
for a case until a run is accepted; it is shown, but nothing is judged against it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from bench_lib import files
from bench_lib.formats import on_one_line
from bench_lib.model import (
    ID_RULE,
    Accepted,
    Baseline,
    Environment,
    Hardware,
    Published,
    Quarantine,
    UserError,
    is_case_id,
)
from bench_lib.storage.lines import MOST


class BaselineError(UserError):
    """A baseline cannot be read, written or accepted; says which, why, and what to do."""


@dataclass
class BaselineFile:
    """All baselines of one hardware key."""

    path: Path
    key: str
    baselines: dict[str, Baseline] = field(default_factory=dict)
    """By case, including the published figures; ``measured`` leaves those out."""
    environments: dict[str, Environment] = field(default_factory=dict)
    hardware: Hardware | None = None
    quarantines: dict[str, Quarantine] = field(default_factory=dict)
    """By case, whether or not the case has a baseline."""

    @property
    def measured(self) -> dict[str, Baseline]:
        """The accepted baselines, the only ones to judge against."""
        return {k: v for k, v in self.baselines.items() if v.provenance == MEASURED}

    @property
    def published(self) -> dict[str, Published]:
        """Published figures of cases without an accepted run on this hardware."""
        return {k: v.published for k, v in self.baselines.items() if v.published is not None}


MEASURED, PUBLISHED = "measured", "published"
"""The source of a baseline."""


class _Content(msgspec.Struct):
    """What a file holds; each case is decoded by itself, so that a refusal names it."""

    cases: dict[str, Any] = {}
    environments: dict[str, Environment] = {}
    hardware: Hardware | None = None
    quarantine: dict[str, Any] = {}


def load(folder: Path, key: str) -> BaselineFile:
    """Read the baselines of a hardware key; an empty file object if there are none.

    Raises BaselineError if the file is not JSON, has a newer schema or is of another key, or if
    a baseline or a quarantine in it cannot be read.
    """
    path = folder / f"{key}.json"
    try:
        raw = msgspec.json.decode(files.content(path, MOST_BYTES))
    except FileNotFoundError:
        return BaselineFile(path, key)
    except OSError as error:
        raise BaselineError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BaselineError(
            f"{path} is not JSON: {error}; restore it from version control"
        ) from error
    if not isinstance(raw, dict) or type(raw.get("schema")) is not int:
        raise BaselineError(f"{path} is not a baseline file: it has no schema number")
    if raw["schema"] > SCHEMA:
        raise BaselineError(
            f"{path} has schema {raw['schema']}, newer than {SCHEMA}, the newest that this "
            "version of bench-lib reads; upgrade bench-lib"
        )
    if raw.get("key") != key:
        raise BaselineError(
            f"{path} holds baselines of {raw.get('key')!r}, but this hardware is {key!r}; "
            "a baseline of other hardware cannot be used; record one here"
        )
    try:
        content = msgspec.convert(raw, _Content)
        return BaselineFile(
            path,
            key,
            {id_: _decode(id_, fields) for id_, fields in content.cases.items()},
            content.environments,
            content.hardware,
            {id_: _decode_quarantine(id_, fields) for id_, fields in content.quarantine.items()},
        )
    except msgspec.ValidationError as error:
        raise BaselineError(f"{path}: {on_one_line(str(error), 400)}") from error


def _decode(case_id: str, fields: Any) -> Baseline:
    try:
        stored = msgspec.convert(fields, dict[str, Any])
        if stored.get("provenance") == PUBLISHED:
            stored = {"processes": [], "accepted": Accepted("", "", ""), **stored}
        if isinstance(processes := stored.get("processes"), list):
            draws = msgspec.convert(stored.get("draws", {}), dict[str, list[dict[str, Any]]])
            converted = [_with_draw(_by_metric(process), draws) for process in processes]
            stored = {**stored, "processes": converted}
        baseline = msgspec.convert({**stored, "case_id": case_id}, Baseline)
    except (msgspec.ValidationError, OverflowError) as error:
        raise msgspec.ValidationError(f"case {case_id}: {error}") from error
    if problem := next(_problems(baseline), None):
        raise msgspec.ValidationError(f"case {case_id}: {problem}")
    return baseline


_FORMERLY: dict[str, tuple[str, Callable[[float], float]]] = {
    "log_median": ("latency", math.exp),
    "log_throughput": ("throughput", math.exp),
    "log_device": ("device", math.exp),
    "p99_s": ("tail", float),
    "peak_memory_bytes": ("memory", float),
    "compile_s": ("compile_time", float),
    "first_step_s": ("first_step", float),
    "spread": ("stability", float),
    "finite": ("finite", float),
    "cosine": ("cosine", lambda cosine: max(0.0, 1 - cosine)),
    "loss_error": ("loss", float),
    "grad_norm_error": ("gradients", float),
}
"""By the name of a value in schema 1, its metric and how it is converted."""
_FORMER_STATES = {"device_source": "device", "compile_cache": "compile_time"}


def _by_metric(process: Any) -> Any:
    """Convert a process of schema 1 to the current schema; others are returned as they are."""
    if not isinstance(process, dict) or "values" in process:
        return process
    known = {k: v for k, v in process.items() if v is not None}
    values = {}
    for name, (metric, read) in _FORMERLY.items():
        if name in known:
            values[metric] = read(msgspec.convert(known[name], bool if name == "finite" else float))
    figures = msgspec.convert(known.get("figures", {}), dict[str, float])
    # Energy was per step, unlike the metric of that name.
    values |= {name: value for name, value in figures.items() if name != "energy"}
    states = {metric: known[name] for name, metric in _FORMER_STATES.items() if name in known}
    return {**process, "values": values, "states": states}


def _with_draw(process: Any, draws: Mapping[str, list[dict[str, Any]]]) -> Any:
    """Return a process with its draw's kernels in place of the draw's name."""
    if not isinstance(process, dict) or "draw" not in process:
        return process
    name = msgspec.convert(process["draw"], str)
    if name not in draws:
        raise msgspec.ValidationError(
            f"a process has the draw {name!r}, which is missing from draws"
        )
    kernels = {msgspec.convert(row.get("kernel"), str): row for row in draws[name]}
    return {**process, "draw": {"kernels": kernels}}


def _draws_apart(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case with each draw stored once, a row for each kernel."""
    draws: dict[str, Any] = {}
    processes = []
    for process in case.get("processes", []):
        summary = {name: value for name, value in process.items() if name != "draw"}
        if kernels := process.get("draw", {}).get("kernels"):
            rows = [{"kernel": name, **choice} for name, choice in sorted(kernels.items())]
            summary["draw"] = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:8]
            draws[summary["draw"]] = rows
        processes.append(summary)
    rest = {name: value for name, value in case.items() if name != "draws"}
    return {**rest, "processes": processes, **({"draws": draws} if draws else {})}


def _problems(baseline: Baseline) -> Iterator[str]:
    """Yield what is wrong with a baseline, the worst first; its numbers are finite."""
    published, processes = baseline.published, baseline.processes
    is_measured = baseline.provenance == MEASURED
    if baseline.provenance not in (MEASURED, PUBLISHED):
        yield f"provenance is {baseline.provenance!r}; choose {MEASURED} or {PUBLISHED}"
    if is_measured != bool(processes):
        found = "processes" if processes else "no processes"
        yield f"provenance is {baseline.provenance!r}, but there are {found}"
    if not is_measured and published is None:
        yield "provenance is 'published', but published, with rate, source and caveat, is missing"
    if published is not None:
        rate, low, high = published.rate, published.low, published.high
        if not 0 < (rate if low is None else low) <= rate <= (rate if high is None else high):
            yield f"published.rate is {rate:g}; it must be above 0 and between low and high"
    for process in processes:
        latency = process.values.get("latency", 0.0)
        if not 1 / MOST < latency < MOST:
            yield f"a process has a latency of {latency:g}; it must be a time above 0, in seconds"
        if process.n < 1:
            yield f"a process has n = {process.n}; it must be at least 1"
        for name, value in process.values.items():
            if value < 0:
                yield f"a process has {name} {value:g}; it must be 0 or more"
    for name, value in baseline.began.items():
        if value <= 0:
            yield f"began.{name} is {value:g}; it must be above 0"
    if not 0 < baseline.limits.spread <= 1:
        yield f"limits.spread is {baseline.limits.spread}; it must be above 0 and at most 1"


def _decode_quarantine(case_id: str, fields: Any) -> Quarantine:
    try:
        return msgspec.convert(fields, Quarantine)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"quarantine of {case_id}: {error}") from error


def in_force(quarantine: Quarantine | None, today: dt.date) -> bool:
    """Whether there is a quarantine that holds on a day in UTC: up to and including its last."""
    return quarantine is not None and today <= quarantine.until


MOST_BYTES = 64 * 2**20
"""Maximum size of a baseline file; a thousand cases take about 20 MB."""
SCHEMA = 2
"""Schema of baseline files; docs/architecture.md lists the changes."""


@dataclass(frozen=True)
class BaselineChange:
    """How accepting a run changes one case."""

    case_id: str
    old: Baseline | None
    new: Baseline | None
    """None if the run has nothing that could be accepted, forced or not."""
    why_not: str | None = None
    against: str | None = None
    """The objection to the new values, which are then accepted only by force."""


def write(
    current: BaselineFile,
    changes: Iterable[BaselineChange],
    hardware: Hardware,
    environments: Mapping[str, Environment],
) -> Path:
    """Write the accepted changes to the file atomically; returns its path.

    Raises BaselineError if it cannot be written.
    """
    accepted = {change.case_id: change.new for change in changes if change.new is not None}
    by_name = {**current.environments, **environments}
    merged = {**current.baselines, **accepted}
    used = {process.environment for case in merged.values() for process in case.processes}
    kept = {name: by_name[name] for name in used & by_name.keys()}
    return _save(replace(current, baselines=merged, environments=kept, hardware=hardware))


def set_quarantine(
    current: BaselineFile,
    case_id: str,
    quarantine: Quarantine,
    hardware: Hardware | None = None,
) -> Path:
    """Put a case into quarantine and write the file atomically; returns its path.

    A file that does not exist yet begins with ``hardware``, if known.  Raises BaselineError if the
    id, the reason or the last day cannot be right, and if the file cannot be written.
    """
    if not is_case_id(case_id):
        raise BaselineError(f"{case_id!r} is not a case's id; it must be {ID_RULE}")
    if not quarantine.reason.strip():
        raise BaselineError(f"the reason is empty; say why {case_id} may fail")
    if str(quarantine.until) < quarantine.date[:10]:
        raise BaselineError(
            f"{quarantine.until} is in the past; choose a day, {quarantine.date[:10]} or later, by "
            f"which {case_id} will be fixed"
        )
    quarantines = {**current.quarantines, case_id: quarantine}
    return _save(replace(current, quarantines=quarantines, hardware=current.hardware or hardware))


def lift_quarantine(current: BaselineFile, case_id: str) -> Path:
    """End a case's quarantine and write the file atomically; returns its path.

    Raises BaselineError if the case is not in quarantine or the file cannot be written.
    """
    if case_id not in current.quarantines:
        others = ", ".join(sorted(current.quarantines)) or "none"
        raise BaselineError(
            f"{case_id} is not in quarantine in {current.path}; in quarantine: {others}"
        )
    quarantines = {k: v for k, v in current.quarantines.items() if k != case_id}
    return _save(replace(current, quarantines=quarantines))


def _save(file: BaselineFile) -> Path:
    """Write a file atomically; raises BaselineError."""
    document = {
        "hardware": _plain(file.hardware),
        "cases": {name: _stored(baseline) for name, baseline in file.baselines.items()},
        "environments": _plain(file.environments),
        "quarantine": _plain(file.quarantines),
    }
    try:
        text = layout({**_plain(document), "schema": SCHEMA, "key": file.key})
        file.path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(file.path, text.encode())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BaselineError(f"cannot write {file.path}: {reason}") from error
    return file.path


def _stored(baseline: Baseline) -> dict[str, Any]:
    case = _plain(baseline)
    del case["case_id"]
    if baseline.provenance == PUBLISHED:
        return {name: case[name] for name in ("provenance", "published")}
    # Tolerances belong to the case; the limit on its spread follows from the measurement.
    return {**_draws_apart(case), "limits": {"spread": baseline.limits.spread}}


def _plain(value: Any) -> dict[str, Any]:
    """Return JSON-ready fields without the empty ones."""
    cleaned: dict[str, Any] = _without_empty(msgspec.to_builtins(value))
    return cleaned


_NO_WORKER = ("worker", "")


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {k: _without_empty(v) for k, v in value.items()}
        # Older processes have no worker.
        return {k: v for k, v in kept.items() if v not in (None, {}, []) and (k, v) != _NO_WORKER}
    if isinstance(value, list):
        return [_without_empty(v) for v in value]
    return value


def layout(document: Mapping[str, Any]) -> str:
    """Return the document as text: three levels unfolded, a line for each process and kernel."""
    return _unfold(document, 0) + "\n"


def _unfold(value: Any, depth: int) -> str:
    pad = "  " * (depth + 1)
    holds_rows = isinstance(value, Mapping) and any(
        isinstance(v, list) and v and isinstance(v[0], Mapping) for v in value.values()
    )
    if isinstance(value, Mapping) and value and (depth < 3 or holds_rows):
        lines = [f"{pad}{json.dumps(k)}: {_unfold(value[k], depth + 1)}" for k in sorted(value)]
        return "{\n" + ",\n".join(lines) + "\n" + "  " * depth + "}"
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        lines = [pad + json.dumps(item, sort_keys=True, allow_nan=False) for item in value]
        return "[\n" + ",\n".join(lines) + "\n" + "  " * depth + "]"
    return json.dumps(value, sort_keys=True, allow_nan=False)
