"""Showing measured samples in pytest-benchmark, through the clock that it lets a test choose.

A clock that advances by one recorded sample per round makes pytest-benchmark's table,
JSON, comparison and histogram hold what the worker measured.
"""

from __future__ import annotations

import contextlib
import statistics
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from bench_lib.engine.outcome import Outcome
from bench_lib.model import Measurement
from bench_lib.report import console
from bench_lib.verdict.metrics.summary import summarise


class ReplayClock:
    """A timer for pytest-benchmark: each pair of readings is one recorded sample apart."""

    def __init__(self) -> None:
        """Start without samples; they come when the case has been measured."""
        self.samples: Sequence[float] = ()
        self._readings = 0
        self._now = 0.0

    def __call__(self) -> float:
        """Return the time, in seconds since the first reading."""
        if self._readings % 2:
            self._now += self.samples[self._readings // 2]
        self._readings += 1
        return self._now

    def __repr__(self) -> str:
        """Name the clock as pytest-benchmark's JSON shows it."""
        return "bench_lib replay of the worker's samples"


class DisplayWarning(UserWarning):
    """A measurement that pytest-benchmark does not show."""


FIXTURE = "benchmark"
CLOCK = pytest.StashKey[ReplayClock]()


def is_on(config: pytest.Config) -> bool:
    """Whether pytest-benchmark is there and measures; under xdist it switches itself off."""
    distributed = config.getoption("dist", "no") != "no" or hasattr(config, "workerinput")
    return config.pluginmanager.hasplugin("benchmark") and not distributed


def prepare(item: pytest.Item) -> None:
    """Give an item its clock; the marker has to be there before the fixture is set up."""
    clock = item.stash[CLOCK] = ReplayClock()
    item.add_marker(pytest.mark.benchmark(timer=clock, disable_gc=False, warmup=False))


@contextlib.contextmanager
def shown_as_benchmarks(items: Sequence[pytest.Item]) -> Iterator[None]:
    """Let pytest-benchmark see these items as its own while it selects.

    Afterwards the fixture is asked for only when there are samples: one that is set up and
    not used is reported as a mistake.
    """
    lists: list[list[str]] = [item.fixturenames for item in items]  # type: ignore[attr-defined]  # items that are functions
    added = [names for names in lists if FIXTURE not in names]
    for names in added:
        if FIXTURE not in names:  # items of one function share their list
            names.append(FIXTURE)
    try:
        yield
    finally:
        for names in added:
            if FIXTURE in names:
                names.remove(FIXTURE)


def replay(request: pytest.FixtureRequest, outcome: Outcome) -> None:
    """Let the benchmark fixture run through the first accepted attempt's samples.

    Whatever goes wrong there is a warning, also in a suite that makes errors of warnings.
    """
    accepted = [a.measurement for a in outcome.attempts if a.accepted and a.measurement]
    clock = request.node.stash.get(CLOCK, None)
    if clock is None or clock.samples or not accepted:
        return
    measurement = accepted[0]
    clock.samples = measurement.iteration_s
    try:
        benchmark: Any = request.getfixturevalue(FIXTURE)
        benchmark.extra_info.update(extra_info(measurement, outcome))
        benchmark.pedantic(_nothing, rounds=len(measurement.iteration_s))
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001 - as said above
        words = f"pytest-benchmark does not show this case: {type(error).__name__}: {error}"
        with warnings.catch_warnings():
            warnings.simplefilter("always", DisplayWarning)
            warnings.warn(words, DisplayWarning, stacklevel=2)


def _nothing() -> None:
    return None


def _metrics(measurement: Measurement, outcome: Outcome) -> dict[str, float]:
    """Return every metric's value, by name."""
    accepted = next(each for each in outcome.attempts if each.measurement is measurement)
    return summarise(
        measurement,
        environment=accepted.environment,
        time=accepted.time,
        seen=accepted.telemetry,
        cold=outcome.case.launch.cold,
    ).values


def extra_info(measurement: Measurement, outcome: Outcome) -> dict[str, Any]:
    """Return what pytest-benchmark has no column for; in its JSON and in exports."""
    precision = str(outcome.case.params.get("precision", ""))
    return {
        "hardware": outcome.hardware.key,
        f"{measurement.item}_per_s": console.rate_of(measurement),
        "median_s": statistics.median(measurement.iteration_s),
        "peak_memory_bytes": measurement.peak_memory_bytes,
        "compile_s": measurement.compile_s,
        "first_step_s": measurement.first_step_s,
        "host_bound": measurement.host_bound,
        "parameters": measurement.parameters,
        "metrics": _metrics(measurement, outcome),
        "efficiency": console.shares_of_peak(measurement, outcome.hardware, precision),
    }
