"""The workshop guide's results sheet, filled from the history; missing values stay blank.

The guide's section 2.5 begins it, and each of its seven exercises lists the values to record.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import NamedTuple

from bench_lib.engine.settings import nodeid_of
from bench_lib.formats import quantity, seconds
from bench_lib.model import Attempt, Environment, Hardware, Param, Record
from bench_lib.storage.history import Run
from bench_lib.studies.compiling import MODES
from bench_lib.studies.figures import (
    CELLS,
    Figures,
    figures_of,
    percent,
    seconds_cell,
    times,
)

LARGEST = "largest-batch"
"""The exercise of the largest batches in the history.

A search that ended early, or whose answer is no better than 1%, has another name there.
"""
ALSO_CALLED = {"fp32": ("fp32", "tf32-conv"), "fp16": ("fp16", "fp16-bn32")}
"""The precisions that ``bench-lib micro`` measures for FP32 or FP16; the first is ours too."""
MICRO_SIZE = 224
"""Pixels of micro's images, also of networks whose own size is another."""
DEPTHS = ("resnet18", "resnet50", "resnet152")
SHOWN = 5
MOST_RUNS = 200
"""Runs that are looked through, newest first."""

DEFAULT_HISTORY = Path("history")

Cell = str | None
"""The text for a place of the sheet; None leaves it blank."""


@dataclass(frozen=True)
class KeptCase:
    """A case as a run of the history has it."""

    run: Run
    record: Record

    @cached_property
    def figures(self) -> Figures:
        """Its figures, under the ceilings of the device that it was measured on."""
        return figures_of(self.record, self.hardware)

    @property
    def attempt(self) -> Attempt:
        """The first that was accepted."""
        attempts = self.record.attempts
        return next((attempt for attempt in attempts if attempt.accepted), attempts[-1])

    @property
    def hardware(self) -> Hardware | None:
        """The device of that attempt."""
        devices = self.run.hardware
        own = (device for device in devices if device.uuid == self.attempt.device_uuid)
        return next(own, devices[0] if devices else None)

    @property
    def environment(self) -> Environment | None:
        """The environment of that attempt."""
        return self.run.environments.get(self.attempt.environment)

    @property
    def network(self) -> Param | None:
        """The network; None in a case that somebody made by hand without one."""
        return self.record.case.params.get("network")

    @property
    def is_profiled(self) -> bool:
        """Whether the times of operations are known."""
        seen = (attempt.measurement for attempt in self.record.attempts)
        return any(measurement and measurement.operations_s for measurement in seen)


@dataclass(frozen=True)
class SheetBlock:
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
class SheetSection:
    """One exercise."""

    title: str
    blocks: list[SheetBlock]
    note: str = ""

    @property
    def fill(self) -> list[str]:
        """The commands that fill the blanks, each once."""
        return list(dict.fromkeys(b.fill for b in self.blocks if b.fill and b.is_blank))


@dataclass(frozen=True)
class Sheet:
    """The sheet of one network on one hardware."""

    key: str
    network: str
    task: str
    head: list[tuple[str, Cell]]
    sections: list[SheetSection]

    @property
    def is_blank(self) -> bool:
        """Whether nothing of the history was of use."""
        return all(value is None for _, value in self.head)


def kept_in(runs: Iterable[Run], network: str) -> list[KeptCase]:
    """Return what runs have of a network and of the guide's depths, in their order."""
    networks = {network, *DEPTHS}
    found = []
    for run in runs:
        about = replace(run, records={})  # so that the others are not kept in memory
        kept = (KeptCase(about, record) for record in run.records.values())
        found += [k for k in kept if k.record.case.workload == "network" and k.network in networks]
    return found


def tasks_of(kept: Sequence[KeptCase], network: str) -> set[Param]:
    """Return the tasks that a network was measured in."""
    own = (k for k in kept if k.network == network and k.attempt.accepted)
    return {k.record.case.params.get("task", "infer") for k in own}


