"""The flags of ``micro_benchmarking_pytorch.py``, which a test freezes, and our own."""

from __future__ import annotations

import argparse
import ast
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from bench_lib.cases.axes import LARGEST, one_of, positive
from bench_lib.launch.launchers import device_index, meeting_url, who_am_i
from bench_lib.model import COMPILE_MODES, UserError

APEX_LEVELS = {1: "amp-fp16", 2: "amp-fp16", 3: "fp16"}
"""The precision nearest to each of apex.amp's levels; level 0 is off.

O1 is torch.amp's autocast, O2 (FP16 with FP32 master weights) is closest to it, O3 is pure FP16."""
AMP = "AMP: PyTorch Native Automatic Mixed Precision"


# ---- --compileContext ---------------------------------------------------------------------

CONTEXT_KEYS = ("mode", "dynamic", "fullgraph", "backend", "options", "disable")
MODES = tuple(mode for mode in COMPILE_MODES if mode != "eager")
RENAMED = {"matmul_padding": "shape_padding"}
"""Options that Inductor has renamed."""
GONE = ("static_memory",)
"""Options that Inductor has removed; 'triton.cudagraphs' makes memory static instead."""
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")


@dataclass(frozen=True)
class Compiling:
    """How a network is compiled: a case's ``compile_mode`` and ``compile_options``."""

    mode: str = "eager"
    options: str = ""
    ignored: list[str] = field(default_factory=list)
    """Options that Inductor has removed."""


def read_context(text: str) -> Compiling:
    """Parse the dictionary of ``--compileContext``; raises UserError, which says what is wrong.

    It must be a literal, so no code in it runs.  ``'True'`` means True, ``'False'`` False.
    """
    try:
        context = ast.literal_eval(text.strip() or "{}")
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise _wrong(f"{text!r} is not a Python literal") from error
    if not isinstance(context, dict):
        raise _wrong(f"{text!r} is not a dictionary such as {{'mode': 'max-autotune'}}")
    for key in context:
        if problem := one_of("key", CONTEXT_KEYS)(key):
            raise _wrong(problem)
    mode, options = context.get("mode"), context.get("options")
    if mode is not None and options is not None:
        raise _wrong("mode and options cannot be combined, since a mode is a set of options")
    if mode is not None and (problem := one_of("mode", MODES)(mode)):
        raise _wrong(problem)
    if _truth("disable", context.get("disable", False)):
        return Compiling()
    parts = [name for name in ("fullgraph", "dynamic") if _truth(name, context.get(name, False))]
    if "dynamic" not in parts and context.get("dynamic") is not None and mode != "graph":
        parts.append("dynamic=False")
    backend = context.get("backend", "inductor")
    if not isinstance(backend, str) or not _WORD.fullmatch(backend):
        raise _wrong(f"backend is {backend!r}; it must be a name")
    if backend != "inductor":
        parts.append(f"backend={backend}")
    own, ignored = _inductors(options or {})
    parts += own
    if mode == "graph" and parts:
        raise _wrong(f"mode graph compiles nothing, so it has no {parts[0]}")
    return Compiling(mode or "default", ",".join(parts), ignored)


def _inductors(options: Any) -> tuple[list[str], list[str]]:
    """Return Inductor's options under their current names, and those that were removed."""
    if not isinstance(options, dict):
        raise _wrong(f"options is {options!r}; it must be a dictionary")
    values: dict[str, str] = {}
    ignored = []
    for written, value in options.items():
        name = str(written).replace("-", "_")
        if not _WORD.fullmatch(name) or name in CONTEXT_KEYS:
            raise _wrong(f"options has no {written!r}")
        if name in GONE:
            ignored.append(str(written))
            continue
        if not isinstance(value, (bool, int, float, str)) or not _WORD.fullmatch(str(value)):
            raise _wrong(f"{written} is {value!r}; it must be a Boolean, a number or a word")
        truth = {"true": "True", "false": "False"}.get(str(value).lower())
        values[RENAMED.get(name, name)] = truth or str(value)
    return [f"{name}={value}" for name, value in values.items()], ignored


