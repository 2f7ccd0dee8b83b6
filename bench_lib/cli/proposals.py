"""What accepting runs would change of the baselines: put together, written, and told."""

from __future__ import annotations

import dataclasses
import getpass
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench_lib.cli.documents import filled
from bench_lib.cli.output import as_markdown, markdown_table, print_table
from bench_lib.formats import seconds
from bench_lib.model import Accepted, Baseline, Environment, UserError

if TYPE_CHECKING:
    from bench_lib.cli.documents.kept import Proposed
    from bench_lib.storage.baselines import BaselineChange, BaselineFile
    from bench_lib.storage.history import Run

HEADINGS = ("case", "old", "new", "ratio", "95% interval")


def proposal(
    names: Sequence[str], history: Path, folder: Path, case: str, reason: str
) -> tuple[BaselineFile, list[Run], list[BaselineChange]]:
    """Put together what accepting runs would change; raises UserError."""
    from bench_lib.cli import reading
    from bench_lib.storage import acceptance
    from bench_lib.storage import baselines as files

    runs = [reading.run(name, history) for name in names]
    if len({run.run_id for run in runs}) < len(runs):
        raise UserError("two --run name the same run; its processes would count twice")
    keys = {run.key for run in runs}
    if len(keys) > 1:
        raise UserError(
            f"these runs are of different hardware: {', '.join(sorted(keys))}; accept them apart"
        )
    if not runs[-1].hardware:
        raise UserError(f"{runs[-1].path} measured nothing; there is nothing to accept")
    if differing := acceptance.mixed_conditions(h for run in runs for h in run.hardware):
        raise UserError(
            f"these values were measured under different conditions: {'; '.join(differing)}; "
            "accept them apart"
        )
    file = files.load(folder, keys.pop())
    changes = acceptance.propose(
        file,
        {run.run_id: run.records.values() for run in runs},
        runs[-1].hardware[0],
        _accepted(runs, reason),
        only=case,
        environments=_environments(runs),
    )
    if not changes:
        raise UserError(f"no case of {', '.join(names)} is like {case!r}")
    return file, runs, changes


def _environments(runs: Sequence[Run]) -> dict[str, Environment]:
    return {name: environment for run in runs for name, environment in run.environments.items()}


def _accepted(runs: Sequence[Run], reason: str) -> Accepted:
    from bench_lib.storage.history import utc_now

    return Accepted(" ".join(run.run_id for run in runs), reason.strip(), utc_now(), who())