def fill(
    kept: Sequence[KeptCase], key: str, network: str, task: str, history: Path = DEFAULT_HISTORY
) -> Sheet:
    """Return the sheet; ``kept`` comes newest first, and its commands write to ``history``."""
    cases: dict[_CaseKey, list[KeptCase]] = {}
    for each in kept:
        case = each.record.case
        cases.setdefault(_key(case.params, case.launch.ranks), []).append(each)
    searches = [k for k in kept if k.record.nodeid == nodeid_of(LARGEST, k.record.case.id)]
    shelf = _Shelf(searches, cases, network, task, history)
    makers = (_baseline, _precisions, _operations, _flops, _scaling, _compilation)
    filled = [_fullest(make, shelf) for make in makers]
    taken = [each for _, own in filled for each in own]
    sections = [*(section for section, _ in filled), _kernels()]
    return Sheet(key, network, task, _head(taken), sections)


_CaseKey = tuple[frozenset[tuple[str, Param]], int]


def _key(params: Mapping[str, Param], ranks: int) -> _CaseKey:
    return frozenset(params.items()), ranks


class _Kind(NamedTuple):
    """The traits of a section's cases, so that they can be compared."""

    single: str
    """The precision that stands for FP32."""
    pixels: int
    """Size of the images; 0 is the network's own."""

    def __str__(self) -> str:
        return f"{self.single}, {self.pixels} px" if self.pixels else self.single


_KINDS = [_Kind(single, pixels) for pixels in (0, MICRO_SIZE) for single in ALSO_CALLED["fp32"]]


@dataclass(frozen=True)
class _Shelf:
    """Finds the newest of each case of one kind, and remembers which it took."""

    searches: Sequence[KeptCase]
    """The largest batches that were searched for, newest first."""
    cases: Mapping[_CaseKey, Sequence[KeptCase]]
    network: str
    task: str
    history: Path
    kind: _Kind = _KINDS[0]
    taken: dict[tuple[Path, str], KeptCase] = field(default_factory=dict)

    def of(self, kind: _Kind) -> _Shelf:
        """Return the same shelf for cases of another kind."""
        return replace(self, kind=kind)

    def find(
        self,
        batch: int,
        precision: str = "fp32",
        *,
        ranks: int = 1,
        profiled: bool = False,
        **other: Param,
    ) -> Figures:
        """Return the newest measurement of a case; without figures where there is none."""
        for name in self._called(precision):
            params = self._params(name, batch, **other)
            for kept in self.cases.get(_key(params, ranks), ()):
                if (kept.is_profiled or not profiled) and kept.figures.is_measured:
                    self._take(kept)
                    return kept.figures
        return _NOTHING

    def largest(self, precision: str) -> int | None:
        """Return the largest batch that a search found last, in what ``precision`` is here."""
        (name, *_) = self._called(precision)
        for kept in self.searches:
            params = kept.record.case.params
            batch = params.get("batch_size")
            if not isinstance(batch, int) or params != self._params(name, batch):
                continue
            if kept.figures.is_measured:
                self._take(kept)
                return batch
        return None

    def scaled(self) -> list[tuple[int, int, _Kind]]:
        """Return batch for each rank, ranks and kind of the plain cases of several ranks."""
        found = set()
        for params, ranks in self.cases:
            batch = dict(params).get("batch_size")
            if ranks > 1 and isinstance(batch, int):
                there = (self.of(kind).find(batch, ranks=ranks).is_measured for kind in _KINDS)
                found |= {(batch, ranks, kind) for kind in compress(_KINDS, there)}
        return sorted(found)

    @property
    def remark(self) -> str:
        """Differences from the exercises' measurements; empty if there are none."""
        usual, half = ALSO_CALLED["fp16"]
        precisions = {kept.record.case.params["precision"] for kept in self.taken.values()}
        words = [f"FP32 is {self.kind.single}"] if self.kind.single != "fp32" else []
        if half in precisions:
            words.append(f"FP16 is {f'{usual} or {half}' if usual in precisions else half}")
        words += [f"images have {self.kind.pixels} pixels"] if self.kind.pixels else []
        return f"As bench-lib micro measures: {', '.join(words)}." if words else ""

    @property
    def in_single(self) -> str:
        """The option that has an exercise measure what stands for FP32 here."""
        return "" if self.kind.single == "fp32" else f" --precision {self.kind.single}"

    def micro(self, batch: int | str) -> str:
        """Return the flags of ``micro`` that measure and keep a case of this network and task."""
        mode = "training" if self.task == "train" else "inference"
        words = f"--network {shlex.quote(self.network)} --batch-size {batch} --mode {mode}"
        return f"{words} --history {shlex.quote(str(self.history))}"

    def command(self, exercise: str, words: str = "") -> str:
        """Return a command of ours, with the options that all have."""
        size = f" --image-size {self.kind.pixels}" if self.kind.pixels else ""
        task = " --task train" if self.task == "train" else ""
        kept = ""
        if self.history != DEFAULT_HISTORY:
            kept = f" --history {shlex.quote(str(self.history))}"
        return f"bench-lib exercise {exercise} {words}{size}{task}{kept}"

    def of_network(self, exercise: str, words: str) -> str:
        """Return a command of ours with the network's name."""
        return self.command(exercise, f"{shlex.quote(self.network)} {words}")

    def _called(self, precision: str) -> Sequence[str]:
        return (self.kind.single,) if precision == "fp32" else ALSO_CALLED[precision]

    def _params(self, precision: str, batch: int, **other: Param) -> dict[str, Param]:
        size: dict[str, Param] = {"image_size": self.kind.pixels} if self.kind.pixels else {}
        return {
            "network": self.network,
            "batch_size": batch,
            "precision": precision,
            "memory_format": "nchw",
            "compile_mode": "eager",
            "task": self.task,
            **size,
            **other,
        }

    def _take(self, kept: KeptCase) -> None:
        self.taken[kept.run.path, kept.record.case.id] = kept


