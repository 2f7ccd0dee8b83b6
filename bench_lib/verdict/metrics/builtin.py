"""This project's metrics, each declared once."""

from __future__ import annotations

import statistics
from dataclasses import replace

from bench_lib.model import Measurement, Numerics, Telemetry
from bench_lib.verdict.metrics.metric import Counts, Metric, Rule
from bench_lib.verdict.statistics.iterations import spread

LATENCY = Metric(
    "latency",
    "median iteration",
    "s",
    lambda m, _: statistics.median(m.iteration_s),
    limit="tolerance",
    state=lambda m: m.state,
    device_sets=True,
    host_sets=True,
)

DEVICE = Metric(
    "device",
    "device time of a host-bound iteration",
    "s",
    lambda m, _: m.device_s,
    limit="tolerance",
    # A replayed graph lacks the pauses between kernels that eager steps have, and a sum of
    # kernels all pauses: on an H200 a graph of ResNet-50 took 6% less than its eager steps.
    state=lambda m: m.device_source,
    device_sets=True,
    in_place_of_host=True,
)


def _throughput(measurement: Measurement, _telemetry: Telemetry | None) -> float | None:
    if measurement.wall_s <= 0:
        return None
    return measurement.items_per_step * len(measurement.iteration_s) / measurement.wall_s


def _energy(measurement: Measurement, telemetry: Telemetry | None) -> float | None:
    """Return joules an item, by the mean power of the device; for a die, that of its whole card."""
    if telemetry is None or telemetry.power_w is None or not measurement.items_per_step:
        return None
    return telemetry.power_w * _under_load(measurement) / measurement.items_per_step


def _cpu(measurement: Measurement, _telemetry: Telemetry | None) -> float | None:
    """Return CPU seconds a step, of the process and those that it started."""
    begin_s, end_s = measurement.window_s
    if measurement.cpu_s is None or end_s <= begin_s:
        return None
    return measurement.cpu_s / (end_s - begin_s) * _under_load(measurement)


def _under_load(measurement: Measurement) -> float:
    """Return the median step, in seconds, of the stretch that telemetry watched: never a burst."""
    return measurement.sustained_s or statistics.median(measurement.iteration_s)


def relative(value: float | None, reference: float | None) -> float | None:
    """Return how far a value is from a reference, as a share of it; None if either is unknown."""
    if value is None or reference is None or reference == 0:
        return None
    return abs(value - reference) / abs(reference)


def _answer(measurement: Measurement) -> Numerics:
    """Return the numerics of a finite answer; nothing is known of another one."""
    numerics = measurement.numerics
    return numerics if numerics is not None and numerics.finite else Numerics(finite=False)


COSINE = Metric(
    *("cosine", "1 - cosine to FP32", "1"),
    lambda m, _: None if (cosine := _answer(m).cosine) is None else max(0.0, 1 - cosine),
    Rule.THRESHOLD,
    tolerance=9.0,
    floor=1e-5,
    counts=Counts.WORST,
    told_as="numerics",
)
"""A distance from FP32, which may grow tenfold above a floor of rounding."""


METRICS = (
    LATENCY,
    DEVICE,
    Metric(
        *("throughput", "items by the wall clock", "1/s", _throughput),
        more_is_better=True,
        state=lambda m: m.state,
        device_sets=True,
        host_sets=True,
    ),
    Metric(
        # The device's controller decides it, so that runs differ by up to 15%.
        *("sustained", "median iteration under the power cap", "s"),
        lambda m, _: m.sustained_s,
        tolerance=0.15,
        host_sets=True,
    ),
    Metric(
        *("stability", "spread of a process's iterations", ""),
        lambda m, _: spread(m.iteration_s),
        Rule.THRESHOLD,
        limit="spread",
        bound=lambda evidence: evidence.most_spread,
        host_sets=True,
    ),
    Metric(
        *("memory", "peak device memory", "B"),
        lambda m, _: None if m.peak_memory_bytes is None else float(m.peak_memory_bytes),
        Rule.THRESHOLD,
        allowance=4 * 2**20,  # the allocator rounds
    ),
    Metric(
        *("compile_time", "compile time", "s"),
        lambda m, _: m.compile_s,
        Rule.THRESHOLD,
        allowance=5.0,
        counts=Counts.LEAST,
        state=lambda m: m.compile_cache,
        first_look=True,
    ),
    Metric(
        # Every process begins with empty caches, so their times vary by chance as steps' do.
        # On an H200 starts of a compiled ResNet-50 differed by 6 to 11%.
        *("first_step", "time to the first step from cold caches", "s"),
        lambda m, _: m.first_step_s,
        tolerance=0.1,
        first_look=True,
        cold_only=True,
    ),
    Metric(
        *("finite", "finite answer", "1"),
        lambda m, _: None if m.numerics is None else float(m.numerics.finite),
        Rule.EXACT,
        more_is_better=True,
        tolerance=0.0,
        assumed=1.0,
        told_as="numerics",
        worse="the output contains infinities or NaN; the baseline's did not",
        better="the output is finite; the baseline's was not",
    ),
    *(
        Metric(  # one that changed is named beside the time (``verdict.exact``)
            *(name, label, "1", lambda m, _, name=name: m.exact.get(name), Rule.EXACT),
            worse=f"more {label}",
            better=f"fewer {label}",
        )
        for name, label in {
            "kernels": "kernels, copies and fills a step",
            "graph_breaks": "graph breaks",
            "recompilations": "recompilations",
        }.items()
    ),
    COSINE,
    replace(
        COSINE,
        name="loss",
        label="error of the loss or size against FP32",
        of=lambda m, _: relative(_answer(m).loss, _answer(m).reference_loss),
        floor=0.01,
    ),
    replace(
        COSINE,
        name="gradients",
        label="error of the gradient norm against FP32",
        of=lambda m, _: relative(_answer(m).grad_norm, _answer(m).reference_grad_norm),
        floor=0.05,
    ),
    Metric(
        # Judged only on request: a neighbour on the same card draws power too.
        *("energy", "energy per item", "J", _energy),
    ),
    Metric("enqueue", "host time to issue a step", "s", lambda m, _: m.enqueue_s),
    Metric("cpu", "CPU time of the host in a step", "s", _cpu),
)


FIRST_TOKEN = Metric("first_token", "time to the first token", "s")
"""From sending a request to its first token."""
BETWEEN_TOKENS = Metric("between_tokens", "time between tokens", "s")
"""From one piece of an answer to the next; a piece is several tokens with speculative decoding."""
PER_TOKEN = Metric("per_token", "time per output token", "s")
"""A request's time after its first token, divided by its other tokens."""
OUTPUT_RATE = Metric("output_rate", "output tokens a second", "1/s", more_is_better=True)
"""All requests together."""
TOKEN_RATE = Metric("token_rate", "tokens a second", "1/s", more_is_better=True)
"""All requests together, prompts and answers."""
SERVING = (FIRST_TOKEN, BETWEEN_TOKENS, PER_TOKEN, OUTPUT_RATE, TOKEN_RATE)
"""What other programs' files hold, and no measurement of ours."""