def who() -> str | None:
    """Return who is accepting; None where the machine knows no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may know no name for its user
        return None


def with_all_processes(change: BaselineChange, needed: int) -> BaselineChange:
    """Note against a change that some of its processes were spoilt or left out."""
    found = len(change.new.processes) if change.new else needed
    if found >= needed:
        return change
    words = f"{found} of {needed} processes, which can hardly tell the spread between processes"
    return dataclasses.replace(change, against="; ".join(filter(None, (change.against, words))))


def take(
    file: BaselineFile,
    runs: Sequence[Run],
    changes: Sequence[BaselineChange],
    *,
    force: bool = False,
) -> dict[str, BaselineChange]:
    """Write the changes that may be written; return those, by case."""
    from bench_lib.storage import acceptance
    from bench_lib.storage import baselines as files

    taken = {change.case_id: change for change in acceptance.taken(changes, force=force)}
    if taken:
        files.write(file, taken.values(), runs[-1].hardware[0], _environments(runs))
    return taken


def refused(changes: Sequence[BaselineChange], taken: Mapping[str, BaselineChange]) -> list[str]:
    """Return the ids of cases that something speaks against and that were not taken."""
    return [c.case_id for c in changes if c.against and c.case_id not in taken]


def print_taken(
    file: BaselineFile,
    runs: Sequence[Run],
    changes: Sequence[BaselineChange],
    taken: Mapping[str, BaselineChange],
) -> None:
    """Say how much was accepted, and what is to be known of it."""
    print(f"\n{len(taken)} of {len(changes)} cases accepted into {file.path}")
    for words in _afterthoughts(runs, list(taken.values()), refused(changes, taken)):
        print(words)


def _afterthoughts(
    runs: Sequence[Run], taken: Sequence[BaselineChange], refused: Sequence[str]
) -> list[str]:
    """Say what somebody who accepts should know, and what to do about it."""
    words = []
    if refused:
        words.append(
            f"{len(refused)} refused: measure again, or accept with --force and a --reason that "
            "explains what speaks against"
        )
    words += [
        f"run {run.run_id} is unfinished; it may lack cases" for run in runs if not run.finished
    ]
    few = {len(c.new.processes) for c in taken if c.new and len(c.new.processes) < 5}
    if few:
        words.append(
            f"some have fewer than five processes ({min(few)}), which can hardly tell the "
            "spread between processes: pytest perf_tests --perf-processes 5"
        )
    if any(c.new and "cold" in c.new.conditions.values() for c in taken):
        words.append(
            "the caches that choose kernels were cold when this run began; on this machine they "
            "are warm from now on, and the next run would be INCOMPARABLE: record once more"
        )
    return words


def print_changes(
    changes: Sequence[BaselineChange], around: Sequence[str], *, markdown: bool
) -> None:
    """Print a row a case, then what is to be said of some, then what changed around them."""
    if markdown:
        rows = [(*_figures(change), ": ".join(filter(None, _remark(change)))) for change in changes]
        print("\n".join(markdown_table((*HEADINGS, "remarks"), rows)))
        if around:
            print("\nChanged in the environment:\n")
        for line in around:
            print(f"- {as_markdown(line)}")
        return
    # Reasons get lines of their own: a terminal's table would cut them off first.
    print_table((*HEADINGS, ""), [(*_figures(change), _remark(change)[0]) for change in changes])
    for change in changes:
        if why := _remark(change)[1]:
            print(f"{change.case_id}: {why}")
    for line in around:
        print(f"environment: {line}")


def _remark(change: BaselineChange) -> tuple[str, str]:
    """Say in a word or two what becomes of the new values, and then why."""
    if change.new is None:
        return "nothing", change.why_not or ""
    notes = ["new"] if change.old is None or change.old.published else []
    if change.against is not None:
        notes.append("forced" if change.new.accepted.in_spite_of else "refused")
    return ", ".join(notes), change.against or ""


def _figures(change: BaselineChange) -> tuple[str, ...]:
    """Return the cells of HEADINGS."""
    ratio, interval = _ratio(change)
    return (
        change.case_id,
        "published" if change.old and change.old.published else median(change.old),
        median(change.new),
        "" if ratio is None else f"{ratio:.4f}",
        "" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}",
    )


def _ratio(change: BaselineChange) -> tuple[float | None, tuple[float, float] | None]:
    """Return new over old and its 95% interval, each None where it is not known."""
    from bench_lib.verdict.judge import compare

    if change.new is None or change.old is None or not change.old.processes:
        return None, None
    new, old = logs(change.new), logs(change.old)
    comparison = compare(new, old)
    ratio = math.exp(statistics.fmean(new) - statistics.fmean(old))
    return ratio, comparison.interval() if comparison else None


def changes_around(
    changes: Sequence[BaselineChange], file: BaselineFile, runs: Sequence[Run]
) -> list[str]:
    """Say what besides the values is not as it was: software, caches, settings; each once."""
    from bench_lib.environment.fingerprint import difference

    known = {**file.environments, **_environments(runs)}
    lines: dict[str, None] = {}
    pairs: dict[tuple[str, str], None] = {}
    for change in changes:
        if change.old is None or change.new is None:
            continue
        before, after = change.old.conditions, change.new.conditions
        for name in sorted(before.keys() & after.keys()):
            if before[name] != after[name]:
                lines[f"{name} {before[name]} -> {after[name]}"] = None
        for new in change.new.processes:
            pairs |= {(old.environment, new.environment): None for old in change.old.processes}
    for pair in pairs:
        if all(name in known for name in pair):
            lines |= dict.fromkeys(difference(*(known[name] for name in pair)))
    return list(lines)


def as_document(change: BaselineChange) -> Proposed:
    """Return a change as ``--json`` prints it."""
    from bench_lib.cli.documents.kept import Proposed

    ratio, interval = _ratio(change)
    return filled(Proposed, change, ratio=ratio, interval=interval)


def logs(baseline: Baseline) -> list[float]:
    """Return the natural logarithms of the processes' medians in seconds."""
    return [process.log_median for process in baseline.processes]


def median(baseline: Baseline | None) -> str:
    """Return the geometric mean of the processes' medians with its unit."""
    if baseline is None or not baseline.processes:
        return "-"
    return seconds(math.exp(statistics.fmean(logs(baseline))))
