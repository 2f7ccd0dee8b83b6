"""Operators far below what is physically healthy are errors, with or without a baseline."""

from __future__ import annotations

import contextlib
import json
import lzma
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import make_case, make_hardware, make_measurement, make_telemetry
from standins.worker import Contexts, Watch, held

from bench_lib.engine.settings import Outcome
from bench_lib.formulas import floor
from bench_lib.model import Case, Hardware, Measurement

MI300X = make_hardware(
    key="mi300x", peak_tflops={"fp16": 1307.4, "fp32": 163.4}, peak_gb_per_s=5300.0
)


FLOPS = 2.0 * 8192**3
MOVED = 3 * 2 * 8192**2
GATES = [Path(__file__).parent / f"recorded/h200-gate-{n}.jsonl.xz" for n in (1, 2)]


def gemm(step_s: float, **changes: Any) -> Measurement:
    about = {
        "iteration_s": [step_s] * 20,
        "flops_per_step": FLOPS,
        "least_bytes_per_step": MOVED,
        "host_bound": False,
        **changes,
    }
    return make_measurement(**about)


def case(shape: str = "8192-8192-8192", precision: str = "fp16", op: str = "gemm") -> Case:
    return make_case(workload="operator", params={"op": op, "shape": shape, "precision": precision})


def seconds_at(share: float) -> float:
    return FLOPS / 1307.4e12 / share


def test_a_product_at_one_percent_of_the_peak_says_so() -> None:
    problem = floor.problem(case(), gemm(seconds_at(0.01)), MI300X)
    assert problem is not None
    assert "84.1 ms a step is 1.0% of the peak compute of mi300x" in problem
    assert "a healthy gemm reaches 17.0%" in problem
    assert "clock that is stuck" in problem


@pytest.mark.parametrize(("share", "is_fine"), [(0.51, True), (0.18, True), (0.16, False)])
def test_a_floor_is_a_third_of_what_is_published(share: float, is_fine: bool) -> None:
    assert (floor.problem(case(), gemm(seconds_at(share)), MI300X) is None) is is_fine


@pytest.mark.parametrize(("share", "is_fine"), [(0.1, True), (0.07, True), (0.06, False)])
def test_a_product_that_memory_binds_has_the_floor_of_memory(share: float, is_fine: bool) -> None:
    rows, size = 16, 8192
    moved = 2 * (2 * rows * size + size**2)
    seconds = moved / 5300e9 / share
    skinny = gemm(seconds, flops_per_step=2.0 * rows * size**2, least_bytes_per_step=moved)
    problem = floor.problem(case("16-8192-8192"), skinny, MI300X)
    assert (problem is None) is is_fine
    assert is_fine or "a healthy gemm that memory binds reaches 6.7%" in str(problem)


@pytest.mark.parametrize(
    ("this", "measurement", "device"),
    [
        (
            case(),
            gemm(1.0),
            make_hardware(key="amd-gfx942-74ff", peak_tflops={}, peak_gb_per_s=None),
        ),
        (case(precision="fp8"), gemm(1.0), MI300X),
        (case(), gemm(1.0, host_bound=True, device_s=None), MI300X),
        (case("64-64-64"), gemm(1e-3, flops_per_step=5e5, least_bytes_per_step=24576), MI300X),
        (case(op="copy_h2d"), gemm(1.0, flops_per_step=None), MI300X),
        (make_case(workload="network", params={"precision": "fp16"}), gemm(1.0), MI300X),
    ],
    ids=["no peaks", "no peak of it", "host-bound", "launches", "host's link", "network"],
)
def test_what_has_no_floor_is_never_below_it(
    this: Case, measurement: Measurement, device: Hardware
) -> None:
    assert floor.problem(this, measurement, device) is None


@pytest.mark.parametrize("path", GATES, ids=["first", "second"])
def test_no_case_of_a_recorded_gate_is_below_its_floor(path: Path) -> None:
    device, checked = None, set()
    with lzma.open(path, "rt") as lines:
        for line in map(json.loads, lines):
            if line["kind"] == "environment":
                device = msgspec.convert(line["hardware"], Hardware, strict=False)
            if line["kind"] == "attempt" and line["attempt"].get("measurement"):
                this = msgspec.convert(line["case"], Case)
                seen = msgspec.convert(line["attempt"]["measurement"], Measurement)
                assert device is not None
                assert floor.problem(this, seen, device) is None, this.id
                checked.add(this.params.get("op"))
    assert {"gemm", "conv2d", "sdpa", "add", "batch_norm"} <= checked


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (make_telemetry(), "floor"),
        (None, "floor"),
        (make_telemetry(throttle=["thermal"], throttled={"thermal": 1.0}), None),
    ],
    ids=["calm", "not watched", "hot"],
)
def test_a_case_below_its_floor_is_an_error_without_a_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Any, kind: str | None
) -> None:
    slow = gemm(seconds_at(0.01))
    monkeypatch.setattr("standins.worker.Context.measure", lambda *_: slow)
    one = held(MI300X, Contexts({}, MI300X), tmp_path, watch=lambda _: Watch(seen), cool_s=0)
    with contextlib.closing(one):
        outcome = one.measure(case())[0]
    assert (outcome.fault and outcome.fault.kind) == kind
    assert not outcome.attempts[-1].accepted


def measured_in_turn(
    monkeypatch: pytest.MonkeyPatch, folder: Path, device: Hardware, *shares: float
) -> Outcome:
    answers = [gemm(seconds_at(share)) for share in shares]
    monkeypatch.setattr("standins.worker.Context.measure", lambda *_: answers.pop(0))
    with contextlib.closing(held(device, Contexts({}, device), folder, cool_s=0)) as one:
        outcome = one.measure(case())[0]
    assert not answers
    return outcome


def test_a_case_is_below_its_floor_only_if_it_is_so_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = measured_in_turn(monkeypatch, tmp_path, MI300X, 0.01, 0.5)
    assert again.fault is None
    assert [attempt.accepted for attempt in again.attempts] == [False, True]
    assert "1.0% of the peak compute of mi300x" in (again.attempts[0].discarded or "")
    assert not again.attempts[0].invalid
    twice = measured_in_turn(monkeypatch, tmp_path, MI300X, 0.01, 0.02)
    assert [attempt.fault is None for attempt in twice.attempts] == [True, False]
    assert twice.fault is not None
    assert "2.0% of the peak compute" in twice.fault.message
