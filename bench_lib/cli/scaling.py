"""``bench-lib scaling``: the speed-up from more threads, processes and GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from bench_lib.cases.axes import LARGEST
from bench_lib.cases.training import training_case
from bench_lib.cli.measuring import Keeping, Measuring
from bench_lib.cli.options import grouped, known, refuse
from bench_lib.cli.output import say
from bench_lib.launch.launchers import ranks_launched
from bench_lib.model import TASKS, Case, Hardware, Param, UserError
from bench_lib.report.answer import Table
from bench_lib.studies.asked import Template, check_limit, names_in, numbers_in

if TYPE_CHECKING:
    from bench_lib.studies.scaling import ScalingPoint

MNIST, NETWORK = "mnist", "network"
LONG_S = 3600.0
"""An epoch on one thread of a slow CPU takes minutes."""
MOST_PROCESSES = 100
OF_MNIST, OF_NETWORKS = ("over", "epochs", "workers"), ("ranks", "network", "task")


@dataclass(frozen=True)
class ScalingOptions:
    """The options that say what to measure; None is the default."""

    over: Annotated[
        str | None,
        typer.Option(help="mnist: threads, processes, gpus (default: all that this machine has)."),
    ] = None
    ranks: Annotated[
        str | None, typer.Option(help="network: ranks, as in 1,2,4 (default: up to all GPUs).")
    ] = None
    at_most: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LARGEST,
            help="Maximum number of workers (default: all that this machine has).",
        ),
    ] = None
    batch_size: Annotated[
        int, typer.Option(min=1, max=LARGEST, help="Batch size of one worker.")
    ] = 64
    network: Annotated[str | None, typer.Option(help="torchvision network.")] = None
    precision: Annotated[str, typer.Option(help="Precision.")] = "fp32"
    mode: Annotated[str, typer.Option(help="Compile mode.")] = "eager"
    task: Annotated[str, typer.Option(help=f"network: {' or '.join(TASKS)}.")] = "train"
    epochs: Annotated[
        int,
        typer.Option(
            min=0, max=LARGEST, help="mnist: epochs to train; 0 measures only some steps."
        ),
    ] = 1
    workers: Annotated[
        int, typer.Option(min=0, max=LARGEST, help="mnist: processes of the DataLoader.")
    ] = 0
    weak: Annotated[
        bool,
        typer.Option("--weak", help="Weak scaling: work per worker is fixed (default of network)."),
    ] = False
    strong: Annotated[
        bool,
        typer.Option(
            "--strong", help="Strong scaling: the total work is fixed (default of mnist)."
        ),
    ] = False
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_PROCESSES,
            help="Fresh processes for each point; 3 or more give an interval.",
        ),
    ] = 1
    time_limit: Annotated[float | None, typer.Option(help="Time limit of a case, in seconds.")] = (
        None
    )

    @property
    def values(self) -> dict[str, Param]:
        """The common values of networks and mnist."""
        mode = {"precision": self.precision, "compile_mode": self.mode}
        return {**mode, "batch_size": self.batch_size}


@grouped
def scaling(
    context: typer.Context,
    what: Annotated[str, typer.Argument(help="mnist, or network (with --network).")],
    *,
    options: ScalingOptions,
    keeping: Keeping,
) -> None:
    """Measure speed-up and efficiency over threads, processes and GPUs, and fit scaling laws."""
    known(what, (MNIST, NETWORK), "WHAT")
    unused = OF_NETWORKS if what == MNIST else OF_MNIST
    refuse(context, unused, f"scaling {what} does not use it")
    if options.weak and options.strong:
        raise UserError("--weak and --strong cannot be combined; choose one")
    check_limit(options.time_limit)
    study = _Study(what, options, keeping)
    (_measure_mnist if what == MNIST else _measure_network)(study, options)
    study.tell_all()


# ---- what is measured ---------------------------------------------------------------------


def _measure_network(study: _Study, options: ScalingOptions) -> None:
    """Measure a network over ranks, one a GPU, or a CPU's core where there is none."""
    from bench_lib import backends
    from bench_lib.launch.catalogue import network_sizes
    from bench_lib.studies.scaling import GPUS, RANKS, powers_of_two

    if options.network is None:
        raise UserError("scaling network needs --network NAME")
    common = {**options.values, "task": options.task, "network": options.network}
    template = Template(network_sizes(), common, time_limit_s=options.time_limit)
    template.case()  # raises before anything runs
    is_gpu = backends.is_gpu(study.device)
    cores, launched = study.device.compute_units or 1, ranks_launched()
    limit = options.at_most
    numbers = powers_of_two(limit or launched or (len(study.devices) if is_gpu else cores))
    if launched is not None and limit is None:
        numbers = sorted({*numbers, launched})
    if options.ranks is not None:
        chosen = numbers_in(options.ranks, "--ranks")
        numbers = sorted({1, *(n for n in chosen if limit is None or n <= limit)})
    way, available = (GPUS, None) if is_gpu else (RANKS, cores)
    study.measure(study.device, lambda values: template.case(**values), {way: numbers}, available)


