"""The night as one HTML file that needs no network, for a CI artifact or ``file://``.

Everything that comes from a file is escaped by Jinja; only the page's own script runs, by its hash,
and nothing may be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from bench_lib import __version__
from bench_lib.environment.commits import Checkout, Commit
from bench_lib.formats import RATIO, many, printable, seconds, some
from bench_lib.model import PRECISIONS, Status, Verdict
from bench_lib.profiling import kernels
from bench_lib.report import console
from bench_lib.report.answer import Column, Table
from bench_lib.report.findings import NightCause, causes, commands, device, onset
from bench_lib.report.night import Night, NightCase, Place
from bench_lib.report.plots import LEGEND, history
from bench_lib.report.render import as_html, cell
from bench_lib.verdict import metrics
from bench_lib.verdict.severity import rank

MOST_FAILURES = 30
"""Most failures with details; the table has all."""
MOST_DETAILS = 20
"""Most other cases with details, the worst first."""
MOST_CAUSES = 3
"""Most causes above the strip; the others are folded below them."""
MOST_KERNELS = 8
MOST_OUTPUT = 8000
"""Characters that are shown of the end of a worker's output."""
MOST_NAMED = 10
"""Most rows of the strip with a name; the cells of all others share the last row."""
MOST_MOVED = 5
"""Most passing cases with a change point that are named on the first screen."""
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
MOVED = "△"
"""The sign of a case that passes and has a change point."""


def page(night: Night, checkout: Checkout | None = None) -> str:
    """Return the page of a night; ``checkout`` knows the commits (default: the one around here)."""
    checkout = checkout or Checkout(Path.cwd())
    entries = sorted(night.entries, key=severity)
    all_causes = causes(night)
    failed = [entry for cause in all_causes for entry in cause.entries][:MOST_FAILURES]
    others = [entry for entry in entries if not entry.failing]
    shown = {entry.place: _case(night, entry) for entry in [*failed, *others[:MOST_DETAILS]]}
    script = _packaged("report.js")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            night=night,
            moved=_moved_cases(entries),
            title=f"Night of {day(night.started)}" if night.started else "No night",
            causes=[_cause(cause, shown, checkout) for cause in all_causes],
            most_causes=MOST_CAUSES,
            strip=strip(entries),
            others=[shown[entry.place] for entry in others[:MOST_DETAILS]],
            left_out=len(others) - MOST_DETAILS,
            table=_table(entries),
            shown=shown,
            legend=LEGEND,
            hardware=_hardware(night),
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
        "status_name": _status_name,
        "sign": lambda entry: MOVED if has_moved(entry) else SIGNS[entry.status],
    }
    return environment


def _packaged(name: str) -> str:
    return (importlib.resources.files("bench_lib.report") / "templates" / name).read_text("utf-8")


def _policy(script: str) -> str:
    """Return a content security policy: this script, styles in the page, nothing loaded."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'"


# --- text ----------------------------------------------------------------------------------

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def anchor(entry: NightCase) -> str:
    """Return the id of a case's element, the same on all nights."""
    return re.sub(r"\s", "_", f"case/{entry.hardware.key}/{entry.record.case.id}")


def day(time: str) -> str:
    """Return the day of a time: ``20 Nov 2026``; anything else is returned as it is."""
    match = re.match(r"(\d{4})-(0[1-9]|1[0-2])-(\d\d)", time)
    return f"{int(match[3])} {_MONTHS[int(match[2]) - 1]} {match[1]}" if match else time


def clean(text: str) -> str:
    """Return the end of a program's output, without terminal control sequences."""
    return printable(text if len(text) <= MOST_OUTPUT else f"…{text[-MOST_OUTPUT:]}")


def percent(ratio: float | None) -> str:
    """Return how far a ratio is from one: ``+8.00%``; empty for None."""
    return cell(ratio, RATIO)


def _status_name(entry: NightCase) -> str:
    return entry.status.value.replace("_", " ").lower() if entry.status else "not judged"


