"""Anybody's timings: what is read of them, and what is said about lines that are wrong."""

from __future__ import annotations

import codecs
import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_lib.storage.samples import Samples, read
from bench_lib.verdict.statistics.iterations import spread

TIMES = [1.0, 2.0, 4.0]
LARGEST, SMALLEST = 1.7976931348623157e308, 5e-324


def line(case="a", role="baseline", process=0, iteration_s=TIMES, **more) -> bytes:
    fields = {"case": case, "role": role, "process": process, "iteration_s": iteration_s, **more}
    kept = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(kept).encode() + b"\n"


def of(*lines: bytes) -> Samples:
    return read(lines)


def problem_of(*lines: bytes, case: str = "a") -> str:
    samples = of(*lines)
    assert samples.problems == []
    assert list(samples.cases) == [case]
    (problem,) = samples.cases[case].problems
    return problem


# ---- what is read -----------------------------------------------------------------------


def test_each_line_is_a_process_of_its_case():
    samples = of(
        line("b", process="x"),
        line("a", process=1),
        line("b", "candidate", process="x", iteration_s=[8.0, 8.0]),
    )
    assert (samples.problems, samples.notes) == ([], [])
    assert list(samples.cases) == ["b", "a"]
    case = samples.cases["b"]
    assert (case.case, case.problems) == ("b", [])
    assert list(case.baseline) == list(case.candidate) == ["x"]
    assert case.baseline["x"].log_median == math.log(2)
    assert (case.baseline["x"].n, case.baseline["x"].line) == (3, 1)
    assert (case.candidate["x"].log_median, case.candidate["x"].spread) == (math.log(8), 0.0)
    assert samples.cases["a"].baseline["1"].line == 2


def test_empty_lines_are_skipped_and_counted():
    samples = of(b"\n", line(), b"  \r\n", line(process=1, iteration_s=[1.0, 3.0]), b"")
    assert (samples.problems, samples.notes) == ([], [])
    assert [process.line for process in samples.cases["a"].baseline.values()] == [2, 4]


@pytest.mark.parametrize("lines", [(), (b"",), (b"\n", b" \n"), (codecs.BOM_UTF8,)])
def test_a_file_without_samples_is_a_problem(lines):
    samples = of(*lines)
    assert (samples.problems, samples.cases) == (["no samples in it"], {})


# ---- lines that belong to no case -------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"rubbish\n", "line 2: not JSON: Expecting value, column 1"),
        (line()[:72] + b"\n", "line 2: not JSON: Expecting ',' delimiter, column 73"),
        (line()[:-1] + b"}\n", "line 2: not JSON: Extra data, column 80"),
        (b'{"case": "\xff"}\n', "line 2: not UTF-8: invalid start byte, byte 11"),
        (b"[1, 2]\n", "line 2: a list is not an object"),
        (b"null\n", "line 2: null is not an object"),
        (b"NaN\n", "line 2: nan is not an object"),
        (b"[" * 100_000 + b"\n", "line 2: nested too deeply"),
        (line(case=None), "line 2: no case; it has to be text"),
        (line(case=7), "line 2: case is 7; it has to be text"),
        (line(case=" "), 'line 2: case is " "; it has to be text'),
        (line(case=["a"]), "line 2: case is a list; it has to be text"),
        (line(case="\ud800"), 'line 2: case is "\\ud800"; it has to be text'),
    ],
)
def test_a_line_of_no_case_is_named_with_its_number(text, problem):
    samples = of(line(), text, line("b"))
    assert samples.problems == [problem]
    assert list(samples.cases) == ["a", "b"]
    assert [case.problems for case in samples.cases.values()] == [[], []]


def test_a_truncated_last_line_is_named_with_its_number():
    samples = of(line(), line(process=1)[:-10])
    (problem,) = samples.problems
    assert problem == (
        "line 2: not JSON: Expecting ',' delimiter, column 71; "
        "the file ends here and may be cut off"
    )
    assert list(samples.cases["a"].baseline) == ["0"]


