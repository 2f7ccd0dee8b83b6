"""One HTML file of a night that needs no network: fit for a CI artifact, and for ``file://``.

Everything that comes from a file is escaped by Jinja, or embedded as JSON, compressed and in
letters; only the page's own script runs, by its hash, and nothing may be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import math
import re
import statistics
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import msgspec
from markupsafe import Markup

from bench_lib import __version__
from bench_lib.environment.commits import Checkout, Commit
from bench_lib.formats import amount, many, printable, seconds, signed_percent
from bench_lib.model import Case, Status, Verdict
from bench_lib.profiling import kernels
from bench_lib.report import console
from bench_lib.report.findings import FIND, Cause, causes, commands, device, hints, onset
from bench_lib.report.night import Moved, Night, NightCase
from bench_lib.report.plots import Series, comparisons, placed
from bench_lib.report.strip import SIGNS, severity, strip
from bench_lib.verdict import metrics

MOST_FAILURES = 30
"""Most failures shown at length; the table has all."""
WAITS = 1.5
"""A step that takes so many times the median by the wall clock gets a remark."""
MOST_FIRST = 100
"""Rows of the table that are there without scripts."""
MOST_CAUSES = 3
"""Most causes above the strip; the others are folded below them."""
MOST_KERNELS = 8
MOST_OUTPUT = 8000
"""Last characters that are shown of what a worker said."""
AXES = ("network", "precision", "compile_mode")
FILTERS = {
    "network": "Network",
    "precision": "Precision",
    "compile_mode": "Mode",
    "hardware": "Hardware",
    "status": "Status",
}
COLUMNS = (
    ("case", "Case", ""),
    ("hardware", "Hardware", "wide"),
    ("status", "Status", ""),
    ("median", "Median", "number wide"),
    ("change", "Change", "number"),
    ("visible", "Visible", "number wide"),
    ("rate", "Rate", "number wide"),
    ("memory", "Memory", "number wide"),
    ("reached", "Of peak", "number wide"),
)
"""Name, heading, and whether it holds numbers or needs room."""


def page(night: Night, checkout: Checkout | None = None) -> str:
    """Return the page of a night; ``checkout`` knows the commits (default: that around here)."""
    checkout = checkout or Checkout(Path.cwd())
    series = Series(night.environments)
    entries = sorted(night.entries, key=severity)
    rows = [_row(entry) for entry in entries]
    found = comparisons(entries)
    data = {
        "rows": rows,
        "series": [series.of(entry) for entry in entries],
        "details": [_detail(entry) for entry in entries],
        "comparisons": [{"kind": one.kind, **one.figure} for one in found],
        **series.shared(),
    }
    code = _packaged("charts.js") + _packaged("report.js")
    failed = [(at, entry) for at, entry in enumerate(entries) if entry.failing]
    shown = failed[:MOST_FAILURES]
    found_causes = causes(night)
    told = [_cause(cause, checkout) for cause in found_causes]
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            night=night,
            why=_why(found_causes),
            hints=hints(night),
            title=f"Night of {day(night.started)}" if night.started else "No night",
            causes=told[:MOST_CAUSES],
            more_causes=told[MOST_CAUSES:],
            strip=strip(entries),
            signs={status.value if status else "not judged": SIGNS[status] for status in SIGNS},
            failures=[_failure(night, entry, at, checkout) for at, entry in shown],
            failures_left_out=len(failed) - len(shown),
            filters=_filters(rows),
            columns=COLUMNS,
            rows=list(zip(rows, entries, strict=True))[:MOST_FIRST],
            rows_left_out=max(0, len(rows) - MOST_FIRST),
            articles={entry.place for _, entry in shown},
            comparisons=found,
            runs=night.runs,
            hardware=_hardware(night, checkout),
            version=__version__,
            styles=Markup(_packaged("report.css")),  # noqa: S704 - ours
            data=_embedded(data),
            code=Markup(code),  # noqa: S704 - ours
            policy=_policy(code),
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
        "minute": _minute,
        "clean": clean,
        "address": address,
        "anchor": anchor,
        "standing": _standing,
    }
    return environment


def _packaged(name: str) -> str:
    return (importlib.resources.files("bench_lib.report") / "templates" / name).read_text("utf-8")


def _policy(script: str) -> str:
    """Return a content security policy: this script, styles in the page, nothing loaded."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:"
    )


def _embedded(data: Any) -> str:
    """Return data as JSON, compressed and then in letters that contain no markup."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(data), 9)).decode()


# --- addresses -----------------------------------------------------------------------------


def anchor(entry: NightCase) -> str:
    """Return a case's name within the page, the same on all nights."""
    return re.sub(r"\s", "_", f"case/{entry.hardware.key}/{entry.record.case.id}")


def address(entry: NightCase) -> str:
    """Return the link to a case within the page."""
    return f"#{quote(anchor(entry), safe='/')}"


