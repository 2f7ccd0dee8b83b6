"""``bench-lib judge``: judges timings of any program, and result files of other benchmarks."""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cli.options import known, seconds_of, share_of
from bench_lib.cli.output import Json, tell
from bench_lib.files import open_regular
from bench_lib.formats import SHARE, many, shortened
from bench_lib.model import Origin, Status, UserError, Verdict
from bench_lib.report.answer import Answer, Column, Table, judged
from bench_lib.verdict.severity import rank

if TYPE_CHECKING:
    from bench_lib.storage.samples import CaseSamples, Samples
    from bench_lib.verdict.metrics import Metric
    from bench_lib.verdict.statistics.change import Contrast

SHOWN = 20
"""Problems of no case that are printed; JSON has all."""


def judge(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="A file of timings, or - for standard input; with --format, the candidate's files "
            "or folders of them.",
        ),
    ],
    *,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="Program that wrote the files, each of one process: vllm, sglang, "
            "pytest-benchmark, pytorch (its benchmark record), rccl-tests, hipblaslt-bench or "
            "rocprofv3.",
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="With --format: a file of the baseline, or a folder of them; may be repeated.",
        ),
    ] = None,
    tolerance: Annotated[
        str, typer.Option(metavar="SHARE", help="Smallest slowdown that matters: 1% or 0.01.")
    ] = "1%",
    at_least: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Smallest absolute slowdown that matters, in addition to the tolerance: 0.5us.",
        ),
    ] = "0s",
    json: Json = False,
) -> None:
    """Judge timings from any program.

    The exit status is 1 if a case regressed, and 2 if one has no verdict.

    With --format it reads files that other benchmarks write, one process per file: judge --format
    vllm --baseline old new, where old and new are folders.

    Without it, one JSON object per line: {"case": text, "role": "baseline" or "candidate",
    "process": number or text, "iteration_s": [seconds, ...]}; also "run" and "device", each a
    number or text, on every line of a case or on none.
    """
    share = share_of(tolerance, "--tolerance")
    if form is None and baseline:
        raise typer.BadParameter(
            "it needs --format; lines of JSON name their role themselves", param_hint="--baseline"
        )
    samples = _read(files) if form is None else _read_foreign(form, baseline or [], files)
    verdicts = _verdicts(samples, share, seconds_of(at_least, "--at-least"))
    tell(_answer(samples, verdicts), json=json)


def _read(files: Sequence[str]) -> Samples:
    from bench_lib.storage.samples import MOST_BYTES, read

    if len(files) > 1:
        raise typer.BadParameter(
            "without --format only one file is read; put all lines into it", param_hint="FILE"
        )
    (file,) = files
    is_file = file != "-"
    source = file if is_file else "standard input"
    try:
        with (
            open_regular(Path(file), MOST_BYTES) if is_file else os.fdopen(0, "rb", closefd=False)
        ) as timings:
            samples = read(timings.read(MOST_BYTES + 1))
    except OSError as error:
        raise UserError(
            f"cannot read {source}: {error.strerror}; name a file of samples, or - for standard "
            "input"
        ) from error
    for problems in (samples.problems, *(case.problems for case in samples.cases.values())):
        problems[:] = [f"{source}: {problem}" for problem in problems]
    return samples


def _read_foreign(name: str, baseline: Sequence[str], candidate: Sequence[str]) -> Samples:
    from bench_lib.storage import foreign

    form = foreign.FORMATS[known(name, foreign.FORMATS, "--format")]
    if not baseline:
        raise typer.BadParameter(
            "with --format, name the baseline's files", param_hint="--baseline"
        )
    sides = {"baseline": files_in(baseline), "candidate": files_in(candidate)}
    return foreign.read(form, sides)


def files_in(names: Sequence[str]) -> list[Path]:
    """Return the files of these names; for a folder its files, by name.

    Raises UserError for a folder without files and one that cannot be read.
    """
    paths: list[Path] = []
    for path in map(Path, names):
        if not path.is_dir():
            paths.append(path)
            continue
        try:
            inside = [p for p in sorted(path.iterdir()) if p.is_file() and p.name[0] != "."]
        except OSError as error:
            raise UserError(
                f"cannot read {path}: {error.strerror}; name its files instead"
            ) from error
        if not inside:
            raise UserError(f"{path} contains no files; name a folder with a file for each process")
        paths += inside
    return paths