def _truth(name: str, value: Any) -> bool:
    """Convert a word or a number to a truth value; None is false."""
    values = {"true": True, "1": True, "false": False, "0": False, "none": False}
    if (truth := values.get(str(value).strip().lower())) is None:
        raise _wrong(f"{name} is {value!r}; it must be True or False")
    return truth


def _wrong(why: str) -> UserError:
    return UserError(f"--compileContext: {why}")


# ---- the command line ---------------------------------------------------------------------


@dataclass(frozen=True)
class MicroOptions:
    """A valid command line."""

    network: str
    batch_size: int
    iterations: int
    flops_prof_step: int
    kineto: bool
    autograd_profiler: bool
    fp16: bool
    amp: bool
    amp_opt_level: int
    distributed_dataparallel: bool
    device_ids: tuple[int, ...]
    rank: int | None
    world_size: int | None
    dist_backend: str | None
    dist_url: str | None
    compiling: Compiling
    csv_file: str | None
    mode: str
    nhwc: bool
    opt_step: int
    output_dir: str
    output_file: str
    profiler_output: str
    history: Path | None = None
    """Where the run is stored; then it is measured and checked as in the suite."""
    notes: list[str] = field(default_factory=list)
    """What was asked for and has no effect."""

    @property
    def task(self) -> str:
        """The case's task."""
        return "train" if self.mode == "training" else "infer"

    @property
    def dtype(self) -> str:
        """The summary's name for the precision."""
        if self.fp16 or (self.amp_opt_level == 3 and not self.amp):
            return "FP16"
        return AMP if self.amp or self.amp_opt_level else "FP32"

    @property
    def csv_name(self) -> str:
        """The CSV file that a row is appended to, named as by ROCm's tool."""
        return self.csv_file or f"{self.output_dir or '.'}/benchmark_summary.csv"

    @property
    def result(self) -> Path | None:
        """The JSON file; None if it has no name."""
        if not self.output_file:
            return None
        return Path(self.output_dir or ".", f"{self.output_file}.json")

    def precision(self, fp32: str) -> str:
        """Return the case's precision; ``fp32`` is the device's default precision in torch."""
        if self.fp16:
            return "fp16-bn32"
        if self.amp:
            return "amp-fp16"
        return APEX_LEVELS.get(self.amp_opt_level, fp32)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; bench-lib micro --help lists the flags")


def parser() -> argparse.ArgumentParser:
    """Return the parser; the first group is frozen."""
    made = _Parser(
        prog="bench-lib micro",
        description="ROCm's micro_benchmarking_pytorch.py, measured like the suite. "
        "Trains unless --mode inference is given.",
    )
    _add_their_flags(made.add_argument_group("flags of micro_benchmarking_pytorch.py"))
    ours = made.add_argument_group("kept")
    ours.add_argument(
        "--history",
        type=Path,
        metavar="DIR",
        help="record the run in this folder, and check its numerics",
    )
    return made


