"""This project's metrics, each declared once."""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import partial

from bench_lib.model import Measurement, Numerics, Telemetry
from bench_lib.verdict.metrics.metric import Counts, Metric, Rule
from bench_lib.verdict.statistics.iterations import spread

LATENCY = Metric(
    "latency",
    "median iteration",
    "s",
    lambda seen, _: statistics.median(seen.iteration_s),
    limit="tolerance",
    state=lambda seen: seen.state,
    device_sets=True,
    host_sets=True,
)
"""It leads: its verdict reports a case that cannot be judged at all."""


DEVICE = Metric(
    "device",
    "device time of a host-bound iteration",
    "s",
    lambda seen, _: seen.device_s,
    limit="tolerance",
    # A replayed graph lacks the pauses between kernels that eager steps have, and a sum of
    # kernels all pauses: on an H200 a graph of ResNet-50 took 6% less than its eager steps.
    state=lambda seen: seen.device_source,
    device_sets=True,
    in_place_of_host=True,
)


def _throughput(seen: Measurement, _telemetry: Telemetry | None) -> float | None:
    return seen.items_per_step * len(seen.iteration_s) / seen.wall_s if seen.wall_s > 0 else None


def _energy(seen: Measurement, telemetry: Telemetry | None) -> float | None:
    """Return joules an item, by the mean power of the device; for a die, that of its whole card."""
    if telemetry is None or telemetry.power_w is None or not seen.items_per_step:
        return None
    return telemetry.power_w * _under_load(seen) / seen.items_per_step


def _cpu(seen: Measurement, _telemetry: Telemetry | None) -> float | None:
    """Return CPU seconds a step, of the process and those that it started."""
    begin_s, end_s = seen.window_s
    if seen.cpu_s is None or end_s <= begin_s:
        return None
    return seen.cpu_s / (end_s - begin_s) * _under_load(seen)


def _under_load(seen: Measurement) -> float:
    """Return the median step, in seconds, of the stretch that telemetry watched: never a burst."""
    return seen.sustained_s or statistics.median(seen.iteration_s)


def relative(value: float | None, reference: float | None) -> float | None:
    """Return how far a value is from a reference, as a share of it; None if either is unknown."""
    if value is None or reference is None or reference == 0:
        return None
    return abs(value - reference) / abs(reference)


def _answer(seen: Measurement) -> Numerics | None:
    """Return what is known of an answer that is finite."""
    return seen.numerics if seen.numerics is not None and seen.numerics.finite else None


def _cosine(seen: Measurement, _telemetry: Telemetry | None) -> float | None:
    """Return how far the answer's direction is from FP32's: 0 to 2, without a unit."""
    answer = _answer(seen)
    return None if answer is None or answer.cosine is None else max(0.0, 1 - answer.cosine)


def _loss(seen: Measurement, _telemetry: Telemetry | None) -> float | None:
    """Return how far the loss is from FP32's, as a share of it."""
    answer = _answer(seen)
    return None if answer is None else relative(answer.loss, answer.reference_loss)


def _gradients(seen: Measurement, _telemetry: Telemetry | None) -> float | None:
    """Return how far the gradients' norm is from FP32's, as a share of it."""
    answer = _answer(seen)
    return None if answer is None else relative(answer.grad_norm, answer.reference_grad_norm)


def _exact(name: str, seen: Measurement, _telemetry: Telemetry | None) -> float | None:
    """Return a count of a step; one that changed is named beside the time (``verdict.exact``)."""
    return seen.exact.get(name)


COSINE = Metric(
    *("cosine", "1 - cosine to FP32", "1", _cosine, Rule.THRESHOLD),
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
        state=lambda seen: seen.state,
        device_sets=True,
        host_sets=True,
    ),
    Metric(
        # The device's controller decides it, so that runs differ by up to 15%.
        *("sustained", "median iteration under the power cap", "s"),
        lambda seen, _: seen.sustained_s,
        tolerance=0.15,
        host_sets=True,
    ),
    Metric(
        *("stability", "spread of a process's iterations", ""),
        lambda seen, _: spread(seen.iteration_s),
        Rule.THRESHOLD,
        limit="spread",
        bound=lambda evidence: evidence.most_spread,
        host_sets=True,
    ),
    Metric(
        *("memory", "peak device memory", "B"),
        lambda seen, _: None if seen.peak_memory_bytes is None else float(seen.peak_memory_bytes),
        Rule.THRESHOLD,
        allowance=4 * 2**20,  # the allocator rounds
    ),
    Metric(
        *("compile_time", "compile time", "s"),
        lambda seen, _: seen.compile_s,
        Rule.THRESHOLD,
        allowance=5.0,
        counts=Counts.LEAST,
        state=lambda seen: seen.compile_cache,
        first_look=True,
    ),
    Metric(
        # Every process begins with empty caches, so their times vary by chance as steps' do.
        # On an H200 starts of a compiled ResNet-50 differed by 6 to 11%.
        *("first_step", "time to the first step from cold caches", "s"),
        lambda seen, _: seen.first_step_s,
        tolerance=0.1,
        first_look=True,
        cold_only=True,
    ),
    Metric(
        *("finite", "finite answer", "1"),
        lambda seen, _: None if seen.numerics is None else float(seen.numerics.finite),
        Rule.EXACT,
        more_is_better=True,
        tolerance=0.0,
        assumed=1.0,
        told_as="numerics",
        worse="the answer holds infinities or NaN; the baseline's did not",
        better="the answer is finite; the baseline's was not",
    ),
    *(
        Metric(
            *(name, label, "1", partial(_exact, name), Rule.EXACT),
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
    replace(COSINE, name="loss", label="loss or size off FP32's", of=_loss, floor=0.01),
    replace(
        COSINE, name="gradients", label="gradients' norm off FP32's", of=_gradients, floor=0.05
    ),
    Metric(
        # Judged only on request: a neighbour on the same card draws power too.
        *("energy", "energy per item", "J", _energy),
    ),
    Metric("enqueue", "host time to issue a step", "s", lambda seen, _: seen.enqueue_s),
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
