"""One rank: measures the case that the flags stand for, looks into it, and prints."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.util
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from bench_lib.axes import case_of, network_axes
from bench_lib.launch.ranks import fold
from bench_lib.micro import lines
from bench_lib.micro.flags import Options
from bench_lib.micro.places import Place, batch_of
from bench_lib.micro.steps import Iteration, Watched
from bench_lib.model import Case, Device, Measurement, Sampling, UserError
from bench_lib.station import disturbance
from bench_lib.worker import capture, layers
from bench_lib.worker.clock import clock_of
from bench_lib.worker.device import AUTOCAST, compile_cache_state, forget_compiled, open_device
from bench_lib.worker.launches import compare_streams
from bench_lib.worker.measure import LEAST_WARMUP_STEPS, Context, measure
from bench_lib.worker.ranks import Group, about_rank, joined
from bench_lib.worker.workload import Setting, UnsupportedError, Workload
from bench_lib.worker.workloads import build
from bench_lib.worker.workloads.compilation import arguments_of, records_graphs
from bench_lib.worker.workloads.networks import AUXILIARY
from bench_lib.worker.workloads.registry import SEED_NAMES, networks

SIZE = 224
"""Pixels of ROCm's tool's images, whatever the network; inception_v3 alone has 299."""


class NotMeasuredError(Exception):
    """The flags can be meant, and this device or this torch cannot do it; says why."""


@dataclass
class Seen:
    """What a rank saw."""

    place: Place
    case: Case
    device: Device
    measurement: Measurement
    warmup: list[Iteration]
    measured: list[Iteration]
    outcomes: list[dict[str, Any]]
    """Every rank's."""
    captured: list[str] = field(default_factory=list)

    @property
    def warmup_steps(self) -> int:
        """Steps before the measured ones, the first included."""
        return 1 + self.measurement.warmup_iterations

    @property
    def classes(self) -> int:
        """What the network tells apart."""
        return networks()[str(self.case.params["network"])].outputs

    @property
    def auxiliary(self) -> float:
        """What auxiliary heads add to the main one's loss, as a fraction."""
        if self.case.params["task"] == "infer":
            return 0.0
        return AUXILIARY.get(str(self.case.params["network"]), 0.0)

    @property
    def folded(self) -> Measurement:
        """The measurement of all ranks: a step takes as long as its slowest one's."""
        measurement = fold(self.outcomes) if self.place.ranks > 1 else self.measurement
        return dataclasses.replace(measurement, operations_s=self.measurement.operations_s)


def case_from(options: Options, place: Place, fp32: str) -> Case:
    """Return the suite's case that the flags stand for; raises UserError."""
    name = SEED_NAMES.get(options.network, options.network)
    known = networks()
    if name not in known:
        near = _nearest(options.network, [*known, *SEED_NAMES])
        raise UserError(f"--network is {options.network!r}, and there is no such; {near}")
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
        iterations=options.iterations, max_iterations=options.iterations, measure_s=1e-9
    )
    axes = network_axes({name: about.image_size for name, about in known.items()})
    return case_of(axes, values, Case(id="", workload="", sampling=sampling))


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"there are {len(known)}, such as resnet50, vit_b_16 and fcn_resnet50"


