"""A night for a pull request's comment and for a step's summary: the failures, then the rest."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from bench_lib.formats import amount, many, on_one_line, signed_percent, sparkline
from bench_lib.model import Status, Verdict
from bench_lib.profiling import kernels
from bench_lib.report import console, github
from bench_lib.report.answer import Column, Table, judged
from bench_lib.report.findings import (
    NightCause,
    causes,
    device,
    hints,
    measuring_again,
    onset,
    own_last,
)
from bench_lib.report.github import MarkdownSection, code, shortened, span, text
from bench_lib.report.night import Moved, Night, NightCase
from bench_lib.report.render import cells, sections_of
from bench_lib.verdict import metrics
from bench_lib.verdict.severity import FAILING

MARKER = "<!-- bench-lib: report -->"
"""The first line, hidden, by which the comment is found that was made before."""
UNCHANGED = "<!-- bench-lib: nothing changed -->"
"""The second line, hidden, of a night that needs no comment where there is none yet."""
CAUSES = ("first bad run", "cause", "cases")
MOST_CAUSES = 5
WORTH = 0.05
"""Share of all that kernels take more, or less, from which on a cause is named."""
MOST_BARS, LEAST_BARS = 40, 3
"""Runs that a line of bars shows, and how few make none."""
LEAST_RANGE = 0.02
"""The least logarithm of times that the tallest bar stands for: noise below 2% stays low."""
MOST_CAUSE = 120
"""Characters of a part of the cause."""
MOST_REASON = 300
"""Characters of a reason in a table; below it there is the whole."""
MOST_WORDS = 2_000
"""Characters of any reason: a fault's message may be a program's whole output."""
MOST_CASES = 5
"""Cases of a cause that are named."""
MOST_RUNS = 8
"""Runs in the command that makes the whole report."""
_LINK = re.compile(r"https?://[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]{1,500}")


def as_markdown(night: Night, *, limit: int = github.COMMENT, link: str = "") -> str:
    """Return a night as GitHub's Markdown in at most ``limit`` bytes.

    Five lines are to be seen, and the rest is folded: the sentence, the largest change, its past,
    its cause, and the ``link`` to the whole report.  Whatever files say stays text.  Whatever does
    not fit is left out by whole rows, the last sections first, and the text says so.  ValueError if
    the limit leaves no room for a sentence.
    """
    failed, found = night.failed, causes(night)
    others = [entry for entry in night.entries if not entry.failing]
    head, rows = _summary(others)
    counts = ", ".join(f"{n} {text(name)}" for name, n in night.counts.items())
    sections = [
        MarkdownSection("Causes", list(_causes(found)), "causes", github.table(CAUSES)),
        *sections_of(replace(_failures(night, failed), title=f"Failed: {len(failed)}"), "failures"),
        MarkdownSection(
            "What is known of each failure", [_details(night, e) for e in failed], "failures"
        ),
        MarkdownSection(
            f"About this night{f': {counts}' if counts else ''}",
            list(_to_be_known(night)),
            "remarks",
        ),
        MarkdownSection(
            "Changed in the environment since the baselines",
            list(_environment(night.entries)),
            "changes",
        ),
        MarkdownSection("Remarks on other cases", list(_remarks(others)), "remarks"),
        MarkdownSection(f"All other cases: {len(others)}", rows, "cases", head),
        MarkdownSection(
            f"Left out: {len(night.left_out)}",
            [f"- {shortened(words, MOST_REASON)}" for words in night.left_out],
            "remarks",
        ),
    ]
    folded = [replace(section, folded=True) for section in sections]
    markers = MARKER if night.changed else f"{MARKER}\n{UNCHANGED}"
    return github.fitted([markers, *_opening(night, found, link)], folded, limit)


def _opening(night: Night, found: Sequence[NightCause], link: str) -> Iterator[str]:
    """Return the heading, and the lines below it as one paragraph."""
    yield f"## {shortened(night.sentence, MOST_REASON)}"
    lines = [*_leading(night, found), _to_report(night, link)]
    yield "\\\n".join(filter(None, lines))


def _leading(night: Night, found: Sequence[NightCause]) -> Iterator[str]:
    """Say of the case that changed most by how much, how it was before, and why."""
    moved = night.failed or [e for e in night.entries if e.status is Status.IMPROVED]
    if not moved:
        return
    leading = max(moved, key=_severity)
    verdict = leading.verdict
    more = f" (and {many(len(moved) - 1, 'more case')})" if len(moved) > 1 else ""
    where = f"**{_name(leading)}** on {text(device(night, leading))}{more}"
    yield f"{where}: {_by_how_much(verdict) if verdict else 'not judged'}"
    yield _past(leading)
    if leading.failing:
        yield f"Cause: {_cause(night, leading, found)}"


def _severity(entry: NightCase) -> float:
    """Return by how much a case changed, as the logarithm of a ratio; an error comes first."""
    if entry.status is Status.ERROR or entry.verdict is None:
        return math.inf
    return abs(math.log(entry.verdict.ratio)) if entry.verdict.ratio else 0.0


def _by_how_much(verdict: Verdict) -> str:
    """Return before and after with their units, else why there are none."""
    if None in (verdict.baseline, verdict.value, verdict.ratio):
        return f"{verdict.status.value}, {shortened(verdict.reason, MOST_REASON)}"
    assert verdict.baseline is not None
    assert verdict.value is not None
    assert verdict.ratio is not None
    before, after = (amount(each, verdict.unit) for each in (verdict.baseline, verdict.value))
    name = "" if verdict.metric == "latency" else f"{verdict.metric.replace('_', ' ')} "
    words = f"{name}{before} → {after}, **{signed_percent(verdict.ratio - 1)}**"
    if verdict.interval is not None:
        low, high = (signed_percent(bound - 1) for bound in verdict.interval)
        words += f" ({low} to {high})"
    return text(words).replace("\\*\\*", "**")


def _past(entry: NightCase) -> str:
    """Return a case's last nights as a line of bars; empty where they are not of its metric."""
    points = entry.points[-MOST_BARS:]
    metric = metrics.find(entry.verdict.metric) if entry.verdict else None
    if len(points) < LEAST_BARS or metric is None or not metric.clock_excuses:
        return ""
    bars = sparkline([point.log_median for point in points], LEAST_RANGE)
    return f"{bars} {many(len(points), 'run')}, {points[0].time[:10]} to {points[-1].time[:10]}"


