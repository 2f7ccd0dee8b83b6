"""``bench-lib selfcheck``: whether verdicts hold on this machine, and what it can detect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cli.options import share_of
from bench_lib.cli.output import DEFAULT_HISTORY, DEFAULT_MATRIX, Json, Matrix, picked, say, tell
from bench_lib.cli.reading import case_of
from bench_lib.formats import FINE_SHARE, SHARE, amount, seconds
from bench_lib.model import UserError
from bench_lib.report.answer import Answer, Column, Table
from bench_lib.report.render import cell

if TYPE_CHECKING:
    from bench_lib.studies.selfcheck import Effect, Selfcheck

DEFAULT_CPU_CASE = "resnet18-b4-fp32-96px-eager-infer"
DEFAULT_GPU_CASE = "resnet50-b64-fp16-eager-infer"


def selfcheck(
    case: Annotated[
        str | None, typer.Argument(help="Id of a case in the matrix that measures a network.")
    ] = None,
    *,
    matrix: Matrix = DEFAULT_MATRIX,
    effects: Annotated[
        str, typer.Option(help="Slowdowns to add, in percent of the step time.")
    ] = "0,1,2,5",
    processes: Annotated[
        int,
        typer.Option(
            min=9, max=1000, help="Fresh processes; each measures the clean step and every delay."
        ),
    ] = 10,
    tolerance: Annotated[
        str, typer.Option(metavar="SHARE", help="Smallest slowdown that matters: 1% or 0.01.")
    ] = "1%",
    json: Json = False,
) -> None:
    """Add known delays to a real case, and report which are detected.

    The exit status is 1 if an unchanged step is called slower or the largest delay is missed.
    """
    from bench_lib import backends
    from bench_lib.engine.engine import opened
    from bench_lib.engine.pace import Pace
    from bench_lib.engine.settings import Settings
    from bench_lib.report.progress import ProgressLines
    from bench_lib.studies import selfcheck as check

    share = share_of(tolerance, "--tolerance")
    device = backends.detect()[0]
    planted = _shares(effects)
    default = DEFAULT_GPU_CASE if backends.is_gpu(device) else DEFAULT_CPU_CASE
    network = case_of(default if case is None else case, matrix, DEFAULT_HISTORY)
    if network.workload != "network" or network.launch.ranks > 1:
        raise UserError(
            f"{network.id} is not a network on one device; delays can be added only to those"
        )
    delays = ", ".join(amount(effect, SHARE) for effect in planted if effect)
    plan = f"{processes} fresh processes, each clean and with {delays} added"
    say(f"{network.id} on {device.key}: {plan}")
    with opened(device, Settings(judged=False, say=say)) as engine:
        result = check.check(
            engine.held,
            network,
            on_gpu=backends.is_gpu(device),
            effects=planted,
            processes=processes,
            tolerance=share,
            progress=ProgressLines(say, lambda _phase: Pace({})),
        )
    tell(_answer(result, device.key), json=json)


def _shares(text: str) -> list[float]:
    try:
        shares = [float(part) / 100 for part in text.split(",")]
    except ValueError:
        shares = []
    if not any(shares) or not all(0 <= share <= 1 for share in shares):
        raise UserError(
            f"--effects is {text!r}; it must be percentages from 0 to 100, at least one of them "
            "above 0, as in 0,1,2,5"
        )
    return sorted({0.0, *shares})


_EFFECTS: list[Column[Effect]] = [
    Column("planted", lambda effect: effect.planted, SHARE),
    Column("measured", lambda effect: effect.measured, FINE_SHARE),
    Column("found", lambda effect: effect.found, SHARE, "against a baseline"),
    Column("found_by_pairs", lambda effect: effect.found_by_pairs, SHARE, "interleaved"),
    Column("detectable", lambda effect: effect.detectable, SHARE, ""),
    Column("detectable_by_pairs", lambda effect: effect.detectable_by_pairs, SHARE, ""),
]


def _answer(result: Selfcheck, key: str) -> Answer:
    from bench_lib.studies.selfcheck import CANDIDATES

    clean = result.effects[0]
    return Answer(
        command="selfcheck",
        tables={"effects": Table(_EFFECTS, result.effects)},
        notes=[
            (
                f"{result.case.id} on {key}: {result.processes} processes, {seconds(result.step_s)}"
                f" a step, {amount(result.between, FINE_SHARE)} between processes"
            ),
            (
                f"five baseline and {CANDIDATES} candidate processes, tolerance "
                f"{amount(result.tolerance, FINE_SHARE)}: slowdowns of "
                f"{amount(clean.detectable, FINE_SHARE)} are found 9 times in 10 (estimated); "
                f"{CANDIDATES} interleaved pairs: {amount(clean.detectable_by_pairs, FINE_SHARE)}"
            ),
            _conclusion(result),
        ],
        about={
            **picked(result, "tolerance processes step_s between false holds"),
            "detected": result.detected,
            "detected_by_pairs": result.detected_by_pairs,
            "case_id": result.case.id,
            "hardware_key": key,
        },
        exit_status=0 if result.holds else 1,
    )


def _conclusion(result: Selfcheck) -> str:
    if result.false:
        return "FALSE ALARM: a clean step was called slower, so verdicts here cannot be trusted"
    if not result.is_as_planned:
        return (
            "NO ANSWER: the delays took much longer or shorter than planned, so the machine was "
            "busy; try again when it is idle"
        )
    detected = {"against a baseline": result.detected, "interleaved": result.detected_by_pairs}
    if blind := [how for how, smallest in detected.items() if smallest is None]:
        largest = amount(result.effects[-1].planted, SHARE)
        return (
            f"CANNOT DETECT {largest} reliably {' or '.join(blind)}; stop other programs, or "
            "give the cases a wider tolerance"
        )
    text = " and ".join(f"{cell(smallest, SHARE)} {how}" for how, smallest in detected.items())
    return f"passed: no false alarm; the smallest delay found reliably is {text}"
