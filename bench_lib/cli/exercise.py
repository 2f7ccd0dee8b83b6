"""``bench-lib exercise``: the workshop guide's exercises, each one command."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_lib.cli.output import (
    DEFAULT_BASELINES,
    DEFAULT_HISTORY,
    DEFAULT_MATRIX,
    BaselinesDir,
    HistoryDir,
    Json,
    as_markdown,
    markdown_table,
    print_json,
    print_table,
)
from bench_lib.model import MEMORY_FORMATS, TASKS, UserError

if TYPE_CHECKING:
    from bench_lib.exercises.batches import Found, Search
    from bench_lib.exercises.cells import Table
    from bench_lib.exercises.figures import Figures
    from bench_lib.exercises.series import Series, Template
    from bench_lib.exercises.sheet import Block, Cell, Section, Sheet
    from bench_lib.model import Case, Hardware, Limits, Param, Record

app = typer.Typer(
    help="The workshop guide's exercises, each one command.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Network = Annotated[str, typer.Argument(help="A network of torchvision, such as resnet50.")]
BatchSize = Annotated[int, typer.Option("--batch-size", help="Images a step.")]
Task = Annotated[str, typer.Option("--task", help=" or ".join(TASKS))]
ImageSize = Annotated[int, typer.Option("--image-size", help="Pixels; 0 is the network's own.")]
MemoryFormat = Annotated[str, typer.Option("--memory-format", help=" or ".join(MEMORY_FORMATS))]
Mode = Annotated[str, typer.Option("--mode", help="Compile mode; eager compiles nothing.")]
Precision = Annotated[str, typer.Option("--precision", help="One precision.")]
Precisions = Annotated[
    str | None,
    typer.Option("--precision", help="Precisions, as in fp32,fp16 (default: what makes sense)."),
]
Iterations = Annotated[
    int | None,
    typer.Option("--iterations", help="Measured iterations (default: 20 to 200, by time)."),
]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", help="Seconds for a case (default: 300; max-autotune 1200)."),
]
LimitsFrom = Annotated[
    Path,
    typer.Option("--matrix", metavar="FILE", help="Where --judge takes limits of cases from."),
]
Judge = Annotated[
    bool, typer.Option("--judge", help="Hold the cases against the baselines, as the suite does.")
]


@dataclass(frozen=True)
class _Asked:
    """What every exercise that measures is told."""

    name: str
    values: Mapping[str, Param]
    iterations: int | None
    time_limit: float | None
    history: Path
    baselines: Path
    matrix: Path
    judge: bool
    json: bool

    def template(self) -> Template:
        """Return what its cases have in common."""
        from bench_lib.axes import network_axes, positive
        from bench_lib.exercises.lists import above_zero
        from bench_lib.exercises.series import Template
        from bench_lib.launch.catalogue import network_sizes
        from bench_lib.model import Sampling

        sampling = Sampling()
        if self.iterations is not None:
            if problem := positive("--iterations")(self.iterations):
                raise UserError(problem)
            sampling = Sampling(iterations=self.iterations, max_iterations=self.iterations)
        if self.time_limit is not None:
            above_zero(self.time_limit, "--time-limit", "a time in seconds")
        axes = network_axes(network_sizes())
        return Template(axes, self.values, sampling, self.time_limit)


@app.command()
def precision(
    network: Network,
    *,
    precision: Precisions = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option("--price-per-hour", help="Of the device; adds the cost of a million images."),
    ] = None,
    mode: Mode = "eager",
    batch_size: BatchSize = 32,
    task: Task = "infer",
    image_size: ImageSize = 0,
    memory_format: MemoryFormat = "nchw",
    iterations: Iterations = None,
    time_limit: TimeLimit = None,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    matrix: LimitsFrom = DEFAULT_MATRIX,
    judge: Judge = False,
    json: Json = False,
) -> None:
    """Compare precisions: speed, memory, cost, numerics."""
    from bench_lib.exercises import precision as exercise
    from bench_lib.exercises.lists import above_zero

    if price_per_hour is not None:
        above_zero(price_per_hour, "--price-per-hour", "a price")
    values = _values(network, task, image_size, memory_format, batch_size=batch_size)
    asked = _Asked(
        "precision",
        {**values, "compile_mode": mode},
        *(iterations, time_limit, history, baselines, matrix, judge, json),
    )
    device = _device()
    names = _precisions(precision) or exercise.default_precisions(device, task)
    template = asked.template()
    cases = [template.case(precision=name) for name in names]
    with _series(asked, device) as series:
        rows = exercise.compare(_measured(series, device, cases), price_per_hour)
        _end(asked, device, series, exercise.as_table(rows), {"rows": rows})


@app.command()
def largest_batch(
    network: Network,
    *,
    precision: Precisions = None,
    at_most: Annotated[
        int | None, typer.Option("--at-most", help="No batch above this is tried.")
    ] = None,
    resolution: Annotated[
        float,
        typer.Option(
            "--resolution",
            help="Percent to know the answer to, in multiples of 8 above 64; 0 is to the image.",
        ),
    ] = 1.0,
    mode: Mode = "eager",
    batch_size: Annotated[int, typer.Option("--batch-size", help="Tried first.")] = 32,
    task: Task = "infer",
    image_size: ImageSize = 0,
    memory_format: MemoryFormat = "nchw",
    iterations: Iterations = None,
    time_limit: TimeLimit = None,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    matrix: LimitsFrom = DEFAULT_MATRIX,
    judge: Judge = False,
    json: Json = False,
) -> None:
    """Find the largest batch that fits into memory."""
    from bench_lib.axes import positive
    from bench_lib.exercises import batches

    if not 0 <= resolution <= 50:
        raise UserError(f"--resolution {resolution:g}: from 0 to 50 percent")
    if at_most is not None and (problem := positive("--at-most")(at_most)):
        raise UserError(problem)
    values = _values(network, task, image_size, memory_format, compile_mode=mode)
    asked = _Asked(
        "largest-batch", values, *(iterations, time_limit, history, baselines, matrix, judge, json)
    )
    device = _device()
    if device.vendor == "cpu" and at_most is None:
        raise UserError(
            f"{device.key} is a CPU: its memory has no allocator to ask, and a search would swap; "
            "bound it with --at-most N"
        )
    names = _precisions(precision) or (["fp32"] if device.vendor == "cpu" else ["fp32", "fp16"])
    template = asked.template()
    for name in names:
        template.case(precision=name, batch_size=batch_size)  # refused before anything runs
    capacity = None if device.vendor == "cpu" else device.memory_bytes
    _say(
        f"{', '.join(names)} on {device.key}: about ten tries each, of seconds where nothing is "
        "compiled; a try that does not fit ends its context, and the next opens a fresh one"
    )
    found = []
    with _series(asked, device) as series:
        for name in names:
            search = batches.Search(
                start=batch_size, capacity=capacity, at_most=at_most, resolution=resolution / 100
            )
            found.append((name, *_searched(series, device, template, name, search)))
        rows = batches.largest_rows(found)
        _end(asked, device, series, batches.largest_table(rows, capacity), {"rows": rows})


@app.command()
def compile(  # noqa: A001 - the exercise's name
    network: Network,
    *,
    modes: Annotated[
        str, typer.Option("--modes", help="Compile modes; eager is measured in any case.")
    ] = "eager,default,reduce-overhead,max-autotune",
    precision: Precisions = None,
    batch_size: BatchSize = 64,
    task: Task = "infer",
    image_size: ImageSize = 0,
    memory_format: MemoryFormat = "nchw",
    iterations: Iterations = None,
    time_limit: TimeLimit = None,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    matrix: LimitsFrom = DEFAULT_MATRIX,
    judge: Judge = False,
    json: Json = False,
) -> None:
    """Compare compile modes, and when compiling pays off."""
    from bench_lib.exercises import compiling
    from bench_lib.exercises.lists import names_in
    from bench_lib.model import COMPILE_MODES

    chosen = names_in(modes, "--modes", "compile mode", COMPILE_MODES)
    values = _values(network, task, image_size, memory_format, batch_size=batch_size)
    asked = _Asked(
        "compile", values, *(iterations, time_limit, history, baselines, matrix, judge, json)
    )
    device = _device()
    names = _precisions(precision) or (["fp32"] if device.vendor == "cpu" else ["fp32", "fp16"])
    template = asked.template()
    order = [compiling.EAGER, *(mode for mode in chosen if mode != compiling.EAGER)]
    cases = [template.case(precision=name, compile_mode=mode) for name in names for mode in order]
    with _series(asked, device) as series:
        rows = compiling.compare(_measured(series, device, cases))
        _end(asked, device, series, compiling.compile_table(rows), {"rows": rows})


@app.command()
def depth(
    *,
    networks: Annotated[
        str, typer.Option("--networks", help="Networks, the shallowest first.")
    ] = "resnet18,resnet34,resnet50,resnet101,resnet152",
    mode: Annotated[str, typer.Option("--mode", help="Compile mode.")] = "default",
    precision: Precision = "fp32",
    batch_size: BatchSize = 64,
    task: Task = "infer",
    image_size: ImageSize = 0,
    memory_format: MemoryFormat = "nchw",
    iterations: Iterations = None,
    time_limit: TimeLimit = None,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    matrix: LimitsFrom = DEFAULT_MATRIX,
    judge: Judge = False,
    json: Json = False,
) -> None:
    """Show what compiling gives by depth of network."""
    from bench_lib.exercises import compiling
    from bench_lib.exercises.lists import names_in
    from bench_lib.launch.catalogue import network_sizes

    if mode == compiling.EAGER:
        raise UserError("--mode eager compiles nothing; choose a mode that does")
    chosen = names_in(networks, "--networks", "network", sorted(network_sizes()))
    values = _values(chosen[0], task, image_size, memory_format, batch_size=batch_size)
    asked = _Asked(
        "depth",
        {**values, "precision": precision},
        *(iterations, time_limit, history, baselines, matrix, judge, json),
    )
    device = _device()
    template = asked.template()
    cases = [
        template.case(network=network, compile_mode=each)
        for network in chosen
        for each in (compiling.EAGER, mode)
    ]
    with _series(asked, device) as series:
        figures = _measured(series, device, cases)
        rows = compiling.gains(list(zip(figures[::2], figures[1::2], strict=True)))
        plain = {"rows": rows, "conclusion": compiling.conclusion(rows)}
        _end(asked, device, series, compiling.depth_table(rows), plain)


@app.command()
def batch_sweep(
    network: Network,
    *,
    batch_sizes: Annotated[
        str, typer.Option("--batch-sizes", help="Images a step, as in 8,32,128.")
    ] = "8,32,128,256",
    precision: Precision = "fp32",
    mode: Mode = "eager",
    task: Task = "infer",
    image_size: ImageSize = 0,
    memory_format: MemoryFormat = "nchw",
    iterations: Iterations = None,
    time_limit: TimeLimit = None,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    matrix: LimitsFrom = DEFAULT_MATRIX,
    judge: Judge = False,
    json: Json = False,
) -> None:
    """Sweep batch sizes, and name the best."""
    from bench_lib.exercises import batches
    from bench_lib.exercises.lists import numbers_in

    chosen = numbers_in(batch_sizes, "--batch-sizes")
    values = _values(network, task, image_size, memory_format, compile_mode=mode)
    asked = _Asked(
        "batch-sweep",
        {**values, "precision": precision},
        *(iterations, time_limit, history, baselines, matrix, judge, json),
    )
    device = _device()
    template = asked.template()
    cases = [template.case(batch_size=batch) for batch in chosen]
    with _series(asked, device) as series:
        figures = _measured(series, device, cases)
        best = batches.best_of(figures)
        plain = {
            "rows": figures,
            "efficient": best and best.efficient.params["batch_size"],
            "enough": batches.ENOUGH,
            "densest": best and best.densest and best.densest.params["batch_size"],
        }
        _end(asked, device, series, batches.sweep_table(figures), plain)


@app.command()
def sheet(
    *,
    network: Annotated[str, typer.Option("--network", help="Whose results to show.")] = "resnet50",
    task: Task = "infer",
    hardware: Annotated[
        str | None,
        typer.Option("--hardware", metavar="KEY", help="Hardware key (default: this machine's)."),
    ] = None,
    history: HistoryDir = DEFAULT_HISTORY,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown instead of text.")
    ] = False,
    json: Json = False,
) -> None:
    """Fill the guide's results sheet from the history."""
    from bench_lib import history as runs
    from bench_lib.axes import one_of
    from bench_lib.exercises import sheet as exercise

    if markdown and json:
        raise UserError("--markdown and --json are two forms; choose one")
    if problem := one_of("task", TASKS)(task):
        raise UserError(problem)
    if history.exists() and not history.is_dir():
        raise runs.HistoryError(f"{history} is not a folder; name one with --history DIR")
    key = hardware or _device().key
    found = list(runs.latest(history, key, exercise.MOST_RUNS))
    if not found and hardware is not None:
        raise UserError(f"no runs on {key} in {history}; {_keys_in(history)}")
    kept = exercise.kept_in(found)
    if not any(each.figures.params.get("network") == network for each in kept):
        _say(f"nothing of {_known(network)} on {key} in {history}; the sheet is blank")
    filled = exercise.fill(kept, key, network, task, history)
    if json:
        print_json(filled)
        return
    for line in _as_markdown(filled) if markdown else _as_text(filled):
        print(line)


