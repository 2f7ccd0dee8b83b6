"""The flags of ``micro_benchmarking_pytorch.py``, and our own; a test freezes the former."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from bench_lib.cases.axes import LARGEST, positive
from bench_lib.launch.launchers import who_am_i
from bench_lib.micro.compiling import Compiling, read_context
from bench_lib.micro.files import check_file, part_of
from bench_lib.micro.output import cut, listed, nearest, shown
from bench_lib.model import UserError

APEX_LEVELS = {
    1: ("amp-fp16", "O1 is torch.amp's autocast"),
    2: ("amp-fp16", "O2, FP16 with master weights in FP32, is torch.amp's autocast most nearly"),
    3: ("fp16", "O3 is pure FP16, which is --fp16 1 with batch norms in FP16 too"),
}
"""The precision for each of apex.amp's levels, and why; level 0 is off."""
AMP = "AMP: PyTorch Native Automatic Mixed Precision"
SHORTEST = {
    "--amp": "--am",
    "--autograd_profiler": "--au",
    "--batch-size": "--b",
    "--help": "--h",
}
"""Flags that could be cut down to so much before there were others that begin like them."""
ALL_HERE = "--distributed_dataparallel"
DEPENDENT = {
    "--compile": ("--compileContext",),
    "--kineto": ("--profiler-output",),
    "--judge": ("--baselines",),
    ALL_HERE: ("--rank", "--world-size", "--dist-backend", "--dist-url"),
}
"""Flags that do nothing without another, by that other."""
OVERRULED = ("--rank", "--world-size", "--dist-url")
"""Flags that a launcher's variables override, as in ROCm's tool."""
_FLAG = re.compile(r"--?[A-Za-z]")
BASELINES = Path("baselines")
URL = re.compile(r"tcp://[^/\s]+:[0-9]{1,5}(\?.*)?|(file|env)://\S*")
"""Addresses where ranks can meet, as in torch."""


@dataclass(frozen=True)
class MicroOptions:
    """A command line that can be meant."""

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
    judge: bool = False
    baselines: Path = BASELINES
    json: bool = False
    check: bool = True
    """Whether the answer is held against FP32 eager's, and FLOPs are counted."""
    again: bool = True
    """Whether a disturbed measurement is made once more."""
    remarks: list[str] = field(default_factory=list)
    """Departures from the request, to be printed before anything is measured."""

    @property
    def kept(self) -> bool:
        """Whether it goes into a history, and is measured as the suite measures."""
        return self.history is not None

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
        """The file that a line is appended to, as ROCm's tool calls it."""
        return self.csv_file or f"{self.output_dir or '.'}/benchmark_summary.csv"

    @property
    def csv(self) -> Path:
        """The file that a line is appended to."""
        return Path(self.csv_name)

    @property
    def result(self) -> Path | None:
        """The JSON file; none without a name for it."""
        if not self.output_file:
            return None
        return Path(self.output_dir or ".", f"{self.output_file}.json")

    def precision(self, fp32: str) -> str:
        """Return the case's precision; ``fp32`` is what torch means by it on this device."""
        if self.fp16:
            return "fp16-bn32"
        if self.amp:
            return "amp-fp16"
        return APEX_LEVELS[self.amp_opt_level][0] if self.amp_opt_level else fp32


class _Parser(argparse.ArgumentParser):
    words: Sequence[str] = ()
    """The words to parse."""

    def error(self, message: str) -> NoReturn:
        message = cut(message, 300)
        if message.startswith(("the following arguments are required", "unrecognized")):
            message = self._unknown() or message
        raise UserError(f"{message}; bench-lib micro --help lists the flags")

    def _unknown(self) -> str:
        """Name the first unknown flag, with the nearest; empty if all are known."""
        known = list(self._option_string_actions)
        for word in self.words:
            flag = word.partition("=")[0]
            if flag == "--":
                break
            if _FLAG.match(flag) and not any(other.startswith(flag) for other in known):
                hint = nearest(flag, known, 1).rstrip("?")
                return f"unrecognized arguments: {cut(flag)}{hint and '; '}{hint}"
        return ""


def parser() -> _Parser:
    """Return the parser; the first group is frozen."""
    made = _Parser(
        prog="bench-lib micro",
        description="ROCm's micro_benchmarking_pytorch.py, measured as the suite measures. "
        "Trains unless told --mode inference.",
    )
    _add_their_flags(made.add_argument_group("flags of micro_benchmarking_pytorch.py"))
    _add_our_flags(made.add_argument_group("kept and judged"))
    return made