def _measure_mnist(study: _Study, options: ScalingOptions) -> None:
    """Measure a small network on MNIST, from one thread to all GPUs."""
    from bench_lib import backends
    from bench_lib.studies.scaling import GPUS, OVER, THREADS, powers_of_two

    gpus = [device for device in study.devices if backends.is_gpu(device)]
    machine = backends.this_cpu() if gpus else study.device
    ways = list(OVER if gpus else OVER[:2])
    if options.over is not None:
        ways = names_in(options.over, "--over", "kind of worker", OVER)
    common: dict[str, Param] = {
        **options.values,
        "dataset": "mnist",
        "network": "cnn",
        "feed": "loader",
        "workers": options.workers,
        "epochs": options.epochs,
    }
    base = Case("", "", time_limit_s=options.time_limit or LONG_S)

    def case_of(values: Mapping[str, Param]) -> Case:
        return training_case(base, **{**common, **values})

    case_of({})  # raises before anything runs
    cores, launched = machine.compute_units or 1, ranks_launched()
    most = dict.fromkeys(ways, launched or cores)
    most |= {THREADS: cores, GPUS: launched or max(1, len(gpus))}
    numbers = {way: powers_of_two(options.at_most or most[way]) for way in ways}
    on_gpus = {GPUS: numbers.pop(GPUS)} if GPUS in numbers else {}
    study.measure(machine, case_of, numbers, cores)
    study.measure(gpus[0] if gpus else machine, case_of, on_gpus, None if gpus else 0)


# ---- measuring and reporting --------------------------------------------------------------


class _Study(Measuring):
    """Points on one or two devices, measured and then reported together."""

    def __init__(self, what: str, options: ScalingOptions, keeping: Keeping) -> None:
        from bench_lib.backends import detect
        from bench_lib.studies.scaling import STRONG, WEAK

        self.devices = detect()
        super().__init__("scaling", self.devices[0], keeping)
        self._what, self._options = what, options
        is_strong = options.strong or (what == MNIST and not options.weak)
        self._kind = STRONG if is_strong else WEAK
        self._points: list[ScalingPoint] = []

    def measure(
        self,
        device: Hardware,
        case_of: Callable[[Mapping[str, Param]], Case],
        numbers: Mapping[str, Sequence[int]],
        available: int | None,
    ) -> None:
        """Measure numbers of workers, by what the workers are, on a device."""
        from bench_lib.studies.scaling import points

        new = [
            point
            for way, workers in numbers.items()
            for point in points(
                case_of, self._options.batch_size, way, self._kind, workers, available=available
            )
        ]
        self._points += new
        if cases := {point.case.id: point.case for point in new if point.case is not None}:
            self.device = device
            processes = self._options.processes
            remark = f", {processes} times" if processes > 1 else ""
            self.figures_of_all([*cases.values()], remark, processes=processes)

    def tell_all(self) -> NoReturn:
        """Print the result and leave.

        Raises UserError if nothing was measured on any device.
        """
        from bench_lib.studies import scaling as study
        from bench_lib.studies.figures import columns_of

        if not self.written:
            problems = dict.fromkeys(point.problem for point in self._points)
            raise UserError(f"scaling {self._what}: nothing can be measured: {'; '.join(problems)}")
        for other in self.written[:-1]:
            say(f"{other['hardware_key']}: written to {other['history']}")
        rows = study.rows_of(self._points, self.records, self.figures)
        notes = study.scaling_notes(rows)
        tables: dict[str, Table[Any]] = {"rows": Table(columns_of(study.ROWS), rows, keys=2)}
        tables["portions"] = study.portions({})
        if self._what == MNIST:
            serial = next((row.figures for row in rows if study.is_serial(row)), None)
            if serial is not None:
                notes += study.serial_lines(serial)
                tables["portions"] = study.portions(serial.portions_s)
            notes += filter(None, [study.worth(rows)])
        about = {"laws": study.laws_of(rows), "written": self.written}
        self.tell(tables, [row.figures for row in rows], notes, about=about)
