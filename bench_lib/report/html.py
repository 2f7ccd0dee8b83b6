"""One HTML file of a night that needs no network: fit for a CI artifact, and for ``file://``.

Everything that comes from a file is escaped by Jinja; only the page's own script runs, by its hash,
and nothing may be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from bench_lib import __version__
from bench_lib.environment.commits import Checkout, Commit
from bench_lib.findings import KernelsUnseen
from bench_lib.formats import RATIO, many, printable, seconds
from bench_lib.model import PRECISIONS, Status, Verdict
from bench_lib.profiling import kernels
from bench_lib.report import console
from bench_lib.report.answer import Column, Table, judged
from bench_lib.report.findings import FIND, NightCause, causes, commands, device, hints, onset
from bench_lib.report.night import Night, NightCase
from bench_lib.report.plots import Histories, comparisons, placed, spark
from bench_lib.report.render import as_html, cell
from bench_lib.verdict import metrics
from bench_lib.verdict.evidence import REFERENCE
from bench_lib.verdict.severity import rank

MOST_FAILURES = 30
"""Most failures shown at length; the table has all."""
MOST_DETAILS = 25
"""Most other cases with details, the worst first."""
WAITS = 1.5
"""A step that takes so many times the median by the wall clock gets a remark."""
MOST_CAUSES = 3
"""Most causes above the strip; the others are folded below them."""
MOST_KERNELS = 8
MOST_OUTPUT = 8000
"""Last characters that are shown of what a worker said."""
MOST_NAMED = 10
"""Most rows of the strip with a name; the cells of all others share the last row."""
SIGNS = {
    Status.ERROR: "✕",
    Status.REGRESSED: "▲",
    Status.INVALID: "!",
    Status.INCOMPARABLE: "≠",
    Status.NO_BASELINE: "+",
    Status.SUSPECT: "?",
    Status.NOISY: "≈",
    Status.REDRAWN: "↻",
    Status.IMPROVED: "▼",
    Status.OK: "·",
    Status.SKIPPED: "/",
    None: "…",
}
"""The sign of a cell, so that it can be read without its colour."""
COLUMNS = (
    ("Case", ""),
    ("Hardware", "wide"),
    ("Status", ""),
    ("Median", "number wide"),
    ("Change", "number"),
    ("Detects", "number wide"),
    ("Rate", "number wide"),
    ("Memory", "number wide"),
    ("Of peak", "number wide"),
)
"""Heading, and whether a column holds numbers or needs room."""


def page(night: Night, checkout: Checkout | None = None) -> str:
    """Return the page of a night; ``checkout`` knows the commits (default: that around here)."""
    checkout = checkout or Checkout(Path.cwd())
    entries = sorted(night.entries, key=severity)
    histories = Histories(night.environments)
    failed = [entry for entry in entries if entry.failing]
    others = [entry for entry in entries if not entry.failing]
    cases = [
        _case(night, entry, histories, checkout)
        for entry in [*failed[:MOST_FAILURES], *others[:MOST_DETAILS]]
    ]
    known = {one["entry"].place for one in cases}
    found = causes(night)
    script = _packaged("report.js")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            night=night,
            why=_why(found),
            hints=hints(night),
            title=f"Night of {day(night.started)}" if night.started else "No night",
            causes=[_cause(cause, known, checkout) for cause in found],
            most_causes=MOST_CAUSES,
            strip=strip(entries),
            cases=cases,
            failures_left_out=max(0, len(failed) - MOST_FAILURES),
            details_left_out=max(0, len(others) - MOST_DETAILS),
            columns=COLUMNS,
            rows=[(entry, entry.place in known, _cells(entry)) for entry in entries],
            comparisons=comparisons(entries),
            hardware=_hardware(night, checkout),
            version=__version__,
            styles=Markup(_packaged("report.css")),  # noqa: S704 - ours
            code=Markup(script),  # noqa: S704 - ours
            policy=_policy(script),
        )
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bench_lib.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "day": day,
        "clean": clean,
        "anchor": anchor,
        "address": lambda entry: f"#{quote(anchor(entry), safe='/')}",
        "standing": _standing,
        "sign": lambda entry: SIGNS[entry.status],
        "spark": spark,
    }
    return environment


def _packaged(name: str) -> str:
    return (importlib.resources.files("bench_lib.report") / "templates" / name).read_text("utf-8")


def _policy(script: str) -> str:
    """Return a content security policy: this script, styles in the page, nothing loaded."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'"


