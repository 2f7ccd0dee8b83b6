"""The workshop guide's results sheet, filled from the history; what is not there stays blank.

The guide's section 2.5 begins it, and each of its seven exercises says what to record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_lib.exercises.cells import mib, number, percent, rate_cell, seconds_cell, times
from bench_lib.exercises.compiling import MODES
from bench_lib.exercises.figures import Figures, figures_of
from bench_lib.exercises.series import nodeid_of
from bench_lib.history import Run
from bench_lib.model import Environment, Hardware, Param, Record
from bench_lib.report import quantity, seconds

LARGEST = "largest-batch"
"""The exercise that the largest batches are known by, in the history."""
ALSO_CALLED = {"fp32": ("fp32", "tf32-conv"), "fp16": ("fp16", "fp16-bn32")}
"""What ``bench-lib micro`` measures where it is asked for FP32 or FP16."""
SHOWN = 5
MOST_RUNS = 200
"""Runs that are looked through, newest first."""
GIGA = 1e9

DEFAULT_HISTORY = Path("history")

Cell = str | None
"""What is written into a place of the sheet; None leaves it blank."""


@dataclass(frozen=True)
class Kept:
    """A case with figures, as a run of the history has it."""

    figures: Figures
    ranks: int
    time: str
    nodeid: str | None
    hardware: Hardware | None
    environment: Environment | None


@dataclass(frozen=True)
class Block:
    """Some places of the sheet, and the command that fills the blank ones."""

    lines: list[tuple[str, Cell]] = field(default_factory=list)
    headings: tuple[str, ...] = ()
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    fill: str = ""

    @property
    def is_blank(self) -> bool:
        """Whether a place is left blank."""
        cells = (cell for row in self.rows for cell in row)
        return any(value is None for value in (*cells, *(value for _, value in self.lines)))


@dataclass(frozen=True)
class Section:
    """One exercise."""

    title: str
    blocks: list[Block]
    note: str = ""

    @property
    def fill(self) -> list[str]:
        """The commands that fill what is blank, each once."""
        return list(dict.fromkeys(b.fill for b in self.blocks if b.fill and b.is_blank))


@dataclass(frozen=True)
class Sheet:
    """The sheet of one network on one hardware."""

    key: str
    network: str
    task: str
    head: list[tuple[str, Cell]]
    sections: list[Section]


def kept_in(runs: Iterable[Run]) -> list[Kept]:
    """Return what runs measured of networks, in their order."""
    kept = [
        _kept(run, record)
        for run in runs
        for record in run.records.values()
        if record.case.workload == "network"
    ]
    return [each for each in kept if each.figures.is_measured]


def _kept(run: Run, record: Record) -> Kept:
    attempt = next((a for a in record.attempts if a.accepted), record.attempts[-1])
    own = (device for device in run.hardware if device.uuid == attempt.device_uuid)
    hardware = next(own, run.hardware[0] if run.hardware else None)
    return Kept(
        figures_of(record, hardware),
        record.case.launch.ranks,
        attempt.time,
        record.nodeid,
        hardware,
        run.environments.get(attempt.environment),
    )


def fill(
    kept: Sequence[Kept], key: str, network: str, task: str, history: Path = DEFAULT_HISTORY
) -> Sheet:
    """Return the sheet; ``kept`` comes newest first, and its commands write to ``history``."""
    shelf = _Shelf(kept, network, task, history)
    sections = [
        _baseline(shelf),
        _precisions(shelf),
        _operations(shelf),
        _flops(shelf),
        _scaling(shelf),
        _compilation(shelf),
        _kernels(),
    ]
    return Sheet(key, network, task, _head(shelf), sections)


class _Shelf:
    """Finds the newest of each case, and remembers what was taken."""

    def __init__(self, kept: Sequence[Kept], network: str, task: str, history: Path) -> None:
        self.kept = kept
        self.network = network
        self.task = task
        self.history = history
        self.taken: list[Kept] = []

    def find(self, batch: int, precision: str = "fp32", *, ranks: int = 1, **other: Param) -> Kept:
        """Return the newest measurement of a case; without figures where there is none."""
        params = {**self._params(precision, **other), "batch_size": batch}
        return self._newest(k for k in self.kept if k.figures.params == params and k.ranks == ranks)

    def profiled(self, batch: int, precision: str) -> Kept:
        """Return the newest measurement that has the times of operations."""
        cases = [{**self._params(p), "batch_size": batch} for p in ALSO_CALLED[precision]]
        found = (k for k in self.kept if k.figures.params in cases and k.figures.operations_s)
        return self._newest(found)

    def largest(self, precision: str) -> int | None:
        """Return the largest batch that a search found last."""
        for kept in self.kept:
            figures = kept.figures
            if kept.nodeid == nodeid_of(LARGEST, figures.case_id):
                batch = int(figures.params["batch_size"])
                if figures.params == {**self._params(precision), "batch_size": batch}:
                    self.taken.append(kept)
                    return batch
        return None

    def scaled(self) -> list[tuple[int, int, str]]:
        """Return batch for each rank, ranks and precision of the plain cases of several ranks."""
        found = set()
        for kept in self.kept:
            batch = int(kept.figures.params["batch_size"])
            for precision in ALSO_CALLED["fp32"]:
                params = {**self._params(precision), "batch_size": batch}
                if kept.ranks > 1 and kept.figures.params == params:
                    found.add((batch, kept.ranks, precision))
        return sorted(found)

    def micro(self, batch: int | str) -> str:
        """Return the flags of ``micro`` that measure and keep a case of this network and task."""
        mode = "training" if self.task == "train" else "inference"
        words = f"--network {self.network} --batch-size {batch} --mode {mode}"
        return f"{words} --history {self.history}"

    def command(self, words: str) -> str:
        """Return a command of ours, with the options that all have."""
        task = " --task train" if self.task == "train" else ""
        kept = "" if self.history == DEFAULT_HISTORY else f" --history {self.history}"
        return f"bench-lib exercise {words}{task}{kept}"

    def _params(self, precision: str, **other: Param) -> dict[str, Param]:
        return {
            "network": self.network,
            "precision": precision,
            "memory_format": "nchw",
            "compile_mode": "eager",
            "task": self.task,
            **other,
        }

    def _newest(self, found: Iterable[Kept]) -> Kept:
        kept = next(iter(found), None)
        if kept is None:
            return _NOTHING
        self.taken.append(kept)
        return kept


_NOTHING = Kept(Figures("", {}, "missing"), 1, "", None, None, None)


def _head(shelf: _Shelf) -> list[tuple[str, Cell]]:
    taken = shelf.taken
    days = sorted(kept.time.partition("T")[0] for kept in taken)
    environments = [kept.environment for kept in taken if kept.environment]
    devices = (f"{k.hardware.name} ({k.hardware.key})" for k in taken if k.hardware)
    platforms = (_platform(environment) for environment in environments)
    versions = (environment.torch for environment in environments)
    return [
        ("Name", None),
        ("Date", " to ".join(dict.fromkeys([*days[:1], *days[-1:]])) or None),
        ("GPU", _each_once(devices)),
        ("ROCm version", _each_once(platforms)),
        ("PyTorch version", _each_once(versions)),
    ]


def _platform(environment: Environment) -> str | None:
    if environment.rocm or environment.hip:
        return environment.rocm or f"HIP {environment.hip}"
    return f"none (CUDA {environment.cuda})" if environment.cuda else None


def _each_once(values: Iterable[Cell]) -> Cell:
    return ", ".join(dict.fromkeys(filter(None, values))) or None


def _baseline(shelf: _Shelf) -> Section:
    seen = shelf.find(32).figures
    batches = (8, 32, 128, 256)
    sweep = shelf.command(f"batch-sweep {shelf.network} --batch-sizes {_list(batches)}")
    warm_up = ""
    if seen.is_measured:
        warm_up = f"{seen.warmup_iterations} iterations, {seconds_cell(seen.warmup_s)}"
    one = Block(
        [
            ("Throughput", _cell(seen, rate_cell(seen))),
            ("Memory usage", _cell(seen, mib(seen.memory_bytes))),
            ("Time per iteration", _cell(seen, seconds_cell(seen.step_s))),
            ("Time per image", _cell(seen, seconds_cell(seen.item_s))),
            ("Spread of the iterations", _cell(seen, percent(seen.spread, ".1%"))),
            ("Warm-up", _cell(seen, warm_up)),
        ],
        fill=sweep,
    )
    rows: list[tuple[Cell, ...]] = []
    for batch in batches:
        each = shelf.find(batch).figures
        cells = (rate_cell(each), mib(each.memory_bytes), number(each.items_per_s_per_gb))
        rows.append((str(batch), *(_cell(each, cell) for cell in cells)))
    by_batch = Block(
        headings=("batch", "throughput", "memory", "img/s per GB"),
        rows=rows,
        fill=sweep,
    )
    return Section(f"Exercise 1: one GPU ({shelf.network}, fp32, batch 32)", [one, by_batch])


def _precisions(shelf: _Shelf) -> Section:
    single, half = shelf.find(32).figures, shelf.find(32, "fp16").figures
    saved: Cell = "-" if single.is_measured and half.is_measured else None
    if single.memory_bytes and half.memory_bytes is not None:
        saved = percent(1 - half.memory_bytes / single.memory_bytes)
    train = shelf.task == "train"
    far = percent(half.loss_error, ".2%") if train else number(half.max_abs_diff, ".2g")
    speed = Block(
        [
            ("FP32 throughput", _cell(single, rate_cell(single))),
            ("FP16 throughput", _cell(half, rate_cell(half))),
            ("Speed-up (FP16/FP32)", _over(half.items_per_s, single.items_per_s)),
            ("FP32 memory", _cell(single, mib(single.memory_bytes))),
            ("FP16 memory", _cell(half, mib(half.memory_bytes))),
            ("Memory reduction", saved),
            (f"FP16's {'loss' if train else 'worst output'} away from FP32's", _cell(half, far)),
        ],
        fill=shelf.command(f"precision {shelf.network} --batch-size 32 --precision fp32,fp16"),
    )
    largest = {name: shelf.largest(name) for name in ("fp32", "fp16")}
    batches = Block(
        [
            *((f"{name.upper()} max batch size", _text(n)) for name, n in largest.items()),
            ("Ratio", _over(largest["fp16"], largest["fp32"])),
        ],
        fill=shelf.command(f"{LARGEST} {shelf.network} --precision fp32,fp16"),
    )
    return Section("Exercise 2: precision (batch 32)", [speed, batches])


def _operations(shelf: _Shelf) -> Section:
    single, half = (shelf.profiled(32, name).figures for name in ("fp32", "fp16"))
    costly = sorted(single.operations_s.items(), key=lambda item: -item[1])[:SHOWN]
    cells: list[Cell] = [f"{name}: {seconds(time_s)}" for name, time_s in costly]
    cells += [None] * (SHOWN - len(cells))
    convolutions = {name: _convolutions_s(f) for name, f in (("fp32", single), ("fp16", half))}
    micro = f"bench-lib micro {shelf.micro(32)} --autograd-profiler"
    listed_s = sum(single.operations_s.values())
    share = percent(convolutions["fp32"] / listed_s) if convolutions["fp32"] and listed_s else None
    in_single = [("Precision", _precision_of(single))]
    in_single += [(f"{i}.", cell) for i, cell in enumerate(cells, 1)]
    in_single.append(("Convolutions, of all that is listed", share))
    in_single.append(("FP32 convolutions", seconds_cell(convolutions["fp32"]) or None))
    in_half = [
        ("Precision", _precision_of(half)),
        ("FP16 convolutions", seconds_cell(convolutions["fp16"]) or None),
        ("Speed-up", _over(convolutions["fp32"], convolutions["fp16"])),
    ]
    return Section(
        "Exercise 3: slowest operations (batch 32; their own time in a step)",
        [Block(in_single, fill=micro), Block(in_half, fill=f"{micro} --fp16 1")],
    )


def _precision_of(figures: Figures) -> Cell:
    return str(figures.params["precision"]) if figures.is_measured else None


def _convolutions_s(figures: Figures) -> float | None:
    if not figures.operations_s:
        return None
    return sum(time_s for name, time_s in figures.operations_s.items() if "conv" in name.lower())


def _flops(shelf: _Shelf) -> Section:
    batches = (16, 32, 64, 128)
    sweep = f"batch-sweep {shelf.network} --batch-sizes {_list(batches)}"
    found = {batch: shelf.find(batch).figures for batch in batches}
    known = next((each for each in found.values() if each.is_measured), _NOTHING.figures)
    of_image = ""
    if known.flops_per_step and known.items_per_step:
        of_image = f"{known.flops_per_step / known.items_per_step / GIGA:.3g} GFLOP"
    parameters = "" if known.parameters is None else quantity(known.parameters)
    headings = ("GFLOP a step", "TFLOP/s", "of peak", "FLOP/byte", "bound")
    return Section(
        "Exercise 4: floating-point operations",
        [
            Block(
                [
                    ("Parameters", _cell(known, parameters)),
                    ("Operations of an image", _cell(known, of_image)),
                ],
                ("batch, fp32", *headings),
                [(str(batch), *_flop_cells(figures)) for batch, figures in found.items()],
                shelf.command(sweep),
            ),
            Block(
                [],
                ("batch, fp16", *headings),
                [("64", *_flop_cells(shelf.find(64, "fp16").figures))],
                shelf.command(f"batch-sweep {shelf.network} --batch-sizes 64 --precision fp16"),
            ),
        ],
    )


def _flop_cells(seen: Figures) -> tuple[Cell, ...]:
    flops = seen.flops_per_step
    cells = (
        "" if flops is None else f"{flops / GIGA:.4g}",
        number(seen.tflop_per_s),
        percent(seen.share_of_peak, ".1%"),
        number(seen.flops_per_byte, ".3g"),
        seen.bound or "",
    )
    return tuple(_cell(seen, cell) for cell in cells)


def _scaling(shelf: _Shelf) -> Section:
    there = shelf.scaled()
    known = {(batch, ranks) for batch, ranks, _ in there}
    guide = [(64, 2), (64, 4), (32, 2), (128, 2)]
    missing = [(*each, "fp32") for each in guide if each not in known]
    headings = ("batch per GPU", "GPUs", "precision", "throughput", "ideal", "efficiency")
    rows = [_scaled(shelf, *each) for each in (*there, *missing)]
    micro = shelf.micro("IMAGES-OF-ALL-GPUS")
    fill = f"torchrun --nproc-per-node GPUS -m bench_lib.micro {micro}"
    return Section("Exercise 5: several GPUs (fp32)", [Block([], headings, rows, fill)])


def _scaled(shelf: _Shelf, batch: int, ranks: int, precision: str) -> tuple[Cell, ...]:
    alone = shelf.find(batch, precision).figures
    several = shelf.find(batch, precision, ranks=ranks).figures
    ideal = None if alone.items_per_s is None else alone.items_per_s * ranks
    efficiency = (
        percent(several.items_per_s / ideal, ".1%") if several.items_per_s and ideal else ""
    )
    return (
        *(str(batch), str(ranks), precision),
        _cell(several, rate_cell(several)),
        None if ideal is None else f"{quantity(ideal)} {alone.item}/s",
        efficiency or None,
    )


def _compilation(shelf: _Shelf) -> Section:
    eager = shelf.find(64).figures
    compile_all = shelf.command(f"compile {shelf.network} --batch-size 64 --precision fp32,fp16")
    networks = ("resnet18", "resnet50", "resnet152")
    depth = shelf.command(f"depth --networks {','.join(networks)} --batch-size 64")
    rows = [
        _mode(shelf, precision, mode, eager) for precision in ("fp32", "fp16") for mode in MODES
    ]
    return Section(
        "Exercise 6: compilation (batch 64)",
        [
            Block(
                [],
                ("precision", "mode", "compiling", "caches", "throughput", "speed-up"),
                rows,
                compile_all,
            ),
            Block(
                [],
                ("network", "eager", "compiled", "gain"),
                [_depth(shelf, name) for name in networks],
                depth,
            ),
        ],
    )


def _mode(shelf: _Shelf, precision: str, mode: str, eager: Figures) -> tuple[Cell, ...]:
    seen = shelf.find(64, precision, compile_mode=mode).figures
    return (
        precision,
        mode,
        _cell(seen, seconds_cell(seen.compile_s)),
        _cell(seen, seen.compile_cache or ""),
        _cell(seen, rate_cell(seen)),
        _over(seen.items_per_s, eager.items_per_s),
    )


def _depth(shelf: _Shelf, network: str) -> tuple[Cell, ...]:
    eager = shelf.find(64, network=network).figures
    compiled = shelf.find(64, network=network, compile_mode="default").figures
    cells = (_cell(eager, rate_cell(eager)), _cell(compiled, rate_cell(compiled)))
    return network, *cells, _over(compiled.items_per_s, eager.items_per_s)


def _kernels() -> Section:
    asked = ("Slowest kernel", "Kernel launches", "Top five kernels, of the time", "Memory copies")
    return Section(
        "Exercise 7: kernels",
        [Block([(name, None) for name in asked])],
        "kernel profiles are not in the history; rocprofv3 --stats tells these",
    )


def _cell(seen: Figures, text: str) -> Cell:
    """Leave a place blank where nothing was measured; a dash is what a measurement lacks."""
    return text or ("-" if seen.is_measured else None)


def _over(value: float | None, reference: float | None) -> Cell:
    return times(value / reference) if value and reference else None


def _text(value: int | None) -> Cell:
    return None if value is None else str(value)


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