# ---- what is asked ----------------------------------------------------------------------


def _values(
    network: str, task: str, image_size: int, memory_format: str, **more: Param
) -> dict[str, Param]:
    values: dict[str, Param] = {"network": network, "task": task, "memory_format": memory_format}
    return {**values, "image_size": image_size, **more}


def _device() -> Hardware:
    from bench_lib.hardware import detect

    return detect()[0]


def _precisions(text: str | None) -> list[str]:
    from bench_lib.exercises.lists import names_in
    from bench_lib.model import PRECISIONS

    return [] if text is None else names_in(text, "--precision", "precision", PRECISIONS)


def _known(network: str) -> str:
    from bench_lib.axes import one_of
    from bench_lib.launch.catalogue import network_sizes

    if problem := one_of("network", sorted(network_sizes()))(network):
        raise UserError(problem)
    return network


def _keys_in(history: Path) -> str:
    from bench_lib import history as runs

    keys = sorted({path.name.split("_", 1)[1].rpartition("_")[0] for path in runs.files(history)})
    return f"there is {', '.join(keys)}" if keys else "there are no runs at all"


# ---- measuring --------------------------------------------------------------------------


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _series(asked: _Asked, device: Hardware) -> Iterator[Series]:
    from bench_lib.exercises.series import open_series

    with open_series(
        asked.name,
        device,
        history=asked.history,
        baselines_folder=asked.baselines,
        judged=asked.judge,
        limits=_limits(asked.matrix) if asked.judge else {},
        say=_say,
    ) as series:
        yield series