# ---- lines that spoil their case --------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"role": None}, "no role; a line needs case, role, process and iteration_s"),
        ({"process": None}, "no process; a line needs case, role, process and iteration_s"),
        ({"iteration_s": None}, "no iteration_s; a line needs case, role, process and iteration_s"),
        ({"role": "Baseline"}, 'role is "Baseline"; it has to be baseline or candidate'),
        ({"role": ["baseline"]}, "role is a list; it has to be baseline or candidate"),
        ({"process": True}, "process is true; it has to be a whole number or text"),
        ({"process": 1.0}, "process is 1.0; it has to be a whole number or text"),
        ({"process": ""}, 'process is ""; it has to be a whole number or text'),
        ({"process": {}}, "process is an object; it has to be a whole number or text"),
        ({"process": "\ud800"}, 'process is "\\ud800"; it has to be a whole number or text'),
        ({"iteration_s": 1.0}, "iteration_s is 1.0; it has to be a list of seconds"),
        ({"iteration_s": "x" * 99}, f'iteration_s is "{"x" * 38}…; it has to be a list of seconds'),
    ],
)
def test_a_wrong_field_is_a_problem_of_its_case(fields, problem):
    assert problem_of(b"\n", line(**fields)) == f"line 2: {problem}"


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (0, "0"),
        (-0.0, "-0.0"),
        (-1.5, "-1.5"),
        (10**400, f"1{'0' * 38}…"),
    ],
)
def test_times_that_are_not_finite_and_above_zero_are_a_problem(time, shown):
    assert problem_of(line(iteration_s=[1.0, 2.0, 3.0, time])) == (
        f"line 1: iteration_s[3] is {shown}; times have to be finite and above zero"
    )


@pytest.mark.parametrize(
    ("time", "shown"), [("1.0", '"1.0"'), (True, "true"), (None, "null"), ([1.0], "a list")]
)
def test_times_that_are_no_numbers_are_a_problem(time, shown):
    assert problem_of(line(iteration_s=[1.0, time])) == (
        f"line 1: iteration_s[1] is {shown}, which is no number"
    )


@pytest.mark.parametrize("again", [1, "1"])
def test_a_process_that_comes_twice_is_a_problem_naming_both_lines(again):
    first, second = line(process=1), line(process=again, iteration_s=[3.0, 4.0])
    assert problem_of(first, b"\n", second) == (
        "line 3: process '1' of the baseline is on line 1 already; "
        "give every process a name of its own"
    )


def test_a_problem_spoils_its_own_case_only():
    samples = of(line("a", iteration_s=[]), line("b"), line("a", process=None), line("a"))
    assert [problem[:8] for problem in samples.cases["a"].problems] == ["line 1: ", "line 3: "]
    assert list(samples.cases["a"].baseline) == ["0"]
    assert samples.cases["b"].problems == samples.problems == []


# ---- probes -----------------------------------------------------------------------------


def test_a_process_keeps_its_probes():
    samples = of(line(probe={"launch_us": 1.83, "é": 2}), line(process=1, iteration_s=[1.0, 3.0]))
    assert (samples.problems, samples.notes) == ([], [])
    first, second = samples.cases["a"].baseline.values()
    assert (first.probe, second.probe) == ({"launch_us": 1.83, "é": 2}, {})


@pytest.mark.parametrize(
    ("probe", "problem"),
    [
        (1.8, "probe is 1.8; it has to be an object of numbers by name"),
        ([1.8], "probe is a list; it has to be an object of numbers by name"),
        ({" ": 1.8}, 'probe has the name " "; names have to be text'),
        ({"us": "1.8"}, 'probe["us"] is "1.8", which is no number'),
        ({"us": True}, 'probe["us"] is true, which is no number'),
        ({"ok": 1, "us": None}, 'probe["us"] is null, which is no number'),
        ({"us": 0}, 'probe["us"] is 0; probes have to be finite and above zero'),
        ({"us": -1.5}, 'probe["us"] is -1.5; probes have to be finite and above zero'),
        ({"us": math.nan}, 'probe["us"] is nan; probes have to be finite and above zero'),
        ({"us": math.inf}, 'probe["us"] is inf; probes have to be finite and above zero'),
        ({"us": 10**400}, f'probe["us"] is 1{"0" * 38}…; probes have to be finite and above zero'),
    ],
)
def test_a_wrong_probe_is_a_problem_of_its_case(probe, problem):
    assert problem_of(b"\n", line(probe=probe)) == f"line 2: {problem}"


