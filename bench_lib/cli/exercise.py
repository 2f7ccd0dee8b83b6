"""``bench-lib exercise``: the workshop guide's exercises, each one command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cases.axes import LARGEST
from bench_lib.cli.group import branch
from bench_lib.cli.measuring import Keeping, Measuring
from bench_lib.cli.options import grouped
from bench_lib.cli.output import say
from bench_lib.model import (
    COMPILE_MODES,
    MEMORY_FORMATS,
    PRECISIONS,
    TASKS,
    Case,
    Param,
    Sampling,
    UserError,
)
from bench_lib.studies.asked import Template, above_zero, names_in, numbers_in

if TYPE_CHECKING:
    from bench_lib.engine.engine import Engine
    from bench_lib.engine.settings import Outcome
    from bench_lib.studies.batches import Search
    from bench_lib.studies.figures import Figures

app = branch("exercise")

Network = Annotated[str, typer.Argument(help="A network of torchvision, such as resnet50.")]
BatchSize = Annotated[int, typer.Option(help="Images a step.")]
Mode = Annotated[str, typer.Option(help="Compile mode; eager compiles nothing.")]
Precision = Annotated[str, typer.Option(help="One precision.")]
Precisions = Annotated[
    str | None, typer.Option(help="Several, as in fp32,fp16 (default: what makes sense).")
]


@dataclass(frozen=True, kw_only=True)
class Common:
    """The options of every exercise that measures."""

    task: Annotated[str, typer.Option(help=" or ".join(TASKS))] = "infer"
    image_size: Annotated[int, typer.Option(help="Pixels; 0 is the network's own.")] = 0
    memory_format: Annotated[str, typer.Option(help=" or ".join(MEMORY_FORMATS))] = "nchw"
    compile_options: Annotated[
        str, typer.Option(help="Of what is compiled, as in freezing,a=1.")
    ] = ""
    iterations: Annotated[
        int | None,
        typer.Option(min=1, max=LARGEST, help="Measured iterations (default: 20 to 200, by time)."),
    ] = None
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds for a case (default: 300; max-autotune 1200).")
    ] = None
    keeping: Keeping

    def template(self, values: dict[str, Param]) -> Template:
        """Return what an exercise's cases have in common; raises UserError."""
        from bench_lib.launch.catalogue import network_sizes

        sampling = Sampling()
        if self.iterations is not None:
            sampling = Sampling(iterations=self.iterations, max_iterations=self.iterations)
        if self.time_limit is not None:
            above_zero(self.time_limit, "--time-limit", "a time in seconds")
        of_all = ("task", "image_size", "memory_format", "compile_options")
        chosen = {**{name: getattr(self, name) for name in of_all}, **values}
        return Template(network_sizes(), chosen, sampling, self.time_limit)


# ---- the exercises ----------------------------------------------------------------------


@app.command()
@grouped
def precision(
    network: Network,
    *,
    precisions: Precisions = None,
    price_per_hour: Annotated[
        float | None, typer.Option(help="Of the device; adds the cost of a million images.")
    ] = None,
    mode: Mode = "eager",
    batch_size: BatchSize = 32,
    common: Common,
) -> None:
    """Compare precisions: speed, memory, cost, numerics."""
    from bench_lib.studies import precision as exercise

    if price_per_hour is not None:
        above_zero(price_per_hour, "--price-per-hour", "a price")
    session = Session(
        "precision", common, network=network, compile_mode=mode, batch_size=batch_size
    )
    names = _precisions(precisions) or exercise.default_precisions(session.device, common.task)
    figures = session.measured([session.case(precision=name) for name in names])
    rows = exercise.compare(figures, price_per_hour)
    session.tell(rows, exercise.as_table(rows))


@app.command()
@grouped
def largest_batch(
    network: Network,
    *,
    precisions: Precisions = None,
    at_most: Annotated[
        int | None, typer.Option(min=1, max=LARGEST, help="No batch above this is tried.")
    ] = None,
    resolution: Annotated[
        float,
        typer.Option(
            help="Percent to know the answer to, in multiples of 8 above 64; 0 is to the image."
        ),
    ] = 1.0,
    mode: Mode = "eager",
    batch_size: Annotated[int, typer.Option(help="Tried first.")] = 32,
    common: Common,
) -> None:
    """Find the largest batch that fits into memory."""
    from bench_lib import backends
    from bench_lib.studies import batches
    from bench_lib.studies.precision import few_precisions

    if not 0 <= resolution <= 50:
        raise UserError(f"--resolution {resolution:g}: from 0 to 50 percent")
    session = Session("largest-batch", common, network=network, compile_mode=mode)
    device = session.device
    if not backends.is_gpu(device) and at_most is None:
        raise UserError(
            f"{device.key} is a CPU: its memory has no allocator to ask, and a search would swap; "
            "bound it with --at-most N"
        )
    names = _precisions(precisions) or few_precisions(device)
    for name in names:
        session.case(precision=name, batch_size=batch_size)  # refused before anything runs
    capacity = device.memory_bytes if backends.is_gpu(device) else None
    say(
        f"{', '.join(names)} on {device.key}: about ten tries each, of seconds where nothing is "
        "compiled; a try that does not fit ends its context, and the next opens a fresh one"
    )
    found = {}
    with session.engine() as engine:
        for name in names:
            found[name] = batches.Search(
                start=batch_size, capacity=capacity, at_most=at_most, resolution=resolution / 100
            )
            _search(session, engine, name, found[name])
    rows = batches.largest_rows(found, session.figures)
    session.tell(rows, batches.largest_table(rows, capacity))


