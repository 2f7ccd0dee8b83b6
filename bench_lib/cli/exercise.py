"""``bench-lib exercise``: the workshop guide's exercises, one table each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cases.axes import LARGEST
from bench_lib.cli.measuring import Keeping, Measuring
from bench_lib.cli.options import grouped, known, refuse
from bench_lib.cli.output import say
from bench_lib.model import (
    COMPILE_MODES,
    PRECISIONS,
    TASKS,
    Case,
    Hardware,
    Param,
    Sampling,
    UserError,
)
from bench_lib.studies.asked import Template, check_limit, names_in, numbers_in

if TYPE_CHECKING:
    from bench_lib.engine.engine import Engine
    from bench_lib.studies.batches import Search
    from bench_lib.studies.registry import Study

EAGER = "eager"
LARGEST_BATCH = "largest-batch"
COMPILING = "; compiling with cold caches adds up to 3 minutes per case, max-autotune 5 to 10"
AXES = {"precision": "precision", "compile_mode": "mode", "batch_size": "batch_size"}
"""Axes that may be compared, and their options."""


@dataclass(frozen=True, kw_only=True)
class ExerciseOptions:
    """The options that say what to measure; None is the exercise's default."""

    precision: Annotated[
        str | None,
        typer.Option(
            "--precisions",
            "--precision",
            help="Precisions, such as fp32,fp16 (default: by exercise and device).",
        ),
    ] = None
    mode: Annotated[
        str | None,
        typer.Option("--modes", "--mode", help="Compile modes; eager compiles nothing."),
    ] = None
    batch_size: Annotated[
        str | None,
        typer.Option("--batch-sizes", "--batch-size", help="Images per step, such as 8,32,128."),
    ] = None
    at_most: Annotated[
        int | None,
        typer.Option(min=1, max=LARGEST, help="largest-batch: the largest batch to try."),
    ] = None
    task: Annotated[str, typer.Option(help=f"{' or '.join(TASKS)}.")] = "infer"
    iterations: Annotated[
        int | None,
        typer.Option(min=1, max=LARGEST, help="Measured iterations (default: 10 to 200, by time)."),
    ] = None
    time_limit: Annotated[
        float | None,
        typer.Option(help="Time limit of a case, in seconds (default: 300; max-autotune 1200)."),
    ] = None


@grouped
def exercise(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="precision, compile, depth, batch-sweep or largest-batch.")
    ],
    networks: Annotated[
        str | None,
        typer.Argument(
            metavar="NETWORK",
            help="torchvision network, such as resnet50; depth takes a list.",
        ),
    ] = None,
    *,
    options: ExerciseOptions,
    keeping: Keeping,
) -> None:
    """Measure an exercise of the workshop guide, as one table.

    precision compares speed, memory and numerics; compile shows when compiling pays off; depth
    shows how much compiling gains as networks get deeper; batch-sweep finds the best batch;
    largest-batch finds the largest that fits into memory.
    """
    from bench_lib.backends import detect
    from bench_lib.launch.catalogue import network_sizes
    from bench_lib.studies.networks import STUDIES

    known(name, [*STUDIES, LARGEST_BATCH], "NAME")
    if name != LARGEST_BATCH:
        refuse(context, ["at_most"], f"exercise {name} does not use it")
    check_limit(options.time_limit)
    sampling = Sampling()
    if options.iterations is not None:
        sampling = Sampling(iterations=options.iterations, max_iterations=options.iterations)
    template = Template(network_sizes(), {"task": options.task}, sampling, options.time_limit)
    session = Measuring(name, detect()[0], keeping, command=f"exercise {name}")
    if name == LARGEST_BATCH:
        largest_batch(session, template, networks, options)
    else:
        compare(session, template, STUDIES[name], networks, options)