def _add_their_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--network", required=True, help="network to run")
    add("--batch-size", type=int, default=64, help="images, split over the ranks (64)")
    add("--iterations", type=int, default=20, help="measured iterations (20)")
    add(
        "--flops-prof-step",
        type=int,
        default=0,
        help="profile FLOPs by layer with DeepSpeed at this iteration (0: not at all)",
    )
    add("--kineto", action="store_true", help="write a Chrome trace for each rank")
    add(
        "--autograd_profiler",
        "--autograd-profiler",
        action="store_true",
        help="emit a range for every operation, for external profilers, and print tables",
    )
    add("--fp16", type=int, choices=(0, 1), default=0, help="halve the network (0)")
    add("--amp", action="store_true", help="autocast to FP16, with gradient scaling")
    add(
        "--amp-opt-level",
        type=int,
        choices=range(4),
        default=0,
        help="APEX's levels, as torch.amp has them (0: off)",
    )
    add(
        "--distributed_dataparallel",
        action="store_true",
        help="start a process for each device here; torchrun is simpler",
    )
    add("--device_ids", default=None, help="devices by number, such as 0,1")
    add("--rank", type=int, default=None, help="number of this invocation among all")
    add("--world-size", type=int, default=None, help="how many invocations there are")
    add("--dist-backend", default=None, help="nccl or gloo")
    add("--dist-url", default=None, help="where they meet, such as tcp://172.23.2.1:54321")
    add("--compile", action="store_true", help="torch.compile the network")
    add("--compileContext", default="{}", help="its arguments, as a Python dictionary")
    add("--csv-file", default=None, help="append the result here (benchmark_summary.csv)")
    add(
        "--mode",
        choices=("training", "inference"),
        default="training",
        help="training: forward, loss, backward, SGD step; inference: forward alone (training)",
    )
    add("--nhwc", action="store_true", help="channels last")
    add("--opt-step", type=int, default=1, help="iterations for each optimizer step (1)")
    add("--output-dir", default="", help="folder of the CSV and JSON files")
    add("--output-file", default="", help="name of the JSON file, without .json")
    add("--profiler-output", default="", help="name of the trace, without .json (trace<step>)")


def _add_our_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--history", type=Path, metavar="DIR", help="keep the run (--judge: in history)")
    add("--judge", action="store_true", help="hold it against the baseline; exit 1 if it fails")
    add(
        "--baselines",
        type=Path,
        metavar="DIR",
        default=BASELINES,
        help="folder of baseline files, for --judge (baselines)",
    )
    add("--json", action="store_true", help="print JSON; the lines go to stderr")
    add(
        "--check",
        action="store_true",
        help="hold the answer against FP32 eager, count FLOPs (a run that is kept always does)",
    )
    add(
        "--again",
        action="store_true",
        help="measure once more if something disturbed it (a run that is kept always does)",
    )


def read_options(words: Sequence[str]) -> MicroOptions:
    """Read a command line; raises UserError, which names the flag and its value."""
    made = parser()
    made.words = [_spelt_out(word) for word in words]
    given = made.parse_args(made.words)
    for flag in ("--batch-size", "--iterations", "--opt-step"):
        _counts(flag, getattr(given, _name(flag)))
    compiling = read_context(given.compileContext)
    given.compileContext = given.compileContext.strip() or "{}"  # as without the flag
    step, on_step = _profiled_step(given.flops_prof_step, given.iterations)
    launcher = who_am_i(os.environ).launcher
    remarks = [
        *(compiling.remarks if given.compile else []),
        *_on_precision(given),
        *on_step,
        *_idle(given, launcher),
    ]
    if given.opt_step > 1 and given.mode == "inference":
        remarks.append(f"--opt-step {given.opt_step} does nothing in inference")
    history = given.history or (Path("history") if given.judge else None)
    told = vars(given) | {
        "flops_prof_step": step,
        "fp16": bool(given.fp16),
        "device_ids": _device_ids(given.device_ids),
        "dist_backend": given.dist_backend and given.dist_backend.lower(),
        "compiling": compiling if given.compile else Compiling(),
        "history": history,
        "check": given.check or history is not None,
        "again": given.again or history is not None,
    }
    if launcher is not None:
        if overruled := _said(given, OVERRULED):
            verb = "is" if len(overruled) == 1 else "are"
            remarks.append(f"{listed(overruled)} {verb} as {launcher} has it, and not as given")
        told |= dict.fromkeys(map(_name, OVERRULED))
    del told["compile"], told["compileContext"]
    options = MicroOptions(**told, remarks=remarks)
    _check_ranks(options)
    _check_files(options)
    return options


def _idle(given: argparse.Namespace, launcher: str | None) -> list[str]:
    """Say which flags do nothing, since another is not there."""
    remarks = []
    for needed, flags in DEPENDENT.items():
        said = _said(given, flags)
        is_launched = needed == ALL_HERE and launcher is not None
        if said and not getattr(given, _name(needed)) and not is_launched:
            verb = "does" if len(said) == 1 else "do"
            remarks.append(f"{listed(said)} {verb} nothing without {needed}")
    return remarks


