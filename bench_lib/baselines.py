"""The values to hold against: ``baselines/<hardware key>.json``, one file a key.

Written only by accepting runs and by putting cases into quarantine, and laid out so that a
pull request shows what changed: sorted keys, one short line per process.  Fields this
version does not know survive.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fnmatch
import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from bench_lib import judge, summary
from bench_lib.model import (
    ID_RULE,
    SCHEMA,
    Accepted,
    Attempt,
    Baseline,
    Case,
    Environment,
    Hardware,
    ProcessSummary,
    Quarantine,
    Record,
    Status,
    UserError,
    is_case_id,
)


class BaselineError(UserError):
    """A baseline cannot be read, written or accepted; says which, why, and what to do."""


@dataclass
class BaselineFile:
    """All baselines of one hardware key."""

    path: Path
    key: str
    baselines: dict[str, Baseline] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)
    hardware: Hardware | None = None
    quarantines: dict[str, Quarantine] = field(default_factory=dict)
    """By case, whether or not the case has a baseline."""
    raw: dict[str, Any] = field(default_factory=dict)
    """The document as read, so that what is not understood is written back."""


def path_of(folder: Path, key: str) -> Path:
    """Return where the baselines of a hardware key are kept."""
    return folder / f"{key}.json"


def load(folder: Path, key: str) -> BaselineFile:
    """Read the baselines of a hardware key; an empty file object where there are none.

    Raises BaselineError where the file is not JSON, of a newer schema, or another key's,
    and where a baseline or a quarantine in it cannot be read.
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
            _decode_quarantines(raw.get("quarantine", {})),
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


def _decode_quarantines(section: Any) -> dict[str, Quarantine]:
    try:
        stored = msgspec.convert(section, dict[str, Any])
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"quarantine: {error}") from error
    return {case_id: _decode_quarantine(case_id, about) for case_id, about in stored.items()}


def _decode_quarantine(case_id: str, about: Any) -> Quarantine:
    try:
        quarantine = msgspec.convert(about, Quarantine)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"quarantine of {case_id}: {error}") from error
    # When it began may carry the time of day; when it ends is a day.
    began = quarantine.date.partition("T")[0]
    for name, value, day in (
        ("until", quarantine.until, quarantine.until),
        ("date", quarantine.date, began),
    ):
        if not is_day(day):
            raise msgspec.ValidationError(
                f"quarantine of {case_id}: {name} is {value!r}, which is no day such as 2026-12-31"
            )
    return quarantine


def is_day(text: str) -> bool:
    """Whether a text is a day of the calendar in ISO 8601, as ``2026-12-31``."""
    try:
        return dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def in_force(quarantine: Quarantine, today: dt.date) -> bool:
    """Whether a quarantine still holds on a day in UTC: up to and including its last."""
    return today <= dt.date.fromisoformat(quarantine.until)


MOST_LOG = 50.0
"""No iteration takes e^50 seconds, or e^-50."""


@dataclass(frozen=True)
class Change:
    """What accepting does to one case."""

    case_id: str
    old: Baseline | None
    new: Baseline | None
    """None where the run has nothing that could be accepted, forced or not."""
    why_not: str | None = None
    against: str | None = None
    """What speaks against accepting the new values; they are taken only in spite of it."""


def processes_of(record: Record, run_id: str | None = None) -> list[ProcessSummary]:
    """Return the summary of every process of a record, by its first accepted attempt.

    A case that two tests measure has two attempts in one process; they count once.  A
    device context's name is its own only within a run, whose id therefore comes before it.
    """
    first: dict[int, Attempt] = {}
    for attempt in record.attempts:
        if attempt.accepted and attempt.measurement is not None:
            first.setdefault(attempt.process, attempt)
    prefix = "" if run_id is None else f"{run_id}/"
    return [
        replace(
            summary.summarise(
                attempt.measurement,
                environment=attempt.environment,
                time=attempt.time,
                clock_mhz=attempt.telemetry.clock_mhz if attempt.telemetry else None,
            ),
            worker=prefix + attempt.measurement.context_id,
        )
        for attempt in first.values()
        if attempt.measurement is not None
    ]


CONDITIONS = ("compute_partition", "memory_partition", "power_cap_w", "clock_policy")
"""Settings of the hardware that have to be equal for a comparison to mean anything."""


