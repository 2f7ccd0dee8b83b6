"""``bench-lib selfcheck``: whether the verdict holds on this machine, and how little it sees."""

from __future__ import annotations

import json as plain
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cli.options import share_of
from bench_lib.cli.output import (
    DEFAULT_MATRIX,
    Json,
    Matrix,
    picked,
    say,
    tell,
    write,
)
from bench_lib.cli.reading import near
from bench_lib.formats import FINE_SHARE, SHARE, duration, seconds
from bench_lib.model import Case, UserError
from bench_lib.report.answer import Answer, Column, Table, columns
from bench_lib.studies.asked import least_s

if TYPE_CHECKING:
    from bench_lib.studies.selfcheck import Effect, Selfcheck

DEFAULT_CPU_CASE = "resnet18-b4-fp32-96px-eager-infer"
DEFAULT_GPU_CASE = "resnet50-b64-fp16-eager-infer"


def selfcheck(
    case: Annotated[
        str | None, typer.Argument(help="Id of a network's case in the matrix.")
    ] = None,
    *,
    matrix: Matrix = DEFAULT_MATRIX,
    effects: Annotated[
        str, typer.Option(help="Slow-downs to plant, in percent of a step.")
    ] = "0,1,2,5",
    processes: Annotated[
        int, typer.Option(min=6, help="Fresh processes, each clean and with every delay.")
    ] = 10,
    candidates: Annotated[
        int,
        typer.Option(
            min=2, help="Processes of these that are judged against five others at a time."
        ),
    ] = 4,
    tolerance: Annotated[
        str, typer.Option(metavar="SHARE", help="Slow-down that matters: 1% or 0.01.")
    ] = "1%",
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the times to a file that judge reads."),
    ] = None,
    json: Json = False,
) -> None:
    """Plant known delays in a real case, and report which are found.

    Exit status 1 where something clean is called slower, or the largest delay is not found.
    """
    from bench_lib import backends
    from bench_lib.engine.engine import opened
    from bench_lib.engine.settings import Settings
    from bench_lib.studies import selfcheck as check

    share = share_of(tolerance, "--tolerance")
    if output is not None and output.is_dir():
        raise UserError(f"--output {output} is a folder; name a file in it")
    if output is not None and not output.absolute().parent.is_dir():
        raise UserError(f"--output {output}: there is no folder {output.absolute().parent}")
    device = backends.detect()[0]
    planted = _shares(effects)
    network = _network(
        matrix, case or (DEFAULT_GPU_CASE if backends.is_gpu(device) else DEFAULT_CPU_CASE)
    )
    about_s = (processes + 1) * least_s([network], len(planted))
    say(
        f"{network.id} on {device.key}: {processes} fresh processes, each clean and with "
        f"{', '.join(f'{e:.1%}' for e in planted if e)} planted; about {duration(about_s)}"
    )
    with opened(device, Settings(judged=False, say=say)) as engine:
        try:
            found = check.check(
                engine.held,
                network,
                on_gpu=backends.is_gpu(device),
                effects=planted,
                processes=processes,
                candidates=candidates,
                tolerance=share,
                say=say,
            )
        except ValueError as error:
            raise UserError(str(error)) from error
    _keep(output, check.as_samples(found))
    tell(_answer(found, device.key), json=json)


def _network(path: Path, case_id: str) -> Case:
    from bench_lib.cases.matrix import cases_in

    cases = cases_in(path)
    if case_id not in cases:
        some = near(case_id, cases) or sorted(cases)[:3]
        raise UserError(f"{path} has no case {case_id!r}; it has {', '.join(some)} ...")
    case = cases[case_id]
    if case.workload != "network" or case.launch.ranks > 1:
        raise UserError(
            f"{case_id} is not a network on one device, and delays are planted in those only"
        )
    return case


def _shares(text: str) -> list[float]:
    try:
        shares = [float(part) / 100 for part in text.split(",")]
    except ValueError:
        shares = []
    if not any(shares) or not all(0 <= share <= 1 for share in shares):
        raise UserError(
            f"--effects {text!r}: percentages from 0 to 100, one above 0, as in 0,1,2,5"
        )
    return sorted({0.0, *shares})


def _keep(path: Path | None, lines: Iterable[Mapping[str, object]]) -> None:
    if path is not None:
        write(path, "".join(f"{plain.dumps(line)}\n" for line in lines))


_EFFECTS: list[Column[Effect]] = [
    Column("planted", lambda each: each.planted, SHARE),
    Column("measured", lambda each: each.measured, FINE_SHARE),
    Column("splits", lambda each: each.splits),
    Column("regressed", lambda each: each.regressed, heading="REGRESSED"),
    Column("suspect", lambda each: each.suspect, heading="SUSPECT"),
    Column("found", lambda each: each.found, SHARE),
    *columns("", "pairings"),
    Column("found_in_turns", lambda each: each.found_in_turns, SHARE, "in turns"),
]


def _answer(found: Selfcheck, key: str) -> Answer:
    return Answer(
        command="selfcheck",
        tables={"effects": Table(_EFFECTS, found.effects)},
        notes=[
            (
                f"{found.case.id} on {key}: {found.processes} processes, {seconds(found.step_s)} "
                f"a step, {found.between:.2%} between processes, {found.inside:.2%} inside one"
            ),
            f"measuring took {found.measuring_s:.1f} s, opening a process {found.opening_s:.1f} s",
            (
                f"five baseline and {found.candidates} candidate processes, tolerance "
                f"{found.tolerance:.2%}: slow-downs of {found.detectable:.2%} are found nine times "
                f"in ten, by the judge's own estimate; {found.candidates} pairs in turns: "
                f"{found.detectable_in_turns:.2%}"
            ),
            _conclusion(found),
        ],
        about={
            **picked(found, "tolerance processes candidates step_s between inside measuring_s"),
            **picked(found, "opening_s false visible visible_in_turns detectable_in_turns holds"),
            "case_id": found.case.id,
            "hardware_key": key,
            "detectable_effect": found.detectable,
        },
        exit_status=0 if found.holds else 1,
    )


def _conclusion(found: Selfcheck) -> str:
    if found.false:
        return f"NOT TO BE TRUSTED HERE: {found.false} clean splits or pairs were called slower"
    if not found.is_as_planned:
        return (
            "NO ANSWER: the delays took much longer or shorter than planned, so the machine did "
            "other work meanwhile; try again when it is idle"
        )
    seen = {"against a baseline": found.visible, "in turns": found.visible_in_turns}
    if blind := [how for how, smallest in seen.items() if smallest is None]:
        largest = max(effect.planted for effect in found.effects)
        return (
            f"BLIND HERE: not even {largest:.1%} is found reliably {' or '.join(blind)}; quieten "
            "the machine, or give its cases a wider tolerance"
        )
    words = " and ".join(f"{smallest:.1%} {how}" for how, smallest in seen.items())
    return f"holds: nothing clean was called slower; this machine sees {words}"