def _add_their_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--network", required=True, help="network to run")
    add("--batch-size", type=int, default=64, help="images per step, split over the ranks (64)")
    add("--iterations", type=int, default=20, help="measured iterations (20)")
    add(
        "--flops-prof-step",
        type=int,
        default=0,
        help="profile FLOPs by layer with DeepSpeed at this iteration (0: off)",
    )
    add("--kineto", action="store_true", help="write a Chrome trace for each rank")
    add(
        "--autograd_profiler",
        "--autograd-profiler",
        action="store_true",
        help="emit a range for every operation, for external profilers, and print tables",
    )
    add("--fp16", type=int, choices=(0, 1), default=0, help="convert the network to FP16 (0)")
    add("--amp", action="store_true", help="autocast to FP16, with gradient scaling")
    add(
        "--amp-opt-level",
        type=int,
        choices=range(4),
        default=0,
        help="optimization level of APEX, by means of torch.amp (0: off)",
    )
    add(
        "--distributed_dataparallel",
        action="store_true",
        help="start a process for each device here; torchrun is simpler",
    )
    add("--device_ids", default=None, help="devices by number, such as 0,1")
    add("--rank", type=int, default=None, help="rank of this invocation, from 0")
    add("--world-size", type=int, default=None, help="number of invocations")
    add("--dist-backend", default=None, help="nccl or gloo")
    add(
        "--dist-url", default=None, help="address of the rendezvous, such as tcp://172.23.2.1:54321"
    )
    add("--compile", action="store_true", help="compile the network with torch.compile")
    add("--compileContext", default="{}", help="arguments of torch.compile, as a Python dictionary")
    add("--csv-file", default=None, help="append the result here (benchmark_summary.csv)")
    add(
        "--mode",
        choices=("training", "inference"),
        default="training",
        help="training: forward, loss, backward, SGD step; inference: forward alone (training)",
    )
    add("--nhwc", action="store_true", help="use the channels-last memory format")
    add("--opt-step", type=int, default=1, help="iterations for each optimizer step (1)")
    add("--output-dir", default="", help="folder of the CSV and JSON files")
    add("--output-file", default="", help="name of the JSON file, without .json")
    add("--profiler-output", default="", help="name of the trace, without .json (trace<step>)")


def read_options(argv: Sequence[str]) -> MicroOptions:
    """Parse a command line; raises UserError, which names the flag and its value."""
    given = parser().parse_args(argv)
    for flag in ("--batch-size", "--iterations", "--opt-step"):
        _check_count(flag, getattr(given, flag.strip("-").replace("-", "_")))
    compiling = read_context(given.compileContext)
    notes = [f"--compileContext: Inductor no longer has {name}" for name in compiling.ignored]
    if given.compileContext != "{}" and not given.compile:
        notes = ["--compileContext does nothing without --compile"]
    if given.fp16 and (given.amp or given.amp_opt_level):
        notes.append("--fp16 1 overrides --amp and --amp-opt-level")
    values = vars(given) | {
        # Clamped, as ROCm's tool does.
        "flops_prof_step": max(0, min(given.flops_prof_step, given.iterations - 1)),
        "fp16": bool(given.fp16),
        "device_ids": _device_ids(given.device_ids),
        "dist_backend": given.dist_backend and given.dist_backend.lower(),
        "compiling": compiling if given.compile else Compiling(),
        "notes": notes,
    }
    is_launched = who_am_i(os.environ).launcher is not None
    if is_launched:  # its environment variables override these, as in ROCm's tool
        values |= dict.fromkeys(("rank", "world_size", "dist_url"))
    del values["compile"], values["compileContext"]
    options = MicroOptions(**values)
    if options.dist_backend not in (None, "nccl", "gloo"):
        raise UserError(f"--dist-backend is {options.dist_backend!r}; choose nccl or gloo")
    if not is_launched:
        _check_ranks(options)
    return options


def _check_count(flag: str, value: int) -> None:
    if problem := positive(flag)(value):
        raise UserError(problem)


def _device_ids(text: str | None) -> tuple[int, ...]:
    if text is None or not text.strip():
        return ()
    try:
        ids = tuple(int(part) for part in text.split(","))
    except ValueError:
        ids = (-1,)
    if min(ids) < 0 or max(ids) > LARGEST or len(set(ids)) < len(ids):
        raise UserError(
            f"--device_ids is {text!r}; it must be different numbers, counted from 0, such as 0,1"
        )
    return ids