# ---- run, device, draw and family -------------------------------------------------------


ABOUT = ("run", "device", "draw", "family")


def test_a_process_keeps_its_run_its_device_its_draw_and_its_family():
    about = {"run": 7, "device": "GPU-1", "draw": "ab12", "family": "compiled"}
    samples = of(line(**about), line(process=1, **about), line("b"))
    case = samples.cases["a"]
    process = case.baseline["7/0"]
    assert [getattr(process, name) for name in ABOUT] == ["7", "GPU-1", "ab12", "compiled"]
    assert case.family == "compiled"
    assert (samples.cases["b"].family, samples.cases["b"].baseline["0"].run) == ("", "")


@pytest.mark.parametrize("name", ABOUT)
@pytest.mark.parametrize(
    ("value", "shown"), [("", '""'), (" ", '" "'), (1.5, "1.5"), (True, "true"), ([], "a list")]
)
def test_what_names_nothing_is_a_problem(name, value, shown):
    problem = problem_of(line(**{name: value}))
    assert problem == f"line 1: {name} is {shown}; it has to be a whole number or text"


@pytest.mark.parametrize("name", ABOUT)
@pytest.mark.parametrize("role", ["baseline", "candidate"])
def test_what_some_lines_of_a_case_say_and_others_do_not_is_a_problem(name, role):
    told = {name: "x"}
    lines = (
        line(process=1, **told),
        line(process=2, **told),
        line("a", role, process=3),
        line("b"),
    )
    samples = of(*(lines if name != "run" else lines[:3]))
    assert samples.cases["a"].problems == [
        f"line 3: no {name}, which line 1 has; say it on all lines or on none"
    ]
    assert name == "run" or samples.cases["b"].problems == []


def test_draws_that_the_baseline_lacks_are_named_in_order():
    samples = of(
        line(draw="d1"),
        line(process=1, draw="d2"),
        *(
            line(role="candidate", process=n, draw=d)
            for n, d in enumerate(("d9", "d2", "d3", "d9"))
        ),
    )
    assert samples.cases["a"].new_draws == ["d3", "d9"]


# ---- planted delays ---------------------------------------------------------------------


def test_what_is_planted_is_a_case_of_its_own_against_the_clean_baseline():
    samples = of(
        line(role="candidate", process=2, iteration_s=[3.0, 4.0], slow=0.005),
        line(process=1, iteration_s=[3.0, 5.0], slow=0.005),
        line(process=1, iteration_s=[1.0, 2.0], slow=0),
        line(role="candidate", process=2, iteration_s=[2.0, 3.0], slow=0.0),
    )
    assert (samples.problems, samples.notes) == ([], [])
    assert list(samples.cases) == ["a-plus-0.5pct", "a"]
    planted, clean = samples.cases.values()
    assert [p.line for p in planted.baseline.values()] == [3]
    assert [p.line for p in planted.candidate.values()] == [1]
    assert [p.line for p in clean.candidate.values()] == [4]
    assert planted.problems == clean.problems == []


@pytest.mark.parametrize(
    "others", [[], [line(role="candidate", iteration_s=[5.0, 6.0])]], ids=["none", "candidates"]
)
@pytest.mark.parametrize("role", ["baseline", "candidate"])
def test_what_is_planted_needs_a_clean_baseline(role, others):
    samples = of(line(role=role, slow=0.01), *others)
    assert samples.cases["a-plus-1pct"].problems == [
        "line 1: planted, and there is no baseline process without a delay to hold it against"
    ]