# --- words ---------------------------------------------------------------------------------

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def anchor(entry: NightCase) -> str:
    """Return a case's name within the page, the same on all nights."""
    return re.sub(r"\s", "_", f"case/{entry.hardware.key}/{entry.record.case.id}")


def day(time: str) -> str:
    """Return the day of a time: ``20 Nov 2026``; as it is where it is none."""
    found = re.match(r"(\d{4})-(0[1-9]|1[0-2])-(\d\d)", time)
    return f"{int(found[3])} {_MONTHS[int(found[2]) - 1]} {found[1]}" if found else time


def clean(text: str) -> str:
    """Return the end of a program's output, without what steers terminals."""
    return printable(text if len(text) <= MOST_OUTPUT else f"…{text[-MOST_OUTPUT:]}")


def percent(ratio: float | None) -> str:
    """Return how far a ratio is from one: ``+8.00%``; empty where there is none."""
    return cell(ratio, RATIO)


def _standing(entry: NightCase) -> str:
    return entry.status.value.replace("_", " ").lower() if entry.status else "not judged"


def _why(found: Sequence[NightCause]) -> str:
    """Say since when and why, by the cause with most cases; empty if unknown."""
    for cause in found:
        if cause.onset.since[:1].isdigit():
            words = f"Since {day(cause.onset.since)}"
            if blamed := ", ".join(filter(None, [cause.blamed, *cause.onset.changes])):
                words += f": {blamed}"
            return words + (f" (and {many(len(found) - 1, 'other cause')})" if found[1:] else "")
    return ""


def _between(verdict: Verdict) -> str:
    return " to ".join(map(percent, verdict.interval or ()))


# --- every case as a cell --------------------------------------------------------------------


@dataclass(frozen=True)
class Strip:
    """All cases of a night as cells, the worst first."""

    precisions: list[str]
    rows: list[tuple[str, list[list[NightCase]]]]
    """Each network with its hardware, and its cells by precision."""
    is_dense: bool


def severity(entry: NightCase) -> tuple[bool, int]:
    """Return what sorts entries so that no healthy one stands above one that is not."""
    return not entry.failing, rank(entry.status)


def strip(entries: Sequence[NightCase]) -> Strip:
    """Return the strip of a night's entries; named rows are those with the worst cells."""
    keys = {entry.hardware.key for entry in entries}
    rows: dict[str, list[NightCase]] = {}
    for entry in sorted(entries, key=severity):
        case = entry.record.case
        name = str(case.params.get("network") or case.params.get("op") or case.workload)
        rows.setdefault(f"{name} {entry.hardware.key}" if len(keys) > 1 else name, []).append(entry)
    named = dict(list(rows.items())[:MOST_NAMED]) if len(rows) > MOST_NAMED + 1 else rows
    if others := [entry for name, held in rows.items() if name not in named for entry in held]:
        named[many(len(rows) - MOST_NAMED, "other")] = others
    found = {_precision(entry) for entry in entries}
    order = [*(one for one in PRECISIONS if one in found), *sorted(found - {*PRECISIONS})]
    cells = [
        (name, [[entry for entry in held if _precision(entry) == one] for one in order])
        for name, held in named.items()
    ]
    return Strip(order, cells, len(entries) > 400)


def _precision(entry: NightCase) -> str:
    return str(entry.record.case.params.get("precision", ""))


# --- the table -------------------------------------------------------------------------------


def _cells(entry: NightCase) -> list[tuple[str, float | None, str]]:
    """Return the numbers of an entry's line: as shown, by what it is sorted, and a remark."""
    verdict, at = _timing(entry), placed(entry)
    columns = {column.name: column for column in console.COLUMNS}
    of_verdict: list[Column[Any]] = judged(lambda _row: verdict)
    reached = at.reached.share if at and at.reached else None

    def shown(column: Column[Any], remark: str = "") -> tuple[str, float | None, str]:
        value = column.get(entry.record)
        return cell(value, column.unit_of(entry.record)), value, remark

    return [
        shown(columns["median_s"]),
        shown(of_verdict[0]),
        shown(of_verdict[2]),
        shown(columns["items_per_s"], _waits(entry)),
        shown(columns["memory_bytes"]),
        (_reached(entry), reached, ""),
    ]


def _reached(entry: NightCase) -> str:
    """Say how close a case comes to the ceiling that binds: ``62% compute``."""
    at = placed(entry)
    if at is None or at.reached is None:
        return ""
    least = "≥ " if at.reached.at_least else ""
    return f"{least}{at.reached.share:.0%} {at.reached.of}"