def _verdicts(samples: Samples, tolerance: float, at_least_s: float) -> dict[str, Verdict]:
    """Return a verdict for every case and metric, in the order of the files."""
    verdicts = {name: _unfit(case, tolerance) for name, case in samples.cases.items()}
    fit = {name: case for name, case in samples.cases.items() if verdicts[name] is None}
    families: dict[Metric, dict[str, Contrast]] = {}
    for name, case in fit.items():
        families.setdefault(case.metric, {})[name] = _contrast(case)
    for metric, contrasts in families.items():
        from bench_lib import reasons
        from bench_lib.verdict.judge import judge_samples

        allowances = {
            name: at_least_s / math.exp(statistics.fmean(contrast.baseline))
            for name, contrast in contrasts.items()
            if metric.unit == "s" and contrast.baseline
        }
        judged = judge_samples(contrasts, tolerance, metric, allowances)
        verdicts |= {name: reasons.in_words(verdict) for name, verdict in judged.items()}
    return {name: verdict for name, verdict in verdicts.items() if verdict is not None}


def _unfit(case: CaseSamples, tolerance: float) -> Verdict | None:
    """Return the verdict on a case that cannot be judged; None if it can be."""
    status = Status.ERROR
    if case.problems:
        more = len(case.problems) - 1
        reason = case.problems[0] + (f" (and {more} more)" if more else "")
    elif len(case.baseline) == 1:
        status = Status.NO_BASELINE
        place = case.processes[0].place
        reason = f"one baseline process, {place}, is not enough to tell a change from noise: "
        reason += "at least two are needed, and five are better"
    elif not case.baseline:
        status = Status.NO_BASELINE
        reason = f"no baseline process to compare {case.processes[0].place} with"
    elif not case.candidate:
        reason = f"no candidate process to compare with {case.processes[0].place}"
    else:
        return None
    return Verdict(status, case.metric.name, reason, tolerance=tolerance)


def _contrast(case: CaseSamples) -> Contrast:
    from bench_lib.verdict.statistics.change import Contrast, grouped

    sign = -1 if case.metric.more_is_better else 1
    new, old = (
        [(Origin(p.run, p.device), sign * p.log_median) for p in side.values()]
        for side in (case.candidate, case.baseline)
    )
    before = grouped((origin, value) for origin, value in old if origin.run)
    return Contrast(
        candidate=[value for _, value in new],
        baseline=[value for _, value in old],
        candidate_origins=[origin for origin, _ in new],
        baseline_origins=[origin for origin, _ in old],
        history=[before] if before else [],
    )


def _exit_status(samples: Samples, verdicts: Mapping[str, Verdict]) -> int:
    statuses = {verdict.status for verdict in verdicts.values()}
    if Status.REGRESSED in statuses:
        return 1
    return 2 if samples.problems or statuses & {Status.ERROR, Status.NO_BASELINE} else 0


def _answer(samples: Samples, verdicts: Mapping[str, Verdict]) -> Answer:
    ordered = sorted(verdicts.items(), key=lambda item: rank(item[1].status))
    columns: list[Column[tuple[str, Verdict]]] = [
        Column("case_id", lambda row: samples.cases[row[0]].case, heading=""),
        Column("name", lambda row: row[0], heading="case"),
        Column("status", lambda row: row[1].status),
        *judged(lambda row: row[1]),
        Column("metric", lambda row: row[1].metric, heading=""),
        Column("tolerance", lambda row: row[1].tolerance, SHARE, ""),
        Column("reason", lambda row: row[1].reason, heading=""),
    ]
    of_cases = [problem for case in samples.cases.values() for problem in case.problems]
    notes = [f"! {problem}" for problem in samples.problems[:SHOWN]]
    if len(samples.problems) > SHOWN:
        notes.append(f"! and {len(samples.problems) - SHOWN} more")
    notes += [
        f"{shortened(name)}: {verdict.status.value}: {shortened(verdict.reason)}"
        for name, verdict in ordered
        if verdict.status is not Status.OK
    ]
    if counts := Counter(verdict.status.value for _, verdict in ordered):
        statuses = ", ".join(f"{number} {status}" for status, number in counts.items())
        one_each = len({case.case for case in samples.cases.values()}) == len(ordered)
        notes.append(f"{many(len(ordered), 'case' if one_each else 'verdict')}: {statuses}")
    return Answer(
        command="judge",
        tables={"verdicts": Table(columns, ordered)},
        notes=notes,
        about={"problems": [*samples.problems, *of_cases]},
        exit_status=_exit_status(samples, verdicts),
    )
