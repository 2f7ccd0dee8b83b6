"""``bench-lib scaling``: what more threads, processes and GPUs bring, and what to ask for."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from bench_lib.cases.axes import LARGEST, case_of
from bench_lib.cases.training import training_case
from bench_lib.cli.measuring import Keeping, Measuring
from bench_lib.cli.options import grouped
from bench_lib.cli.output import DEFAULT_MATRIX, say
from bench_lib.cli.reading import meant
from bench_lib.launch.launchers import ranks_launched
from bench_lib.model import TASKS, Case, Hardware, Param, Sampling, UserError
from bench_lib.report.answer import Table
from bench_lib.studies.asked import Template, check_limit, names_in, numbers_in

if TYPE_CHECKING:
    from bench_lib.studies.figures import Figures
    from bench_lib.studies.scaling import Curve, Forecast, ScalingPoint, ScalingRow, Subject

MNIST, NETWORK = "mnist", "network"
BATCH_SIZE = 64
LONG_S = 3600.0
"""An epoch on one thread of a slow CPU takes minutes."""
SHORT_STEPS = 10
MOST_PROCESSES = 100


@dataclass(frozen=True)
class ScalingOptions:
    """The options that say what to measure; None is the default."""

    over: Annotated[
        str | None,
        typer.Option(help="Of mnist: threads, processes, gpus (default: what there is)."),
    ] = None
    ranks: Annotated[
        str | None, typer.Option(help="Of a network or case, as in 1,2,4 (default: up to all).")
    ] = None
    at_most: Annotated[
        int | None, typer.Option(min=1, max=LARGEST, help="Most workers (default: the machine's).")
    ] = None
    batch_size: Annotated[
        int | None, typer.Option(min=1, max=LARGEST, help=f"Of one worker (default: {BATCH_SIZE}).")
    ] = None
    network: Annotated[str | None, typer.Option(help="A network of torchvision.")] = None
    precision: Annotated[str | None, typer.Option(help="One precision (default: fp32).")] = None
    mode: Annotated[str | None, typer.Option(help="Compile mode (default: eager).")] = None
    task: Annotated[
        str | None, typer.Option(help=f"Of a network: {' or '.join(TASKS)} (train).")
    ] = None
    epochs: Annotated[
        int | None,
        typer.Option(min=0, max=LARGEST, help="Of mnist (default: 1); 0 measures some steps."),
    ] = None
    workers: Annotated[
        int | None, typer.Option(min=0, max=LARGEST, help="Of mnist's loader (default: 0, none).")
    ] = None
    weak: Annotated[bool, typer.Option("--weak", help="Each worker has as much to do.")] = False
    strong: Annotated[bool, typer.Option("--strong", help="The work of one is divided.")] = False
    both: Annotated[bool, typer.Option("--both", help="Strong and weak.")] = False
    processes: Annotated[
        int,
        typer.Option(min=1, max=MOST_PROCESSES, help="Fresh processes that measure each point."),
    ] = 1
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the curves.")] = None
    time_limit: Annotated[float | None, typer.Option(help="Seconds for a case.")] = None

    @property
    def values(self) -> dict[str, Param]:
        """The common options of networks and mnist."""
        return {"precision": self.precision or "fp32", "compile_mode": self.mode or "eager"}

    @property
    def kinds(self) -> list[str]:
        """The requested kinds; nothing for the command's own way."""
        from bench_lib.studies.scaling import STRONG, WEAK

        chosen = {STRONG: self.strong or self.both, WEAK: self.weak or self.both}
        return [kind for kind, is_chosen in chosen.items() if is_chosen]


@grouped
def scaling(
    what: Annotated[
        str, typer.Argument(help="mnist, network (with --network), or a case's id in the matrix.")
    ],
    *,
    asked: ScalingOptions,
    keeping: Keeping,
) -> None:
    """Measure speed-up and efficiency over threads, processes and GPUs; fit the laws of it."""
    _check(what, asked)
    if what == MNIST:
        study = _Study(asked, keeping)
        _measure_mnist(study, asked)
    else:
        matrix = keeping.matrix or DEFAULT_MATRIX
        subject = _network(asked) if what == NETWORK else _of_matrix(what, asked, matrix)
        study = _Study(asked, keeping)
        _measure_over_ranks(study, subject, asked)
    study.tell_all(what)


# ---- what is asked ------------------------------------------------------------------------


_OF_MNIST = ("over", "precision", "mode", "epochs", "workers")
_OF_NETWORKS = ("ranks", "network", "precision", "mode", "task")
_OF_CASES = ("ranks",)
_OF_SOME = {*_OF_MNIST, *_OF_NETWORKS}
"""Every other option goes with anything."""