def _limits(path: Path) -> dict[str, Limits]:
    """Return the limits of the matrix's cases; none where there is no such file by default."""
    from bench_lib.axes import network_axes
    from bench_lib.launch.catalogue import network_sizes
    from bench_lib.matrix import read_matrix

    if path == DEFAULT_MATRIX and not path.exists():
        return {}
    tiers = read_matrix(path, {"networks": network_axes(network_sizes())})
    return {case.id: case.limits for cases in tiers.values() for case in cases}


def _measured(series: Series, device: Hardware, cases: Sequence[Case]) -> list[Figures]:
    from bench_lib.exercises.figures import figures_of

    _announce(device, cases)
    figures = []
    for number, case in enumerate(cases, 1):
        _say(f"[{number}/{len(cases)}] {case.id}")
        figures.append(figures_of(series.measure(case), device))
    return figures


def _announce(device: Hardware, cases: Sequence[Case]) -> None:
    from bench_lib.exercises.series import least_s

    seconds = round(least_s(cases))
    least = f"{seconds} s" if seconds < 90 else f"{round(seconds / 60)} min"
    words = f"{len(cases)} case{'s' if len(cases) > 1 else ''} on {device.key}: {least} or more"
    if any(case.params["compile_mode"] not in ("eager", "graph") for case in cases):
        words += "; compiling with cold caches adds 1 to 3 minutes a case, max-autotune 5 to 10"
    limit = max(case.time_limit_s for case in cases)
    _say(f"{words}; a case is given up after {limit:g} s")


