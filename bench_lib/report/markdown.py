"""A night for a pull request's comment and for a step's summary: what failed, then the rest."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from bench_lib.formats import many
from bench_lib.profiling import kernels
from bench_lib.report import console, github
from bench_lib.report.findings import device, hints, onset, own_last
from bench_lib.report.github import MarkdownSection, code, shortened, span, text
from bench_lib.report.night import Moved, Night, NightCase
from bench_lib.verdict.severity import FAILING

MARKER = "<!-- bench-lib: report -->"
"""The first line, hidden, by which a workflow finds the comment that it made before."""
FAILURES = (
    *("case", "hardware", "status", "ratio", "95% interval", "since", "changed there"),
    "why",
)
INCIDENTS = ("incident", "state", "since", "what", "commands")
STEPS = ("case", "hardware", "since", "ratio", "95% interval", "environment")
MOST_CAUSES = 5
WORTH = 0.05
"""Share of all that kernels take more, or less, from which on a cause is named."""
MOST_LINES = 10
"""Of what else is to be known above the failures."""
MOST_REASON = 300
"""Characters of a reason in a table; below it there is the whole."""
MOST_WORDS = 2_000
"""Characters of any reason: a fault's message may be a program's whole output."""


def as_markdown(night: Night, *, limit: int = github.COMMENT) -> str:
    """Return a night as GitHub's Markdown in at most ``limit`` bytes.

    Whatever files say stays text.  What does not fit is left out by whole rows, the last sections
    first, and said so.  ValueError where the limit leaves no room for a sentence.
    """
    failed = night.failed
    others = [entry for entry in night.entries if not entry.failing]
    head, rows = _summary(others)
    sections = [
        MarkdownSection("Incidents", list(_incidents(night)), "incidents", github.table(INCIDENTS)),
        MarkdownSection(
            "Failed", [_failure(night, e) for e in failed], "failures", github.table(FAILURES)
        ),
        MarkdownSection("What is known of each", [_details(night, e) for e in failed], "failures"),
        MarkdownSection(
            "Changed in the environment since the baselines",
            list(_environment(night.entries)),
            "changes",
            folded=True,
        ),
        MarkdownSection(
            "Steps found in the history of cases that do not fail",
            [_step(entry, moved) for entry in others for moved in entry.moved],
            "steps",
            github.table(STEPS),
            folded=True,
        ),
        MarkdownSection("Remarks on other cases", list(_remarks(others)), "remarks", folded=True),
        MarkdownSection(f"All other cases: {len(others)}", rows, "cases", head, folded=True),
        MarkdownSection(
            f"Left out: {len(night.left_out)}",
            [f"- {shortened(words, MOST_REASON)}" for words in night.left_out],
            "remarks",
            folded=True,
        ),
    ]
    return github.fitted([MARKER, *_opening(night)], sections, limit)


def _opening(night: Night) -> Iterator[str]:
    yield f"## {shortened(night.sentence, MOST_REASON)}"
    counts = ", ".join(f"{n} {text(name)}" for name, n in night.counts.items())
    when = text(" to ".join(filter(None, (night.started, night.ended))))
    if counts or when:
        yield ". ".join(filter(None, (counts, when)))
    if night.spent:
        yield text(night.spent)
    if lines := list(_to_be_known(night)):
        more = len(lines) - MOST_LINES
        lines = lines[:MOST_LINES] + [f"- and {more} more"] * (more > 0)
        yield "\n".join(lines)


def _to_be_known(night: Night) -> Iterator[str]:
    """Say what makes the night less than it seems."""
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


def _incidents(night: Night) -> Iterator[str]:
    """Return a row for each incident of several cases, or that is not of this night alone."""
    for one in night.incidents:
        if one.says_more:
            words = shortened(one.title, MOST_REASON)
            if one.acknowledged is not None:
                words += f"; {shortened(one.acknowledged.reason, MOST_REASON)}"
            cells = [span(one.id), one.state.value, text(one.since[:10]), words]
            yield github.row([*cells, "; ".join(map(span, one.commands))])


# --- failures --------------------------------------------------------------------------------


def _failure(night: Night, entry: NightCase) -> str:
    verdict, began = entry.verdict, onset(night, entry)
    ratio = verdict.ratio if verdict else None
    interval = (verdict.interval if verdict else None) or ()
    return github.row(
        [
            _name(entry),
            text(device(night, entry)),
            f"**{entry.status.value if entry.status else ''}**",
            "" if ratio is None else f"{ratio:.3f}",
            " to ".join(f"{bound:.3f}" for bound in interval),
            text(began.since),
            shortened("; ".join(began.changes), MOST_REASON),
            shortened(f"{verdict.metric}: {verdict.reason}" if verdict else "", MOST_REASON),
        ]
    )


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
    if entry.record.nodeid:
        yield f"again: {span(shlex.join(['pytest', entry.record.nodeid])[:MOST_REASON])}"


def _moved(moved: Moved) -> str:
    low, high = moved.step.interval
    words = "slower" if moved.step.ratio > 1 else "faster"
    return (
        f"{abs(moved.step.ratio - 1):.1%} {words} since {text(moved.time[:10])} "
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
    """Return a line for each thing to be known of cases that do not fail."""
    for line in console.explanations(entry.record for entry in entries):
        if not line.startswith("since the baseline: "):
            yield f"- {shortened(line, MOST_REASON)}"


def _step(entry: NightCase, moved: Moved) -> str:
    low, high = moved.step.interval
    return github.row(
        [
            _name(entry),
            text(entry.hardware.key),
            text(moved.time[:10]),
            f"{moved.step.ratio:.3f}",
            f"{low:.3f} to {high:.3f}",
            shortened("; ".join(moved.environment), MOST_REASON),
        ]
    )


def _summary(entries: Sequence[NightCase]) -> tuple[list[str], list[str]]:
    """Return the head and the rows of the terminal's summary, with the hardware.

    Columns that tell entries nothing are left out.
    """
    first, *others = console.HEADINGS
    table = [(first, "hardware", *others)]
    for entry in entries:
        ((case_id, *cells),) = console.summary_rows([entry.record])
        table.append((case_id, entry.hardware.key, *cells))
    columns = [
        column
        for column in zip(*table, strict=True)
        if len(set(column[1:])) > 1 or (any(column[1:]) and column[0] != "hardware")
    ]
    headings, *rows = zip(*columns, strict=True) if columns else [()]
    return github.table(headings), [
        github.row([shortened(cell, MOST_REASON) for cell in row]) for row in rows
    ]