def _check(what: str, asked: ScalingOptions) -> None:
    """Raise UserError for an option that cannot be meant, or that this has no use for."""
    known = {MNIST: _OF_MNIST, NETWORK: _OF_NETWORKS}.get(what, _OF_CASES)
    given = [name for name, value in vars(asked).items() if value is not None]
    if wrong := [_flag(name) for name in given if name in _OF_SOME.difference(known)]:
        takes = ", ".join(map(_flag, (*known, "batch_size")))
        raise UserError(f"{', '.join(wrong)}: scaling {what} takes {takes}")
    if asked.weak + asked.strong + asked.both > 1:
        raise UserError("--weak, --strong and --both are three ways; choose one")
    check_limit(asked.time_limit)
    if asked.plot is not None:
        _check_plot(asked.plot)


def _check_plot(plot: Path) -> None:
    if plot.suffix.lower() != ".png" or not plot.absolute().parent.is_dir():
        raise UserError(f"--plot {plot}: it has to be a file .png in a folder that is there")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("--plot needs matplotlib; pip install matplotlib")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _network(asked: ScalingOptions) -> Subject:
    """Return the network's case for any number of workers; raises UserError if there is none."""
    from bench_lib.launch.catalogue import network_sizes
    from bench_lib.studies.scaling import Subject

    if asked.network is None:
        raise UserError("scaling network needs --network NAME")
    batch = asked.batch_size or BATCH_SIZE
    own: dict[str, Param] = {
        **asked.values,
        "task": asked.task or "train",
        "network": asked.network,
        "batch_size": batch,
    }
    template = Template(network_sizes(), own, time_limit_s=asked.time_limit)
    template.case()  # refused before anything runs
    return Subject(lambda values: template.case(**values), asked.network, batch)


def _of_matrix(case_id: str, asked: ScalingOptions, matrix: Path) -> Subject:
    """Return a case of the matrix, whatever its ranks; raises UserError where it is not there."""
    from bench_lib.cases.matrix import cases_in, tables
    from bench_lib.launch.catalogue import network_sizes
    from bench_lib.studies.scaling import Subject

    cases = cases_in(matrix)
    if case_id not in cases:
        words = [f"scaling {case_id}: there is mnist, network, or a case in {matrix}"]
        words += filter(None, [meant(case_id, [*cases, MNIST, NETWORK])])
        raise UserError("; ".join(words))
    base = cases[case_id]
    workloads = tables(network_sizes()).values()
    axes = next((each for each in workloads if each.workload == base.workload), None)
    if axes is None:
        raise UserError(
            f"{case_id} is made by {base.workload}, which says itself what it does with ranks; "
            "declare a case for each number"
        )
    if asked.time_limit is not None:
        base = replace(base, time_limit_s=asked.time_limit)
    own = {**base.params, "threads": base.launch.threads, "cold": base.launch.cold}
    if asked.batch_size is not None:
        own["batch_size"] = asked.batch_size
    case_of(axes, own, base)  # refused before anything runs
    batch = own.get("batch_size")
    return Subject(
        lambda values: case_of(axes, {**own, **values}, base),
        str(own.get("network", "")),
        batch if isinstance(batch, int) else None,
    )


# ---- what is measured ---------------------------------------------------------------------


def _measure_over_ranks(study: _Study, subject: Subject, asked: ScalingOptions) -> None:
    """Measure a subject over ranks, one a GPU, or a CPU's core where there is none."""
    from bench_lib import backends
    from bench_lib.studies.scaling import GPUS, RANKS, WEAK, points, powers_of_two

    is_gpu = backends.is_gpu(study.device)
    cores, launched = study.device.compute_units or 1, ranks_launched()
    usual = len(study.devices) if is_gpu else cores
    numbers = powers_of_two(asked.at_most or launched or usual)
    if launched is not None and asked.at_most is None:
        numbers = sorted({*numbers, launched})
    if asked.ranks is not None:
        chosen = numbers_in(asked.ranks, "--ranks")
        numbers = sorted({1, *(n for n in chosen if asked.at_most is None or n <= asked.at_most)})
    way, available = (GPUS, None) if is_gpu else (RANKS, cores)
    curves = [
        points(subject, way, kind, numbers, available=available) for kind in asked.kinds or [WEAK]
    ]
    study.measure(study.device, [point for curve in curves for point in curve])


