"""The evidence on a case: which processes are compared, and when nothing can be."""

from dataclasses import replace

import pytest
from builders import make_baseline, make_process, make_processes

from bench_lib.model import Choice, Choices, Origin
from bench_lib.verdict.evidence import (
    PINNED,
    ROLLING,
    Evidence,
    differing,
    known_choices,
    mostly_waited,
)


def on(*devices, **fields):
    return [make_process(device_uuid=device, **fields) for device in devices]


def drew(number):
    return Choices({"kernel": Choice("source", {"XBLOCK": number})})


def evidence(candidate, baseline=(), rolling=(), **fields):
    return Evidence(candidate, make_baseline(processes=list(baseline)), rolling=rolling, **fields)


# ---- what there is to hold against --------------------------------------------------------


def test_nothing_is_held_against_nothing():
    assert Evidence(on("a"), None, rolling=on(*"aaaaa")).references == {}


def nights_of(processes, times):
    return [
        replace(process, worker=f"night-{night}/{n}")
        for night in range(times)
        for n, process in enumerate(processes)
    ]


@pytest.mark.parametrize(("nights", "known"), [(4, {PINNED}), (5, {PINNED, ROLLING})])
def test_five_accepted_nights_are_a_reference_and_one_of_many_processes_is_not(nights, known):
    several = nights_of(on(*"aaaaaa"), nights)
    assert evidence(on("a"), on("a"), several).references.keys() == known


def test_nights_of_the_candidates_draw_and_of_none_known_are_held_against():
    here, there, unknown = (make_process(draw=draw) for draw in (drew(1), drew(2), None))
    unseen = make_process(draw=Choices({}, "no cache files"))
    nights = nights_of([here, there, unknown, unseen], 5)
    found = evidence([unseen, here], [here], nights).references[ROLLING]
    assert found == [process for process in nights if process.draw != there.draw]
    assert evidence([unseen], [here], nights).references[ROLLING] == nights
    assert evidence([here], [here], nights_of([there], 9)).references.keys() == {PINNED}


def test_a_draw_without_kernels_is_unknown():
    assert known_choices(make_process(draw=Choices({}, "another backend"))) is None
    assert known_choices(make_process()) is None
    assert known_choices(make_process(draw=drew(1))) == drew(1)


def test_only_measured_values_that_somebody_accepted_are_a_baseline():
    known = evidence(on("a"), on("a"))
    assert (known.has_baseline, known.is_unjudged) == (True, False)
    published = replace(known, baseline=make_baseline(provenance="published"))
    for other in (published, evidence(on("a")), Evidence(on("a"), None)):
        assert (other.has_baseline, other.is_unjudged) == (False, True)


def test_other_conditions_leave_a_case_unjudged():
    here, there = {"b": 1, "a": 2, "c": None, "d": 1}, {"b": 2, "a": 3, "c": 1, "e": 1}
    known = replace(
        evidence(on("a"), conditions=here),
        baseline=make_baseline(processes=on("a"), conditions=there),
    )
    assert known.unlike == ["a 2, not 3", "b 1, not 2"]
    assert (known.has_baseline, known.is_unjudged) == (True, True)
    assert Evidence(on("a"), None, conditions=here).unlike == []
    assert differing({"a": 1}, {"a": None}) == []
    assert differing({"a": 1}, {"a": 1}) == []


# ---- the host ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waited", "mostly"), [((), False), ((0, 1), False), ((0, 1, 1), True), ((0, 0, 1), False)]
)
def test_a_device_waited_for_its_host_where_it_did_so_in_most_processes(waited, mostly):
    assert mostly_waited([make_process(host_bound=bool(each)) for each in waited]) is mostly


@pytest.mark.parametrize(("here", "there"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_both_sides_have_to_have_waited(here, there):
    sides = [[make_process(host_bound=bool(each))] for each in (here, there)]
    found = evidence(*sides)
    assert (found.waits(), found.waits_as_before) == (bool(here), bool(here and there))


# ---- devices ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("here", "there", "like"),
    [
        ("a", "aab", "aa"),
        ("a", "abb", "abb"),  # one of its own is hardly a measure
        ("ab", "abcc", "ab"),
        ("ab", "aacc", "aacc"),  # the second device is unknown there
        ([None], [None, None, "a"], [None, None, "a"]),
        (["a", None], "aab", "aa"),
    ],
)
def test_a_devices_own_processes_are_compared_with_where_there_are_two(here, there, like):
    found = evidence(on(*here), on(*there)).like(PINNED)
    assert [process.device_uuid for process in found] == list(like)


@pytest.mark.parametrize(
    ("here", "there", "is_new"),
    [
        ("a", "aab", False),
        ("a", "abb", True),
        ("a", "a", False),
        ("a", ["a", None], False),
        ("a", "bb", True),
        ("ab", "aab", False),
        ("ab", "abc", False),
        ("ac", "aa", True),
        ("ac", "a", True),
        ([None], "bb", False),
        ("a", [None, None], False),
        ([None], [None], False),
    ],
)
def test_a_device_is_new_where_others_were_measured_and_it_hardly_was(here, there, is_new):
    assert evidence(on(*here), on(*there)).is_new_to("pinned") is is_new


@pytest.mark.parametrize(
    ("here", "there", "host", "is_elsewhere"),
    [
        ("a", "bb", "", True),
        ("a", "bb", "a", True),
        ("a", "bb", "ab", False),
        ("a", ["b", "b", None], "ab", False),
        ("a", "abb", "ab", False),
        ("a", "bc", "ab", True),  # one was on another host
        ("a", "bb", "b", True),  # of ranks that another host runs
        ("a", "aab", "a", False),  # the device itself is known
        ([None], "bb", "a", False),
    ],
)
def test_a_baseline_is_of_another_host_where_its_devices_are_not_in_this_one(
    here, there, host, is_elsewhere
):
    found = evidence(on(*here), on(*there), on(*there * 5), here=host)
    assert [found.is_elsewhere(name) for name in (PINNED, ROLLING)] == [is_elsewhere] * 2


def test_the_prefix_of_a_uuid_makes_no_other_device():
    assert make_process(worker="run/0", device_uuid="GPU-a").origin == Origin("run", "a")
    assert make_process(device_uuid=None).origin == Origin("", "")
    assert evidence(on("GPU-a"), on("a", "a", "b")).like(PINNED) == on("a", "a")


def test_earlier_runs_come_in_the_order_of_time():
    nights = make_processes([1.0, 2.0, 3.0])
    found = evidence(on("a"), on("b", "c"), nights).earlier()
    assert found == [on("b", "c"), nights[::-1]]
    assert Evidence(on("a"), None, rolling=nights).earlier() == [[], nights[::-1]]
