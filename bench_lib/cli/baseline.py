"""``bench-lib baseline``: show what is accepted, compare a run with it, accept a run."""

from __future__ import annotations

import dataclasses
import fnmatch
import getpass
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_lib.cli.output import (
    DEFAULT_BASELINES,
    DEFAULT_HISTORY,
    BaselinesDir,
    HistoryDir,
    Json,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from bench_lib.baselines import BaselineFile, Change
    from bench_lib.history import Run
    from bench_lib.model import Accepted, Baseline

app = typer.Typer(help="The values to hold against.", no_args_is_help=True, rich_markup_mode=None)
Runs = Annotated[
    list[str],
    typer.Option("--run", metavar="RUN", help="A run's id or its start, latest, or a file."),
]
Cases = Annotated[str, typer.Option("--case", metavar="GLOB", help="Only cases like this.")]


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
    """Show the accepted values of a hardware key."""
    from bench_lib import baselines as files
    from bench_lib.hardware import detect

    file = files.load(baselines, key or detect()[0].key)
    chosen = {k: v for k, v in file.baselines.items() if fnmatch.fnmatchcase(k, case)}
    if json:
        print_json({"key": file.key, "hardware": file.hardware, "cases": chosen})
        return
    if not chosen:
        known = sorted(p.stem for p in baselines.glob("*.json"))
        there = f"; there are baselines of {', '.join(known)}" if known else ""
        print(f"no baselines of {file.key} in {baselines}{there}")
        raise typer.Exit(1)
    rows = [
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
    print_table(("case", "median", "processes", "between", "accepted", "reason"), rows)


@app.command()
def diff(
    *,
    run: Runs,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    case: Cases = "*",
    json: Json = False,
) -> None:
    """Show what accepting a run would change: old, new, ratio and its interval."""
    file, runs, changes = _proposal(run, history, baselines, case, "diff")
    if json:
        print_json({"key": file.key, "changes": [_as_json(change) for change in changes]})
    else:
        _print_changes(changes)
        for line in _environment_changes(file, runs):
            print(line)


@app.command()
def accept(
    *,
    run: Runs,
    reason: Annotated[str, typer.Option("--reason", help="Why these are the values to hold.")],
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    case: Cases = "*",
    json: Json = False,
) -> None:
    """Make a run's values, or several runs' together, the ones to hold against."""
    from bench_lib import baselines as files

    if not reason.strip():
        raise files.BaselineError("--reason is empty; say why these values are right")
    file, runs, changes = _proposal(run, history, baselines, case, reason)
    taken = [change for change in changes if change.new is not None]
    environments = {name: e for each in runs for name, e in each.environments.items()}
    if taken:
        files.write(file, taken, runs[-1].hardware[0], environments)
    if json:
        print_json(
            {
                "path": str(file.path),
                "accepted": len(taken),
                "changes": [_as_json(change) for change in changes],
            }
        )
    else:
        _print_changes(changes)
        print(f"\n{len(taken)} of {len(changes)} cases accepted into {file.path}")
        for each in runs:
            if not each.finished:
                print(f"run {each.run_id} is unfinished; it may lack cases")
        few = {len(c.new.processes) for c in taken if c.new and len(c.new.processes) < 5}
        if few:
            print(
                f"some have fewer than five processes ({min(few)}), which can hardly tell the "
                "spread between processes: pytest perf_tests --perf-processes 5"
            )
    raise typer.Exit(0 if taken else 1)


def _proposal(
    names: Sequence[str], history: Path, folder: Path, case: str, reason: str
) -> tuple[BaselineFile, list[Run], list[Change]]:
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
    if differing := files.mixed_conditions(h for run in runs for h in run.hardware):
        raise files.BaselineError(
            f"these values were measured under different conditions: {'; '.join(differing)}; "
            "accept them apart"
        )
    file = files.load(folder, keys.pop())
    accepted = _accepted(runs, reason)
    records = [record for run in runs for record in run.records.values()]
    changes = files.propose(file, records, runs[-1].hardware[0], accepted, case)
    if not changes:
        raise files.BaselineError(f"no case of {', '.join(names)} is like {case!r}")
    return file, runs, changes


def _accepted(runs: Sequence[Run], reason: str) -> Accepted:
    from bench_lib.history import utc_now
    from bench_lib.model import Accepted

    try:
        who: str | None = getpass.getuser()
    except (OSError, KeyError):  # a container may know no name for its user
        who = None
    return Accepted(" ".join(run.run_id for run in runs), reason.strip(), utc_now(), who)


def _print_changes(changes: Sequence[Change]) -> None:
    from bench_lib.judge import compare

    rows = []
    for change in changes:
        if change.new is None:
            rows.append((change.case_id, _median(change.old), "-", "", "", change.why_not or ""))
            continue
        ratio = interval = ""
        if change.old is not None and change.old.processes:
            comparison = compare(_logs(change.new), _logs(change.old))
            ratio = f"{comparison.ratio:.4f}"
            if bounds := comparison.interval():
                interval = f"{bounds[0]:.4f} to {bounds[1]:.4f}"
        note = "new" if change.old is None else ""
        rows.append(
            (change.case_id, _median(change.old), _median(change.new), ratio, interval, note)
        )
    print_table(("case", "old", "new", "ratio", "95% interval", ""), rows)


def _environment_changes(file: BaselineFile, runs: Sequence[Run]) -> list[str]:
    from bench_lib.fingerprint import difference

    new = next(iter(runs[-1].environments.values()), None)
    if new is None:
        return []
    lines = []
    for name, old in file.environments.items():
        lines += [f"environment {name}: {words}" for words in difference(old, new)]
    return lines


def _as_json(change: Change) -> dict[str, Any]:
    from bench_lib.judge import compare

    fields: dict[str, Any] = {
        "case": change.case_id,
        "old": change.old and dataclasses.asdict(change.old),
        "new": change.new and dataclasses.asdict(change.new),
        "why_not": change.why_not,
        "ratio": None,
        "interval": None,
    }
    if change.old and change.new and change.old.processes:
        comparison = compare(_logs(change.new), _logs(change.old))
        fields |= {"ratio": comparison.ratio, "interval": comparison.interval()}
    return fields


def _logs(baseline: Baseline) -> list[float]:
    return [process.log_median for process in baseline.processes]


def _median(baseline: Baseline | None) -> str:
    from bench_lib.report import seconds

    if baseline is None or not baseline.processes:
        return "-"
    return seconds(math.exp(statistics.fmean(_logs(baseline))))


def _spread(baseline: Baseline) -> str:
    logs = _logs(baseline)
    return f"{statistics.stdev(logs):.2%}" if len(logs) > 1 else "-"