def _waits(entry: NightCase) -> str:
    """Say where the rate is of another time than the median: between iterations; else empty."""
    figures = entry.figures
    if figures is None or not (0 < figures.rate < math.inf):
        return ""
    step_s = statistics.median(m.items_per_step for m in entry.accepted) / figures.rate
    if step_s < WAITS * figures.median_s:
        return ""
    return f"{seconds(step_s)} a step by the wall clock"


def _timing(entry: NightCase) -> Verdict | None:
    """Return the verdict whose change a reader is to see first."""
    deciding = entry.verdict
    if deciding is not None and deciding.ratio is not None:
        return deciding
    return next((v for v in entry.record.verdicts if v.ratio is not None), deciding)


# --- a case in full --------------------------------------------------------------------------


def _case(
    night: Night, entry: NightCase, histories: Histories, checkout: Checkout
) -> dict[str, Any]:
    """Return what the page has of a case besides its row."""
    case, verdict, began = entry.record.case, _timing(entry), onset(night, entry)
    axes = [f"{name.replace('_', ' ')} {value}" for name, value in case.params.items()]
    if case.launch.ranks > 1:
        axes.append(f"{case.launch.ranks} ranks")
    return {
        "entry": entry,
        "device": device(night, entry),
        "axes": ", ".join(axes),
        "change": percent(verdict.ratio) if verdict else "",
        "between": _between(verdict) if verdict else "",
        "facts": _facts(entry, verdict) if verdict and not entry.fault else [],
        "history": histories.of(entry),
        "since": _since(night, entry) if entry.failing else None,
        "changes": began.changes,
        "commits": _commits(began.changes, checkout) if entry.failing else [],
        "kernels": _kernels(entry),
        "why_no_kernels": _why_no_kernels(entry),
        "verdicts": as_html(Table(VERDICTS, entry.record.verdicts))
        if entry.record.verdicts
        else "",
        "remarks": _remarks(entry),
        "commands": commands(entry),
    }


def _facts(entry: NightCase, verdict: Verdict) -> list[tuple[str, str]]:
    shares = {
        "tolerated": verdict.tolerance,
        "smallest slow-down that it detects": verdict.detectable_effect,
    }
    facts = [
        (verdict.metric, cell(verdict.value, _unit(verdict))),
        (_other_side(verdict), cell(verdict.baseline, _unit(verdict))),
        ("of the device's peak", _reached(entry)),
        *((name, "" if share is None else f"{share:.1%}") for name, share in shares.items()),
    ]
    return [(name, value) for name, value in facts if value]


def _other_side(verdict: Verdict) -> str:
    return "reference" if verdict.against == REFERENCE else "baseline"


def _metric(verdict: Verdict) -> str:
    against = "" if verdict.against == "pinned" else f" ({verdict.against})"
    return verdict.metric + (against if verdict.against else "")


def _unit(verdict: Verdict) -> str:
    # Records of 0.1.0 have plain numbers without a unit, as shares are.
    return verdict.unit or metrics.of(verdict.metric).unit


VERDICTS: list[Column[Verdict]] = [
    Column("metric", _metric, heading="Metric"),
    Column("status", lambda v: v.status.value.replace("_", " ").lower(), heading="Verdict"),
    Column("value", lambda verdict: verdict.value, _unit, "This night"),
    Column("baseline", lambda verdict: verdict.baseline, _unit, "Baseline"),
    Column("ratio", lambda verdict: verdict.ratio, RATIO, "Change"),
    Column("reason", lambda verdict: verdict.reason, heading="Why"),
]


def _remarks(entry: NightCase) -> list[str]:
    """Say what else a reader should know: quarantines, attempts that do not count, warnings."""
    held = entry.record.quarantine
    words = []
    if held is not None:
        state = "In quarantine until" if entry.quarantined else "Its quarantine ended on"
        words.append(f"{state} {day(held.until)}: {held.reason}")
    for attempt in entry.record.attempts:
        if attempt.discarded:
            words.append(f"Process {attempt.process} was discarded: {attempt.discarded}")
        if attempt.skipped:
            words.append(f"Skipped: {attempt.skipped}")
        if attempt.measurement is not None:
            words += [f"Warning: {text}" for text in attempt.measurement.warnings]
    for moved in entry.moved:
        between = " to ".join(map(percent, moved.change.interval))
        said = f"Change point on {day(moved.time)}, run {moved.run_id}: "
        said += f"{percent(moved.change.ratio)} ({between})"
        changed = f"; changed that night: {'; '.join(moved.environment)}"
        words.append(said + changed if moved.environment else said)
    return list(dict.fromkeys(words))