def _cause(night: Night, entry: NightCase, found: Iterable[NightCause]) -> str:
    """Name the slower kernels, the changes with them, and since when, if known.

    A cause of several cases is named as such.
    """
    for cause in found:
        if len(cause.entries) > 1 and entry in cause.entries:
            return shortened(cause.title, MOST_REASON)
    began = onset(night, entry)
    parts = []
    if entry.kernels is not None and (blamed := kernels.causes(entry.kernels)):
        parts.append(shortened(blamed[0].words, MOST_CAUSE))
    if began.since:
        parts.append(f"{'' if began.since.startswith('measured') else 'since '}{text(began.since)}")
    if began.changes:
        parts.append(f"with {shortened('; '.join(began.changes), MOST_CAUSE)}")
    elif entry.record.changes:
        since = shortened("; ".join(own_last(entry.record.changes)), MOST_CAUSE)
        parts.append(f"changed since the baseline: {since}")
    elif began.moved or began.last_good:
        parts.append("no change known in the environment")
    return ", ".join(parts) or "not known"


def _to_report(night: Night, link: str) -> str:
    if _LINK.fullmatch(link):
        return f"[The whole report](<{link}>)"
    runs = " ".join(f"--run {run.run_id}" for run in night.runs[:MOST_RUNS])
    if not runs:
        return ""
    return f"The whole report: {span(f'bench-lib report {runs} --html report.html')}"


def _to_be_known(night: Night) -> Iterator[str]:
    """Say when the night was, what makes it less than it seems, and what there is to do."""
    if when := text(" to ".join(filter(None, (night.started, night.ended)))):
        yield f"- {when}"
    for one in night.slow_downs:
        words = shortened(one.words, MOST_REASON)
        yield f"- **{words}**" if one.is_new else f"- {words}"
    for run in night.unfinished:
        where = f"run {run.run_id} on {run.key}"
        yield f"- **{text(where)} has not come to its end**; cases may be missing"
    for key in night.missing:
        yield f"- **not measured this night**: {text(key)}"
    for words in hints(night):
        yield f"- {shortened(words, MOST_REASON)}"


def _causes(found: Iterable[NightCause]) -> Iterator[str]:
    """Return a row for each cause of several cases."""
    for cause in found:
        if len(cause.entries) > 1:
            names = ", ".join(_name(entry) for entry in cause.entries[:MOST_CASES])
            more = len(cause.entries) - MOST_CASES
            names += f" and {more} more" if more > 0 else ""
            yield github.row([text(cause.run_id), shortened(cause.title, MOST_REASON), names])


# --- failures --------------------------------------------------------------------------------