_NOTHING = Figures("", {}, "missing")


def _fullest(
    make: Callable[[_Shelf], SheetSection], shelf: _Shelf
) -> tuple[SheetSection, list[KeptCase]]:
    """Return the section of the kind with the most measurements, and these.

    The exercises' own kind comes first among equals.
    """
    shelves = [replace(shelf, kind=kind, taken={}) for kind in _KINDS]
    made = [(make(each), each) for each in shelves]
    section, own = max(made, key=lambda each: len(each[1].taken))
    return replace(section, note=own.remark), list(own.taken.values())


def _head(taken: Sequence[KeptCase]) -> list[tuple[str, Cell]]:
    days = sorted(kept.attempt.time.partition("T")[0] for kept in taken)
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


def _baseline(shelf: _Shelf) -> SheetSection:
    seen, batches = shelf.find(32), (8, 32, 128, 256)
    sweep = shelf.of_network("batch-sweep", f"--batch-sizes {_list(batches)}{shelf.in_single}")
    places = {
        "Throughput": "throughput",
        "Memory usage": "memory",
        "Time per iteration": "step",
        "Time per image": "per image",
        "Spread of the iterations": "spread",
        "Warm-up": "warm-up",
    }
    shown = ("throughput", "memory", "img/s per GB")
    rows = [(str(batch), *_row(shelf.find(batch), shown)) for batch in batches]
    about = f"{shelf.network}, {shelf.kind.single}, batch 32"
    return SheetSection(
        f"Exercise 1: one GPU ({about})",
        [
            SheetBlock(list(zip(places, _row(seen, places.values()), strict=True)), fill=sweep),
            SheetBlock([], ("batch", *shown), rows, sweep),
        ],
    )