def has_moved(entry: NightCase) -> bool:
    """Whether a case passes and still has a change point that nobody accepted."""
    accepted = entry.baseline.accepted.date if entry.baseline else ""
    passes = entry.status in (Status.OK, Status.NOISY, Status.SUSPECT)
    return passes and bool(entry.moved) and entry.moved[-1].time > accepted


def _moved_cases(entries: Iterable[NightCase]) -> str:
    """Name the cases that pass and have moved; empty if there are none."""
    moved = [
        f"{entry.record.case.id} ({percent(entry.moved[-1].change.ratio)} since "
        f"{day(entry.moved[-1].time)})"
        for entry in entries
        if has_moved(entry)
    ]
    return f"Passing, with a change point: {some(moved, MOST_MOVED)}" if moved else ""


# --- every case as a cell --------------------------------------------------------------------


@dataclass(frozen=True)
class Strip:
    """All cases of a night as cells, the worst first."""

    precisions: list[str]
    rows: list[tuple[str, list[list[NightCase]]]]
    """Each network with its hardware, and its cells by precision."""
    is_dense: bool


def severity(entry: NightCase) -> tuple[bool, int]:
    """Return a key that sorts failing entries first, the most severe at the top."""
    return not entry.failing, rank(entry.status)


def strip(entries: Sequence[NightCase]) -> Strip:
    """Return the strip of a night's entries; the rows with the worst cells have names."""
    keys = {entry.hardware.key for entry in entries}
    rows: dict[str, list[NightCase]] = {}
    for entry in sorted(entries, key=severity):
        case = entry.record.case
        name = str(case.params.get("network") or case.params.get("op") or case.workload)
        rows.setdefault(f"{name} {entry.hardware.key}" if len(keys) > 1 else name, []).append(entry)
    named = dict(list(rows.items())[:MOST_NAMED]) if len(rows) > MOST_NAMED + 1 else rows
    if others := [entry for name, row in rows.items() if name not in named for entry in row]:
        named[many(len(rows) - MOST_NAMED, "other")] = others
    precisions = {_precision(entry) for entry in entries}
    order = [*(p for p in PRECISIONS if p in precisions), *sorted(precisions - {*PRECISIONS})]
    cells = [
        (name, [[entry for entry in row if _precision(entry) == p] for p in order])
        for name, row in named.items()
    ]
    return Strip(order, cells, len(entries) > 400)


def _precision(entry: NightCase) -> str:
    return str(entry.record.case.params.get("precision", ""))


# --- the table -------------------------------------------------------------------------------


def _table(entries: Sequence[NightCase]) -> dict[str, Any]:
    """Return the headings of the columns that some case has, and the rows: entries and cells.

    A cell is its text and the value that it is sorted by.
    """
    columns = []
    for column in console.COLUMNS[2:]:
        values = [column.get(entry.record) for entry in entries]
        units = [column.unit_of(entry.record) for entry in entries]
        cells = [(cell(*pair), pair[0]) for pair in zip(values, units, strict=True)]
        if any(text for text, _ in cells):
            columns.append((column.label.capitalize(), cells))
    return {
        "headings": [heading for heading, _ in columns],
        "rows": [(entry, [cells[n] for _, cells in columns]) for n, entry in enumerate(entries)],
    }


# --- a case in full --------------------------------------------------------------------------


def _case(night: Night, entry: NightCase) -> dict[str, Any]:
    """Return what the page shows of a case besides its row."""
    timing = console.timing_of(entry.record)
    accepted = entry.baseline.accepted if entry.baseline else None
    by = f" by {accepted.by}" if accepted and accepted.by else ""
    return {
        "entry": entry,
        "device": device(night, entry),
        "change": percent(timing.ratio) if timing else "",
        "history": history(entry),
        "since": _since(night, entry),
        "kernels": _kernels(entry),
        "verdicts": as_html(Table(VERDICTS, entry.record.verdicts))
        if entry.record.verdicts
        else "",
        "accepted": f"Baseline accepted on {day(accepted.date)}{by}: {accepted.reason}"
        if accepted
        else "",
        "remarks": [*console.changes([entry.record]), *console.explanations([entry.record])],
        "commands": commands(entry),
    }


