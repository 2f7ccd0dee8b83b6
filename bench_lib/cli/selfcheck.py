"""``bench-lib selfcheck``: whether the verdict holds on this machine, and how little it sees."""

from __future__ import annotations

import json as plain
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cli.options import refuse, share_of
from bench_lib.cli.output import (
    DEFAULT_HISTORY,
    DEFAULT_MATRIX,
    HistoryDir,
    Json,
    Matrix,
    duration,
    filled,
    one_form,
    print_json,
    print_table,
    say,
    writing,
)
from bench_lib.cli.reading import near
from bench_lib.formats import many, signed_percent
from bench_lib.launch.wire import CONTEXTS_VARIABLE
from bench_lib.model import Case, Hardware, UserError
from bench_lib.studies.asked import least_s

if TYPE_CHECKING:
    from bench_lib.studies.components import FamilyFound
    from bench_lib.studies.contexts import ContextsFound, Spread
    from bench_lib.studies.selfcheck import Selfcheck

DEFAULT_CPU_CASE = "resnet18-b4-fp32-96px-eager-infer"
DEFAULT_GPU_CASE = "resnet50-b64-fp16-eager-infer"
GPU_CONTEXT_CASES = (
    DEFAULT_GPU_CASE,
    "resnet50-b64-fp32-eager-infer",
    "vit_b_16-b128-bf16-eager-infer",
    "densenet121-b128-bf16-eager-infer",
)
"""Many short kernels, few long ones, and what lies between."""
PROCESSES, CONTEXTS = 10, 12
_DELAYS_ONLY = ("effects", "candidates", "tolerance")
_MEASURING_ONLY = ("case", "matrix", *_DELAYS_ONLY, "processes", "output")