def _search(session: Session, engine: Engine, name: str, search: Search) -> None:
    """Search one precision's largest batch, and write down the measurement of it."""
    from bench_lib.engine.settings import nodeid_of
    from bench_lib.studies.batches import largest_accepted

    def case_of(batch: int) -> Case:
        return session.case(precision=name, batch_size=batch)

    def measure(case: Case) -> Outcome:
        own, *others = engine.attempt(case)
        for each in others:
            engine.note(each)
        return own

    search.run(
        case_of,
        glance=engine.held.glance,
        measure=measure,
        say=lambda line: say(f"{name}: {line}"),
    )
    search.hold_against(largest_accepted(case_of, engine.accepted), case_of, measure)
    if search.outcome is not None:
        engine.note(search.outcome, nodeid_of("largest-batch", search.outcome.case.id))
    if search.missed is not None:
        engine.note(search.missed)


@app.command()
@grouped
def compile(  # noqa: A001 - the exercise's name
    network: Network,
    *,
    modes: Annotated[
        str, typer.Option(help="Compile modes; eager is measured in any case.")
    ] = "eager,default,reduce-overhead,max-autotune",
    precisions: Precisions = None,
    batch_size: BatchSize = 64,
    common: Common,
) -> None:
    """Compare compile modes, and when compiling pays off."""
    from bench_lib.studies import compiling
    from bench_lib.studies.precision import few_precisions

    chosen = names_in(modes, "--modes", "compile mode", COMPILE_MODES)
    session = Session("compile", common, network=network, batch_size=batch_size)
    names = _precisions(precisions) or few_precisions(session.device)
    order = [compiling.EAGER, *(mode for mode in chosen if mode != compiling.EAGER)]
    cases = [session.in_mode(mode, precision=name) for name in names for mode in order]
    rows = compiling.compare(session.measured(cases))
    session.tell(rows, compiling.compile_table(rows))


@app.command()
@grouped
def depth(
    *,
    networks: Annotated[
        str, typer.Option(help="Networks, the shallowest first.")
    ] = "resnet18,resnet34,resnet50,resnet101,resnet152",
    mode: Annotated[str, typer.Option(help="Compile mode.")] = "default",
    precision: Precision = "fp32",
    batch_size: BatchSize = 64,
    common: Common,
) -> None:
    """Show what compiling gives by depth of network."""
    from bench_lib.launch.catalogue import network_sizes
    from bench_lib.studies import compiling

    if mode == compiling.EAGER:
        raise UserError("--mode eager compiles nothing; choose a mode that does")
    chosen = names_in(networks, "--networks", "network", sorted(network_sizes()))
    session = Session("depth", common, precision=precision, batch_size=batch_size)
    order = (compiling.EAGER, mode)
    cases = [session.in_mode(each, network=network) for network in chosen for each in order]
    figures = session.measured(cases)
    rows = compiling.gains(list(zip(figures[::2], figures[1::2], strict=True)))
    session.tell(rows, compiling.depth_table(rows), conclusion=compiling.conclusion(rows))


@app.command()
@grouped
def batch_sweep(
    network: Network,
    *,
    batch_sizes: Annotated[
        str, typer.Option(help="Images a step, as in 8,32,128.")
    ] = "8,32,128,256",
    precision: Precision = "fp32",
    mode: Mode = "eager",
    common: Common,
) -> None:
    """Sweep batch sizes, and name the best."""
    from bench_lib.studies import batches

    chosen = numbers_in(batch_sizes, "--batch-sizes")
    session = Session(
        "batch-sweep", common, network=network, precision=precision, compile_mode=mode
    )
    figures = session.measured([session.case(batch_size=batch) for batch in chosen])
    rows, best = batches.sweep_rows(figures), batches.best_of(figures)
    session.tell(
        rows,
        batches.sweep_table(rows),
        efficient=best and best.efficient.params["batch_size"],
        enough=batches.ENOUGH,
        densest=best and best.densest and best.densest.params["batch_size"],
    )


def _precisions(text: str | None) -> list[str]:
    return [] if text is None else names_in(text, "--precisions", "precision", PRECISIONS)


# ---- measuring --------------------------------------------------------------------------


class Session(Measuring):
    """One exercise on this machine's first device: its cases, and then what came of them."""

    COMMAND = "exercise "

    def __init__(self, name: str, common: Common, **values: Param) -> None:
        """Take what all cases have in common; raises UserError."""
        from bench_lib.backends import detect

        super().__init__(name, detect()[0], common.keeping)
        self._options = common.compile_options
        self._template = common.template(values)

    def case(self, **values: Param) -> Case:
        """Return the case with these values; raises UserError where they cannot be meant."""
        return self._template.case(**values)

    def in_mode(self, mode: str, **values: Param) -> Case:
        """Return the case in a compile mode, without the options where that compiles nothing."""
        plain: dict[str, Param] = {"compile_options": ""} if mode in _PLAIN else {}
        return self.case(compile_mode=mode, **plain, **values)

    def measured(self, cases: Sequence[Case]) -> list[Figures]:
        """Measure cases, judge them if requested, and return their figures.

        Raises UserError if there are options for compiling and nothing compiles.
        """
        if self._options and not any(case.params.get("compile_options") for case in cases):
            raise UserError(
                f"--compile-options {self._options}: none of these modes compiles anything"
            )
        words = ""
        if any(case.params["compile_mode"] not in _PLAIN for case in cases):
            words = "; compiling with cold caches adds 1 to 3 minutes a case, max-autotune 5 to 10"
        return self.figures_of_all(cases, words)


_PLAIN = ("eager", "graph")
"""Modes that compile nothing."""
