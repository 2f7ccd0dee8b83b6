"""Anybody's timings: what is read of them, and what is said about lines that are wrong."""

import json
import math
import statistics

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench_lib.model import UserError
from bench_lib.storage import samples
from bench_lib.storage.samples import read

TIMES = [1.0, 2.0, 4.0]
LARGEST, SMALLEST = 1.7976931348623157e308, 5e-324


def line(case="a", role="baseline", process=0, iteration_s=TIMES, **more):
    fields = {"case": case, "role": role, "process": process, "iteration_s": iteration_s, **more}
    kept = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(kept).encode() + b"\n"


def of(*lines):
    return read(b"".join(text.removesuffix(b"\n") + b"\n" for text in lines))


def problem_of(*lines, case="a"):
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
    assert samples.problems == []
    assert list(samples.cases) == ["b", "a"]
    case = samples.cases["b"]
    assert (case.case, case.problems) == ("b", [])
    assert list(case.baseline) == list(case.candidate) == ["x"]
    assert case.baseline["x"].log_median == math.log(2)
    assert case.baseline["x"].place == "line 1"
    assert case.candidate["x"].log_median == math.log(8)
    assert samples.cases["a"].baseline["1"].place == "line 2"


def test_empty_lines_are_skipped_and_counted():
    samples = of(b"\n", line(), b"  \r\n", line(process=1, iteration_s=[1.0, 3.0]), b"")
    assert samples.problems == []
    assert [p.place for p in samples.cases["a"].baseline.values()] == ["line 2", "line 4"]


@pytest.mark.parametrize("lines", [(), (b"",), (b"\n", b" \n")])
def test_a_file_without_samples_is_a_problem(lines):
    samples = of(*lines)
    assert (samples.problems, samples.cases) == (["it contains no samples"], {})


# ---- lines that belong to no case -------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *(b"rubbish\n", line()[:72] + b"\n", line()[:-1] + b"}\n", b'{"case": "\xff"}\n'),
        *(b"[1, 2]\n", b"NaN\n", b"[" * 100_000 + b"\n", line(case="\ud800")),
        *(line(case=None), line(case=7), line(case=" "), line()[:-10]),
    ],
)
def test_a_line_of_no_case_is_named_with_its_number(text):
    samples = of(line(), text, line("b"))
    (problem,) = samples.problems
    assert problem.startswith("line 2: ")
    assert list(samples.cases) == ["a", "b"]
    assert [case.problems for case in samples.cases.values()] == [[], []]


# ---- lines that spoil their case --------------------------------------------------------


NAME = "Expected `int | str`, got"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"role": None}, "Object missing required field `role`"),
        ({"role": "Baseline"}, "Invalid enum value 'Baseline' - at `$.role`"),
        ({"process": True}, f"{NAME} `bool` - at `$.process`"),
        ({"process": ""}, r"Expected `str` matching regex '\\S' - at `$.process`"),
        ({"run": 1.5}, f"{NAME} `float` - at `$.run`"),
        ({"iteration_s": 1.0}, "Expected `array`, got `float` - at `$.iteration_s`"),
        ({"iteration_s": [1.0]}, "Expected `array` of length >= 2 - at `$.iteration_s`"),
        ({"iteration_s": [1.0, "1"]}, "Expected `float`, got `str` - at `$.iteration_s[1]`"),
        ({"iteration_s": [1.0, math.nan]}, "Expected `float` > 0.0 - at `$.iteration_s[1]`"),
        ({"iteration_s": [math.inf, 1]}, "Expected `float` <= 1e+100 - at `$.iteration_s[0]`"),
        ({"iteration_s": [1, 10**400]}, "Number out of range - at `$.iteration_s[1]`"),
    ],
)
def test_a_wrong_field_is_a_problem_of_its_case_with_its_place_and_what_fits(fields, problem):
    assert problem_of(b"\n", line(**fields)) == f"line 2: {problem}; see bench-lib judge --help"


@pytest.mark.parametrize("again", [1, "1"])
def test_a_process_that_comes_twice_is_a_problem_naming_both_lines(again):
    first, second = line(process=1), line(process=again, iteration_s=[3.0, 4.0])
    assert problem_of(first, b"\n", second) == (
        "line 3: process '1' of the baseline is already on line 1; give every process a "
        "name of its own"
    )


def test_a_problem_spoils_its_own_case_only():
    samples = of(line("a", iteration_s=[]), line("b"), line("a", process=None), line("a"))
    assert [problem[:8] for problem in samples.cases["a"].problems] == ["line 1: ", "line 3: "]
    assert list(samples.cases["a"].baseline) == ["0"]
    assert samples.cases["b"].problems == samples.problems == []


# ---- run and device ---------------------------------------------------------------------


ABOUT = ("run", "device")


def test_a_process_keeps_its_run_and_its_device():
    about = {"run": 7, "device": "GPU-1"}
    samples = of(line(**about), line(process=1, **about), line("b"))
    case = samples.cases["a"]
    process = case.baseline["7/0"]
    assert [getattr(process, name) for name in ABOUT] == ["7", "GPU-1"]
    assert samples.cases["b"].baseline["0"].run == ""


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
        f"line 3: it has no {name}, but others do; give it on all lines or on none"
    ]
    assert name == "run" or samples.cases["b"].problems == []


def test_other_fields_are_ignored():
    samples = of(line(probe={"us": 1.8}, gpu=0))
    assert (samples.problems, samples.cases["a"].problems) == ([], [])


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
def test_a_process_is_its_median(times):
    process = of(line(iteration_s=times)).cases["a"].baseline["0"]
    assert process.log_median == pytest.approx(math.log(statistics.median(times)), abs=1e-12)


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


@example([b'{"case": "a", "role": "baseline", "process": "a", "iteration_s": [1.0, 2.0]}'])
@given(st.lists(st.binary(max_size=40) | objects.map(lambda o: json.dumps(o).encode()), max_size=6))
def test_every_line_is_a_process_or_a_problem(lines):
    samples = of(*(text.replace(b"\n", b" ") + b"\n" for text in lines))
    problems = [*samples.problems, *(p for c in samples.cases.values() for p in c.problems)]
    processes = [
        p
        for c in samples.cases.values()
        for side in (c.baseline, c.candidate)
        for p in side.values()
    ]
    meant = [n for n, text in enumerate(lines, 1) if text.replace(b"\n", b" ").strip()]
    if not meant:
        assert problems == ["it contains no samples"]
        return
    named = [int(problem.partition(":")[0].removeprefix("line ")) for problem in problems]
    assert sorted(named + [int(p.place.removeprefix("line ")) for p in processes]) == meant
    for process in processes:
        assert math.isfinite(process.log_median)
    for name in samples.cases:
        assert name.encode()


# ---- how much is read -------------------------------------------------------------------


def test_more_bytes_than_are_read_are_refused(monkeypatch):
    monkeypatch.setattr(samples, "MOST_BYTES", 200)
    with pytest.raises(UserError, match="of timings; judge fewer cases"):
        read(line() * 10)