def _failures(night: Night, entries: Sequence[NightCase]) -> Table[NightCase]:
    """Return what failed: by how much, since when, what changed there, and why."""

    def why(entry: NightCase) -> str:
        verdict = entry.verdict
        return on_one_line(f"{verdict.metric}: {verdict.reason}", MOST_REASON) if verdict else ""

    def changed(entry: NightCase) -> str:
        return on_one_line("; ".join(onset(night, entry).changes), MOST_REASON)

    verdict: list[Column[NightCase]] = judged(lambda entry: entry.verdict)
    columns: list[Column[NightCase]] = [
        Column("case_id", lambda entry: entry.record.case.id[:MOST_REASON], heading="case"),
        Column("hardware", lambda entry: device(night, entry)),
        Column("status", lambda entry: entry.status),
        *verdict[:2],
        Column("since", lambda entry: onset(night, entry).since),
        Column("changed", changed, heading="changed there"),
        Column("why", why),
    ]
    return Table(columns, entries)


def _name(entry: NightCase) -> str:
    return shortened(entry.record.case.id, MOST_REASON)


def _details(night: Night, entry: NightCase) -> str:
    """Return one failure's collapsed details: why in full, kernels, environment, output."""
    name = f"{entry.record.case.id[:MOST_REASON]} on {device(night, entry)}"
    body = "\n".join(f"- {line}" for line in _facts(night, entry))
    if entry.fault is not None and entry.fault.last_output:
        body += f"\n\nLast output of the worker:\n\n{code(entry.fault.last_output)}"
    return f"<details><summary>{github.summary(name)}</summary>\n\n{body}\n\n</details>\n"


def _facts(night: Night, entry: NightCase) -> Iterator[str]:
    for verdict in entry.record.verdicts:
        if verdict is entry.verdict or verdict.status in FAILING:
            yield shortened(
                f"{verdict.status.value} {verdict.metric}: {verdict.reason}", MOST_WORDS
            )
    effect = entry.verdict.detectable_effect if entry.verdict else None
    if effect is not None:
        yield f"a slow-down of {effect:.1%} would have been seen"
    for moved in entry.moved:
        yield f"{_moved(moved)}{_around(moved.environment)}"
    began = onset(night, entry)
    if (good := began.last_good) is not None:
        yield f"last OK on {text(good.time[:10])}, run {text(good.run_id)}{_around(began.changes)}"
    if entry.kernels is not None:
        whole = abs(entry.kernels.delta_s)
        causes = [c for c in kernels.causes(entry.kernels) if abs(c.delta_s) >= WORTH * whole]
        for cause in causes[:MOST_CAUSES] if whole else ():
            yield f"{entry.kernels.what}: {shortened(cause.words, MOST_REASON)}"
    if entry.record.changes:
        yield f"since the baseline: {shortened('; '.join(entry.record.changes), MOST_WORDS)}"
    if again := measuring_again(entry):
        yield f"again: {span(shlex.join(again)[:MOST_REASON])}"


def _moved(moved: Moved) -> str:
    low, high = moved.change.interval
    words = "slower" if moved.change.ratio > 1 else "faster"
    return (
        f"{abs(moved.change.ratio - 1):.1%} {words} since {text(moved.time[:10])} "
        f"({low:.3f} to {high:.3f})"
    )


def _around(changes: Sequence[str]) -> str:
    if not changes:
        return ", with no change known in the environment"
    return f", with {shortened('; '.join(own_last(changes)), MOST_WORDS)}"


# --- the rest --------------------------------------------------------------------------------


def _environment(entries: Iterable[NightCase]) -> Iterator[str]:
    """Return a line for each set of changes, with how many cases it is of."""
    sets = Counter(
        (entry.hardware.key, "; ".join(entry.record.changes))
        for entry in entries
        if entry.record.changes
    )
    for (key, changes), n in sets.items():
        yield f"- {text(key)}, {many(n, 'case')}: {shortened(changes, MOST_WORDS)}"


def _remarks(entries: Iterable[NightCase]) -> Iterator[str]:
    """Return a line for each remark on cases that do not fail."""
    for line in console.explanations(entry.record for entry in entries):
        if not line.startswith("since the baseline: "):
            yield f"- {shortened(line, MOST_REASON)}"


ROWS: list[Column[NightCase]] = [
    Column("case_id", lambda entry: entry.record.case.id, heading="case"),
    Column("hardware_key", lambda entry: entry.hardware.key, heading="hardware"),
    *(column.of(lambda entry: entry.record) for column in console.COLUMNS[1:]),
]


def _summary(entries: Sequence[NightCase]) -> tuple[list[str], list[str]]:
    """Return the head and the rows of the terminal's summary, with the hardware."""
    if not entries:
        return [], []
    several = len({entry.hardware.key for entry in entries}) > 1
    shown = [column for column in ROWS if several or column.name != "hardware_key"]
    found = cells(Table(shown, entries))
    lines = zip(*(below for _, below in found), strict=True)
    rows = [github.row([shortened(each, MOST_REASON) for each in line]) for line in lines]
    return github.table([name for name, _ in found]), rows