# --- words ---------------------------------------------------------------------------------

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def day(time: str) -> str:
    """Return the day of a time: ``20 Nov 2026``; as it is where it is none."""
    found = re.match(r"(\d{4})-(0[1-9]|1[0-2])-(\d\d)", time)
    return f"{int(found[3])} {_MONTHS[int(found[2]) - 1]} {found[1]}" if found else time


def _minute(time: str) -> str:
    return time[11:16] if len(time) > 16 else ""


def clean(text: str) -> str:
    """Return the end of a program's output, without what steers terminals."""
    return printable(text if len(text) <= MOST_OUTPUT else f"…{text[-MOST_OUTPUT:]}")


def percent(ratio: float | None) -> str:
    """Return how far a ratio is from one: ``+8.0%``; empty where there is none."""
    return "" if ratio is None else signed_percent(ratio - 1)


def _standing(entry: NightCase) -> str:
    return entry.status.value if entry.status else "not judged"


def _why(found: Sequence[Cause]) -> str:
    """Say since when and why, by the cause with most cases; empty if unknown."""
    for cause in found:
        if cause.onset.since[:1].isdigit():
            words = f"Since {day(cause.onset.since)}"
            if blamed := ", ".join(filter(None, [cause.blamed, *cause.onset.changes])):
                words += f": {blamed}"
            return words + (f" (and {many(len(found) - 1, 'other cause')})" if found[1:] else "")
    return ""


def _between(verdict: Verdict) -> str:
    if verdict.interval is None:
        return ""
    return f"{percent(verdict.interval[0])} to {percent(verdict.interval[1])}"


def _value(value: float | None, verdict: Verdict) -> str:
    # Records of 0.1.0 have plain numbers without a unit, as shares are.
    unit = verdict.unit or metrics.of(verdict.metric).unit
    return "" if value is None else amount(value, unit)


# --- the table -----------------------------------------------------------------------------


def _row(entry: NightCase) -> dict[str, Any]:
    """Return an entry's line in the table: its filters, cells, sort keys."""
    case, figures, verdict = entry.record.case, entry.figures, _timing(entry)
    (shown,) = console.summary_rows([entry.record])
    cells = dict(zip(console.HEADINGS, shown, strict=True))
    ratio = verdict.ratio if verdict else None
    visible = verdict.detectable_effect if verdict else None
    return {
        **{axis: str(case.params.get(axis, "")) for axis in AXES},
        "case": case.id,
        "hardware": entry.hardware.key,
        "status": _standing(entry),
        "held": entry.quarantined,
        "failing": entry.failing,
        "cells": {
            **{name: cells[name] for name in ("median", "rate", "memory")},
            "change": percent(ratio),
            "visible": "" if visible is None else f"{visible:.1%}",
            "reached": _reached(entry),
        },
        "waits": _waits(entry),
        "sorts": {
            "median": figures and figures.median_s,
            "change": ratio,
            "visible": visible,
            "rate": figures and figures.rate,
            "memory": figures and figures.peak_memory_bytes,
            "reached": _share(entry),
        },
    }


def _share(entry: NightCase) -> float | None:
    at = placed(entry)
    return at.reached.share if at and at.reached else None


def _reached(entry: NightCase) -> str:
    """Say how close a case comes to the ceiling that binds: ``62% compute``."""
    at = placed(entry)
    if at is None or at.reached is None:
        return ""
    return f"{'≥ ' * at.reached.at_least}{at.reached.share:.0%} {at.reached.of}"


def _waits(entry: NightCase) -> str:
    """Say where the rate is of another time than the median: between iterations; else empty."""
    figures = entry.figures
    if figures is None or not (0 < figures.rate < math.inf):
        return ""
    items = statistics.median(m.items_per_step for m in entry.accepted)
    step_s = items / figures.rate
    if step_s < WAITS * figures.median_s:
        return ""
    return f"{seconds(step_s)} a step by the wall clock"


def _timing(entry: NightCase) -> Verdict | None:
    """Return the verdict whose change a reader is to see first."""
    deciding = entry.verdict
    if deciding is not None and deciding.ratio is not None:
        return deciding
    return next((v for v in entry.record.verdicts if v.ratio is not None), deciding)


