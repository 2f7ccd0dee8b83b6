"""What processes, nights, devices and draws differ by, as a history of known nights tells."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import (
    make_attempt,
    make_case,
    make_hardware,
    make_measurement,
    make_record,
    night,
    write_run,
)
from command import ran
from documents import document_in

from bench_lib.model import Choice, Draw, Launch, Status
from bench_lib.storage.history import Run
from bench_lib.studies.components import FamilyFound, found

CASES = 12
PROCESS, NIGHT, DEVICE = 0.001, 0.004, 0.01
"""Standard deviations that the nights are made with."""


def nights(
    count: int,
    *,
    processes: int = 2,
    devices: int = 1,
    case: dict[str, Any] | None = None,
    about: dict[str, Any] | None = None,
    drawn: bool = False,
    status: Status | None = Status.OK,
    seed: int = 1,
) -> list[Run]:
    """Return runs of twelve cases, a night each, newest first, in turns on some devices.

    With ``drawn`` every other run draws another kernel, by which it is 3% slower.
    """
    rng = random.Random(seed)
    apart = [[rng.gauss(0, DEVICE) for _ in range(CASES)] for _ in range(devices)]
    runs = []
    for number in range(count):
        on, records = number % devices, {}
        for at in range(CASES):
            level = apart[on][at] + rng.gauss(0, NIGHT) + 0.03 * (drawn and number % 2)
            measured = [level + rng.gauss(0, PROCESS) for _ in range(processes)]
            made = make_case(id=f"case-{at}", **(case or {}))
            draw = Draw({"fused": Choice("a" * 64, {"BLOCK": 2 << number % 2})}) if drawn else None
            attempts = [
                make_attempt(
                    process=process,
                    measurement=make_measurement(
                        case_id=made.id,
                        context_id=f"c-{process}",
                        device_uuid=f"GPU-{on}" if devices else None,
                        iteration_s=[0.01 * (1 + x)] * 20,
                        draw=draw,
                        **(about or {}),
                    ),
                )
                for process, x in enumerate(measured)
            ]
            records[made.id] = make_record(case=made, attempts=attempts, status=status)
        started, run_id = night(number + 1), f"{number:08x}"
        runs.append(Run(Path("run"), run_id, "mi300x", started, ended=started, records=records))
    return runs[::-1]


def only(families: list[FamilyFound]) -> FamilyFound:
    """Return the only family."""
    (family,) = families
    return family


def part(family: FamilyFound, name: str) -> Any:
    """Return a family's component."""
    return next(each for each in family.components if each.component == name)


def test_each_component_is_told_from_the_others():
    family = only(found(nights(20)))
    assert (family.family, family.cases, family.processes) == ("networks", CASES, 40)
    assert (family.runs, family.nights, family.devices) == (20, 20, 1)
    process, between = part(family, "process"), part(family, "night")
    assert process.differs_by == pytest.approx(PROCESS, rel=0.3)
    assert between.differs_by == pytest.approx(NIGHT, rel=0.3)
    assert (process.known_from, between.known_from) == (20, 19)
    assert (process.remark, between.remark) == ("", "")


def test_what_a_component_costs_is_what_visible_would_be_less_without_it():
    family = only(found(nights(20)))
    process, between, device = (part(family, name) for name in ("process", "night", "device"))
    assert 0 < process.costs < between.costs < family.visible
    assert between.costs > 0.01
    assert family.visible_on_new_device > family.visible + 0.002
    assert device.costs == pytest.approx(family.visible_on_new_device - family.visible, rel=0.3)


def test_a_device_is_a_guess_until_two_are_known():
    guessed, few, many = (part(only(found(nights(20, devices=n))), "device") for n in (1, 2, 10))
    assert (guessed.differs_by, guessed.known_from) == (0.005, 1)
    assert guessed.remark == "a guess until the runs are on two devices"
    assert few.remark == "half a guess; it is well known from 5 devices on"
    assert (many.known_from, many.remark) == (10, "")
    assert many.differs_by == pytest.approx(DEVICE, rel=0.4)


def test_a_history_that_is_too_short_says_what_is_missing():
    family = only(found(nights(1, processes=1)))
    process, between = part(family, "process"), part(family, "night")
    assert (process.differs_by, process.costs, family.visible) == (None, None, None)
    assert process.remark.endswith("; measure once with --perf-processes 5")
    assert between.differs_by is None
    assert between.remark == "no device has two runs; measure again on another night"
    few = part(only(found(nights(3))), "night")
    assert few.remark == "few; it is well known from 5 runs on a device on"