def _searched(
    series: Series, device: Hardware, template: Template, name: str, search: Search
) -> tuple[Found, Figures | None]:
    """Search one precision's largest batch, and write down the measurement of it."""
    from bench_lib.exercises import batches
    from bench_lib.exercises.figures import figures_of

    found = batches.find_largest(
        search,
        lambda batch: template.case(precision=name, batch_size=batch),
        series.attempt,
        lambda line: _say(f"{name}: {line}"),
    )
    if found.outcome is None:
        return found, None
    record = series.note(found.outcome, "largest-batch-or-more" if found.stopped else "")
    return found, figures_of(record, device)


def _end(
    asked: _Asked, device: Hardware, series: Series, table: Table, plain: Mapping[str, Any]
) -> None:
    """Print the results, then judge and print what comes of that; leave with the exit status."""
    from bench_lib.report import explanations

    if not asked.json:
        print_table(table.headings, table.rows)
        print()
        for line in [*([] if asked.judge else table.trouble), *table.lines]:
            print(line)
    passes = series.finish()
    records = series.records
    if asked.json:
        about = {"exercise": asked.name, "hardware": device.key, "history": str(series.path)}
        print_json({**about, **plain, "verdicts": _verdicts(records) if asked.judge else None})
    else:
        for line in explanations(records, every=asked.judge):
            print(line)
        print(f"written to {series.path}")
    measured = any(a.accepted for record in records for a in record.attempts)
    raise typer.Exit(0 if passes and measured else 1)


