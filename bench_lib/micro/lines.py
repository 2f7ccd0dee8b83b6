"""Micro's output: a line for each step, and the lines and keys of ROCm's tool and guide."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bench_lib.formulas.roofline import Roofline
from bench_lib.micro.flags import MicroOptions, RankPlace
from bench_lib.model import Measurement
from bench_lib.report.console import rate_of
from bench_lib.verdict.statistics import iterations

if TYPE_CHECKING:
    from torch import Tensor

    from bench_lib.worker.clock import Clock
    from bench_lib.worker.workload import Workload

RULE = "=" * 40
DOES = {
    "training": "training (forward, loss, backward and SGD step; the guide calls it inference, but "
    "its commands train: --mode inference runs only the forward pass)",
    "inference": "inference (only the forward pass, without gradients)",
}
UNSTABLE = "NOT stable: something else ran, or a clock changed; see bench-lib env"
SHOWN = 5
"""Number of warm-up iterations that are printed, as in the workshop's guide."""


# ---- recorded steps ------------------------------------------------------------------------


@dataclass(frozen=True)
class PrintedIteration:
    """One iteration's loss and time, as printed."""

    loss: float
    seconds: float


@dataclass
class Watched:
    """Records losses and times of a workload's steps, with no other work between measured ones."""

    clock: Clock
    training: bool
    keeps_losses: bool
    """Whether a loss has to be copied because the next step overwrites it."""
    entered: Callable[[str], None] = lambda _phase: None
    phase: str = ""
    steps: int = 0
    """Number of warm-up steps, including the first one."""
    warmup_s: list[float] = field(default_factory=list)
    """Seconds of the first ``SHOWN`` steps, each timed on its own."""
    warmup_losses: list[Tensor] = field(default_factory=list)
    """A scalar each; none in inference."""
    losses: list[Tensor] = field(default_factory=list)
    """A scalar for each measured step; none in inference."""
    answer_loss: float = float("nan")
    """Inference: the answer's loss, the same for every iteration."""
    _ask: Callable[[], Tensor | None] = lambda: None

    def enter(self, phase: str) -> None:
        """Record that a new phase of the case begins."""
        self.phase = phase
        if phase == "give way" and not self.training and (loss := self._ask()) is not None:
            self.answer_loss = float(loss)
        self.entered(phase)

    def prepare(self, workload: Workload) -> Workload:
        """Return the workload with a step that records."""
        step, self._ask = workload.step, workload.loss

        def watched_step() -> object:
            if self.phase in ("first step", "warm-up"):
                return self._warming_up(step)
            answer = step()
            if self.phase == "measure":
                self._keep(self.losses)
            return answer

        return replace(workload, step=watched_step)

    def _warming_up(self, step: Callable[[], object]) -> object:
        self.steps += 1
        if self.steps > SHOWN:
            return step()
        begin = self.clock.now()
        answer = step()
        self.clock.synchronize()
        self.warmup_s.append(self.clock.now() - begin)
        self._keep(self.warmup_losses)
        return answer

    def _keep(self, losses: list[Tensor]) -> None:
        if self.training and (loss := self._ask()) is not None:
            losses.append(loss.clone() if self.keeps_losses else loss)

    def iterations(self, tensors: list[Tensor], seconds: list[float]) -> list[PrintedIteration]:
        """Return the iterations of these losses and times, after all are done."""
        losses = [float(loss) for loss in tensors]
        if not self.training:
            losses = [self.answer_loss] * len(seconds)
        return [PrintedIteration(loss, taken) for loss, taken in zip(losses, seconds, strict=False)]


# ---- lines --------------------------------------------------------------------------------


def header(options: MicroOptions, place: RankPlace, batch: int, device: str) -> list[str]:
    """Return the lines that are printed before anything runs."""
    lines = [
        f"Using network: {options.network}",
        f"Batch size: {options.batch_size}",
        f"Iterations: {options.iterations}",
        f"FP16: {options.fp16}",
        f"Mode: {DOES[options.mode]}",
        f"Device: {device}",
    ]
    if options.compiling.mode != "eager":
        lines.append(f"PyTorch Compile: ENABLED (mode={options.compiling.mode})")
    if place.ranks > 1:
        lines += [f"World size: {place.ranks}", f"Local batch size: {batch}"]
    return lines


def before_warmup(options: MicroOptions) -> list[str]:
    """Return the lines before the first step; also in inference, since scripts search for them."""
    lines = ["INFO: running forward and backward for warmup."]
    if options.task == "infer":
        lines.append("INFO: in inference mode that is only the forward pass.")
    if options.compiling.mode != "eager":
        lines.insert(0, "Compiling model... (takes minutes if nothing is cached)")
    return lines


def warming_up(warmup: Sequence[PrintedIteration], steps: int) -> list[str]:
    """Return a line for each printed warm-up iteration out of ``steps``."""
    lines = ["Warming up..."]
    lines += [f"Warmup iteration {i}: {_iteration(one)}" for i, one in enumerate(warmup)]
    if steps > len(warmup):
        lines.append(f"... {steps - len(warmup)} more")
    return [*lines, "Warmup complete.", ""]


def timed(measured: Sequence[PrintedIteration]) -> list[str]:
    """Return a line for each measured iteration."""
    epochs = [f"Epoch {i}: {_iteration(seen)}" for i, seen in enumerate(measured)]
    return ["Running timed iterations...", *epochs]


def _iteration(seen: PrintedIteration) -> str:
    places = 3 if seen.seconds >= 0.01 else 6
    return f"Loss = {seen.loss:.4f}, Time = {seen.seconds:.{places}f} seconds"


