"""Bursts below the power cap: on a device that slows down when it has worked for a while."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import (
    make_baseline,
    make_case,
    make_hardware,
    make_measurement,
    make_process,
    make_telemetry,
)
from judging import verdicts_of
from standins.device import Device
from standins.worker import Context, Contexts, Watch, held

from bench_lib.launch.faults import LaunchError
from bench_lib.launch.zygote import PLAIN
from bench_lib.model import IN_BURSTS, Bursts, Calibration, Status
from bench_lib.storage import facts
from bench_lib.verdict.evidence import Evidence
from bench_lib.verdict.metrics import summarise
from bench_lib.worker import bursts
from bench_lib.worker.bursts import at_full_clock, calibrate, in_bursts

FULL_S, CAPPED_S = 1 / 1024, 1 / 512


def capped(lasts_s: float, needs_rest_s: float = 0.0) -> Device:
    return Device(
        work_s=[FULL_S],
        issue_s=[0.0],
        asynchronous=False,
        full_clock_s=lasts_s,
        needs_rest_s=needs_rest_s,
    )


def in_bursts_of(device: Device, found: Bursts, sustained_s: float = CAPPED_S):
    clock: Any = device
    return in_bursts(clock, device.step, found, sustained_s, 200)


# ---- measuring --------------------------------------------------------------------------


def test_a_power_bound_case_is_measured_at_full_clock():
    device = capped(lasts_s=1.0)
    found = in_bursts_of(device, Bursts(8 * CAPPED_S, 0.25))
    assert set(found.iteration_s) == {FULL_S}
    assert len(found.iteration_s) == (bursts.BURSTS - bursts.WARM) * 5  # of eight steps
    assert device.rests == [0.25] * bursts.BURSTS
    assert found.window_s == (1024.0, device.now())


def test_a_case_that_is_no_faster_after_a_rest_is_not_power_bound():
    device = capped(lasts_s=0.0)
    assert in_bursts_of(device, Bursts(8 * CAPPED_S, 0.25)) is None
    assert len(device.rests) == bursts.WARM + 1


def test_a_case_whose_baseline_is_of_bursts_is_measured_so_whatever_it_is():
    device = capped(lasts_s=0.0)
    found = in_bursts_of(device, Bursts(8 * CAPPED_S, 0.25, always=True))
    assert set(found.iteration_s) == {CAPPED_S}


def test_a_step_that_is_longer_than_a_burst_stays_as_it_is():
    device = capped(lasts_s=1.0)
    assert in_bursts_of(device, Bursts(CAPPED_S / 2, 0.25)) is None
    assert device.rests == []


# ---- calibrating ------------------------------------------------------------------------


@pytest.fixture
def multiplies(monkeypatch):
    def run(device: Device) -> Bursts | None:
        monkeypatch.setattr(bursts, "SIZE", 2)
        monkeypatch.setattr(torch, "mm", lambda *_, **__: device.step())
        clock: Any = device
        found = calibrate(clock, torch.device("cpu"))
        assert found.spread == (0.125 if device.disturbed_in else 0.0)
        return found.bursts

    return run


def test_the_burst_ends_well_before_the_controller_acts(multiplies):
    assert multiplies(capped(lasts_s=0.030)) == Bursts(bursts.BURST_S, bursts.RESTS_S[0])


def test_the_rest_is_as_long_as_the_device_needs(multiplies):
    found = multiplies(capped(lasts_s=0.030, needs_rest_s=0.1))
    assert found == Bursts(bursts.BURST_S, 0.12)


def test_a_quick_controller_gets_shorter_bursts(multiplies):
    found = multiplies(capped(lasts_s=0.010))
    assert found.rest_s == bursts.RESTS_S[-1]
    assert found.burst_s == pytest.approx(0.005, abs=2 * FULL_S)


@pytest.mark.parametrize("lasts_s", [0.0, 0.002], ids=["never slows", "slows at once"])
def test_a_device_that_bursts_do_not_help_has_none(multiplies, lasts_s):
    assert multiplies(capped(lasts_s=lasts_s)) is None


def test_the_time_at_full_clock_ends_where_several_steps_are_slow():
    series = [1.1, *[1.0] * 20, 1.5, *[1.0] * 20, *[1.2] * 20]
    full_s, lasts_s = at_full_clock(series)
    assert full_s == 1.0
    assert lasts_s == pytest.approx(1.1 + 40 + 0.5 - 2, abs=1.01)


# ---- which cases ------------------------------------------------------------------------


class Calibrated(Context):
    asked: list[Bursts | None]

    def calibrate(self) -> Calibration:
        self.contexts.log.append("calibrate")
        answer = self.contexts.answer
        if isinstance(answer, LaunchError):
            raise answer
        return Calibration(answer, self.contexts.spread)

    def measure(self, case, asked=PLAIN):
        bursts = asked.bursts
        self.contexts.asked.append(bursts)
        measured = super().measure(case)
        if bursts is None or not (bursts.always or case.id in self.contexts.power_bound):
            return measured
        return replace(measured, sustained_s=0.02, burst_window_s=(5.0, 6.0))


class Station(Contexts):
    def __init__(self, device) -> None:
        super().__init__({}, device)
        self.answer: Any = Bursts(0.01, 0.06)
        self.spread = 0.0
        self.asked: list[Bursts | None] = []
        self.power_bound = {"gemm"}

    def fork(self, *, tries=None):
        made = super().fork(tries=tries)
        return Calibrated(self, made.name)


@pytest.fixture
def station(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    station = Station(make_hardware())
    said: list[str] = []

    def hold(**options):
        settings = {"bursts": True, "say": said.append} | options
        return held(station.device, station, tmp_path, **settings)

    station.hold, station.said = hold, said
    return station


def test_a_case_stays_as_its_first_process_found_it(station):
    one = station.hold(processes=2)
    one.measure(make_case(id="gemm"))
    one.measure(make_case(id="add"))
    found = Bursts(0.01, 0.06)
    assert station.asked == [found, replace(found, always=True), found, None]


@pytest.mark.parametrize("in_bursts", [True, False])
def test_a_case_is_measured_as_its_baseline_was(station, in_bursts):
    before = make_process(states={"latency": "bursts"} if in_bursts else {})
    baseline = make_baseline(processes=[before])
    station.hold(accepted=lambda _case: baseline).measure(make_case(id="gemm"))
    assert station.asked == [Bursts(0.01, 0.06, always=True) if in_bursts else None]


@pytest.mark.parametrize(("bursts", "vendor"), [(False, "amd"), (True, "cpu")])
def test_a_case_that_has_no_bursts_asks_for_no_calibration(station, bursts, vendor):
    station.device = replace(station.device, vendor=vendor)
    station.hold(bursts=bursts).measure(make_case())
    assert station.asked == [None]
    assert "calibrate" not in station.log


def test_a_device_is_calibrated_once_and_remembered(station):
    for _ in range(2):
        one = station.hold()
        one.measure(make_case(id="a"))
        one.measure(make_case(id="b"))
        one.close()
    assert station.log.count("calibrate") == 1


@pytest.mark.parametrize(
    ("seen", "spread", "why"),
    [
        ({"foreign_processes": [41]}, 0.0, "shared with process 41"),
        ({"throttle": ["thermal"], "throttled": {"thermal": 0.5}}, 0.0, "throttled: thermal"),
        ({}, 0.011, "two readings of the full clock differ by 1.1%"),
    ],
    ids=["shared", "throttled", "unsteady"],
)
def test_a_disturbed_calibration_serves_its_run_and_is_not_kept(station, seen, spread, why):
    station.spread = spread
    watch = Watch(make_telemetry(**seen), make_telemetry())
    one = station.hold(watch=lambda _: watch)
    one.measure(make_case(id="gemm"))
    one.close()
    assert station.asked == [Bursts(0.01, 0.06)]
    assert why in station.said[0]
    station.spread = 0.01
    for _ in range(2):
        one = station.hold()
        one.measure(make_case(id="gemm"))
        one.close()
    assert station.log.count("calibrate") == 2


def test_a_device_that_cannot_be_calibrated_is_measured_as_it_is(station):
    station.answer = LaunchError("context could not be calibrated: out of memory")
    for _ in range(2):
        one = station.hold()
        one.measure(make_case(id="gemm"))
        one.close()
    assert station.asked == [None, None]
    assert station.log.count("calibrate") == 2
    assert "out of memory" in station.said[0]


def test_another_driver_or_power_cap_is_another_device(station):
    steady = Calibration(None, 0.001)
    facts.keep_calibration(station.device, "6.10", steady)
    assert facts.calibration_of(station.device, "6.10") == steady
    assert facts.calibration_of(station.device, "6.12") is None
    capped = replace(station.device, power_cap_w=500.0)
    assert facts.calibration_of(capped, "6.10") is None


# ---- clocks -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen_mhz", "expected_mhz"),
    [(1980.0, 1980.0), (300.0, None), (None, None)],
    ids=["working", "only idle looks", "unknown"],
)
def test_the_clock_of_bursts_is_the_highest_that_was_seen(station, seen_mhz, expected_mhz):
    sustained = make_telemetry(clock_mhz=1500.0, power_w=690.0)
    watch = Watch(
        make_telemetry(),  # of calibrating
        sustained,
        make_telemetry(clock_max_mhz=seen_mhz, clock_mhz=300.0),
    )
    (outcome,) = station.hold(watch=lambda _: watch).measure(make_case(id="gemm"))
    (attempt,) = outcome.attempts
    assert attempt.telemetry.clock_mhz == expected_mhz
    assert attempt.telemetry.power_w == 690.0


# ---- judging ----------------------------------------------------------------------------


def in_burst(log_median: float = 0.0, **fields):
    process = make_process(log_median=log_median, **fields)
    values = process.values | {"sustained": process.values["latency"] * 1.2}
    return replace(process, values=values, states={"latency": IN_BURSTS})


def judged(candidate, baseline):
    evidence = Evidence(candidate, replace(make_baseline(), processes=baseline), planned=6)
    return {v.metric: v for v in verdicts_of({"gemm": evidence})["gemm"]}


def test_what_a_process_measured_in_bursts_is_kept_with_the_sustained_time():
    seen = make_measurement(
        iteration_s=[1 / 128] * 20, sustained_s=1 / 64, burst_window_s=(1.0, 2.0)
    )
    telemetry = make_telemetry(power_w=640.0)
    process = summarise(seen, environment="e", time="t", seen=telemetry)
    assert process.in_bursts
    assert process.values["latency"] == 1 / 128
    assert process.values["sustained"] == 1 / 64
    assert process.values["energy"] == 2.5


def test_bursts_are_held_against_bursts():
    found = judged([in_burst()] * 2, [in_burst(x) for x in (-0.001, 0.0, 0.001, 0.0, 0.0)])
    assert found["latency"].status is Status.OK
    assert found["sustained"].tolerance == 0.15


def test_who_shares_the_device_during_bursts_spoils_them(station):
    hot = {"throttle": ["thermal"], "throttled": {"thermal": 0.5}}
    shared = make_telemetry(foreign_processes=[41], **hot)
    watch = Watch(make_telemetry(), make_telemetry(), shared)  # the first is of calibrating
    one = station.hold(watch=lambda _: watch)
    attempt, _ = one.measure(make_case(id="gemm"))[0].attempts
    assert attempt.telemetry.foreign_processes == [41]
    assert attempt.telemetry.throttled == {"thermal": 0.5}
    assert attempt.invalid
