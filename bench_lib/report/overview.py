"""The night as Markdown, JSON and text: a line per cause, then failures, then the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from bench_lib.formats import many
from bench_lib.model import Status
from bench_lib.report import console, github
from bench_lib.report.answer import Answer, Column, Table, columns
from bench_lib.report.findings import FIND, NightCause, causes, commands, device, onset
from bench_lib.report.github import MarkdownSection
from bench_lib.report.night import Night, NightCase
from bench_lib.report.render import sections_of
from bench_lib.storage.archive import RunLine

MARKER = "<!-- bench-lib: report -->"
"""The first line of Markdown, hidden, by which a workflow can find the comment."""
UNCHANGED = "<!-- bench-lib: nothing changed -->"
"""The second line, hidden, of a night that needs no comment if there is none yet."""
MOST_CAUSES = 10
MOST_LINES = 20
"""Most lines of one kind in text; the page and JSON have all."""
MOST_REASON = 300
"""Characters of a line in Markdown."""
MOST_RUNS = 8
"""Runs in the command that makes the whole report."""


def answer(night: Night, runs: Iterable[Column[RunLine]], written: Iterable[object] = ()) -> Answer:
    """Return a night as an answer; ``runs`` are the columns that JSON has of its runs.

    ``written`` are the files that hold the report already.
    """
    notes = [*_notes(night), *(f"written: {path}" for path in written)]
    return Answer(
        command="report",
        title=night.sentence,
        heading=_titles(causes(night)),
        tables={"entries": Table(_columns(night), night.entries, most=len(night.failed))},
        notes=notes,
        next=_next(night, is_written=any(written)),
        about={
            "sentence": night.sentence,
            "started": night.started,
            "ended": night.ended,
            "changed": night.changed,
            "counts": night.counts,
            "runs": [{column.name: column.get(run) for column in runs} for run in night.runs],
            "slow_downs": [
                {"hardware_key": s.key, "run": s.run_id, "new": s.is_new, "slow_down": s.slow_down}
                for s in night.slow_downs
            ],
            "causes": list(map(_cause, causes(night))),
            "missing": night.missing,
            "left_out": night.left_out,
        },
    )


def as_markdown(night: Night, *, link: str = "") -> str:
    """Return a night as Markdown that fits into a comment on GitHub.

    A line for each cause and the ``link`` to the whole report are visible; the rest is folded.
    Whatever does not fit is left out by whole rows, the last sections first, and the text says so.
    """
    titles = [f"- {github.shortened(line, MOST_REASON)}" for line in _titles(causes(night))]
    opening = [
        MARKER if night.changed else f"{MARKER}\n{UNCHANGED}",
        f"## {github.shortened(night.sentence, MOST_REASON)}",
        "\n".join(titles),
        _to_report(night, link),
    ]
    table = Table(_columns(night), night.entries, is_quiet=lambda entry: not entry.failing)
    failed, *others = sections_of(table, "cases") or [MarkdownSection("", [], "cases")]
    notes = [f"- {github.shortened(line, MOST_REASON)}" for line in _notes(night, every=True)]
    sections = [
        replace(failed, title=f"Failed: {len(night.failed)}"),
        MarkdownSection(f"Notes: {len(notes)}", notes, "notes"),
        *others,
    ]
    folded = [replace(section, folded=True) for section in sections]
    return github.fitted(list(filter(None, opening)), folded)


def _titles(all_causes: list[NightCause]) -> list[str]:
    titles = [cause.title for cause in all_causes[:MOST_CAUSES]]
    left = len(all_causes) - MOST_CAUSES
    return [*titles, f"and {many(left, 'more cause')}"] if left > 0 else titles


def _notes(night: Night, *, every: bool = False) -> list[str]:
    """Return what else a reader should know, the reasons first; the first of a kind, or all."""
    records = [entry.record for entry in night.entries]
    reasons = [*console.changes(records), *console.explanations(records)]
    parts = [
        [f"interleaved with {name}" for name in night.references],
        reasons,
        [s.words for s in night.slow_downs],
        [f"! run {run.run_id} on {run.key} has not finished" for run in night.unfinished],
        [f"! not measured this night: {key}" for key in night.missing],
        [f"! {remark}" for remark in night.left_out],
    ]
    notes = []
    for part in parts:
        notes += part if every else part[:MOST_LINES]
        if len(part) > MOST_LINES and not every:
            notes.append(f"! and {len(part) - MOST_LINES} more; --json has all")
    return notes


def _to_report(night: Night, link: str) -> str:
    if github.ADDRESS.fullmatch(link):
        return f"[The whole report](<{link}>)"
    runs = " ".join(f"--run {run.run_id}" for run in night.runs[:MOST_RUNS])
    if not runs:
        return ""
    return f"The whole report: {github.span(f'bench-lib report {runs} --html report.html')}"


def _next(night: Night, *, is_written: bool) -> str:
    if night.failed and not is_written:
        return "bench-lib report --html report.html"
    datable = [e for e in night.failed if e.status is Status.REGRESSED and e.last_good]
    return dict(commands(datable[0]))[FIND] if datable else ""


def _columns(night: Night) -> list[Column[NightCase]]:
    first, *others = (column.of(lambda entry: entry.record) for column in console.COLUMNS)
    return [
        first,
        Column("hardware_key", lambda entry: entry.hardware.key, heading=""),
        Column("device", lambda entry: device(night, entry), heading="hardware"),
        *others,
        Column("since", lambda entry: onset(night, entry).since if entry.failing else ""),
        Column("run", lambda entry: entry.run_id, heading=""),
        *columns("", "status failing"),
        Column("quarantined", lambda entry: entry.quarantined, heading=""),
        *columns("record", "verdicts changes"),
        Column("change_points", _change_points, heading=""),
    ]


def _cause(cause: NightCause) -> dict[str, Any]:
    last_good = cause.entries[0].last_good
    return {
        "title": cause.title,
        "blamed": cause.blamed,
        "first_bad_run": cause.run_id,
        "last_good_run": last_good.run_id if last_good else None,
        "since": cause.onset.since,
        "changes": cause.onset.changes,
        "cases": [entry.place for entry in cause.entries],
    }


def _change_points(entry: NightCase) -> list[dict[str, Any]]:
    return [
        {
            "run": point.run_id,
            "time": point.time,
            "ratio": point.change.ratio,
            "interval": point.change.interval,
            "environment": point.environment,
        }
        for point in entry.moved
    ]
