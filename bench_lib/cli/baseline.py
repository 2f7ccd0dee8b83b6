"""``bench-lib baseline``: show what is accepted, compare a run with it, record, accept, excuse."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import getpass
import math
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_lib.cli.output import (
    DEFAULT_BASELINES,
    DEFAULT_HISTORY,
    BaselinesDir,
    HistoryDir,
    Json,
    as_markdown,
    markdown_table,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from bench_lib.baselines import BaselineFile, Change
    from bench_lib.history import Run
    from bench_lib.model import Accepted, Baseline, Environment, Published

app = typer.Typer(help="The values to hold against.", no_args_is_help=True, rich_markup_mode=None)
Runs = Annotated[
    list[str],
    typer.Option("--run", metavar="RUN", help="A run's id or its start, latest, or a file."),
]
Cases = Annotated[str, typer.Option("--case", metavar="GLOB", help="Only cases like this.")]
Reason = Annotated[str, typer.Option("--reason", help="Why these are the values to hold.")]
Force = Annotated[
    bool, typer.Option("--force", help="Take noisy, doubtful or slower values too; say why.")
]
Markdown = Annotated[
    bool, typer.Option("--markdown", help="Print Markdown for a pull request's description.")
]
HEADINGS = ("case", "old", "new", "ratio", "95% interval")


@app.command()
def show(
    key: Annotated[
        str | None, typer.Argument(help="Hardware key (default: this machine's).")
    ] = None,
    *,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    case: Cases = "*",
    json: Json = False,
) -> None:
    """Show the accepted values of a hardware key, and what was published where there are none."""
    from bench_lib import baselines as files
    from bench_lib.hardware import detect
    from bench_lib.history import utc_today

    file = files.load(baselines, key or detect()[0].key)
    chosen = {k: v for k, v in file.measured.items() if fnmatch.fnmatchcase(k, case)}
    published = {k: v for k, v in file.published.items() if fnmatch.fnmatchcase(k, case)}
    excused = {k: v for k, v in file.quarantines.items() if fnmatch.fnmatchcase(k, case)}
    over = {k for k, v in excused.items() if not files.in_force(v, utc_today())}
    if json:
        about = {k: {**dataclasses.asdict(v), "over": k in over} for k, v in excused.items()}
        print_json(
            {
                "key": file.key,
                "hardware": file.hardware,
                "cases": chosen,
                "published": published,
                "quarantine": about,
            }
        )
        return
    if not chosen and not published:
        known = _keys_with_baselines(baselines, file.key)
        there = f"; there are baselines of {', '.join(known)}" if known else ""
        print(f"no baselines of {file.key} in {baselines}{there}")
    accepted = [
        (
            id_,
            _median(b),
            str(len(b.processes)),
            _spread(b),
            b.accepted.date[:10],
            b.accepted.reason,
        )
        for id_, b in sorted(chosen.items())
    ]
    print_table(("case", "median", "processes", "between", "accepted", "reason"), accepted)
    for id_, b in sorted(chosen.items()):
        if b.accepted.in_spite_of is not None:
            print(f"{id_}: in spite of: {b.accepted.in_spite_of}")
    if published:
        if chosen:
            print()
        _print_published(published)
    if excused:
        print()
    rows = [
        (id_, q.until, "over" if id_ in over else "holds", q.reason)
        for id_, q in sorted(excused.items())
    ]
    print_table(("in quarantine", "until", "state", "reason"), rows)
    if not chosen and not published and not excused:
        raise typer.Exit(1)


def _keys_with_baselines(folder: Path, but: str) -> list[str]:
    """List the hardware keys that something was accepted for; a broken file is not asked."""
    from bench_lib import baselines as files

    keys = []
    for key in sorted(path.stem for path in folder.glob("*.json") if path.stem != but):
        with contextlib.suppress(files.BaselineError):
            keys += [key] if files.load(folder, key).measured else []
    return keys


def _print_published(published: Mapping[str, Published]) -> None:
    rows = []
    for id_, figure in sorted(published.items()):
        low, high = figure.low, figure.high
        between = "" if low is None or high is None else f"{low:.5g} to {high:.5g}"
        rows.append((id_, f"{figure.rate:.5g} {figure.item}/s", between))
    print_table(("published, not judged by", "rate", "range"), rows)
    for id_, figure in sorted(published.items()):
        print(f"{id_}: {figure.caveat}; source: {figure.source}")
    print(
        "to measure them, on that hardware: "
        "bench-lib baseline record --reason WHY -- --perf-tier nightly"
    )


@app.command()
def diff(
    *,
    run: Runs,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    case: Cases = "*",
    json: Json = False,
    markdown: Markdown = False,
) -> None:
    """Show what accepting a run would change, and what speaks against it."""
    _one_form(json, markdown)
    file, runs, changes = _proposal(run, history, baselines, case, "diff")
    around = _changes_around(changes, file, runs)
    if json:
        about = [_as_json(change) for change in changes]
        print_json({"key": file.key, "changes": about, "environment": around})
    else:
        _print_changes(changes, around, markdown=markdown)


@app.command()
def accept(
    *,
    run: Runs,
    reason: Reason,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    case: Cases = "*",
    force: Force = False,
    json: Json = False,
    markdown: Markdown = False,
) -> None:
    """Make a run's values, or several runs' together, the ones to hold against."""
    _one_form(json, markdown)
    _require(reason)
    file, runs, changes = _proposal(run, history, baselines, case, reason)
    taken = _take(file, runs, changes, force=force)
    shown = [taken.get(change.case_id, change) for change in changes]
    around = _changes_around(shown, file, runs)
    if json:
        print_json(
            {
                "path": str(file.path),
                "accepted": len(taken),
                "refused": _refused(changes, taken),
                "changes": [_as_json(change) for change in shown],
                "environment": around,
            }
        )
    else:
        _print_changes(shown, around, markdown=markdown)
        _print_taken(file, runs, changes, taken)
    raise typer.Exit(0 if taken else 1)


@app.command()
def record(
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="MORE", help="More for pytest, as -- -n auto -k resnet50."),
    ] = None,
    *,
    reason: Reason,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    force: Force = False,
) -> None:
    """Measure perf_tests in five processes a case, and accept that very run.

    A case of which fewer processes were measured is refused, as is what accept refuses.  Ends
    with 1 where nothing could be accepted, or where a test failed; the others are accepted all
    the same.
    """
    from bench_lib import baselines as files
    from bench_lib import history as runs
    from bench_lib.metrics.timing import LEAST_PROCESSES

    _require(reason)
    before = set(runs.files(history))
    folders = ["--perf-history", str(history), "--perf-baselines", str(baselines)]
    looks = ["--perf-kernels", "all"]
    words = [
        "perf_tests",
        "--perf-processes",
        str(LEAST_PROCESSES),
        *looks,
        *folders,
        *(more or []),
    ]
    status = _pytest(words)
    if status not in (0, 1):
        raise files.BaselineError(f"pytest ended with status {status}; nothing was accepted")
    new = [str(path) for path in runs.files(history) if path not in before]
    if not new:
        raise files.BaselineError("pytest measured nothing; nothing was accepted")
    if len(new) > 1:
        raise files.BaselineError(
            f"others ran meanwhile ({', '.join(new)}); accept one: "
            "bench-lib baseline accept --run RUN"
        )
    file, measured, changes = _proposal(new, history, baselines, "*", reason)
    changes = [_with_all_processes(change, LEAST_PROCESSES) for change in changes]
    taken = _take(file, measured, changes, force=force)
    shown = [taken.get(change.case_id, change) for change in changes]
    print()
    _print_changes(shown, _changes_around(shown, file, measured), markdown=False)
    _print_taken(file, measured, changes, taken)
    if taken:
        print(f"next: commit {file.path}")
    raise typer.Exit(0 if taken and status == 0 else 1)


def _pytest(words: Sequence[str]) -> int:
    """Run pytest in front and return its status; an interrupt is pytest's to answer."""
    print(shlex.join(["pytest", *words]), flush=True)
    handler = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.call([sys.executable, "-m", "pytest", *words])
    finally:
        signal.signal(signal.SIGINT, handler)


