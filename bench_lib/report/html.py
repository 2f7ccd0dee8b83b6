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
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from bench_lib import __version__
from bench_lib.environment.commits import Checkout
from bench_lib.findings import Bounded
from bench_lib.formats import CHANGE_S, RATIO, many, printable, some
from bench_lib.model import PRECISIONS, Status, Verdict
from bench_lib.profiling.kernels import KernelDifference
from bench_lib.report import console
from bench_lib.report.answer import Column, Table
from bench_lib.report.findings import NightCause, causes, commands, device
from bench_lib.report.night import Night, NightCase, Place
from bench_lib.report.plots import LEGEND, history
from bench_lib.report.render import as_html, cell
from bench_lib.verdict import metrics
from bench_lib.verdict.severity import rank

MOST_DETAILS = 80_000
"""Most characters of cases' details; the table has all cases."""
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
CAPTION = (
    "All cases of the night; the headings sort the table, and a case's name links to its details"
)
MOVED = "△"
"""The sign of a case that passes and has a change point."""


def page(night: Night, checkout: Checkout | None = None) -> str:
    """Return the page of a night; ``checkout`` knows the commits (default: the one around here)."""
    checkout = checkout or Checkout(Path.cwd())
    entries = sorted(night.entries, key=severity)
    all_causes = causes(night)
    # The worst case of every cause comes before the second of any.
    ranks = zip_longest(*(cause.entries for cause in all_causes))
    failed = [entry for entries_of_rank in ranks for entry in entries_of_rank if entry]
    others = [entry for entry in entries if not entry.failing]
    environment = _environment()
    macros: Any = environment.get_template("macros.html.j2").module
    shown: dict[Place, Markup] = {}
    for entry in [*failed, *others]:
        details = macros.case(_case(night, entry))
        if sum(map(len, [details, *shown.values()])) > MOST_DETAILS:
            break
        shown[entry.place] = details
    columns = [
        Column("case", lambda e: macros.link(e) if e.place in shown else e.record.case.id),
        Column("hardware", lambda entry: entry.hardware.key),
        Column("status", lambda e: "ok" if e.status is Status.OK else macros.badge(e)),
        *(column.of(lambda entry: entry.record) for column in console.COLUMNS[2:]),
    ]
    details_of_others = [shown[entry.place] for entry in others if entry.place in shown]
    script = _packaged("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        night=night,
        moved=_moved_cases(entries),
        title=f"Night of {day(night.started)}" if night.started else "No night",
        causes=[_cause(cause, shown, checkout) for cause in all_causes],
        most_causes=MOST_CAUSES,
        strip=strip(entries),
        others=details_of_others,
        left_out=len(others) - len(details_of_others),
        table=as_html(Table(columns, entries, CAPTION)),
        legend=LEGEND,
        made_of={entry.run_id: _made_of(entry) for entry in night.entries},
        version=__version__,
        styles=Markup(_packaged("report.css")),  # noqa: S704 - ours
        code=Markup(script),  # noqa: S704 - ours
        # This script, styles in the page, and nothing loaded.
        policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'",
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
        "status_name": _status_name,
        "sign": lambda entry: MOVED if has_moved(entry) else SIGNS[entry.status],
    }
    return environment


def _packaged(name: str) -> str:
    return (importlib.resources.files("bench_lib.report") / "templates" / name).read_text("utf-8")


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


# --- a case in full --------------------------------------------------------------------------


def _case(night: Night, entry: NightCase) -> dict[str, Any]:
    """Return what the page shows of a case besides its row."""
    timing, case_id = console.timing_of(entry.record), f"{entry.record.case.id}: "
    profiles = entry.kernels if entry.status is Status.REGRESSED else None
    remarks = [*console.changes([entry.record]), *console.explanations([entry.record])]
    accepted = entry.baseline.accepted if entry.baseline else None
    by = f" by {accepted.by}" if accepted and accepted.by else ""
    return {
        "entry": entry,
        "device": device(night, entry),
        "change": percent(timing.ratio) if timing else "",
        "history": history(entry),
        "since": _since(entry),
        "profiles": profiles,
        "kernels": as_html(Table(KERNELS, profiles.changes, most=MOST_KERNELS)) if profiles else "",
        "left_out": len(profiles.changes) - MOST_KERNELS if profiles else 0,
        "verdicts": as_html(Table(VERDICTS, entry.record.verdicts)),
        "accepted": f"Baseline accepted on {day(accepted.date)}{by}: {accepted.reason}"
        if accepted
        else "",
        "remarks": [remark.removeprefix(case_id) for remark in remarks],
        "commands": commands(entry),
    }


def _metric(verdict: Verdict) -> str:
    bounded = verdict.found(Bounded)  # numerics are of several metrics
    what = bounded and bounded.metric != verdict.metric and metrics.of(bounded.metric).label
    name = f"{verdict.metric}: {what}" if what else verdict.metric
    return name if verdict.against in ("", "pinned") else f"{name} ({verdict.against})"


def _unit(verdict: Verdict) -> str:
    # Verdicts of 0.1.0 have no unit; the metric's is used.
    return verdict.unit or metrics.of(verdict.metric).unit


VERDICTS: list[Column[Verdict]] = [
    Column("metric", _metric),
    Column("verdict", lambda verdict: verdict.status.value.replace("_", " ").lower()),
    Column("this_night", lambda verdict: verdict.value, _unit),
    Column("before", lambda verdict: verdict.baseline, _unit),
    Column("change", lambda verdict: verdict.ratio, RATIO),
    Column("95%", lambda verdict: verdict.interval, RATIO),
]
KERNELS: list[Column[KernelDifference]] = [
    Column("name", lambda change: change.name),
    Column("before", lambda change: change.before and change.before.total_s, "s"),
    Column("after", lambda change: change.after and change.after.total_s, "s"),
    Column("change", lambda change: change.delta_s, CHANGE_S),
]


def _since(entry: NightCase) -> str:
    """Return since when a case has failed or moved; empty if unknown."""
    last = entry.slower_since or (entry.moved[-1] if has_moved(entry) else None)
    if last is not None:
        low, high = (percent(bound) for bound in last.change.interval)
        change = f"{percent(last.change.ratio)} ({low} to {high})"
        return f"Change point on {day(last.time)}, run {last.run_id}: {change}"
    if entry.failing and (good := entry.last_good) is not None:
        return f"Last OK on {day(good.time)}, run {good.run_id}"
    return ""


_COMMITS = re.compile(r"commit ([0-9a-f]{7,64}) -> ([0-9a-f]{7,64})")


def _cause(cause: NightCause, shown: dict[Place, Markup], checkout: Checkout) -> dict[str, Any]:
    """Return what the page shows of a cause; ``shown`` are the cases with details."""
    details = [shown[entry.place] for entry in cause.entries if entry.place in shown]
    names = [entry.record.case.id for entry in cause.entries]
    pairs = filter(None, map(_COMMITS.fullmatch, cause.onset.changes))
    return {
        "name": cause.name,
        "title": cause.title,
        "ids": some(names, MOST_NAMED) if len(names) > 1 else "",
        "cases": details,
        "left_out": len(cause.entries) - len(details),
        "changes": cause.onset.changes,
        "commits": [commit for pair in pairs for commit in checkout.between(pair[1], pair[2])],
    }


def _made_of(entry: NightCase) -> str:
    """Describe the device and the environment."""
    parts, environment = [entry.hardware.name], entry.environment
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
    return " · ".join(parts)