def _since(night: Night, entry: NightCase) -> tuple[str, str] | None:
    """Say since when: the change point that made it slower, else the last night that was OK."""
    began = onset(night, entry)
    if (last := began.moved) is not None:
        low, high = (percent(bound) for bound in last.change.interval)
        words = f"{percent(last.change.ratio)} ({low} to {high}) from run {last.run_id} on"
        return f"Slower since {day(last.time)}", words
    if (good := began.last_good) is not None:
        return f"Last OK on {day(good.time)}", f"run {good.run_id}"
    return None


_COMMITS = re.compile(r"commit ([0-9a-f]{7,64}) -> ([0-9a-f]{7,64})")


def _commits(changes: Iterable[str], checkout: Checkout) -> list[Commit]:
    """Return the commits that came with a change of the environment, in words."""
    pairs = filter(None, map(_COMMITS.fullmatch, changes))
    return [commit for pair in pairs for commit in checkout.between(pair[1], pair[2])]


def _cause(
    cause: NightCause, known: Iterable[tuple[str, str]], checkout: Checkout
) -> dict[str, Any]:
    """Return what the page has of a cause; ``known`` are the cases with details."""
    return {
        "name": cause.name,
        "title": cause.title,
        "hardware": ", ".join(sorted({entry.hardware.key for entry in cause.entries})),
        "cases": [
            (entry, entry.place in known, percent(entry.verdict.ratio if entry.verdict else None))
            for entry in cause.entries
        ],
        "changes": cause.onset.changes,
        "commits": _commits(cause.onset.changes, checkout),
        "commands": [one for one in commands(cause.entries[0]) if one[0] == FIND],
    }


def _kernels(entry: NightCase) -> dict[str, Any] | None:
    """Return the kernels to blame: a sentence, and the largest changes with their bars."""
    found = entry.kernels
    if found is None or entry.status is not Status.REGRESSED:
        return None
    largest = max((abs(change.delta_s) for change in found.changes), default=0.0)
    rows = [
        {
            "name": change.name,
            "before": seconds(change.before.total_s) if change.before else "",
            "after": seconds(change.after.total_s) if change.after else "",
            "delta": _signed(change.delta_s),
            "slower": change.delta_s > 0,
            "bar": round(100 * abs(change.delta_s) / largest) if largest else 0,
        }
        for change in found.changes[:MOST_KERNELS]
    ]
    left_out = len(found.changes) - len(rows)
    sentence = kernels.reason(found)
    return {"sentence": sentence, "what": found.what, "rows": rows, "left_out": left_out}


def _signed(value_s: float) -> str:
    if abs(value_s) < 1e-12:
        return "0"
    return f"{'+' if value_s > 0 else '-'}{seconds(abs(value_s))}"


def _why_no_kernels(entry: NightCase) -> str:
    verdict = entry.verdict
    if entry.status is not Status.REGRESSED or entry.kernels is not None or verdict is None:
        return ""
    if not metrics.of(verdict.metric).kernels_explain:
        return ""
    if verdict.against == REFERENCE:
        return verdict.reason  # which has the kernels of both sides
    if entry.record.kernels is not None:
        return "No table of kernels is known of the baseline, so none is to blame."
    if (unseen := verdict.found(KernelsUnseen)) is not None:
        words = "The profiler looked into the step, and its kernels are not known"
        return f"{words}: {unseen.problem}"
    return "Nobody looked into the step's kernels this night (perf_kernels)."


def _hardware(night: Night, checkout: Checkout) -> dict[str, str]:
    """Return each hardware key's device and environment."""
    by_key: dict[str, str] = {}
    for entry in night.entries:
        key, environment = entry.hardware.key, entry.environment
        if key in by_key:
            continue
        words = [entry.hardware.name]
        if environment is not None:
            software = {
                "torch": environment.torch,
                "ROCm": environment.rocm,
                "HIP": environment.hip,
                "CUDA": environment.cuda,
                "driver": environment.driver,
                "Python": environment.python,
                "commit": environment.commit and environment.commit[:12],
            }
            words += [f"{name} {value}" for name, value in software.items() if value]
            if commit := checkout.commit(environment.commit or ""):
                words.append(f"{commit.subject} ({commit.author})")
        by_key[key] = " · ".join(words)
    return by_key