def _metric(verdict: Verdict) -> str:
    against = "" if verdict.against == "pinned" else f" ({verdict.against})"
    return verdict.metric + (against if verdict.against else "")


def _unit(verdict: Verdict) -> str:
    # Verdicts of 0.1.0 have no unit; the metric's is used.
    return verdict.unit or metrics.of(verdict.metric).unit


VERDICTS: list[Column[Verdict]] = [
    Column("metric", _metric, heading="Metric"),
    Column("status", lambda v: v.status.value.replace("_", " ").lower(), heading="Verdict"),
    Column("value", lambda verdict: verdict.value, _unit, "This night"),
    Column("baseline", lambda verdict: verdict.baseline, _unit, "Before"),
    Column("ratio", lambda verdict: verdict.ratio, RATIO, "Change"),
    Column("interval", lambda verdict: verdict.interval, RATIO, "95%"),
]


def _since(night: Night, entry: NightCase) -> str:
    """Return since when a case has failed or moved; empty if unknown."""
    began = onset(night, entry)
    last = began.moved or (entry.moved[-1] if has_moved(entry) else None)
    if last is not None:
        low, high = (percent(bound) for bound in last.change.interval)
        change = f"{percent(last.change.ratio)} ({low} to {high})"
        return f"Change point on {day(last.time)}, run {last.run_id}: {change}"
    if entry.failing and (good := began.last_good) is not None:
        return f"Last OK on {day(good.time)}, run {good.run_id}"
    return ""


_COMMITS = re.compile(r"commit ([0-9a-f]{7,64}) -> ([0-9a-f]{7,64})")


def _commits(changes: Iterable[str], checkout: Checkout) -> list[Commit]:
    """Return the commits that came with changes of the environment."""
    pairs = filter(None, map(_COMMITS.fullmatch, changes))
    return [commit for pair in pairs for commit in checkout.between(pair[1], pair[2])]


def _cause(
    cause: NightCause, shown: dict[Place, dict[str, Any]], checkout: Checkout
) -> dict[str, Any]:
    """Return what the page shows of a cause; ``shown`` are the cases with details."""
    details = [shown[entry.place] for entry in cause.entries if entry.place in shown]
    names = [entry.record.case.id for entry in cause.entries]
    return {
        "name": cause.name,
        "title": cause.title,
        "ids": some(names, MOST_NAMED) if len(names) > 1 else "",
        "cases": details,
        "left_out": len(cause.entries) - len(details),
        "changes": cause.onset.changes,
        "commits": _commits(cause.onset.changes, checkout),
    }


def _kernels(entry: NightCase) -> dict[str, Any] | None:
    """Return the kernels to blame: a sentence, and the largest changes with their bars."""
    profiles = entry.kernels
    if profiles is None or entry.status is not Status.REGRESSED:
        return None
    largest = max((abs(change.delta_s) for change in profiles.changes), default=0.0)
    rows = [
        {
            "name": change.name,
            "before": seconds(change.before.total_s) if change.before else "",
            "after": seconds(change.after.total_s) if change.after else "",
            "delta": _signed(change.delta_s),
            "slower": change.delta_s > 0,
            "bar": round(100 * abs(change.delta_s) / largest) if largest else 0,
        }
        for change in profiles.changes[:MOST_KERNELS]
    ]
    left_out = len(profiles.changes) - len(rows)
    sentence = kernels.reason(profiles)
    return {"sentence": sentence, "what": profiles.what, "rows": rows, "left_out": left_out}


def _signed(value_s: float) -> str:
    if abs(value_s) < 1e-12:
        return "0"
    return f"{'+' if value_s > 0 else '-'}{seconds(abs(value_s))}"


def _hardware(night: Night) -> dict[str, str]:
    """Return each hardware key's device and environment."""
    by_key: dict[str, str] = {}
    for entry in night.entries:
        key, environment = entry.hardware.key, entry.environment
        if key in by_key:
            continue
        parts = [entry.hardware.name]
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
            parts += [f"{name} {value}" for name, value in software.items() if value]
        by_key[key] = " · ".join(parts)
    return by_key