@pytest.mark.parametrize(
    ("slow", "problem"),
    [
        ("1%", 'slow is "1%", which is no number'),
        (False, "slow is false, which is no number"),
        (-0.01, "slow is -0.01; planted shares have to be finite and above zero"),
        (math.nan, "slow is nan; planted shares have to be finite and above zero"),
    ],
)
def test_a_wrong_planted_share_is_a_problem_of_its_case(slow, problem):
    assert problem_of(b"\n", line(slow=slow)) == f"line 2: {problem}"


# ---- worth a word -----------------------------------------------------------------------


def test_very_unequal_counts_are_noted():
    samples = of(
        line(iteration_s=[1.0] * 7),
        line(process=1, iteration_s=[1.0] * 3),
        line("b", iteration_s=[1.0] * 6),
        line("b", "candidate", iteration_s=[1.0] * 3),
    )
    assert samples.notes == [
        "line 2: 3 iterations, where line 1 of the same case has 7; a median of few is less certain"
    ]


def test_the_same_times_twice_in_a_case_are_noted():
    samples = of(
        line(),
        line(role="candidate", process=3),
        line(process=1, iteration_s=TIMES[::-1]),
        line("b"),
        line("c", iteration_s=[1.0, 1.0]),
        line("c", process=1, iteration_s=[1.0, 1.0]),
    )
    assert samples.notes == ["line 2: the same times as line 1; were they copied?"]
    assert [case.problems for case in samples.cases.values()] == [[], [], []]


# ---- whatever comes ---------------------------------------------------------------------

times_lists = st.lists(st.floats(min_value=1e-9, max_value=1e9), min_size=2, max_size=60)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
values = st.sampled_from(["a", "baseline", "candidate", 0, "0", [1.0, 2.0]]) | anything
objects = st.dictionaries(
    st.sampled_from(["case", "role", "process", "iteration_s", "probe", "gpu"]), values, max_size=5
)


@given(times_lists)
def test_a_process_is_its_median_and_its_spread(times):
    process = of(line(iteration_s=times)).cases["a"].baseline["0"]
    assert process.log_median == pytest.approx(math.log(statistics.median(times)), abs=1e-12)
    assert process.spread == pytest.approx(spread(times), rel=1e-9, abs=1e-12)
    assert process.n == len(times)


@given(
    st.permutations(
        [
            line(c, r, p, [1.0 + p, 5.0])
            for c in "ab"
            for r in ("baseline", "candidate")
            for p in range(2)
        ]
    )
)
def test_the_order_of_lines_does_not_matter(lines):
    samples = of(*lines)
    assert samples.problems == []
    assert sorted(samples.cases) == ["a", "b"]
    for case in samples.cases.values():
        for side in (case.baseline, case.candidate):
            assert {name: side[name].log_median for name in side} == {
                "0": math.log(3),
                "1": math.log(3.5),
            }


@given(st.lists(st.binary(max_size=40) | objects.map(lambda o: json.dumps(o).encode()), max_size=6))
def test_every_line_is_a_process_or_a_problem(lines):
    samples = read([text.replace(b"\n", b" ") + b"\n" for text in lines])
    problems = [*samples.problems, *(p for c in samples.cases.values() for p in c.problems)]
    processes = [
        p
        for c in samples.cases.values()
        for side in (c.baseline, c.candidate)
        for p in side.values()
    ]
    meant = [n for n, text in enumerate(lines, 1) if text.removeprefix(codecs.BOM_UTF8).strip()]
    if not meant:
        assert problems == ["no samples in it"]
        return
    named = [int(problem.partition(":")[0].removeprefix("line ")) for problem in problems]
    assert sorted(named + [process.line for process in processes]) == meant
    for process in processes:
        assert math.isfinite(process.log_median)
        assert math.isfinite(process.spread)
    for name in samples.cases:
        assert name.encode()