def _with_all_processes(change: Change, needed: int) -> Change:
    """Note against a change that some of its processes were spoilt or left out."""
    found = len(change.new.processes) if change.new else needed
    if found >= needed:
        return change
    words = f"{found} of {needed} processes, which can hardly tell the spread between processes"
    return dataclasses.replace(change, against="; ".join(filter(None, (change.against, words))))


def _take(
    file: BaselineFile, runs: Sequence[Run], changes: Sequence[Change], *, force: bool = False
) -> dict[str, Change]:
    """Write the changes that may be written; return those, by case."""
    from bench_lib import acceptance
    from bench_lib import baselines as files

    taken = {change.case_id: change for change in acceptance.taken(changes, force=force)}
    if taken:
        files.write(file, taken.values(), runs[-1].hardware[0], _environments(runs))
    return taken


def _refused(changes: Sequence[Change], taken: Mapping[str, Change]) -> list[str]:
    return [c.case_id for c in changes if c.against and c.case_id not in taken]


def _print_taken(
    file: BaselineFile,
    runs: Sequence[Run],
    changes: Sequence[Change],
    taken: Mapping[str, Change],
) -> None:
    print(f"\n{len(taken)} of {len(changes)} cases accepted into {file.path}")
    for words in _afterthoughts(runs, list(taken.values()), _refused(changes, taken)):
        print(words)