def _precisions(shelf: _Shelf) -> SheetSection:
    single, half = shelf.find(32), shelf.find(32, "fp16")
    saved: Cell = "-" if single.is_measured and half.is_measured else None
    if single.memory_bytes and half.memory_bytes is not None:
        saved = percent(1 - half.memory_bytes / single.memory_bytes)
    what, error = ("loss", "loss error") if shelf.task == "train" else ("worst output", "max diff")
    both = f"--precisions {shelf.kind.single},fp16"
    speed = SheetBlock(
        [
            ("FP32 throughput", _of(single, "throughput")),
            ("FP16 throughput", _of(half, "throughput")),
            ("Speed-up (FP16/FP32)", _over(half.items_per_s, single.items_per_s)),
            ("FP32 memory", _of(single, "memory")),
            ("FP16 memory", _of(half, "memory")),
            ("Memory reduction", saved),
            (f"FP16's {what} away from FP32's", _of(half, error)),
        ],
        fill=shelf.of_network("precision", f"--batch-size 32 {both}"),
    )
    largest = {name: shelf.largest(name) for name in ("fp32", "fp16")}
    batches = SheetBlock(
        [
            *(
                (f"{name.upper()} max batch size", str(n) if n else None)
                for name, n in largest.items()
            ),
            ("Ratio", _over(largest["fp16"], largest["fp32"])),
        ],
        fill=shelf.of_network(LARGEST, both),
    )
    return SheetSection("Exercise 2: precision (batch 32)", [speed, batches])


def _operations(shelf: _Shelf) -> SheetSection:
    single, half = (shelf.find(32, name, profiled=True) for name in ("fp32", "fp16"))
    costly = sorted(single.operations_s.items(), key=lambda item: -item[1])[:SHOWN]
    cells: list[Cell] = [f"{name}: {seconds(time_s)}" for name, time_s in costly]
    cells += [None] * (SHOWN - len(cells))
    single_s, half_s = _convolutions_s(single), _convolutions_s(half)
    listed_s = sum(single.operations_s.values())
    share = percent(single_s / listed_s) if single_s and listed_s else None
    micro = f"bench-lib micro {shelf.micro(32)} --autograd-profiler"
    in_single = SheetBlock(
        [
            ("Precision", _precision_of(single)),
            *((f"{i}.", cell) for i, cell in enumerate(cells, 1)),
            ("Convolutions, of all that is listed", share),
            ("FP32 convolutions", seconds_cell(single_s) or None),
        ],
        fill=micro,
    )
    in_half = SheetBlock(
        [
            ("Precision", _precision_of(half)),
            ("FP16 convolutions", seconds_cell(half_s) or None),
            ("Speed-up", _over(single_s, half_s)),
        ],
        fill=f"{micro} --fp16 1",
    )
    title = "Exercise 3: slowest operations (batch 32; their own time in a step)"
    return SheetSection(title, [in_single, in_half])


def _precision_of(figures: Figures) -> Cell:
    return str(figures.params["precision"]) if figures.is_measured else None


def _convolutions_s(figures: Figures) -> float | None:
    if not figures.operations_s:
        return None
    return sum(time_s for name, time_s in figures.operations_s.items() if "conv" in name.lower())


def _flops(shelf: _Shelf) -> SheetSection:
    batches, shown = (16, 32, 64, 128), ("GFLOP a step", "TFLOP/s", "of peak", "FLOP/byte", "bound")
    found = {batch: shelf.find(batch) for batch in batches}
    known = next((each for each in found.values() if each.is_measured), _NOTHING)
    of_image = _of(known, "GFLOP an image")
    if of_image not in (None, "-"):
        of_image = f"{of_image} GFLOP"
    half = shelf.find(64, "fp16")
    sweep = f"--batch-sizes {_list(batches)}{shelf.in_single}"
    in_single = SheetBlock(
        [("Parameters", _of(known, "parameters")), ("Operations of an image", of_image)],
        (f"batch, {shelf.kind.single}", *shown),
        [(str(batch), *_row(seen, shown)) for batch, seen in found.items()],
        shelf.of_network("batch-sweep", sweep),
    )
    in_half = SheetBlock(
        [],
        (f"batch, {_precision_of(half) or 'fp16'}", *shown),
        [("64", *_row(half, shown))],
        shelf.of_network("batch-sweep", "--batch-sizes 64 --precision fp16"),
    )
    return SheetSection("Exercise 4: floating-point operations", [in_single, in_half])


