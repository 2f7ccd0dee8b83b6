"""One rank: measure the case that the flags describe, profile it, and print."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from bench_lib.cases.axes import case_of, network_axes, one_of
from bench_lib.formats import many
from bench_lib.launch.ranks import fold
from bench_lib.micro import lines
from bench_lib.micro.flags import MicroOptions, RankPlace, batch_of
from bench_lib.micro.lines import PrintedIteration, Watched
from bench_lib.model import Case, Device, Measurement, Sampling, UserError
from bench_lib.worker import layers, profiling
from bench_lib.worker.clock import clock_of
from bench_lib.worker.device import autocast, open_device
from bench_lib.worker.measure import LEAST_WARMUP_STEPS, MeasuringContext, measure
from bench_lib.worker.process import kind_of
from bench_lib.worker.ranks import RankGroup, about_rank, joined
from bench_lib.worker.workload import Setting, UnsupportedError, Workload
from bench_lib.worker.workloads import build
from bench_lib.worker.workloads.compilation import arguments_of, records_graphs
from bench_lib.worker.workloads.registry import ROCM_NAMES, networks

SIZE = 224
"""Image size in ROCm's tool, in pixels, for all networks except inception_v3 (299)."""


class NotMeasuredError(Exception):
    """The flags are valid, but this device or torch cannot run them; says why."""


def first_line(error: BaseException) -> str:
    """Return an exception's first line, with the next one if the first ends with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return f"{lines[0]} {lines[1]}" if lines[0].endswith(":") and lines[1:] else lines[0]


@dataclass
class RankSeen:
    """The results of one rank."""

    place: RankPlace
    case: Case
    device: Device
    measurement: Measurement
    measured: list[PrintedIteration]
    outcomes: list[dict[str, Any]]
    """All ranks' results."""
    captured: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Why profiles failed."""

    @property
    def folded(self) -> Measurement:
        """The measurement of all ranks: a step takes as long as on the slowest rank."""
        return fold(self.outcomes) if self.place.ranks > 1 else self.measurement


def case_from(options: MicroOptions, place: RankPlace, fp32: str) -> Case:
    """Return the suite's case that the flags describe; raises UserError."""
    name = ROCM_NAMES.get(options.network, options.network)
    known = networks()
    if problem := one_of("network", list(known))(name):
        raise UserError(f"--network: {problem}")
    size = known[name].image_size if name.startswith("inception") else SIZE
    values: dict[str, Any] = {
        "network": name,
        "batch_size": batch_of(options, place),
        "precision": options.precision(fp32),
        "memory_format": "nhwc" if options.nhwc else "nchw",
        "image_size": 0 if size == known[name].image_size else size,
        "compile_mode": options.compiling.mode,
        "compile_options": options.compiling.options,
        "task": options.task,
        "optimizer_every": options.opt_step if options.task == "train" else 1,
        "ranks": place.ranks,
    }
    sampling = Sampling(
        iterations=options.iterations,
        max_iterations=options.iterations,
        measure_s=1e-9,
        checks=options.history is not None,
    )
    if options.history is None:  # ROCm's tool sleeps that long before it measures
        sampling = dataclasses.replace(sampling, warmup_max_s=1.0)
    axes = network_axes({name: about.image_size for name, about in known.items()})
    return case_of(axes, values, Case(id="", workload="", sampling=sampling))


