"""``bench-lib history``: the runs there are, one of them, and one for other tools."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_lib.cli.output import DEFAULT_HISTORY, HistoryDir, Json, print_json, print_table

if TYPE_CHECKING:
    from bench_lib.history import Run
    from bench_lib.model import Hardware, Measurement, Record

app = typer.Typer(help="What was measured.", no_args_is_help=True, rich_markup_mode=None)
RunName = Annotated[str, typer.Argument(help="A run's id or its start, latest, or a file.")]


@app.command("list")
def list_runs(*, history: HistoryDir = DEFAULT_HISTORY, json: Json = False) -> None:
    """List all runs, oldest first."""
    from bench_lib import history as runs

    if history.exists() and not history.is_dir():
        raise runs.HistoryError(f"{history} is not a folder; name one with --history DIR")
    found, problems = [], []
    for path in runs.files(history):
        try:
            run = runs.read(path)
        except runs.HistoryError as error:
            problems.append(str(error))
            continue
        found.append(run)
        problems += [f"{path.name}: {problem}" for problem in run.problems]
    if json:
        print_json({"runs": [_summary(run) for run in found], "problems": problems})
        return
    rows = [
        (
            run.run_id,
            run.started,
            run.key,
            str(len(run.records)),
            _counts(run) or "-",
            "" if run.finished else "unfinished",
        )
        for run in found
    ]
    if rows:
        print_table(("run", "started", "hardware", "cases", "verdicts", ""), rows)
    else:
        print(f"no runs in {history}; pytest perf_tests makes one")
    for problem in problems:
        print(f"! {problem}")
    raise typer.Exit(0 if rows else 1)


@app.command()
def show(run: RunName, *, history: HistoryDir = DEFAULT_HISTORY, json: Json = False) -> None:
    """Show one run: every case with its verdicts and the reasons for them."""
    from bench_lib import report

    found = _read(run, history)
    if json:
        print_json(
            {
                **_summary(found),
                "environments": found.environments,
                "caches": found.caches,
                "hardware": found.hardware,
                "records": list(found.records.values()),
                "problems": found.problems,
            }
        )
        return
    state = f"ended {found.ended}" if found.finished else "unfinished"
    print(f"run {found.run_id} on {found.key}, started {found.started}, {state}")
    print(found.path)
    if filled := _filled(found):
        print(f"caches: {'; '.join(filled)}")
    print()
    records = list(found.records.values())
    print_table(report.HEADINGS, report.summary_rows(records))
    print()
    for record in records:
        for line in _details(record, found.hardware):
            print(line)
    for problem in found.problems:
        print(f"! {problem}")


@app.command()
def export(
    run: RunName,
    *,
    pytest_benchmark: Annotated[
        bool, typer.Option("--pytest-benchmark", help="As pytest-benchmark's JSON.")
    ] = False,
    history: HistoryDir = DEFAULT_HISTORY,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write (default: stdout).")
    ] = None,
) -> None:
    """Write a run in the form of another tool."""
    import json

    from bench_lib.cli.export import as_pytest_benchmark
    from bench_lib.history import HistoryError

    if not pytest_benchmark:
        raise HistoryError("name a form to export to: --pytest-benchmark")
    text = json.dumps(as_pytest_benchmark(_read(run, history)), indent=2) + "\n"
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise HistoryError(f"cannot write {output}: {error.strerror}") from error


def _filled(run: Run) -> list[str]:
    """Say which caches the run left otherwise than it found them."""
    before = next((e.caches for e in run.environments.values() if e.caches), {})
    return [
        f"{name} {before[name]} -> {after}"
        for name, after in sorted(run.caches.items())
        if before.get(name, after) != after
    ]


def _read(name: str, folder: Path) -> Run:
    from bench_lib import history as runs

    return runs.read(runs.find(folder, name))


def _summary(run: Run) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "path": str(run.path),
        "key": run.key,
        "started": run.started,
        "ended": run.ended,
        "finished": run.finished,
        "exit_status": run.exit_status,
        "cases": len(run.records),
        "counts": _count(run),
    }


def _count(run: Run) -> dict[str, int]:
    counts: dict[str, int] = {}
    for record in run.records.values():
        name = record.status.value if record.status else "not judged"
        counts[name] = counts.get(name, 0) + 1
    return counts


def _counts(run: Run) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(_count(run).items()))


def _details(record: Record, devices: Sequence[Hardware]) -> list[str]:
    """Verdict by verdict, then attempt by attempt."""
    status = record.status.value if record.status else "not judged"
    lines = [f"{record.case.id}: {status}"]
    lines += [f"  {v.metric}: {v.status.value}: {v.reason}" for v in record.verdicts]
    for attempt in record.attempts:
        if attempt.measurement is not None:
            own = (d for d in devices if d.uuid == attempt.device_uuid)
            device = next(own, devices[0] if devices else None)
            words = _measured(attempt.measurement, record, device)
            if attempt.telemetry is not None and attempt.telemetry.clock_mhz is not None:
                words += f", {attempt.telemetry.clock_mhz:.0f} MHz"
            if attempt.discarded is not None:
                words += f"; discarded: {attempt.discarded}"
            lines.append(f"  process {attempt.process}: {words}")
        elif attempt.fault is not None:
            fault = attempt.fault
            lines.append(f"  process {attempt.process}: {fault.kind} in {fault.phase}")
            lines += [f"    {line}" for line in fault.message.splitlines()]
            lines += [f"    | {line}" for line in fault.last_output.splitlines()]
    return [*lines, ""]


def _measured(measurement: Measurement, record: Record, device: Hardware | None) -> str:
    from bench_lib import report

    step_s = statistics.median(measurement.iteration_s)
    words = f"{report.seconds(step_s)} over {len(measurement.iteration_s)} iterations"
    words += f", first step {report.seconds(measurement.first_step_s)}"
    if measurement.compile_s is not None:
        cache = f" ({measurement.compile_cache} caches)" if measurement.compile_cache else ""
        words += f", compiled in {report.seconds(measurement.compile_s)}{cache}"
    precision = str(record.case.params.get("precision", ""))
    shares = report.efficiency(measurement, device, precision) if device else {}
    words += "".join(f", {share:.1%} of peak {name}" for name, share in shares.items())
    return words + (", host-bound" if measurement.host_bound else "")
