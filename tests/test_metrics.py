"""Metrics that are a row."""

from __future__ import annotations

import pytest
from bench_lib.verdict.metrics.figures import Figure, figures_of, judged
from builders import make_measurement, make_process, make_telemetry

from bench_lib.model import Status
from bench_lib.verdict.metrics import figures

HEAT = Figure("heat", "heat a step", "J", lambda _, __: 2.0, limit=0.1, allowance=1.0)


def test_energy_is_power_by_time_and_unknown_without_either():
    """Twenty iterations of 1/128 s at 640 W."""
    seen = make_telemetry(power_w=640.0)
    assert figures_of(make_measurement(), seen)["energy"] == 5.0
    assert "energy" not in figures_of(make_measurement(), None)
    assert "energy" not in figures_of(make_measurement(), make_telemetry(power_w=None))


@pytest.mark.parametrize("enqueue_s", [None, 0.0])
def test_a_figure_that_is_not_known_is_not_kept(enqueue_s):
    """Nor is nothing, which has no logarithm."""
    assert "enqueue" not in figures_of(make_measurement(enqueue_s=enqueue_s), None)


def heats(*values):
    """Return a process for each figure."""
    return [make_process(figures={"heat": value}) for value in values]


@pytest.mark.parametrize(
    ("value", "status"),
    [(12.0, Status.OK), (12.1, Status.REGRESSED), (8.0, Status.OK), (7.9, Status.IMPROVED)],
)
def test_a_figure_with_a_limit_is_held_against_the_baselines_range(monkeypatch, value, status):
    """The middle process, by a tenth and one joule beyond 10 J on either side."""
    monkeypatch.setattr(figures, "FIGURES", (HEAT,))
    [verdict] = judged(heats(1.0, value, 99.0), heats(10.0))
    assert (verdict.status, verdict.metric, verdict.value) == (status, "heat", value)
    assert verdict.reason == f"heat a step: {value:.4g} J (10 J in the baseline)"


def test_what_one_side_does_not_know_or_no_limit_holds_is_not_judged(monkeypatch):
    """A baseline from before the row says nothing of it."""
    assert judged(heats(1.0), heats(9.0)) == []
    monkeypatch.setattr(figures, "FIGURES", (HEAT,))
    assert judged(heats(1.0), [make_process()]) == []
    assert judged([make_process()], heats(1.0)) == []