def plain_fp32(device: torch.device) -> str:
    """Return the precision that torch uses by default for FP32 on a device."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "fp32"
    major, _ = torch.cuda.get_device_capability(device)
    return "tf32-conv" if major >= 8 else "fp32"


def check_compiling(options: MicroOptions, place: RankPlace) -> None:
    """Raise UserError for what this torch lacks, now rather than minutes into compiling."""
    case_from(options, place, "fp32")
    if options.flops_prof_step and importlib.util.find_spec("deepspeed") is None:
        raise UserError("--flops-prof-step needs DeepSpeed; pip install deepspeed")
    if options.compiling.mode in ("eager", "graph"):
        return
    try:
        arguments = arguments_of(options.compiling.mode, options.compiling.options)
    except ValueError as error:
        raise UserError(f"--compileContext: {error}") from error
    from torch import _dynamo

    known = _dynamo.list_backends(exclude_tags=())
    if problem := one_of("backend", known)(arguments.get("backend", "inductor")):
        raise UserError(f"--compileContext: {problem}")


def run(options: MicroOptions, place: RankPlace, say: Callable[[str], None]) -> RankSeen:
    """Measure on this rank; raises UserError, NotMeasuredError, and any unexpected error."""
    device, seen = _opened(place)
    case = case_from(options, place, plain_fp32(device))
    name, notes = f"{device} ({seen.name})", options.notes
    if device.type != "cuda":
        name = "cpu (torch sees no GPU here, so the CPU is measured)"
        if options.dtype != "FP32":
            notes = [*notes, "on most CPUs FP16 takes many times as long as FP32"]
    if place.is_first:
        _say(say, [f"NOTE: {note}" for note in notes])
    _say(say, lines.header(options, place, int(case.params["batch_size"]), name))
    group = _met(place, device, say)
    with _not_measured(case, seen):
        clock = clock_of(device)
        setting = Setting(device, place.rank, place.local_rank, place.ranks)
        context = MeasuringContext(
            setting=setting,
            clock=clock,
            context_id=f"rank-{place.rank}" if place.ranks > 1 else f"micro-{os.getpid()}",
            device_uuid=seen.uuid,
            agree=group.agree,
            brief=options.history is None,
        )
        measured, printed = _measured(options, case, context, say)
    passes = Passes(options, place, say)
    passes.run(case, setting)
    outcome = {"measurement": dataclasses.asdict(measured), **about_rank(setting)}
    with _not_measured(case, seen):
        outcomes = group.gathered(outcome)
    group.leave()
    clock.release()  # other cases may run on this device while this process lives
    return RankSeen(
        place=place,
        case=case,
        device=seen,
        measurement=measured,
        measured=printed,
        outcomes=outcomes,
        captured=passes.lines,
        failed=passes.failed,
    )


@contextlib.contextmanager
def _not_measured(case: Case, seen: Device) -> Iterator[None]:
    """Turn torch's errors into a NotMeasuredError with a one-line message."""
    try:
        yield
    except UserError:
        raise
    except UnsupportedError as reason:
        raise NotMeasuredError(f"this cannot be measured here: {reason}") from reason
    except (RuntimeError, ValueError, ImportError, MemoryError) as error:
        if kind_of(error) == "out of memory":
            raise NotMeasuredError(
                f"out of memory with {case.params['batch_size']} images on {seen.name}; use a "
                "smaller --batch-size (bench-lib exercise largest-batch finds the largest)"
            ) from error
        raise NotMeasuredError(f"{case.id} cannot be run: {first_line(error)}") from error


def _measured(
    options: MicroOptions, case: Case, context: MeasuringContext, say: Callable[[str], None]
) -> tuple[Measurement, list[PrintedIteration]]:
    """Measure a case and print each iteration; also returns the measured iterations."""

    def entered(phase: str) -> None:
        if phase == "first step":
            _say(say, lines.before_warmup(options))
        if phase == "give way":
            warmup = watched.iterations(watched.warmup_losses, watched.warmup_s)
            _say(say, lines.warming_up(warmup, watched.steps))
        if phase == "measure":
            say("INFO: running the benchmark..")

    mode, text = options.compiling.mode, options.compiling.options
    watched = Watched(
        context.clock,
        training=options.task == "train",
        # A graph's next step writes its loss to the same memory.
        keeps_losses=mode == "graph" or records_graphs(mode, text),
        entered=entered,
    )
    watching = dataclasses.replace(context, phase=watched.enter, prepare=watched.prepare)
    measurement = measure(case, watching)
    measured = watched.iterations(watched.losses, measurement.iteration_s)
    _say(say, lines.timed(measured))
    return measurement, measured