def _afterthoughts(
    runs: Sequence[Run], taken: Sequence[Change], refused: Sequence[str]
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


@app.command()
def quarantine(
    case: Annotated[str, typer.Argument(help="The case's id.")],
    *,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="DATE", help="Last day, in UTC: 2026-12-31."),
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Why it may fail.")] = None,
    lift: Annotated[bool, typer.Option("--lift", help="End it instead.")] = False,
    key: Annotated[
        str | None, typer.Option("--key", help="Hardware key (default: this machine's).")
    ] = None,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    json: Json = False,
) -> None:
    """Report a case without failing, up to and including a day; then it fails again."""
    from bench_lib import baselines as files
    from bench_lib.hardware import detect
    from bench_lib.history import utc_now
    from bench_lib.model import ID_RULE, Quarantine, is_case_id

    if key is not None and not is_case_id(key):
        raise files.BaselineError(f"{key!r} is no hardware key, which is {ID_RULE}")
    device = detect()[0]
    file = files.load(baselines, key or device.key)
    if lift:
        if until is not None or reason is not None:
            raise files.BaselineError("--lift takes neither --until nor --reason")
        path = files.lift_quarantine(file, case)
        if json:
            print_json({"path": str(path), "case": case, "quarantine": None})
        else:
            print(f"{case} is no longer in quarantine in {path}")
        return
    if until is None or reason is None:
        missing = "--until" if until is None else "--reason"
        raise files.BaselineError(f"{missing} is missing; a quarantine has a last day and a reason")
    new = Quarantine(reason.strip(), until, utc_now(), _who())
    path = files.set_quarantine(file, case, new, device if device.key == file.key else None)
    near = [] if case in file.measured else _near(case, file.measured)
    if json:
        print_json({"path": str(path), "case": case, "quarantine": new, "near": near})
        return
    print(f"{case} may fail up to and including {until}, by {path}")
    if case not in file.measured:
        like = f"; like it are {', '.join(near)}" if near else ""
        print(f"it has no baseline there{like}")


