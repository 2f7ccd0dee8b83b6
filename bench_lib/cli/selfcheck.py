"""``bench-lib selfcheck``: whether the verdict holds on this machine, and how little it sees."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cli.output import DEFAULT_MATRIX, Json, Matrix, print_json, print_table

if TYPE_CHECKING:
    from bench_lib.model import Case
    from bench_lib.selfcheck import Selfcheck

DEFAULT_CASES = {"cpu": "resnet18-b4-fp32-96px-eager-infer"}
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
    processes: Annotated[int, typer.Option(min=6, help="Fresh processes.")] = 10,
    candidates: Annotated[
        int, typer.Option(min=1, help="Of these, held against five others at a time.")
    ] = 4,
    tolerance: Annotated[float, typer.Option(help="Slow-down that matters, in percent.")] = 1.0,
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the times, for bench-lib judge.")
    ] = None,
    json: Json = False,
) -> None:
    """Plant known delays in a real case, and report which are found.

    Exit status 1 where something clean is called slower, or the largest delay is not found.
    """
    import contextlib

    from bench_lib import selfcheck as check
    from bench_lib.hardware import detect
    from bench_lib.runner import Bench

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if not 0 < tolerance <= 50:
        raise check.SelfcheckError(f"--tolerance {tolerance:g}: above 0 and at most 50 percent")
    if keep is not None and not keep.absolute().parent.is_dir():
        raise check.SelfcheckError(f"--keep {keep}: there is no folder {keep.absolute().parent}")
    device = detect()[0]
    chosen = _case(matrix, case or DEFAULT_CASES.get(device.vendor, DEFAULT_GPU_CASE))
    planted = _shares(effects)
    about_s = check.duration_s(chosen, processes + 1, [0.0, *planted])
    say(
        f"{chosen.id} on {device.key}: {processes} fresh processes, each clean and with "
        f"{', '.join(f'{e:.1%}' for e in planted if e)} planted; about {about_s / 60:.0f} min"
    )
    with contextlib.ExitStack() as stack:
        try:
            bench = Bench(device, say=say)
            stack.callback(bench.close)
            found = check.check(
                bench,
                chosen,
                vendor=device.vendor,
                effects=planted,
                processes=processes,
                candidates=candidates,
                tolerance=tolerance / 100,
                say=say,
            )
        except ValueError as error:
            raise check.SelfcheckError(str(error)) from error
    if keep is not None:
        _keep(keep, found)
    if json:
        _print_json(found, device.key)
    else:
        _print(found, device.key)
    raise typer.Exit(0 if found.holds else 1)


def _case(path: Path, case_id: str) -> Case:
    import difflib

    from bench_lib.launch.catalogue import network_sizes
    from bench_lib.matrix import network_axes, read_matrix
    from bench_lib.selfcheck import SelfcheckError

    tiers = read_matrix(path, {"networks": network_axes(network_sizes())})
    cases = {case.id: case for tier in tiers.values() for case in tier}
    if case_id not in cases:
        near = difflib.get_close_matches(case_id, cases, n=3) or sorted(cases)[:3]
        raise SelfcheckError(f"{path} has no case {case_id!r}; it has {', '.join(near)} ...")
    case = cases[case_id]
    if case.workload != "network" or case.launch.ranks > 1:
        raise SelfcheckError(
            f"{case_id} is not a network on one device, and delays are planted in those only"
        )
    return case


def _shares(text: str) -> list[float]:
    from bench_lib.selfcheck import SelfcheckError

    try:
        shares = [float(part) / 100 for part in text.split(",")]
    except ValueError:
        shares = []
    if not any(shares) or not all(0 <= share <= 1 for share in shares):
        raise SelfcheckError(
            f"--effects {text!r}: percentages from 0 to 100, one above 0, as in 0,1,2,5"
        )
    return sorted({0.0, *shares})


def _keep(path: Path, found: Selfcheck) -> None:
    import json as plain

    from bench_lib.selfcheck import SelfcheckError, as_samples

    try:
        path.write_text("".join(f"{plain.dumps(line)}\n" for line in as_samples(found)))
    except OSError as error:
        raise SelfcheckError(f"cannot write {path}: {error.strerror}") from error


def _print(found: Selfcheck, key: str) -> None:
    rows = [
        (
            f"{effect.planted:.1%}",
            f"{effect.measured:+.2%}",
            str(effect.splits),
            str(effect.regressed),
            str(effect.suspect),
            f"{effect.found:.1%}",
        )
        for effect in found.effects
    ]
    print_table(("planted", "measured", "splits", "REGRESSED", "SUSPECT", "found"), rows)
    print(
        f"\n{found.case.id} on {key}: {found.processes} processes, {found.step_s * 1e3:.4g} ms a "
        f"step, {found.between:.2%} between processes, {found.inside:.2%} inside one"
    )
    print(
        f"five baseline and {found.candidates} candidate processes, tolerance "
        f"{found.tolerance:.1%}: slow-downs of {found.detectable:.1%} are found nine times in ten, "
        "by the judge's own estimate"
    )
    print(_answer(found))


def _answer(found: Selfcheck) -> str:
    if found.false:
        return f"NOT TO BE TRUSTED HERE: {found.false} clean splits were called slower"
    if not found.is_as_planned:
        return (
            "NO ANSWER: the delays took much longer or shorter than planned, so the machine did "
            "other work meanwhile; try again when it is idle"
        )
    if found.visible is None:
        largest = max(effect.planted for effect in found.effects)
        return (
            f"BLIND HERE: not even {largest:.0%} is found reliably; quieten the machine, or give "
            "its cases a wider tolerance"
        )
    return f"holds: nothing clean was called slower, and {found.visible:.1%} is found"


def _print_json(found: Selfcheck, key: str) -> None:
    print_json(
        {
            "case": found.case.id,
            "hardware": key,
            "tolerance": found.tolerance,
            "processes": found.processes,
            "candidates": found.candidates,
            "step_s": found.step_s,
            "between": found.between,
            "inside": found.inside,
            "detectable_effect": found.detectable,
            "effects": [
                {
                    "planted": effect.planted,
                    "measured": effect.measured,
                    "splits": effect.splits,
                    "regressed": effect.regressed,
                    "suspect": effect.suspect,
                    "found": effect.found,
                }
                for effect in found.effects
            ],
            "false": found.false,
            "visible": found.visible,
            "holds": found.holds,
        }
    )