def plain_fp32(device: torch.device) -> str:
    """Return what torch means by FP32 on a device as long as nobody tells it otherwise."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "fp32"
    major, _ = torch.cuda.get_device_capability(device)
    return "tf32-conv" if major >= 8 else "fp32"


def run(
    options: Options,
    place: Place,
    say: Callable[[str], None],
    give_way: Callable[[], None] = lambda: None,
) -> Seen:
    """Measure on this rank; raises UserError, NotMeasuredError, and whatever else goes wrong."""
    device, seen = _opened(place)
    case = case_from(options, place, plain_fp32(device))
    _check_compiler(options)
    if options.flops_prof_step and importlib.util.find_spec("deepspeed") is None:
        raise UserError("--flops-prof-step needs DeepSpeed; pip install deepspeed")
    if place.is_first:
        for text in options.remarks:
            say(f"NOTE: {text}")
    _say(say, lines.header(options, place, int(case.params["batch_size"]), _in_words(device, seen)))
    group = _met(place, device, say)
    clock, setting = clock_of(device), Setting(device, place.rank, place.local_rank, place.ranks)
    launches = compare_streams(device)

    def look() -> tuple[Measurement, Watched]:
        watched = Watched(
            clock,
            training=options.task == "train",
            keeps_losses=_writes_over_losses(options),
            entered=lambda phase: _on_phase(phase, options, say),
        )
        context = Context(
            setting=setting,
            clock=clock,
            context_id=f"rank-{place.rank}" if place.ranks > 1 else f"micro-{os.getpid()}",
            device_uuid=seen.uuid,
            launches=launches,
            phase=watched.enter,
            agree=group.agree,
            cache_state=compile_cache_state,
            prepare=watched.prepare,
            give_way=give_way,
            forget=forget_compiled,
        )
        return measure(case, context), watched

    try:
        measurement, watched = look()
        cause = disturbance(measurement)
        if group.agree(float(cause is not None)):
            say(f"INFO: measuring once more: {cause or 'another rank was disturbed'}")
            measurement, watched = look()
    except UnsupportedError as reason:
        raise NotMeasuredError(f"this cannot be measured here: {reason}") from reason
    except ValueError as error:  # torch's own, such as batch norm over a single value
        raise NotMeasuredError(f"{case.id} cannot be run: {error}") from error
    except torch.OutOfMemoryError as error:
        raise NotMeasuredError(
            f"out of memory with {case.params['batch_size']} images on {seen.name}; take a "
            "smaller --batch-size (bench-lib exercise largest-batch finds the largest)"
        ) from error
    passes = Passes(options, place, say)
    passes.run(case, setting)
    measurement = dataclasses.replace(measurement, operations_s=passes.operations_s)
    outcome = {"measurement": dataclasses.asdict(measurement), **about_rank(setting, seen)}
    outcomes = group.gathered(outcome)
    group.leave()
    clock.release()  # others may be measured on this device while this process is there
    return Seen(
        place=place,
        case=case,
        device=seen,
        measurement=measurement,
        warmup=watched.warmup(measurement.first_step_s),
        measured=watched.measured(measurement.iteration_s),
        outcomes=outcomes,
        captured=passes.lines,
    )


def _writes_over_losses(options: Options) -> bool:
    """Whether a step's loss lies in a graph, where the next step's will be."""
    mode, text = options.compiling.mode, options.compiling.options
    return mode == "graph" or records_graphs(mode, text)


def _opened(place: Place) -> tuple[torch.device, Device]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count and place.device_index >= count:
        raise UserError(
            f"rank {place.rank} is to use device {place.device_index}, and there are {count} "
            "(0 is the first); start fewer ranks, or name others with --device_ids"
        )
    if not count and place.backend == "nccl":
        raise UserError("--dist-backend nccl needs GPUs, and there are none; take gloo")
    return open_device(place.device_index)


def _check_compiler(options: Options) -> None:
    """Have wrong options found out now, and not minutes later inside the compiler."""
    mode = options.compiling.mode
    if mode in ("eager", "graph"):
        return
    try:
        arguments = arguments_of(mode, options.compiling.options)
    except ValueError as error:
        raise UserError(f"--compileContext: {error}") from error
    backend = arguments.get("backend", "inductor")
    from torch import _dynamo

    known = _dynamo.list_backends(exclude_tags=())
    if backend not in known:
        raise UserError(f"--compileContext: no backend {backend!r}; there is {', '.join(known)}")


def _in_words(device: torch.device, seen: Device) -> str:
    if device.type == "cuda":
        return f"{device} ({seen.name})"
    return "cpu: torch sees no GPU here, and the figures are the CPU's"


def _met(place: Place, device: torch.device, say: Callable[[str], None]) -> Group:
    if not place.is_rank:
        return Group()
    say("Initializing process group...")
    try:
        group = joined(device, place.ranks, backend=place.backend, url=place.url, rank=place.rank)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"the ranks cannot meet: {error}") from error
    say("Rendezvous complete. Created process group...")
    say(
        f"INFO: Rank {place.rank} running distributed_dataparallel on devices: "
        f"[{place.device_index}]"
    )
    return group


def _on_phase(phase: str, options: Options, say: Callable[[str], None]) -> None:
    if phase == "first step":
        if options.compiling.mode != "eager":
            say("Compiling model... (minutes where nothing is cached)")
        what = "forward and backward" if options.task == "train" else "forward"
        say(f"INFO: running {what} for warmup.")
    if phase == "measure":
        say("INFO: running the benchmark..")


class Passes:
    """The profiled passes that the flags ask for, over the case built anew.

    Apart from the measurement: a profiler that was there once costs every launch.
    """

    def __init__(self, options: Options, place: Place, say: Callable[[str], None]) -> None:
        """Do nothing yet."""
        self._options = options
        self._place = place
        self._say = say
        self.lines: list[str] = []
        self.operations_s: dict[str, float] = {}

    def run(self, case: Case, setting: Setting) -> None:
        """Build the case and run them; what goes wrong is a line, and nothing is lost for it."""
        options = self._options
        passes = [
            look
            for wanted, look in (
                (options.autograd_profiler, self._autograd),
                (options.kineto, self._kineto),
                (options.flops_prof_step > 0, self._flops),
            )
            if wanted
        ]
        if not passes:
            return
        try:
            workload = build(case, setting)
            for _ in range(LEAST_WARMUP_STEPS):
                workload.step()
        except (RuntimeError, UnsupportedError) as error:
            self._failed(error)
            return
        for look in passes:
            self._try(look, workload)

    def _try(self, look: Callable[[Workload], None], workload: Workload) -> None:
        try:
            look(workload)
        except (RuntimeError, OSError, UserError) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        first = str(error).strip().partition("\n")[0]
        self.lines.append(f"Not profiled: {type(error).__name__}: {first}")

    def _autograd(self, workload: Workload) -> None:
        n = self._options.iterations
        if torch.cuda.is_available():
            self._say(f"INFO: running {n} iterations more, with a range for every operation")
            with capture.ranges():
                for _ in range(n):
                    workload.step()
        if (variable := capture.external_profiler()) is not None:
            self.lines.append(f"No tables: a profiler listens already ({variable}), and two cannot")
            return
        captured = capture.tabled(workload.step, n)
        self.operations_s = captured.operations_s
        self.lines += ["", lines.RULE, "PyTorch Profiler Results:", lines.RULE]
        for title, table in captured.tables.items():
            self.lines += ["", f"{title}:", table]

    def _kineto(self, workload: Workload) -> None:
        options, place = self._options, self._place
        suffix = f"_rank{place.rank}" if place.ranks > 1 else ""
        self._say("INFO: running iterations more under the profiler")

        def name(step: int) -> str:
            return f"{options.profiler_output or f'trace{step}'}{suffix}.json"

        captured = capture.traced(workload.step, options.iterations, name)
        self.operations_s = captured.operations_s or self.operations_s
        self.lines += ["", "----------- Trace Ready -----------", *captured.tables.values()]
        if captured.trace is not None:
            where = captured.trace.resolve()
            self.lines.append(f"Trace of {captured.steps} iterations: {where} (ui.perfetto.dev)")

    def _flops(self, workload: Workload) -> None:
        options, found = self._options, workload.layers()
        assert found is not None
        network, batch = found
        dtype = AUTOCAST.get(options.precision("fp32"))

        def autocast() -> contextlib.AbstractContextManager[Any]:
            if dtype is None:
                return contextlib.nullcontext()
            return torch.autocast(batch.device.type, dtype=dtype)

        self._say("INFO: profiling one iteration more, layer by layer")
        profile = layers.profile(
            network,
            batch,
            training=options.task == "train",
            autocast=autocast,
            profile_step=options.flops_prof_step,
            ranks=self._place.ranks,
        )
        text = io.StringIO()
        layers.print_profile(profile, text)
        if options.compiling.mode != "eager":
            self.lines.append("NOTE: the layers are those of the network before it was compiled")
        self.lines += ["", text.getvalue()]


def _say(say: Callable[[str], None], texts: list[str]) -> None:
    for text in texts:
        say(text)


def printer(place: Place, *, to_stderr: bool) -> Callable[[str], None]:
    """Return what prints a line of this rank, with its number where there are several."""
    stream = sys.stderr if to_stderr else sys.stdout
    prefix = f"[GPU {place.rank}] " if place.ranks > 1 else ""

    def say(text: str) -> None:
        # One write for a line, so that ranks do not write into each other's.
        stream.write(f"{prefix}{text}\n" if text else "\n")
        stream.flush()

    return say