def compare(
    session: Measuring,
    template: Template,
    study: Study,
    networks: str | None,
    options: ExerciseOptions,
) -> None:
    """Measure what a study compares, and print its table."""
    names = study.usual.get("network") if networks is None else networks
    values = {
        "network": _networks(study.name, names),
        **{axis: _values(axis, options, study, session.device) for axis in AXES},
    }
    for axis, chosen in values.items():
        if len(chosen) > 1 and axis not in study.axes:
            option = _option(axis) if axis in AXES else "NETWORK"
            axes = " and ".join(study.axes)
            raise UserError(f"{option}: exercise {study.name} compares only {axes}; give one value")
    if "network" in study.axes and EAGER in values["compile_mode"]:
        raise UserError("--mode eager compiles nothing; choose a mode that does")
    cases = [template.case(**params) for params in study.values(values)]
    compiles = any(case.params["compile_mode"] not in ("eager", "graph") for case in cases)
    figures = session.figures_of_all(cases, COMPILING if compiles else "")
    session.conclude(study, study.rows(cases, figures, session.device))


def _option(axis: str) -> str:
    return f"--{AXES[axis].replace('_', '-')}s"


def _networks(name: str, text: str | None) -> list[Param]:
    from bench_lib.launch.catalogue import network_sizes

    if text is None:
        raise UserError(f"which network? bench-lib exercise {name} NETWORK")
    return [*names_in(text, "NETWORK", "network", sorted(network_sizes()))]


def _values(axis: str, options: ExerciseOptions, study: Study, device: Hardware) -> list[Param]:
    """Return the values of an axis: the requested ones, or the study's defaults."""
    from bench_lib.studies.networks import PRECISION, default_precisions, few_precisions

    option = _option(axis)
    text = getattr(options, AXES[axis])
    if text is None and axis not in study.usual:  # it depends on the device
        if study is PRECISION:
            return [*default_precisions(device, options.task)]
        return [*few_precisions(device)]
    text = study.usual[axis] if text is None else text
    if axis == "batch_size":
        return [*numbers_in(text, option)]
    names = PRECISIONS if axis == "precision" else COMPILE_MODES
    return [*names_in(text, option, axis.replace("_", " "), names)]


# ---- the largest batch ------------------------------------------------------------------


def largest_batch(
    session: Measuring, template: Template, network: str | None, options: ExerciseOptions
) -> None:
    """Find the largest batch that fits into memory, by precision."""
    from bench_lib import backends
    from bench_lib.studies import batches
    from bench_lib.studies.networks import few_precisions

    device = session.device
    if not backends.is_gpu(device) and options.at_most is None:
        raise UserError(
            f"{device.key} is a CPU, where a batch that is too large swaps instead of failing; "
            "limit the search with --at-most N"
        )
    precisions = few_precisions(device)
    if options.precision is not None:
        precisions = names_in(options.precision, "--precisions", "precision", PRECISIONS)
    (chosen, *others) = _networks(LARGEST_BATCH, network)
    sizes = "32" if options.batch_size is None else options.batch_size
    (start, *more) = numbers_in(sizes, "--batch-sizes")
    if others or more:
        raise UserError("exercise largest-batch takes one network and one batch to start from")
    mode = EAGER if options.mode is None else options.mode
    common: dict[str, Param] = {"network": chosen, "compile_mode": mode}

    def case_of(precision: str) -> Callable[[int], Case]:
        return lambda batch: template.case(**common, precision=precision, batch_size=batch)

    for precision in precisions:
        case_of(precision)(start)  # raises before anything runs
    say(
        f"{', '.join(precisions)} on {device.key}: about ten attempts each, which take seconds "
        "unless they compile"
    )
    cases, notes = [], []
    with session.engine() as engine:
        for precision in precisions:
            search = batches.Search(start, options.at_most or LARGEST)
            _search(engine, precision, case_of(precision), search)
            if search.outcome is not None:
                engine.note(search.outcome)
                cases.append(search.outcome.case)
            if search.ended:
                notes.append(f"{precision}: {search.ended}")
    figures = [session.figures[case.id] for case in cases]
    rows = batches.LARGEST_BATCH.rows(cases, figures, device)
    notes += batches.LARGEST_BATCH.conclusions(rows)
    session.tell({"rows": batches.LARGEST_BATCH.table(rows)}, figures, notes)


def _search(engine: Engine, precision: str, case_of: Callable[[int], Case], search: Search) -> None:
    search.run(
        case_of,
        glance=engine.held.glance,
        measure=lambda case: engine.held.measure(case)[0],
        say=lambda line: say(f"{precision}: {line}"),
    )