def test_devices_without_a_uuid_are_not_taken_for_one():
    runs = [_without_uuids(run) for run in nights(6)]
    family = only(found(runs))
    device = part(family, "device")
    assert (family.devices, device.differs_by, device.costs) == (0, None, None)
    assert device.remark == "devices have no uuid here, so one cannot be told from another"
    assert family.visible_on_new_device is None


def _without_uuids(run: Run) -> Run:
    records = {
        name: replace(
            record,
            attempts=[
                replace(a, measurement=replace(a.measurement, device_uuid=None))
                for a in record.attempts
                if a.measurement is not None
            ],
        )
        for name, record in run.records.items()
    }
    return replace(run, records=records)


def test_draws_are_told_from_nights():
    family = only(found(nights(20, case={"params": {"compile_mode": "max-autotune"}}, drawn=True)))
    draw = part(family, "draw")
    assert family.family == "graphs"
    assert part(family, "night").differs_by == pytest.approx(NIGHT, rel=0.4)
    assert draw.differs_by == pytest.approx(0.03 / 2**0.5, rel=0.3)
    assert (draw.costs, draw.known_from, draw.remark) == (0.0, 19 * CASES, "")


def test_where_no_case_drew_twice_draws_are_unknown():
    family = only(found(nights(1, drawn=True)))
    assert part(family, "draw").differs_by is None
    assert part(family, "draw").remark.startswith("no case drew twice")
    assert [each.component for each in only(found(nights(1))).components] == [
        "process",
        "night",
        "device",
    ]


@pytest.mark.parametrize(
    ("case", "about", "family"),
    [
        ({"workload": "operator"}, {}, "operators"),
        ({"launch": Launch(ranks=2)}, {}, "several ranks"),
        ({}, {"host_bound": True}, "host-bound"),
        ({}, {"sustained_s": 0.011}, "power-bound"),
    ],
)
def test_cases_are_sorted_into_families_by_what_limits_them(case, about, family):
    assert only(found(nights(2, case=case, about=about))).family == family


@pytest.mark.parametrize("status", [Status.REGRESSED, Status.SUSPECT, Status.INVALID, None])
def test_a_night_that_was_not_fine_tells_nothing(status):
    assert found(nights(3, status=status)) == []


def test_a_run_that_was_cut_short_tells_nothing():
    assert found([replace(run, ended=None) for run in nights(3)]) == []


def test_two_runs_of_one_evening_are_one_night():
    runs = nights(3)
    late = replace(runs[0], started="2026-01-02T12:00:00Z")
    family = only(found([late, *runs[1:]]))
    assert (family.runs, family.nights) == (3, 2)


# ---- the command ------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Return a function that asks for the components of a folder with some nights."""

    def run(*words, count=2):
        monkeypatch.setattr("bench_lib.backends.detect", lambda: [make_hardware()])
        for number, each in enumerate(reversed(nights(count))):
            write_run(tmp_path / "history", each.records.values(), now=night(number + 1))
        given = ["selfcheck", "--components", "--history", str(tmp_path / "history"), *words]
        return ran(given, monkeypatch, capsys)

    return run


def test_the_command_shows_each_component_with_what_stands_behind_it(command):
    status, out, _ = command()
    lines = out.splitlines()
    assert status == 0
    assert lines[0].split("  ")[0] == "family"
    assert [line.split()[:2] for line in lines[1:2]] == [["networks", "process"]]
    assert "few; it is well known from 5 runs on a device on" in lines[2]
    assert "a guess until the runs are on two devices" in lines[3]
    assert "networks: 12 cases, 4 processes, 2 runs in 1 night on 1 device; visible " in out


def test_the_command_says_the_same_as_json(command):
    status, out, _ = command("--json")
    document = document_in(out)
    assert (status, document["command"]) == (0, "selfcheck --components")
    (family,) = document["families"]
    assert [each["component"] for each in family["components"]] == ["process", "night", "device"]


def test_a_folder_without_runs_of_this_machine_is_named(command):
    status, _, err = command(count=0)
    assert status == 2
    assert "has no run of mi300x that was fine (it has: none at all); measure one with " in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--contexts"], "--contexts and --components exclude each other"),
        (["--effects", "1"], "--effects: --components measures nothing; leave it out"),
        (["resnet50"], "CASE: --components measures nothing"),
    ],
)
def test_what_does_not_go_with_components_is_refused(command, words, message):
    status, _, err = command(*words)
    assert status == 2
    assert message in err