def _verdicts(records: Sequence[Record]) -> list[dict[str, Any]]:
    return [
        {"case": record.case.id, "status": record.status, "verdicts": record.verdicts}
        for record in records
    ]


# ---- the sheet --------------------------------------------------------------------------

BLANK = "__________"
WIDE, THIN = "=" * 80, "-" * 80


def _as_text(sheet: Sheet) -> Iterator[str]:
    yield from (WIDE, f"Benchmark workshop results: {sheet.network}, {sheet.task}", WIDE)
    yield from _text_lines(sheet.head)
    for section in sheet.sections:
        yield from ("", section.title, THIN)
        for number, block in enumerate(section.blocks):
            yield from [""] if number else []
            yield from _text_block(block)
        yield from _below(section, "  ")


def _text_block(block: Block) -> Iterator[str]:
    from bench_lib.report import table

    yield from _text_lines(block.lines)
    if block.rows:
        yield from [""] if block.lines else []
        yield from table(block.headings, [_shown(row) for row in block.rows], 10_000)


def _text_lines(lines: Sequence[tuple[str, Cell]]) -> list[str]:
    width = max((len(label) for label, _ in lines), default=0) + 2
    return [f"{label + ':':<{width}}{_place(value)}" for label, value in lines]


def _as_markdown(sheet: Sheet) -> Iterator[str]:
    yield from (f"# Benchmark workshop results: {as_markdown(sheet.network)}, {sheet.task}", "")
    yield from _markdown_lines(sheet.head)
    for section in sheet.sections:
        yield from ("", f"## {as_markdown(section.title)}", "")
        for number, block in enumerate(section.blocks):
            yield from [""] if number else []
            yield from _markdown_lines(block.lines)
            if block.rows:
                yield from [""] if block.lines else []
                yield from markdown_table(block.headings, [_shown(row) for row in block.rows])
        yield from _below(section, "    ")


def _markdown_lines(lines: Sequence[tuple[str, Cell]]) -> list[str]:
    return [f"- {as_markdown(label)}: {as_markdown(_place(value))}" for label, value in lines]


def _below(section: Section, indent: str) -> Iterator[str]:
    if section.note:
        yield from ("", section.note)
    if section.fill:
        yield from ("", "What fills the blanks:", "")
        yield from (f"{indent}{command}" for command in section.fill)


def _shown(row: Sequence[Cell]) -> list[str]:
    return [_place(cell) for cell in row]


def _place(value: Cell) -> str:
    return BLANK if value is None else value