def conditions_of(
    case: Case, hardware: Hardware, environment: Environment | None = None
) -> dict[str, Any]:
    """Return what has to be equal for a comparison: conditions, never the software judged.

    Of the environment only whether the caches that choose kernels were filled counts; how
    full they are changes with every case that is added.
    """
    conditions: dict[str, Any] = {
        "ranks": case.launch.ranks,
        "launcher": "torchrun" if case.launch.ranks > 1 else "none",
    }
    conditions |= {name: getattr(hardware, name) for name in CONDITIONS}
    caches = environment.caches if environment else {}
    if hardware.vendor == "amd" and "miopen" in caches:
        conditions["miopen_cache"] = _filled(caches["miopen"])
    if "tunableop" in caches:
        conditions["tunableop_cache"] = _filled(caches["tunableop"])
    return conditions


def _filled(cache: str) -> str:
    return "cold" if cache == "none" else "warm"


def mixed_conditions(devices: Iterable[Hardware]) -> list[str]:
    """Say which conditions differ between devices; what is not known is not compared."""
    settings = ({name: getattr(device, name) for name in CONDITIONS} for device in devices)
    return _mixed(_known_values(settings))


def _known_values(settings: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Collect the different values that each setting is known to have had."""
    found: dict[str, list[Any]] = {}
    for each in settings:
        for name, value in each.items():
            if value is not None and value not in found.setdefault(name, []):
                found[name].append(value)
    return found


def _mixed(values: Mapping[str, list[Any]]) -> list[str]:
    return [
        f"{name} {' and '.join(map(str, known))}"
        for name, known in values.items()
        if len(known) > 1
    ]


DOUBTFUL = (Status.INVALID, Status.REGRESSED, Status.SUSPECT, Status.NOISY)
"""Statuses of values that should not become the reference, the worst first."""


def propose(
    current: BaselineFile,
    runs: Mapping[str, Iterable[Record]],
    hardware: Hardware,
    accepted: Accepted,
    *,
    only: str = "*",
    environments: Mapping[str, Environment] | None = None,
) -> list[Change]:
    """Say what accepting these runs would do, case by case, changing nothing.

    ``runs`` are records by the id of their run, ``environments`` are by the reference that
    attempts have.  A record with a fault, or in ERROR, gives nothing, not even what its
    earlier processes measured.
    """
    by_case: dict[str, list[tuple[str, Record]]] = {}
    for run_id, records in runs.items():
        for record in records:
            if fnmatch.fnmatchcase(record.case.id, only):
                by_case.setdefault(record.case.id, []).append((run_id, record))
    return [
        _change(current.baselines.get(case_id), group, hardware, accepted, environments or {})
        for case_id, group in sorted(by_case.items())
    ]


def _change(
    old: Baseline | None,
    group: list[tuple[str, Record]],
    hardware: Hardware,
    accepted: Accepted,
    environments: Mapping[str, Environment],
) -> Change:
    """Say what the records of one case, each with its run's id, make of its baseline."""
    case = group[-1][1].case
    sound = [(run_id, record) for run_id, record in group if _is_sound(record)]
    processes = [_rounded(p) for run_id, record in sound for p in processes_of(record, run_id)]
    if not processes:
        return Change(case.id, old, None, _why_nothing(group[-1][1]))
    if any(p.finite is False for p in processes):
        return Change(case.id, old, None, "the answer holds infinities or NaN")
    conditions = _known_values(
        conditions_of(case, hardware, environments.get(p.environment)) for p in processes
    )
    new = Baseline(
        case.id,
        processes,
        accepted,
        judge.stored_limits(processes, case.limits),
        "measured",
        {name: known[0] for name, known in conditions.items() if len(known) == 1},
    )
    against = [
        *_unsteady(processes, case),
        *_doubted(record for _, record in sound),
        *_slower(new, old, case.limits.tolerance),
        *(f"measured under {words}" for words in _mixed(conditions)),
    ]
    return Change(case.id, old, new, against="; ".join(against) or None)


def _is_sound(record: Record) -> bool:
    return record.status is not Status.ERROR and not any(a.fault for a in record.attempts)


def _unsteady(processes: list[ProcessSummary], case: Case) -> list[str]:
    spread = statistics.median(p.spread for p in processes)
    if spread <= case.limits.spread:
        return []
    return [f"iterations spread by {spread:.0%}; the limit is {case.limits.spread:.0%}"]


def _doubted(records: Iterable[Record]) -> list[str]:
    """Repeat the worst that the runs themselves said of values that are in doubt."""
    records = list(records)
    for status in DOUBTFUL:
        for record in records:
            if record.status is status:
                verdict = next((v for v in record.verdicts if v.status is status), None)
                about = f" {verdict.metric}: {verdict.reason}" if verdict else ""
                return [f"{status.value}{about}"]
    return []


def _slower(new: Baseline, old: Baseline | None, tolerance: float) -> list[str]:
    """Say by how much the new values are slower, which chance does not excuse here.

    A run may call it OK because its processes could not tell; as the reference it would
    hide the next slow-down.
    """
    if old is None or not old.processes or old.provenance != "measured":
        return []
    figures = [("", "log_median")]
    processes = (*new.processes, *old.processes)
    if len({p.device_source for p in processes}) == 1:
        figures.append(("device time ", "log_device"))
        if all(p.host_bound and p.log_device is not None for p in processes):
            del figures[0]  # the host's time is too unsteady to say so by its mean
    words = []
    for name, figure in figures:
        after = [getattr(p, figure) for p in new.processes]
        before = [getattr(p, figure) for p in old.processes]
        if None in after or None in before:
            continue
        change = math.expm1(statistics.fmean(after) - statistics.fmean(before))
        if change > tolerance:
            words.append(
                f"{name}{change:.2%} slower than accepted; the tolerance is {tolerance:.1%}"
            )
    return words


def taken(changes: Iterable[Change], *, force: bool = False) -> list[Change]:
    """Return the changes that are to be written: those that nothing speaks against.

    With ``force`` the others too, each noting what it was accepted in spite of.
    """
    chosen = []
    for change in changes:
        if change.new is None:
            continue
        if change.against is None:
            chosen.append(change)
        elif force:
            accepted = replace(change.new.accepted, in_spite_of=change.against)
            chosen.append(replace(change, new=replace(change.new, accepted=accepted)))
    return chosen


def _why_nothing(record: Record) -> str:
    last = record.attempts[-1]
    if last.skipped is not None:
        return f"skipped: {last.skipped}"
    if last.fault is not None:
        message = last.fault.message.partition("\n")[0]
        return f"{last.fault.kind} in {last.fault.phase}: {message}"
    if last.discarded is None and record.status is Status.ERROR:
        return "; ".join(["ERROR", *(v.reason for v in record.verdicts)])
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
        log_device=places(process.log_device, 6),
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
    document = _document(current)
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
    return _save(current.path, document)


def set_quarantine(
    current: BaselineFile,
    case_id: str,
    quarantine: Quarantine,
    hardware: Hardware | None = None,
) -> Path:
    """Put a case into quarantine, in the file whole or not at all; returns its path.

    A file that does not exist yet begins with ``hardware``, where that is known.  Raises
    BaselineError where the id, the reason or the last day cannot be right, and where the
    file cannot be written.
    """
    if not is_case_id(case_id):
        raise BaselineError(f"{case_id!r} is no case's id, which is {ID_RULE}")
    if not quarantine.reason.strip():
        raise BaselineError(f"the reason is empty; say why {case_id} may fail")
    if not is_day(quarantine.until):
        raise BaselineError(f"{quarantine.until!r} is no day; write it as 2026-12-31")
    if quarantine.until < quarantine.date[:10]:
        raise BaselineError(
            f"{quarantine.until} is over; name a day from {quarantine.date[:10]} on, by which "
            f"{case_id} is to be mended"
        )
    document = _document(current)
    if hardware is not None:
        document.setdefault("hardware", _plain(hardware))
    cases = dict(document.get("quarantine", {}))
    cases[case_id] = _rewritten(cases.get(case_id), quarantine)
    document["quarantine"] = cases
    return _save(current.path, document)


def lift_quarantine(current: BaselineFile, case_id: str) -> Path:
    """End a case's quarantine, in the file whole or not at all; returns its path.

    Raises BaselineError where the case is not in quarantine or the file cannot be written.
    """
    if case_id not in current.quarantines:
        others = ", ".join(sorted(current.quarantines)) or "no case"
        raise BaselineError(f"{case_id} is not in quarantine in {current.path}; there is {others}")
    document = _document(current)
    document["quarantine"] = {k: v for k, v in document["quarantine"].items() if k != case_id}
    if not document["quarantine"]:
        del document["quarantine"]
    return _save(current.path, document)


def _document(current: BaselineFile) -> dict[str, Any]:
    return {**current.raw, "schema": SCHEMA, "key": current.key}


def _save(path: Path, document: Mapping[str, Any]) -> Path:
    partial = path.with_suffix(f".{os.getpid()}.part")
    try:
        text = layout(document)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        why = error.strerror if isinstance(error, OSError) else error
        raise BaselineError(f"cannot write {path}: {why}") from error
    return path


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
        return {
            k: v
            for k, v in kept.items()
            if v not in (None, {}, []) and (k, v) != ("worker", "")  # older values have none
        }
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