def _filters(rows: Iterable[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    """Return what rows can be filtered by: name, words, values; only where they differ."""
    found = []
    rows = list(rows)
    for name, words in FILTERS.items():
        values = sorted({row[name] for row in rows if row[name]})
        if len(values) > 1 or (name == "status" and values):
            found.append((name, words, values))
    return found


def _detail(entry: NightCase) -> dict[str, Any]:
    """Return the details below a row; missing parts are left out."""
    fault = entry.fault
    told = {
        "run": entry.run_id,
        "test": entry.record.nodeid,
        "verdicts": [_verdict(verdict) for verdict in entry.record.verdicts],
        "changes": entry.record.changes,
        "remarks": _remarks(entry) + [_on_moved(moved) for moved in entry.moved],
        "fault": [f"{fault.kind} in {fault.phase}", clean(fault.message)] if fault else None,
        "output": clean(fault.last_output) if fault else None,
        "commands": commands(entry),
    }
    return {name: value for name, value in told.items() if value}


def _verdict(verdict: Verdict) -> list[str]:
    against = "" if verdict.against == "pinned" else verdict.against
    return [
        verdict.metric + (f" ({against})" if against else ""),
        verdict.status.value,
        _value(verdict.value, verdict),
        _value(verdict.baseline, verdict),
        percent(verdict.ratio),
        _between(verdict),
        verdict.reason,
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
    return list(dict.fromkeys(words))


def _on_moved(moved: Moved) -> str:
    low, high = moved.step.interval
    words = f"Change point on {day(moved.time)}, run {moved.run_id}: {percent(moved.step.ratio)} "
    words += f"({percent(low)} to {percent(high)})"
    return words + (
        f"; changed that night: {'; '.join(moved.environment)}" * bool(moved.environment)
    )


# --- what failed ---------------------------------------------------------------------------


def _failure(night: Night, entry: NightCase, at: int, checkout: Checkout) -> dict[str, Any]:
    """Return the HTML of an entry that failed."""
    verdict = _timing(entry)
    return {
        "at": at,
        "entry": entry,
        "case": entry.record.case,
        "device": device(night, entry),
        "axes": _axes(entry.record.case),
        "verdict": verdict,
        "change": percent(verdict.ratio) if verdict else "",
        "between": _between(verdict) if verdict else "",
        "value": _value(verdict.value, verdict) if verdict else "",
        "baseline": _value(verdict.baseline, verdict) if verdict else "",
        "since": _since(night, entry),
        "commits": _commits(onset(night, entry).changes, checkout),
        "commands": commands(entry),
        "reached": _reached(entry),
        "kernels": _kernels(entry),
        "why_no_kernels": _why_no_kernels(entry),
        "verdicts": [_verdict(one) for one in entry.record.verdicts],
        "remarks": _remarks(entry),
    }


def _axes(case: Case) -> str:
    words = [f"{name.replace('_', ' ')} {value}" for name, value in case.params.items()]
    if case.launch.ranks > 1:
        words.append(f"{case.launch.ranks} ranks")
    return ", ".join(words)


def _since(night: Night, entry: NightCase) -> list[tuple[str, str, list[str]]]:
    """Say since when: the change point that made it slower, else the last night that was OK.

    Each is a heading, a sentence, and what changed in the environment.
    """
    began = onset(night, entry)
    if (last := began.moved) is not None:
        low, high = (percent(bound) for bound in last.step.interval)
        words = f"{percent(last.step.ratio)} ({low} to {high}) from run {last.run_id} on"
        return [(f"Slower since {day(last.time)}", words, began.changes)]
    if (good := began.last_good) is not None:
        return [(f"Last OK on {day(good.time)}", f"run {good.run_id}", began.changes)]
    return []


_COMMITS = re.compile(r"commit ([0-9a-f]{7,64}) -> ([0-9a-f]{7,64})")


def _commits(changes: Iterable[str], checkout: Checkout) -> list[Commit]:
    """Return the commits that came with a change of the environment, in words."""
    pairs = filter(None, map(_COMMITS.fullmatch, changes))
    return [commit for pair in pairs for commit in checkout.between(pair[1], pair[2])]


def _cause(cause: Cause, checkout: Checkout) -> dict[str, Any]:
    """Return what the page has of a cause."""
    worst = cause.entries[0]
    return {
        "name": cause.name,
        "title": cause.title,
        "keys": sorted({entry.hardware.key for entry in cause.entries}),
        "cases": [
            (entry, percent(entry.verdict.ratio if entry.verdict else None))
            for entry in cause.entries
        ],
        "changes": cause.onset.changes,
        "commits": _commits(cause.onset.changes, checkout),
        "commands": [one for one in commands(worst) if one[0] == FIND],
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
            "kind": change.kind,
            "before": seconds(change.before.total_s) if change.before else "",
            "after": seconds(change.after.total_s) if change.after else "",
            "delta": _signed(change.delta_s),
            "slower": change.delta_s > 0,
            "bar": round(100 * abs(change.delta_s) / largest) if largest else 0,
        }
        for change in found.changes[:MOST_KERNELS]
    ]
    return {
        "sentence": kernels.reason(found),
        "what": found.what,
        "rows": rows,
        "left_out": len(found.changes) - len(rows),
    }


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
    if entry.record.kernels is not None:
        return "No table of kernels is known of the baseline, so none is to blame."
    if (problem := kernels.unseen(verdict.reason)) is not None:
        return f"The profiler looked into the step, and its kernels are not known: {problem}"
    return "Nobody looked into the step's kernels this night (pytest --perf-kernels)."


def _hardware(night: Night, checkout: Checkout) -> Sequence[tuple[str, list[str]]]:
    """Return each hardware key's device and environment."""
    by_key: dict[str, list[str]] = {}
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
        by_key[key] = words
    return list(by_key.items())