def _scaling(shelf: _Shelf) -> SheetSection:
    there = shelf.scaled()
    known = {(batch, ranks) for batch, ranks, _ in there}
    guide = [(64, 2), (64, 4), (32, 2), (128, 2)]
    missing = [(*each, _kind_of(shelf, each[0])) for each in guide if each not in known]
    headings = ("batch per GPU", "GPUs", "precision", "throughput", "ideal", "efficiency")
    rows = [_scaled(shelf, *each) for each in (*there, *missing)]
    micro = shelf.micro("IMAGES-OF-ALL-GPUS")
    fill = f"torchrun --nproc-per-node GPUS -m bench_lib.micro {micro}"
    return SheetSection("Exercise 5: several GPUs (fp32)", [SheetBlock([], headings, rows, fill)])


def _kind_of(shelf: _Shelf, batch: int) -> _Kind:
    """Return the kind that one device has measured a batch in."""
    return next((kind for kind in _KINDS if shelf.of(kind).find(batch).is_measured), _KINDS[0])


def _scaled(shelf: _Shelf, batch: int, ranks: int, kind: _Kind) -> tuple[Cell, ...]:
    alone = shelf.of(kind).find(batch)
    several = shelf.of(kind).find(batch, ranks=ranks)
    ideal = alone.items_per_s and alone.items_per_s * ranks
    efficiency = several.items_per_s / ideal if several.items_per_s and ideal else None
    return (
        *(str(batch), str(ranks), str(kind)),
        _of(several, "throughput"),
        f"{quantity(ideal)} {alone.item}/s" if ideal else None,
        percent(efficiency, ".1%") or None,
    )


def _compilation(shelf: _Shelf) -> SheetSection:
    eager = shelf.find(64)
    own_size = shelf.of(shelf.kind._replace(pixels=0))  # which these networks have themselves
    modes = SheetBlock(
        [],
        ("precision", "mode", "compiling", "caches", "throughput", "speed-up"),
        [_mode(shelf, precision, mode, eager) for precision in ("fp32", "fp16") for mode in MODES],
        shelf.of_network("compile", f"--batch-size 64 --precisions {shelf.kind.single},fp16"),
    )
    networks = f"--networks {','.join(DEPTHS)} --batch-size 64{shelf.in_single}"
    depths = SheetBlock(
        [],
        ("network", "eager", "compiled", "gain"),
        [_depth(own_size, name) for name in DEPTHS],
        own_size.command("depth", networks),
    )
    return SheetSection("Exercise 6: compilation (batch 64)", [modes, depths])


def _mode(shelf: _Shelf, precision: str, mode: str, eager: Figures) -> tuple[Cell, ...]:
    seen = shelf.find(64, precision, compile_mode=mode)
    return (
        _precision_of(seen) or (shelf.kind.single if precision == "fp32" else precision),
        mode,
        *_row(seen, ("compiling", "caches", "throughput")),
        _over(seen.items_per_s, eager.items_per_s),
    )


def _depth(shelf: _Shelf, network: str) -> tuple[Cell, ...]:
    eager = shelf.find(64, network=network)
    compiled = shelf.find(64, network=network, compile_mode="default")
    cells = (_of(eager, "throughput"), _of(compiled, "throughput"))
    return network, *cells, _over(compiled.items_per_s, eager.items_per_s)


def _kernels() -> SheetSection:
    asked = ("Slowest kernel", "Kernel launches", "Top five kernels, of the time", "Memory copies")
    return SheetSection(
        "Exercise 7: kernels",
        [SheetBlock([(name, None) for name in asked])],
        "kernel profiles are not in the history; rocprofv3 --stats tells these",
    )


def _of(seen: Figures, heading: str) -> Cell:
    """Return the text below a heading of the studies' tables.

    A measurement that lacks it has a dash; a case that was not measured stays blank.
    """
    return (CELLS[heading](seen) or "-") if seen.is_measured else None


def _row(seen: Figures, headings: Iterable[str]) -> list[Cell]:
    return [_of(seen, heading) for heading in headings]


def _over(value: float | None, reference: float | None) -> Cell:
    return times(value / reference) if value and reference else None


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