def rank_summary(options: MicroOptions, place: RankPlace, seen: Measurement) -> list[str]:
    """Return the summary of one rank, as ROCm's tool prints it."""
    lines = [
        "OK: finished running benchmark..",
        "--------------------SUMMARY--------------------------",
        f"Microbenchmark for network : {options.network}",
    ]
    if place.is_rank:
        lines.append(f"--------This process: rank {place.rank}--------")
    return [*lines, *_summary(options, 1, seen)]


def overall_summary(options: MicroOptions, place: RankPlace, seen: Measurement) -> list[str]:
    """Return the summary of all ranks, as ROCm's tool prints it."""
    heading = "Overall (all ranks) (assuming same num/type devices for each rank)"
    return ["", f"--------{heading}--------", *_summary(options, place.ranks, seen)]


def _summary(options: MicroOptions, devices: int, seen: Measurement) -> list[str]:
    return [
        f"Num devices: {devices}",
        f"Dtype: {options.dtype}",
        f"Mini batch size [img] : {seen.items_per_step}",
        f"Throughput [img/sec] : {rate_of(seen)}",
        f"Time per mini-batch : {seen.wall_s / len(seen.iteration_s)}",
    ]


def result(options: MicroOptions, place: RankPlace, seen: Measurement) -> dict[str, Any]:
    """Return what ROCm's tool writes as JSON and as a row of its CSV."""
    return {
        "Name": options.output_file,
        "GPUs": place.ranks,
        "Mini batch size [img]": seen.items_per_step,
        "Mini batch size [img/gpu]": seen.items_per_step // place.ranks,
        "Throughput [img/sec]": rate_of(seen),
        "Time per mini-batch": seen.wall_s / len(seen.iteration_s),
    }


def performance(
    options: MicroOptions,
    measurement: Measurement,
    measured: Sequence[PrintedIteration],
    *,
    precision: str,
    roofline: Roofline | None,
) -> list[str]:
    """Return the guide's lines below the summary; with several ranks, of the slowest rank."""
    batch, rate, samples = measurement.items_per_step, rate_of(measurement), measurement.iteration_s
    ranks = max(1, len(measurement.per_rank))
    mean, median = statistics.fmean(samples), statistics.median(samples)
    deviation = statistics.stdev(samples) if len(samples) > 1 else 0.0
    slowest, spread = iterations.percentile(samples, 0.99), iterations.spread(samples)
    stable = "stable" if spread <= iterations.TRUST else UNSTABLE
    batches = [f"Global batch size: {batch}", f"Local batch size: {batch // ranks}"]
    if ranks == 1:
        batches = []
    lines = [
        RULE,
        "Performance Summary:",
        RULE,
        f"Network: {options.network}",
        f"Mode: {options.mode}",
        f"Batch size: {options.batch_size}",
        *batches,
        f"Iterations: {len(samples)} (excluding warmup)",
        f"Precision: {precision}",
        "",
        f"Average time per iteration: {mean:.6f} seconds",
        f"Standard deviation: {deviation:.6f} seconds",
        f"Spread: {spread:.2%} of the mean ({stable})",
        f"Latency: median {_digits(median * 1e3)} ms, 99th percentile {_digits(slowest * 1e3)} ms",
        f"Images per second: {rate:.1f}",
        f"Milliseconds per batch: {_digits(mean * 1e3)}",
        f"Microseconds per sample: {_digits(mean * 1e6 / batch)}",
    ]
    if ranks > 1:
        lines.append(f"Images per second and rank: {rate / ranks:.1f}")
    lines += _memory(measurement, rate / ranks)
    lines += _beginning(measurement, median)
    lines += _loss(measurement, measured)
    if measurement.host_bound:
        lines.append("Host-bound: the device waited for Python; a larger batch or --compile helps")
    if roofline is not None:
        lines.append(f"Roofline: {roofline.sentence}")
    lines += [f"Warning: {text}" for text in measurement.warnings]
    return [*lines, RULE]


def _digits(value: float, digits: int = 4) -> str:
    """Format a number with that many digits and no exponent, for scripts: ``12980``."""
    return f"{float(f'{value:.{digits}g}'):.15g}"


def _memory(measurement: Measurement, rate: float) -> list[str]:
    peak = measurement.peak_memory_bytes
    if not peak:
        return ["GPU Memory Usage: unknown on a CPU"]
    return [
        f"GPU Memory Usage: {peak / 1e6:.0f} MB (peak, of the busiest device)",
        f"Images per second per GB: {rate / (peak / 1e9):.1f}",
    ]


def _beginning(measurement: Measurement, median: float) -> list[str]:
    first = measurement.first_step_s
    times = f"{_digits(first / median, 3)} times as long as a later one"
    lines = [f"First iteration: {first:.3f} seconds, {times} ({median:.6f} seconds)"]
    if measurement.compile_s is not None:
        cache = f", caches {measurement.compile_cache}" if measurement.compile_cache else ""
        lines.append(f"Compilation time: {measurement.compile_s:.1f} seconds{cache}")
    return lines


def _loss(measurement: Measurement, measured: Sequence[PrintedIteration]) -> list[str]:
    answer, losses = measurement.numerics, [seen.loss for seen in measured]
    lines = [f"Loss: first {losses[0]:.4f}, last {losses[-1]:.4f}"] if losses else []
    if not all(map(math.isfinite, losses)) or (answer is not None and not answer.finite):
        lines.append("NOT FINITE: the result is meaningless, and GPUs are faster on such data")
    if answer is not None and answer.reference_loss is not None and answer.loss is not None:
        lines.append(f"Loss of FP32 eager on the same images: {answer.reference_loss:.4f}")
    if answer is not None and answer.cosine is not None and answer.max_abs_diff is not None:
        lines.append(
            f"Compared with FP32 eager: largest difference {answer.max_abs_diff:.3g}, cosine "
            f"{answer.cosine:.6f}"
        )
    return lines
