"""What failures have in common: their device, since when, and the cause."""

import datetime as dt
from dataclasses import replace

import builders
import nights
import pytest

from bench_lib.model import Quarantine, Status
from bench_lib.report import console
from bench_lib.report.findings import causes, device, onset


def gpu(number):
    return {
        "index": number,
        "bdf": f"0000:{0x10 + number:02x}:00.0",
        "uuid": f"GPU-{number:04d}",
        "key": "mi325x",
        "name": "AMD Instinct MI325X",
    }


def on(number, status=Status.OK, name="resnet50"):
    case = nights.make_case(name, 1 + number)
    hardware = replace(nights.MI300X, **gpu(number))
    make = {Status.ERROR: nights.error, Status.INVALID: nights.invalid}.get(status)
    if make is None:
        return nights.make_entry(case, status=status, hardware=hardware)
    return make(case, hardware=hardware)


def eight(*broken, status=Status.ERROR):
    return nights.make_night(
        [
            on(number, status if number in broken else Status.OK, name)
            for name in ("resnet50", "vit_b_16")
            for number in range(8)
        ]
    )


def test_a_failure_s_gpu_is_named_where_there_are_several():
    night = eight(3)
    assert device(night, night.entries[3]) == "mi325x, GPU 3 (0000:13:00.0)"
    assert device(nights.make_night(), nights.make_entry()) == "mi300x"


# --- since when ------------------------------------------------------------------------------


def test_without_a_change_point_what_changed_is_told_from_the_last_ok_night_on():
    points = nights.make_points(10, steps=[(9, 1.08)], last=Status.REGRESSED)
    entry = nights.make_entry(status=Status.REGRESSED, ratio=1.08, points=points)
    known = {nights.OLD_ENVIRONMENT: builders.make_environment(), nights.ENVIRONMENT: nights.AFTER}
    night = nights.make_night([entry], environments=known)
    began = onset(night, entry)
    assert (began.since, entry.last_good) == (nights.stamp()[:10], points[-2])
    assert "rocm 7.0.1 -> 7.1.0" in began.changes


def test_what_failed_in_all_nights_that_are_known_may_have_failed_before():
    points = [replace(p, status=Status.REGRESSED) for p in nights.make_points(4)]
    entry = nights.make_entry(status=Status.REGRESSED, ratio=1.08, points=points)
    night = nights.make_night([entry])
    assert onset(night, entry).since == "2026-11-17 or before"
    first = replace(entry, points=points[-1:])
    assert ", since" not in causes(nights.make_night([first]))[0].title


def test_the_project_s_own_code_comes_last_of_what_changed():
    entry = nights.regressed()
    moved = replace(entry.moved[0], environment=["commit a -> b", *nights.UPGRADE])
    entry = replace(entry, moved=[moved])
    night = nights.make_night([entry])
    assert onset(night, entry).changes == [*nights.UPGRADE, "commit a -> b"]
    torch, *others = nights.UPGRADE
    assert f" after {torch} and {len(others) + 1} more, " in causes(night)[0].title


# --- causes ----------------------------------------------------------------------------------


def _blaming(name, network, ratio):
    entry = nights.regressed(nights.make_case(network), ratio)
    return replace(entry, record=replace(entry.record, blamed=[name]))


def test_failures_are_grouped_by_first_bad_run_and_kind_of_kernel():
    gemms = [_blaming("GEMM: A → B", "a", 1.02), _blaming("GEMM: C → D", "b", 1.2)]
    other = _blaming("convolution: E → F", "c", 1.1)
    earlier = _blaming("GEMM: A → B", "d", 1.3)
    earlier = replace(earlier, moved=[replace(earlier.moved[0], run_id="00000009")])
    night = nights.make_night([earlier, other, *gemms])
    found = causes(night)
    assert [cause.entries for cause in found] == [gemms[::-1], [earlier], [other]]
    assert found[0].blamed == "GEMM C → D and 1 more"
    assert found[0].title.startswith("2 cases: GEMM C → D and 1 more after torch 2.9.0+rocm7.0")
    assert found[0].title.endswith(", since 2026-11-18, up to 20.0% slower")
    assert len({cause.name for cause in found}) == 3


def test_errors_that_differ_in_numbers_alone_have_one_cause():
    words = "out of memory in build: 17 MiB at 0x7f00"
    entries = [nights.error(nights.make_case(name)) for name in ("a", "b", "c")]
    for at, text in enumerate((words, words.replace("17", "19"), "died in measure: SIGABRT")):
        verdict = replace(entries[at].record.verdicts[0], reason=text)
        record = replace(entries[at].record, verdicts=[verdict])
        entries[at] = replace(entries[at], record=record, points=[])
    found = causes(nights.make_night(entries))
    assert [len(cause.entries) for cause in found] == [2, 1]
    assert found[0].title == "2 cases: out of memory in build: … MiB at …"


def test_memory_that_grew_is_no_kernels_fault():
    entry = nights.regressed()
    memory = replace(entry.record.verdicts[0], metric="memory", unit="B")
    grown = replace(entry, record=replace(entry.record, verdicts=[memory]))
    (cause,) = causes(nights.make_night([grown]))
    assert cause.blamed == "memory"
    assert cause.title.endswith(", 8.0% worse")


def test_what_is_in_quarantine_has_no_cause_to_find():
    assert causes(nights.make_night([nights.quarantined(), nights.make_entry()])) == []


# --- quarantines -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("until", "row"), [("2020-01-02", "(REGRESSED)"), ("2020-01-01", "REGRESSED")]
)
def test_a_quarantine_counts_by_the_day_of_the_run(until, row):
    entry = nights.quarantined()
    held = Quarantine("slow", dt.date.fromisoformat(until), "2019-12-01T00:00:00Z")
    attempt = replace(entry.record.attempts[0], time="2020-01-02T00:10:00Z")
    record = replace(entry.record, quarantine=held, attempts=[attempt])
    entry = replace(entry, record=record)
    assert entry.quarantined == row.startswith("(")
    assert console.shown_status(record) == row
    ended = "its QUARANTINE ENDED" in "\n".join(console.explanations([record]))
    assert ended != entry.quarantined