def _check_ranks(options: MicroOptions) -> None:
    """Raise UserError if processes without a launcher could not form a process group."""
    if not options.distributed_dataparallel:
        if len(options.device_ids) > 1:
            raise UserError(
                f"--device_ids names {len(options.device_ids)} devices, but a process uses only "
                "one; start it with torchrun --nproc-per-node "
                f"{len(options.device_ids)} -m bench_lib.micro"
            )
        return
    needed = ("--rank", "--world-size", "--dist-backend", "--dist-url")
    values = (options.rank, options.world_size, options.dist_backend, options.dist_url)
    if missing := [flag for flag, value in zip(needed, values, strict=True) if value is None]:
        raise UserError(
            f"--distributed_dataparallel needs {', '.join(missing)} too; "
            "torchrun --nproc-per-node N -m bench_lib.micro needs none of them"
        )
    assert options.rank is not None
    assert options.world_size is not None
    _check_count("--world-size", options.world_size)
    if not 0 <= options.rank < options.world_size:
        raise UserError(
            f"--rank is {options.rank}; with --world-size {options.world_size} it must be 0 to "
            f"{options.world_size - 1}"
        )


# ---- ranks --------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankPlace:
    """One rank's place among all ranks."""

    rank: int = 0
    local_rank: int = 0
    ranks: int = 1
    share: int = 1
    """Number of ranks that the batch is split over."""
    device_index: int = 0
    backend: str | None = None
    url: str | None = None
    launched: bool = False
    """Whether a launcher started this process."""

    @property
    def is_rank(self) -> bool:
        """Whether it was started as a rank, possibly the only one."""
        return self.ranks > 1 or self.launched

    @property
    def name(self) -> str:
        """``rank 1``; empty if there is only one rank."""
        return f"rank {self.rank}" if self.ranks > 1 else ""

    @property
    def is_first(self) -> bool:
        """Whether this rank prints and writes for all."""
        return self.rank == 0


def place_of(options: MicroOptions, environ: Mapping[str, str]) -> RankPlace:
    """Return the place of a process that starts no others.

    Raises UserError, the same on every rank, if ``--device_ids`` has too few for this host.
    """
    launched = who_am_i(environ)
    if launched.launcher is None:
        index = options.device_ids[0] if options.device_ids else 0
        return RankPlace(device_index=index)
    index = device_index(launched, environ)
    if options.device_ids:
        # Counts all ranks of this host, so that each of them raises the same error.
        needed = max(launched.local_rank + 1, launched.local_ranks or 1)
        if needed > len(options.device_ids):
            raise UserError(
                f"--device_ids names {len(options.device_ids)} devices, but the {needed} ranks of "
                "this host need one each"
            )
        index = options.device_ids[launched.local_rank]
    return RankPlace(
        rank=launched.rank,
        local_rank=launched.local_rank,
        ranks=launched.ranks,
        share=launched.ranks,
        device_index=index,
        backend=options.dist_backend,
        url=None if launched.ranks == 1 else meeting_url(launched, environ),
        launched=True,
    )


def places_here(options: MicroOptions, devices: int) -> list[RankPlace]:
    """Return the places of the processes that ``--distributed_dataparallel`` starts here.

    As in ROCm's tool, ``--rank`` and ``--world-size`` count invocations, each of which has a
    process for each of its devices, and the batch is split over one invocation's devices.
    """
    assert options.rank is not None
    assert options.world_size is not None
    ids = options.device_ids or tuple(range(max(1, devices)))
    return [
        RankPlace(
            rank=options.rank * len(ids) + local_rank,
            local_rank=local_rank,
            ranks=options.world_size * len(ids),
            share=len(ids),
            device_index=index,
            backend=options.dist_backend,
            url=options.dist_url,
            launched=True,
        )
        for local_rank, index in enumerate(ids)
    ]


def batch_of(options: MicroOptions, place: RankPlace) -> int:
    """Return one rank's batch size; raises UserError if the batch cannot be split evenly."""
    own, rest = divmod(options.batch_size, place.share)
    if rest or not own:
        near = [n * place.share for n in (own, own + 1) if n]
        raise UserError(
            f"--batch-size {options.batch_size} cannot be split evenly over {place.share} ranks; "
            f"use {' or '.join(map(str, near))}"
        )
    return own