def _near(case: str, known: Iterable[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(case, sorted(known), n=3)


def _require(reason: str) -> None:
    from bench_lib.baselines import BaselineError

    if not reason.strip():
        raise BaselineError("--reason is empty; say why these values are right")


def _one_form(json: bool, markdown: bool) -> None:  # noqa: FBT001 - options, by their names
    from bench_lib.baselines import BaselineError

    if json and markdown:
        raise BaselineError("--json and --markdown exclude each other; name one")


def _proposal(
    names: Sequence[str], history: Path, folder: Path, case: str, reason: str
) -> tuple[BaselineFile, list[Run], list[Change]]:
    from bench_lib import acceptance
    from bench_lib import baselines as files
    from bench_lib import history as runs_module

    runs = [runs_module.read(runs_module.find(history, name)) for name in names]
    if len({run.run_id for run in runs}) < len(runs):
        raise files.BaselineError("two --run name the same run; its processes would count twice")
    keys = {run.key for run in runs}
    if len(keys) > 1:
        raise files.BaselineError(
            f"these runs are of different hardware: {', '.join(sorted(keys))}; accept them apart"
        )
    if not runs[-1].hardware:
        raise files.BaselineError(f"{runs[-1].path} measured nothing; there is nothing to accept")
    if differing := acceptance.mixed_conditions(h for run in runs for h in run.hardware):
        raise files.BaselineError(
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
        raise files.BaselineError(f"no case of {', '.join(names)} is like {case!r}")
    return file, runs, changes


def _environments(runs: Sequence[Run]) -> dict[str, Environment]:
    return {name: environment for run in runs for name, environment in run.environments.items()}


def _accepted(runs: Sequence[Run], reason: str) -> Accepted:
    from bench_lib.history import utc_now
    from bench_lib.model import Accepted

    return Accepted(" ".join(run.run_id for run in runs), reason.strip(), utc_now(), _who())


def _who() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may know no name for its user
        return None


def _print_changes(changes: Sequence[Change], around: Sequence[str], *, markdown: bool) -> None:
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


def _remark(change: Change) -> tuple[str, str]:
    """Say in a word or two what becomes of the new values, and then why."""
    if change.new is None:
        return "nothing", change.why_not or ""
    notes = ["new"] if change.old is None or change.old.published else []
    if change.against is not None:
        notes.append("forced" if change.new.accepted.in_spite_of else "refused")
    return ", ".join(notes), change.against or ""


def _figures(change: Change) -> tuple[str, ...]:
    """Return the cells of HEADINGS."""
    ratio, interval = _ratio(change)
    return (
        change.case_id,
        "published" if change.old and change.old.published else _median(change.old),
        _median(change.new),
        "" if ratio is None else f"{ratio:.4f}",
        "" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}",
    )


def _ratio(change: Change) -> tuple[float | None, tuple[float, float] | None]:
    """Return new over old and its 95% interval, each None where it is not known."""
    from bench_lib.judge import compare

    if change.new is None or change.old is None or not change.old.processes:
        return None, None
    new, old = _logs(change.new), _logs(change.old)
    comparison = compare(new, old)
    ratio = math.exp(statistics.fmean(new) - statistics.fmean(old))
    return ratio, comparison.interval() if comparison else None


def _changes_around(
    changes: Sequence[Change], file: BaselineFile, runs: Sequence[Run]
) -> list[str]:
    """Say what besides the values is not as it was: software, caches, settings; each once."""
    from bench_lib.fingerprint import difference

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


def _as_json(change: Change) -> dict[str, Any]:
    ratio, interval = _ratio(change)
    return {
        "case": change.case_id,
        "old": change.old and dataclasses.asdict(change.old),
        "new": change.new and dataclasses.asdict(change.new),
        "why_not": change.why_not,
        "against": change.against,
        "ratio": ratio,
        "interval": interval,
    }


def _logs(baseline: Baseline) -> list[float]:
    return [process.log_median for process in baseline.processes]


def _median(baseline: Baseline | None) -> str:
    from bench_lib.wording import seconds

    if baseline is None or not baseline.processes:
        return "-"
    return seconds(math.exp(statistics.fmean(_logs(baseline))))


def _spread(baseline: Baseline) -> str:
    logs = _logs(baseline)
    return f"{statistics.stdev(logs):.2%}" if len(logs) > 1 else "-"