def _measure_mnist(study: _Study, asked: ScalingOptions) -> None:
    """Measure a small network on MNIST, from one thread to all GPUs."""
    from bench_lib import backends
    from bench_lib.studies.scaling import (
        GPUS,
        OVER,
        STRONG,
        THREADS,
        Subject,
        points,
        powers_of_two,
    )

    gpus = [device for device in study.devices if backends.is_gpu(device)]
    machine = backends.this_cpu() if gpus else study.device
    ways = list(OVER if gpus else OVER[:2])
    if asked.over is not None:
        ways = names_in(asked.over, "--over", "way to have more workers", OVER)
    batch = asked.batch_size or BATCH_SIZE
    own: dict[str, Param] = {
        **asked.values,
        "dataset": "mnist",
        "network": "cnn",
        "batch_size": batch,
        "feed": "loader",
        "workers": asked.workers or 0,
        "epochs": 1 if asked.epochs is None else asked.epochs,
    }
    base = Case("", "", time_limit_s=asked.time_limit or LONG_S)
    subject = Subject(lambda values: training_case(base, **{**own, **values}), "cnn", batch)
    subject.case({})  # refused before anything runs

    def curves(way: str) -> list[ScalingPoint]:
        cores = machine.compute_units or 1
        most = max(1, len(gpus)) if way == GPUS else cores
        if way != THREADS:
            most = ranks_launched() or most
        workers = powers_of_two(asked.at_most or most)
        available = cores if way != GPUS else None if gpus else 0
        kinds = asked.kinds or [STRONG]
        found = [points(subject, way, kind, workers, available=available) for kind in kinds]
        return [point for curve in found for point in curve]

    on_cpu = [point for way in ways if way != GPUS for point in curves(way)]
    if on_cpu:
        few = Sampling(0.0, 0.0, SHORT_STEPS, SHORT_STEPS, checks=False)
        short = training_case(replace(base, sampling=few), **{**own, "threads": 1, "epochs": 0})
        study.measure(machine, on_cpu, short)
    if GPUS in ways:
        study.measure(gpus[0] if gpus else machine, curves(GPUS))


# ---- measuring and telling ----------------------------------------------------------------


class _Study(Measuring):
    """Points on one or two devices, measured and then told together."""

    def __init__(self, asked: ScalingOptions, keeping: Keeping) -> None:
        from bench_lib.backends import detect

        self.devices = detect()
        super().__init__("scaling", self.devices[0], keeping)
        self._asked = asked
        self._points: list[ScalingPoint] = []
        self._predicted: Figures | None = None
        """Of a short run, from which the long one's are predicted."""

    def measure(
        self, device: Hardware, points: Sequence[ScalingPoint], short: Case | None = None
    ) -> None:
        """Measure points on a device, before them ``short`` in a process of its own."""
        from bench_lib.studies.scaling import cases_of

        self._points += points
        if not (cases := cases_of(points)):
            return
        self.device = device
        processes = self._asked.processes
        words = f", {processes} times" if processes > 1 else ""
        self.figures_of_all(cases, words, processes=processes, short=short, predicted=self._keep)

    def _keep(self, short: Figures) -> None:
        self._predicted = short

    def tell_all(self, what: str) -> NoReturn:
        """Print the result, draw it if requested, and leave.

        Raises UserError if nothing was measured on any device.
        """
        from bench_lib.studies import scaling as exercise

        if not self.written:
            problems = dict.fromkeys(point.problem for point in self._points)
            raise UserError(f"scaling {what}: nothing can be measured: {'; '.join(problems)}")
        for other in self.written[:-1]:
            say(f"{other['hardware_key']}: written to {other['history']}")
        rows = exercise.rows_of(self._points, self.records, self.figures)
        curves = exercise.curves_of(rows)
        notes = [*exercise.scaling_notes(rows), *(curve.fitted.sentence for curve in curves)]
        nothing: Table[Any] = Table((), ())
        tables = {"rows": exercise.scaling_table(rows), "portions": nothing, "forecasts": nothing}
        about: dict[str, Any] = {"laws": [curve.fitted for curve in curves], "gpu": None}
        about |= {"written": self.written, "requests": []}
        if what == MNIST:
            gpu, requests = exercise.worth(rows), exercise.requests(rows)
            about |= {"gpu": gpu, "requests": requests}
            serial = next((r.figures for r in rows if _is_serial(r)), None)
            if serial is not None and serial.is_measured:
                notes += exercise.serial_lines(serial)
                tables["portions"] = exercise.portions(serial)
                tables["forecasts"] = self._forecasts(serial)
            notes += [gpu.in_words] if gpu else []
            notes += exercise.request_lines(requests)
        if self._asked.plot is not None and curves:
            self._draw(curves, self._asked.plot, what)
        self.tell(tables, [row.figures for row in rows], notes, about=about)

    def _forecasts(self, serial: Figures) -> Table[Forecast]:
        from bench_lib.studies.scaling import FORECASTS, forecasts

        short = self._predicted
        if short is None or not short.is_measured:
            return Table(FORECASTS, [])
        title = f"predicted from {short.iterations} steps"
        return Table(FORECASTS, forecasts(short, serial), title)

    def _draw(self, curves: Sequence[Curve], plot: Path, what: str) -> None:
        from bench_lib.studies.plot import draw

        ones = {p.case.id for p in self._points if p.case and p.case.launch.ranks == 1}
        title = ones.pop() if len(ones) == 1 else what
        devices = " and ".join(str(each["hardware_key"]) for each in self.written)
        try:
            draw(curves, plot, f"{title} on {devices}")
            say(f"drawn to {plot}")
        except UserError as error:  # what was measured is told all the same
            say(f"not drawn: {error}")


def _is_serial(row: ScalingRow) -> bool:
    return row.workers == 1 and row.over != "gpus"
