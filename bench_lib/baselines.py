"""The values to hold against: ``baselines/<hardware key>.json``, one file a key.

Written only by accepting runs, and laid out so that a pull request shows what changed:
sorted keys, one short line per process.  Fields this version does not know survive.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from bench_lib import judge, summary
from bench_lib.model import (
    SCHEMA,
    Accepted,
    Attempt,
    Baseline,
    Case,
    Environment,
    Hardware,
    ProcessSummary,
    Record,
)


class BaselineError(RuntimeError):
    """A baseline cannot be read, written or accepted; says which, why, and what to do."""


@dataclass
class BaselineFile:
    """All baselines of one hardware key."""

    path: Path
    key: str
    baselines: dict[str, Baseline] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)
    hardware: Hardware | None = None
    raw: dict[str, Any] = field(default_factory=dict)
    """The document as read, so that what is not understood is written back."""


def path_of(folder: Path, key: str) -> Path:
    """Return where the baselines of a hardware key are kept."""
    return folder / f"{key}.json"


def load(folder: Path, key: str) -> BaselineFile:
    """Read the baselines of a hardware key; an empty file object where there are none.

    Raises BaselineError where the file is not JSON, of a newer schema, or another key's.
    """
    path = path_of(folder, key)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
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
            "a baseline of other hardware cannot be judged by: record one here"
        )
    try:
        cases = msgspec.convert(raw.get("cases", {}), dict[str, Any])
        return BaselineFile(
            path,
            key,
            {id_: _decode(id_, about) for id_, about in cases.items()},
            msgspec.convert(raw.get("environments", {}), dict[str, Environment]),
            msgspec.convert(raw.get("hardware"), Hardware | None),
            raw,
        )
    except msgspec.ValidationError as error:
        raise BaselineError(f"{path}: {error}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _decode(case_id: str, about: Any) -> Baseline:
    try:
        stored = msgspec.convert(about, dict[str, Any])
        baseline = msgspec.convert({**stored, "case_id": case_id}, Baseline)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"case {case_id}: {error}") from error
    for process in baseline.processes:
        if abs(process.log_median) > MOST_LOG or process.spread < 0 or process.n < 1:
            raise msgspec.ValidationError(f"case {case_id}: no process is like {process}")
    if not 0 < baseline.limits.spread <= 1:
        spread = baseline.limits.spread
        raise msgspec.ValidationError(f"case {case_id}: limits.spread is {spread}")
    return baseline


MOST_LOG = 50.0
"""No iteration takes e^50 seconds, or e^-50."""


@dataclass(frozen=True)
class Change:
    """What accepting does to one case."""

    case_id: str
    old: Baseline | None
    new: Baseline | None
    """None where the run has nothing to accept."""
    why_not: str | None = None


def processes_of(record: Record) -> list[ProcessSummary]:
    """Return the summary of every process of a record, by its first accepted attempt.

    A case that two tests measure has two attempts in one process; they count once.
    """
    first: dict[int, Attempt] = {}
    for attempt in record.attempts:
        if attempt.accepted and attempt.measurement is not None:
            first.setdefault(attempt.process, attempt)
    return [
        summary.summarise(
            attempt.measurement,
            environment=attempt.environment,
            time=attempt.time,
            clock_mhz=attempt.telemetry.clock_mhz if attempt.telemetry else None,
        )
        for attempt in first.values()
        if attempt.measurement is not None
    ]


CONDITIONS = ("compute_partition", "memory_partition", "power_cap_w")
"""Settings of the hardware that have to be equal for a comparison to mean anything."""


def conditions_of(case: Case, hardware: Hardware) -> dict[str, Any]:
    """Return what has to be equal for a comparison: conditions, never the software judged."""
    settings = {name: getattr(hardware, name) for name in CONDITIONS}
    return {"ranks": case.launch.ranks, **settings}


def mixed_conditions(devices: Iterable[Hardware]) -> list[str]:
    """Say which conditions differ between devices; what is not known is not compared."""
    found: dict[str, dict[Any, None]] = {name: {} for name in CONDITIONS}
    for device in devices:
        for name in CONDITIONS:
            if (value := getattr(device, name)) is not None:
                found[name][value] = None
    return [
        f"{name} {' and '.join(map(str, values))}"
        for name, values in found.items()
        if len(values) > 1
    ]


def propose(
    current: BaselineFile,
    records: Iterable[Record],
    hardware: Hardware,
    accepted: Accepted,
    only: str = "*",
) -> list[Change]:
    """Say what accepting these records would do, case by case, changing nothing.

    A record with a fault gives nothing, not even what its earlier processes measured.
    """
    by_case: dict[str, list[Record]] = {}
    for record in records:
        if fnmatch.fnmatchcase(record.case.id, only):
            by_case.setdefault(record.case.id, []).append(record)
    changes = []
    for case_id, group in sorted(by_case.items()):
        old = current.baselines.get(case_id)
        sound = [record for record in group if not any(a.fault for a in record.attempts)]
        processes = [_rounded(p) for record in sound for p in processes_of(record)]
        case = group[-1].case
        why_not = _why_unfit(processes, case) if processes else _why_nothing(group)
        if why_not is not None:
            changes.append(Change(case_id, old, None, why_not))
            continue
        new = Baseline(
            case_id,
            processes,
            accepted,
            judge.stored_limits(processes, case.limits),
            "measured",
            {k: v for k, v in conditions_of(case, hardware).items() if v is not None},
        )
        changes.append(Change(case_id, old, new))
    return changes


def _why_unfit(processes: list[ProcessSummary], case: Case) -> str | None:
    """Say why values must not be held against; a later run would be judged by them."""
    if any(p.finite is False for p in processes):
        return "the answer holds infinities or NaN"
    spread = statistics.median(p.spread for p in processes)
    if spread > case.limits.spread:
        return f"iterations spread by {spread:.0%}; the limit is {case.limits.spread:.0%}"
    return None


def _why_nothing(group: list[Record]) -> str:
    last = group[-1].attempts[-1]
    if last.skipped is not None:
        return f"skipped: {last.skipped}"
    if last.fault is not None:
        message = last.fault.message.partition("\n")[0]
        return f"{last.fault.kind} in {last.fault.phase}: {message}"
    return last.discarded or "no accepted attempt"


def _rounded(process: ProcessSummary) -> ProcessSummary:
    """Keep what can be read and judged by: a millionth of a time, three digits of an error."""

    def places(value: float | None, n: int) -> float | None:
        return None if value is None else round(value, n)

    def digits(value: float | None) -> float | None:
        return None if value is None else float(f"{value:.3g}")

    return replace(
        process,
        log_median=round(process.log_median, 6),
        spread=round(process.spread, 5),
        log_throughput=places(process.log_throughput, 6),
        p99_s=places(process.p99_s, 9),
        compile_s=places(process.compile_s, 2),
        cosine=None if process.cosine is None else 1 - float(f"{1 - process.cosine:.3g}"),
        loss_error=digits(process.loss_error),
        grad_norm_error=digits(process.grad_norm_error),
        clock_mhz=places(process.clock_mhz, 0),
    )


def write(
    current: BaselineFile,
    changes: Iterable[Change],
    hardware: Hardware,
    environments: Mapping[str, Environment],
) -> Path:
    """Write the accepted changes into the file, whole or not at all; returns its path.

    Raises BaselineError where it cannot be written.
    """
    document = {**current.raw, "schema": SCHEMA, "key": current.key}
    document["hardware"] = _rewritten(document.get("hardware"), hardware)
    cases = dict(document.get("cases", {}))
    for change in changes:
        if change.new is not None:
            cases[change.case_id] = _rewritten(cases.get(change.case_id), change.new)
            del cases[change.case_id]["case_id"]
            # What is tolerated is the case's to say; how steady it is, the measuring's.
            cases[change.case_id]["limits"] = {"spread": change.new.limits.spread}
    known = {**document.get("environments", {}), **{k: _plain(v) for k, v in environments.items()}}
    used = {p["environment"] for case in cases.values() for p in case["processes"]}
    document["environments"] = {name: known[name] for name in sorted(used & known.keys())}
    document["cases"] = cases
    partial = current.path.with_suffix(f".{os.getpid()}.part")
    try:
        text = layout(document)
        current.path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(current.path)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        why = error.strerror if isinstance(error, OSError) else error
        raise BaselineError(f"cannot write {current.path}: {why}") from error
    return current.path


def _rewritten(old: Mapping[str, Any] | None, new: Any) -> dict[str, Any]:
    """Return the new fields and, of the old ones, those that this version does not know."""
    known = {item.name for item in fields(new)}
    return {k: v for k, v in (old or {}).items() if k not in known} | _plain(new)


def _plain(value: Any) -> dict[str, Any]:
    """JSON-ready fields without those that say nothing."""
    cleaned: dict[str, Any] = _without_empty(msgspec.to_builtins(value))
    return cleaned


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {k: _without_empty(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v not in (None, {}, [])}
    if isinstance(value, list):
        return [_without_empty(v) for v in value]
    return value


def layout(document: Mapping[str, Any]) -> str:
    """Return the document as text: three levels unfolded, and a line for each process."""
    return _unfold(document, 0) + "\n"


def _unfold(value: Any, depth: int) -> str:
    pad = "  " * (depth + 1)
    if isinstance(value, Mapping) and value and depth < 3:
        lines = [f"{pad}{json.dumps(k)}: {_unfold(value[k], depth + 1)}" for k in sorted(value)]
        return "{\n" + ",\n".join(lines) + "\n" + "  " * depth + "}"
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        lines = [pad + json.dumps(item, sort_keys=True, allow_nan=False) for item in value]
        return "[\n" + ",\n".join(lines) + "\n" + "  " * depth + "]"
    return json.dumps(value, sort_keys=True, allow_nan=False)