def _opened(place: RankPlace) -> tuple[torch.device, Device]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count and place.device_index >= count:
        raise UserError(
            f"rank {place.rank} needs device {place.device_index}, but there are {count}, counted "
            "from 0; start fewer ranks, or name other devices with --device_ids"
        )
    if not count and place.backend == "nccl":
        raise UserError("--dist-backend nccl needs GPUs, and there are none; use gloo")
    try:
        return open_device(place.device_index)
    except RuntimeError as error:
        why = f"device {place.device_index} cannot be opened: {first_line(error)}"
        raise NotMeasuredError(why) from error


def _met(place: RankPlace, device: torch.device, say: Callable[[str], None]) -> RankGroup:
    if not place.is_rank:
        return RankGroup()
    say("Initializing process group...")
    try:
        group = joined(device, place.ranks, backend=place.backend, url=place.url, rank=place.rank)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"the rendezvous of the ranks failed: {first_line(error)}") from error
    say("Rendezvous complete. Created process group...")
    say(
        f"INFO: Rank {place.rank} running distributed_dataparallel on devices: "
        f"[{place.device_index}]"
    )
    return group


@dataclass
class Passes:
    """The profiled passes that the flags request, on a newly built case.

    They run after the measurement, since a profiler slows every later launch.
    """

    options: MicroOptions
    place: RankPlace
    say: Callable[[str], None]
    lines: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def run(self, case: Case, setting: Setting) -> None:
        """Build the case and run the passes; an error becomes a line and loses no results."""
        options = self.options
        passes = [self._autograd] if options.autograd_profiler else []
        passes += [self._kineto] if options.kineto else []
        passes += [self._flops] if options.flops_prof_step else []
        if not passes:
            return
        self.say("INFO: building the network again, to profile it")
        with self._trying():
            workload = build(case, setting)
            for _ in range(LEAST_WARMUP_STEPS):
                workload.step()
            for profile in passes:
                with self._trying():
                    profile(workload)

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the measurement must not be lost
            why = f"{type(error).__name__}: {first_line(error)}"
            self.lines.append(f"Not profiled: {why}")
            self.failed.append(f"not profiled: {why}")

    def _autograd(self, workload: Workload) -> None:
        n = self.options.iterations
        if torch.cuda.is_available():
            self.say(f"INFO: running {n} more iterations, with a range for every operation")
            ranges: Any = torch.autograd.profiler.emit_nvtx  # on AMD they are ROCTX's
            with ranges():
                for _ in range(n):
                    workload.step()
        if (variable := profiling.external_profiler()) is not None:
            self.lines.append(f"No tables: another profiler is attached already ({variable})")
            return
        tables = profiling.tabled(workload.step, n)
        self.lines += ["", lines.RULE, "PyTorch Profiler Results:", lines.RULE]
        for title, table in tables.items():
            self.lines += ["", f"{title}:", table]

    def _kineto(self, workload: Workload) -> None:
        options, place = self.options, self.place
        suffix = f"_rank{place.rank}" if place.ranks > 1 else ""
        self.say("INFO: running more iterations under the profiler")

        def name(step: int) -> str:
            return f"{options.profiler_output or f'trace{step}'}{suffix}.json"

        steps, table, trace = profiling.traced(workload.step, options.iterations, name)
        self.lines += ["", "----------- Trace Ready -----------", table]
        self.lines.append(
            f"Trace of {many(steps, 'iteration')}: {trace.resolve()} (ui.perfetto.dev)"
        )

    def _flops(self, workload: Workload) -> None:
        options, network_and_batch = self.options, workload.layers()
        assert network_and_batch is not None
        network, batch = network_and_batch
        self.say("INFO: profiling one more iteration, layer by layer")
        text = layers.profile(
            network,
            batch,
            training=options.task == "train",
            autocast=lambda: autocast(options.precision("fp32"), batch.device),
            profile_step=options.flops_prof_step,
            ranks=self.place.ranks,
        )
        if options.compiling.mode != "eager":
            self.lines.append("NOTE: the layers are those of the network before it was compiled")
        self.lines += ["", lines.RULE, "DeepSpeed FLOPS Profiler Output:", lines.RULE, text]


def _say(say: Callable[[str], None], texts: list[str]) -> None:
    for text in texts:
        say(text)