def _said(given: argparse.Namespace, flags: Sequence[str]) -> list[str]:
    """Return which of these flags have another value than without them."""
    usual = parser().parse_args(["--network", ""])
    return [flag for flag in flags if getattr(given, _name(flag)) != getattr(usual, _name(flag))]


def _name(flag: str) -> str:
    return flag.strip("-").replace("-", "_")


def _spelt_out(word: str) -> str:
    flag, given, value = word.partition("=")
    for whole, shortest in SHORTEST.items():
        if flag.startswith(shortest) and whole.startswith(flag):
            return f"{whole}{given}{value}"
    return word


def _counts(flag: str, value: int) -> None:
    if problem := positive(flag)(value):
        raise UserError(cut(problem, 300))


def _profiled_step(asked: int, iterations: int) -> tuple[int, list[str]]:
    step = max(0, min(asked, iterations - 1))
    if step == asked:
        return step, []
    where = "before the first" if asked < 0 else "past the last"
    what = f"profiled is {step}"
    if step == 0:
        what = "nothing is profiled" + ("" if asked < 0 else ": have more --iterations")
    said = f"--flops-prof-step {cut(str(asked))}"
    return step, [f"{said} is {where} of {iterations} iterations; {what}"]


def _on_precision(given: argparse.Namespace) -> list[str]:
    remarks = []
    if given.fp16 and (given.amp or given.amp_opt_level):
        flag = "--amp" if given.amp else "--amp-opt-level"
        remarks.append(f"--fp16 1 halves the network already; {flag} does nothing beside it")
    elif given.amp and given.amp_opt_level:
        remarks.append(f"--amp is autocast; --amp-opt-level {given.amp_opt_level} adds nothing")
    elif given.amp_opt_level:
        precision, why = APEX_LEVELS[given.amp_opt_level]
        remarks.append(f"--amp-opt-level {given.amp_opt_level}: {why} ({precision})")
    return remarks


def _device_ids(text: str | None) -> tuple[int, ...]:
    if text is None or not text.strip():
        return ()
    try:
        ids = tuple(int(part) for part in text.split(","))
    except ValueError:
        ids = (-1,)
    if min(ids) < 0 or max(ids) > LARGEST or len(set(ids)) < len(ids):
        raise UserError(
            f"--device_ids is {shown(text)}; it has to be different numbers from 0 on, such as 0,1"
        )
    return ids


def _check_ranks(options: MicroOptions) -> None:
    if (options.rank is None) != (options.world_size is None):
        here, missing = ("--world-size", "--rank")
        if options.world_size is None:
            here, missing = missing, here
        raise UserError(f"{here} is given and {missing} is not; one says nothing without the other")
    if options.world_size is not None and options.rank is not None:
        _counts("--world-size", options.world_size)
        if not 0 <= options.rank < options.world_size:
            raise UserError(
                f"--rank is {cut(str(options.rank))}; of --world-size {options.world_size} there "
                f"are the ranks 0 to {options.world_size - 1}"
            )
    if options.dist_backend not in (None, "nccl", "gloo"):
        raise UserError(f"--dist-backend is {shown(options.dist_backend)}; there is nccl, gloo")
    if who_am_i(os.environ).launcher is not None:
        return  # it says it all
    if options.distributed_dataparallel:
        missing_flags = [f for f in DEPENDENT[ALL_HERE] if getattr(options, _name(f)) is None]
        if missing_flags:
            raise UserError(
                f"{ALL_HERE} needs {', '.join(missing_flags)} too; "
                "torchrun --nproc-per-node N -m bench_lib.micro needs none of them"
            )
        if not URL.fullmatch(options.dist_url or ""):
            raise UserError(
                f"--dist-url is {shown(options.dist_url)}; it has to be the host and the port of "
                "the first rank, such as tcp://172.23.2.1:54321, or file:// or env://"
            )
    elif len(options.device_ids) > 1:
        raise UserError(
            f"--device_ids names {len(options.device_ids)} devices, and one process uses one; "
            "start it with torchrun --nproc-per-node "
            f"{len(options.device_ids)} -m bench_lib.micro"
        )


def _check_files(options: MicroOptions) -> None:
    """Have it found out before measuring that a result could not be written."""
    with contextlib.suppress(OSError):  # which the check of the files names
        Path(options.output_dir).mkdir(parents=True, exist_ok=True)
    files = [options.csv]
    if options.result is not None:
        files += [options.result, part_of(options.result)]
    if options.kineto:
        files.append(Path(f"{options.profiler_output or 'trace'}.json"))
    for file in files:
        check_file(file)