def selfcheck(
    words: typer.Context,
    case: Annotated[
        str | None, typer.Argument(help="Id of a network's case in the matrix.")
    ] = None,
    *,
    matrix: Matrix = DEFAULT_MATRIX,
    effects: Annotated[
        str, typer.Option(help="Slow-downs to plant, in percent of a step.")
    ] = "0,1,2,5",
    processes: Annotated[
        int | None,
        typer.Option(
            min=6,
            help=f"Fresh processes (default: {PROCESSES}, and with --contexts {CONTEXTS}).",
        ),
    ] = None,
    candidates: Annotated[
        int,
        typer.Option(
            min=2, help="Processes of these that are judged against five others at a time."
        ),
    ] = 4,
    tolerance: Annotated[
        str, typer.Option(metavar="SHARE", help="Slow-down that matters: 1% or 0.01.")
    ] = "1%",
    contexts: Annotated[
        bool,
        typer.Option("--contexts", help="Show how far fresh contexts differ, and why; no delays."),
    ] = False,
    components: Annotated[
        bool,
        typer.Option(
            "--components",
            help="Show by family what processes, nights, devices and draws differ by, from the "
            "history; measures nothing.",
        ),
    ] = False,
    history: HistoryDir = DEFAULT_HISTORY,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the times; without --contexts, as judge reads them."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Plant known delays in a real case, and report which are found.

    Exit status 1 where something clean is called slower, or the largest delay is not found;
    with --contexts and --components nothing is judged.
    """
    from bench_lib import backends
    from bench_lib.engine.engine import opened
    from bench_lib.engine.settings import Settings
    from bench_lib.studies import selfcheck as check
    from bench_lib.studies.contexts import as_lines

    one_form(contexts=contexts, components=components)
    if components:
        refuse(words, _MEASURING_ONLY, "--components measures nothing")
        _show_components(history, backends.detect()[0].key, as_json=json)
        return
    refuse(words, ("history",), "only --components reads one")
    if contexts:
        refuse(words, _DELAYS_ONLY, "--contexts plants no delays")
    share = share_of(tolerance, "--tolerance")
    if output is not None and output.is_dir():
        raise UserError(f"--output {output} is a folder; name a file in it")
    if output is not None and not output.absolute().parent.is_dir():
        raise UserError(f"--output {output}: there is no folder {output.absolute().parent}")
    device = backends.detect()[0]
    if contexts:
        chosen = _for_contexts(matrix, case, device)
        differing = _compared(device, chosen, processes or CONTEXTS)
        _keep(output, as_lines(differing))
        (_print_contexts_json if json else _print_contexts)(differing, device.key)
        return
    planted = _shares(effects)
    network = _network(
        matrix, case or (DEFAULT_GPU_CASE if backends.is_gpu(device) else DEFAULT_CPU_CASE)
    )
    number = processes or PROCESSES
    about_s = (number + 1) * least_s([network], len(planted))
    say(
        f"{network.id} on {device.key}: {number} fresh processes, each clean and with "
        f"{', '.join(f'{e:.1%}' for e in planted if e)} planted; about {duration(about_s)}"
    )
    with opened(device, Settings(judged=False, say=say)) as engine:
        try:
            found = check.check(
                engine.held,
                network,
                on_gpu=backends.is_gpu(device),
                effects=planted,
                processes=number,
                candidates=candidates,
                tolerance=share,
                say=say,
            )
        except ValueError as error:
            raise UserError(str(error)) from error
    _keep(output, check.as_samples(found))
    (_print_json if json else _print)(found, device.key)
    raise typer.Exit(0 if found.holds else 1)


# ---- delays -----------------------------------------------------------------------------


def _case(path: Path, case_id: str) -> Case:
    from bench_lib.cases.matrix import cases_in

    cases = cases_in(path)
    if case_id not in cases:
        some = near(case_id, cases) or sorted(cases)[:3]
        raise UserError(f"{path} has no case {case_id!r}; it has {', '.join(some)} ...")
    return cases[case_id]


def _network(path: Path, case_id: str) -> Case:
    case = _case(path, case_id)
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
        with writing(path):
            path.write_text("".join(f"{plain.dumps(line)}\n" for line in lines))


def _print(found: Selfcheck, key: str) -> None:
    rows = [
        (
            f"{effect.planted:.1%}",
            signed_percent(effect.measured, 2),
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
    if found.probes:
        print(f"{_ranges(found.probes)} over the processes")
    print(f"measuring took {found.measuring_s:.1f} s, opening a context {found.opening_s:.1f} s")
    print(
        f"five baseline and {found.candidates} candidate processes, tolerance "
        f"{found.tolerance:.2%}: slow-downs of {found.detectable:.2%} are found nine times in ten, "
        "by the judge's own estimate"
    )
    print(_answer(found))


def _ranges(probes: Mapping[str, tuple[float, float]]) -> str:
    return ", ".join(f"{name} {low:.4g} to {high:.4g}" for name, (low, high) in probes.items())


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
            f"BLIND HERE: not even {largest:.1%} is found reliably; quieten the machine, or give "
            "its cases a wider tolerance"
        )
    return f"holds: nothing clean was called slower, and {found.visible:.1%} is found"


def _print_json(found: Selfcheck, key: str) -> None:
    from bench_lib.cli.documents import SelfcheckDocument

    about = {"case_id": found.case.id, "hardware_key": key, "detectable_effect": found.detectable}
    print_json(filled(SelfcheckDocument, found, **about))


# ---- contexts ---------------------------------------------------------------------------


def _for_contexts(path: Path, case_id: str | None, device: Hardware) -> list[Case]:
    from bench_lib import backends

    ids = GPU_CONTEXT_CASES if backends.is_gpu(device) else [DEFAULT_CPU_CASE]
    cases = [_case(path, name) for name in ([case_id] if case_id else ids)]
    for case in cases:
        if case.launch.ranks > 1:
            raise UserError(f"{case.id} runs on several devices; choose a case on one")
    return cases


def _compared(device: Hardware, cases: Sequence[Case], number: int) -> ContextsFound:
    from bench_lib import backends
    from bench_lib.engine.engine import opened
    from bench_lib.engine.settings import Settings, Side
    from bench_lib.studies import contexts

    kinds = [contexts.ANY]
    if backends.is_gpu(device):
        kinds.append(contexts.CHOSEN)
    about_s = number * len(kinds) * least_s(cases)
    say(
        f"{', '.join(case.id for case in cases)} on {device.key}: {number} fresh contexts"
        f"{', and as many chosen ones' if len(kinds) > 1 else ''}; about {duration(about_s)}"
    )
    sides = {kind: Side(environment={CONTEXTS_VARIABLE: kind}) for kind in kinds}
    with opened(device, Settings(judged=False, sides=sides, say=say)) as engine:
        return contexts.compare(engine.held, kinds, cases, contexts=number, say=say)


def _print_contexts(found: ContextsFound, key: str) -> None:
    several = len(found.kinds) > 1
    rows = []
    for case_id, by_kind in found.spreads.items():
        chosen = by_kind[found.kinds[-1]]
        change = found.change(case_id)
        rows.append(
            (
                case_id,
                f"{chosen.step_s * 1e3:.4g} ms",
                f"{chosen.inside:.2%}",
                *(f"{spread.between:.2%}" for spread in by_kind.values()),
                *([signed_percent(change, 2)] if change is not None else []),
                *(_explained(spread) for spread in by_kind.values()),
            )
        )
    between = [f"between {kind}" for kind in found.kinds] if several else ["between"]
    explained = [f"explained, {kind}" for kind in found.kinds] if several else ["explained"]
    change_of = ["change"] if several else []
    print_table(("case", "step", "inside one", *between, *change_of, *explained), rows)
    print()
    for kind in found.kinds:
        if ranges := _ranges(found.probes(kind)):
            print(f"{f'{kind} contexts: ' if several else ''}{ranges} over contexts")
    print(f"{key}: {found.conclusion}")


def _explained(spread: Spread) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in spread.explained.items()) or "-"


def _print_contexts_json(found: ContextsFound, key: str) -> None:
    from bench_lib.cli import documents

    def told(spread: Spread) -> documents.ContextSpread:
        return filled(documents.ContextSpread, spread, contexts=len(spread.contexts))

    print_json(
        documents.SelfcheckContexts(
            hardware_key=key,
            cases=[
                documents.ContextCase(
                    case_id=case_id,
                    change=found.change(case_id),
                    kinds={kind: told(spread) for kind, spread in by_kind.items()},
                )
                for case_id, by_kind in found.spreads.items()
            ],
            probes={kind: dict(found.probes(kind)) for kind in found.kinds},
            conclusion=found.conclusion,
        )
    )


# ---- components -------------------------------------------------------------------------


def _show_components(folder: Path, key: str, *, as_json: bool) -> None:
    from bench_lib.engine.past import MOST_RUNS
    from bench_lib.storage import history
    from bench_lib.studies.components import found

    families = found(history.latest(folder, key, MOST_RUNS, say=say))
    if not families:
        known = ", ".join(history.keys(folder)) or "none at all"
        raise UserError(
            f"{folder} has no run of {key} that was fine (it has: {known}); measure one with "
            "pytest, or name another folder with --history"
        )
    (_print_components_json if as_json else _print_components)(families, key)


def _print_components(families: Sequence[FamilyFound], key: str) -> None:
    rows = [
        (
            family.family if number == 0 else "",
            part.component,
            _share(part.differs_by),
            _share(part.costs, "+"),
            str(part.known_from),
            part.remark,
        )
        for family in families
        for number, part in enumerate(family.components)
    ]
    print_table(("family", "component", "differs by", "costs", "known from", "remark"), rows)
    print()
    for family in families:
        place = many(family.devices, "device") if family.devices else "devices without a uuid"
        print(
            f"{family.family}: {many(family.cases, 'case')}, "
            f"{many(family.processes, 'process')}, {many(family.runs, 'run')} in "
            f"{many(family.nights, 'night')} on {place}; "
            f"visible {_share(family.visible)}, "
            f"on a device never seen {_share(family.visible_on_new_device)}"
        )
    print(
        f"\n{key}: each figure is the median case's. A component costs so much of visible, the "
        "smallest slow-down that one more run finds nine times in ten; a device costs it only on "
        "one never seen. With a reference in turns nights and devices cost nothing."
    )


def _share(share: float | None, sign: str = "") -> str:
    return "?" if share is None else f"{share:{sign}.2%}"


def _print_components_json(families: Sequence[FamilyFound], key: str) -> None:
    from bench_lib.cli.documents import SelfcheckComponents

    print_json(SelfcheckComponents(hardware_key=key, families=list(families)))
