"""``bench-lib judge``: anyone's timings in, a verdict a case out."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from command import Quiet, ran
from documents import document_in

import bench_lib
from bench_lib.model import Status, Verdict
from bench_lib.verdict.statistics.change import Origin

CHECKOUT = Path(bench_lib.__file__).parents[1]
HELP = "see bench-lib judge --help"
STEADY = (-0.001, -0.0005, 0.0, 0.0005, 0.001)
"""Half a thousandth apart, as processes of a quiet machine are."""


class Answer(Quiet):
    @property
    def statuses(self) -> dict[str, str]:
        return {verdict["case_id"]: verdict["status"] for verdict in self.json["verdicts"]}


@pytest.fixture
def judge(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(lines: Iterable[str], *words: str) -> Answer:
        Path("samples.jsonl").write_text("".join(text + "\n" for text in lines))
        return command("samples.jsonl", *words)

    def command(*words: str) -> Answer:
        return ran(["judge", *words], monkeypatch, capsys, Answer)

    run.command = command
    return run


def started(*words: str, **streams) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "bench_lib", "judge", *words],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **streams.pop("variables", {})},
        stderr=subprocess.PIPE,
        **streams,
    )


def line(case, role, process, iteration_s, **more) -> str:
    return json.dumps(
        {"case": case, "role": role, "process": process, "iteration_s": iteration_s, **more}
    )


def side(case: str, role: str, logs: Iterable[float]) -> list[str]:
    return [
        line(case, role, n, [math.exp(log) * factor for factor in (0.999, 1, 1.002)])
        for n, log in enumerate(logs)
    ]


def timings(case: str, change: float = 0.0, processes: int = 3) -> list[str]:
    moved = [math.log1p(change) + 0.0001 + 0.0003 * n for n in range(processes)]
    return side(case, "baseline", STEADY) + side(case, "candidate", moved)


# ---- runs, devices and families ---------------------------------------------------------


def test_runs_devices_and_families_reach_the_judge(judge, monkeypatch):
    given = []
    monkeypatch.setattr(
        "bench_lib.verdict.judge.judge_samples",
        lambda cases, *_: given.append(cases) or {"m": Verdict(Status.OK, "latency", "")},
    )
    sides = {"baseline": ("n1", "n1", "n2"), "candidate": ("n3",)}
    judge(
        line("m", role, n, [0.5, 0.5], run=run, device=f"gpu-{run}")
        for role, runs in sides.items()
        for n, run in enumerate(runs)
    )
    (contrast,) = given[0].values()
    first, second, third = (Origin(run, f"gpu-{run}") for run in ("n1", "n2", "n3"))
    assert contrast.baseline_origins == [first, first, second]
    assert contrast.candidate_origins == [third]
    half = math.log(0.5)
    assert contrast.history == [{first: [half, half], second: [half]}]


# ---- verdicts ---------------------------------------------------------------------------


def test_one_case_gets_one_verdict(judge):
    answer = judge(timings("matmul"))
    assert (answer.status, answer.err) == (0, "")
    head, row, _, counts = answer.out.splitlines()
    assert head.split() == ["case", "status", "change", "95%", "interval", "detects"]
    assert row.split()[:3] == ["matmul", "OK", "+0.04%"]
    assert counts == "1 case: 1 OK"


def test_what_is_not_ok_comes_first_with_its_reason_beneath(judge):
    answer = judge([*timings("good"), *timings("slow", 0.05), *timings("fast", -0.05)])
    assert (answer.status, answer.err) == (1, "")
    lines = answer.out.splitlines()
    assert [text.split()[:2] for text in lines[1:4]] == [
        ["slow", "REGRESSED"],
        ["fast", "IMPROVED"],
        ["good", "OK"],
    ]
    assert lines[4] == ""
    assert lines[5].startswith("slow: REGRESSED: 5.0% slower ")
    assert lines[6].startswith("fast: IMPROVED: 5.0% faster ")
    assert lines[7:] == ["3 cases: 1 REGRESSED, 1 IMPROVED, 1 OK"]


def test_json_holds_raw_values(judge):
    answer = judge([*timings("good"), *timings("slow", 0.05)], "--json")
    assert answer.status == 1
    assert answer.json["problems"] == []
    slow, good = answer.json["verdicts"]
    assert (good["case_id"], good["status"]) == ("good", "OK")
    assert (slow["case_id"], slow["status"], slow["metric"]) == ("slow", "REGRESSED", "latency")
    assert slow["ratio"] == pytest.approx(1.05 * math.exp(0.0004), rel=1e-9)
    assert slow["interval"][0] < slow["ratio"] < slow["interval"][1]
    assert slow["tolerance"] == 0.01
    assert slow["detectable_effect"] > 0.01
    assert slow["reason"].startswith("5.0% slower")


def test_a_case_without_a_verdict_has_the_same_fields(judge):
    (verdict,) = judge(side("a", "baseline", STEADY), "--json").json["verdicts"]
    assert verdict == {
        "case_id": "a",
        "name": "a",
        "status": "ERROR",
        "metric": "latency",
        "ratio": None,
        "interval": None,
        "tolerance": 0.01,
        "detectable_effect": None,
        "reason": "no candidate process to compare with line 1",
    }


def test_a_case_too_noisy_to_tell_is_not_a_failure(judge):
    noisy = side("a", "baseline", (0.0, 0.3, -0.3, 0.2, -0.2)) + side("a", "candidate", (0.05, 0.1))
    answer = judge(noisy)
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.splitlines()[1].split()[:2] == ["a", "NOISY"]
    assert "a: NOISY: " in answer.out


# ---- the tolerance ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "share"),
    [("1%", 0.01), ("0.01", 0.01), ("2.5%", 0.025), ("50%", 0.5), ("1e-3", 0.001)],
)
def test_a_tolerance_is_a_percentage_or_a_fraction(judge, text, share):
    (verdict,) = judge(timings("a"), "--json", "--tolerance", text).json["verdicts"]
    assert verdict["tolerance"] == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1", "1 is 100%; did you mean 1%?"),
        ("0.7", "0.7 is 70%; did you mean 0.7%?"),
        ("75", "75 is 7500%; it must be above 0 and at most 50%"),
        ("0", "0 is 0%; it must be above 0 and at most 50%"),
        ("-1%", "-1%; it must be above 0 and at most 50%"),
        ("51%", "51%; it must be above 0 and at most 50%"),
        ("nan", "'nan' is not a share; write it as 1% or 0.01"),
        ("inf%", "'inf%' is not a share; write it as 1% or 0.01"),
        ("one", "'one' is not a share; write it as 1% or 0.01"),
        ("%", "'%' is not a share; write it as 1% or 0.01"),
    ],
)
def test_a_tolerance_that_cannot_be_meant_is_refused_in_words(judge, text, words):
    answer = judge.command("none.jsonl", f"--tolerance={text}")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.splitlines()[-1] == f"bench-lib: error: --tolerance: {words}"


# ---- what cannot be judged --------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "status", "reason"),
    [
        (
            side("a", "candidate", STEADY),
            "NO_BASELINE",
            "no baseline process to compare line 10 with",
        ),
        (
            side("a", "baseline", STEADY[:1]) + side("a", "candidate", STEADY),
            "NO_BASELINE",
            (
                "one baseline process, line 10, is not enough to tell a change from noise: "
                "at least two are needed, and five are better"
            ),
        ),
        (
            side("a", "baseline", STEADY),
            "ERROR",
            "no candidate process to compare with line 10",
        ),
        (
            [*timings("a"), line("a", "candidate", 9, [1.0])],
            "ERROR",
            f"samples.jsonl: line 18: Expected `array` of length >= 2 - at `$.iteration_s`; {HELP}",
        ),
        (
            [line("a", "candidate", 8, [1.0, math.nan]), *timings("a"), line("a", "x", 9, [])],
            "ERROR",
            (
                "samples.jsonl: line 10: Expected `float` > 0.0 - at `$.iteration_s[1]`; "
                f"{HELP} (and 1 more)"
            ),
        ),
    ],
)
def test_a_case_that_cannot_be_judged_is_named_with_its_line_and_the_others_are_judged(
    judge, lines, status, reason
):
    answer = judge([*timings("good"), "", *lines], "--json")
    bad, good = answer.json["verdicts"]
    assert answer.status == 2
    assert (good["case_id"], good["status"]) == ("good", "OK")
    assert (bad["case_id"], bad["status"], bad["reason"]) == ("a", status, reason)


def test_a_regression_outweighs_what_could_not_be_judged(judge):
    answer = judge(["rubbish", *timings("slow", 0.05), *side("a", "candidate", STEADY)])
    assert answer.status == 1
    assert [text.split()[:2] for text in answer.out.splitlines()[1:3]] == [
        ["slow", "REGRESSED"],
        ["a", "NO_BASELINE"],
    ]


def test_lines_of_no_case_are_problems(judge):
    answer = judge([*timings("a"), "[]", '{"case": "a", "role": "cand'])
    assert (answer.status, answer.err) == (2, "")
    first, second, counts = answer.out.splitlines()[-3:]
    assert first == f"! samples.jsonl: line 9: Object missing required field `case`; {HELP}"
    assert second.startswith("! samples.jsonl: line 10: it is not JSON: ")
    assert counts == "1 case: 1 OK"


@pytest.mark.parametrize("lines", [[], ["", " "]])
def test_a_file_without_samples_is_not_green(judge, lines):
    assert judge(lines)[:] == (2, "! samples.jsonl: it contains no samples\n", "")


def test_only_the_first_problems_are_printed(judge):
    lines = [*timings("a"), *["rubbish"] * 25]
    assert judge(lines).out.splitlines()[-2] == "! and 5 more"
    assert len(judge(lines, "--json").json["problems"]) == 25


def test_a_name_cannot_command_the_terminal(judge):
    lines = timings("a\n\x1b[31m", 0.05)
    answer = judge(lines)
    assert "\x1b" not in answer.out
    assert answer.out.splitlines()[1].split()[:2] == ["a", "REGRESSED"]
    assert judge(lines, "--json").statuses == {"a\n\x1b[31m": "REGRESSED"}


# ---- files and streams ------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), ("--json",)])
@pytest.mark.parametrize(
    ("name", "why"),
    [("none.jsonl", "No such file or directory"), (".", "it is not a regular file")],
)
def test_a_file_that_cannot_be_opened_is_one_line(judge, name, why, words):
    answer = judge.command(name, *words)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == (
        f"bench-lib: error: cannot read {name}: {why}; name a file of samples, or - for "
        "standard input\n"
    )


def test_a_file_has_to_be_named(judge):
    answer = judge.command()
    assert (answer.status, answer.out) == (2, "")
    (line,) = answer.err.splitlines()
    assert line.startswith("bench-lib: error: Missing argument 'FILE': A file of timings, or - for")


def test_a_dash_is_standard_input():
    text = "\n".join([*timings("a"), "rubbish"])
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with started("-", "--json", **streams) as process:
        out, err = process.communicate(text.encode())
    assert (process.returncode, err) == (2, b"")
    found = document_in(out)
    assert [verdict["status"] for verdict in found["verdicts"]] == ["OK"]
    assert found["problems"][0].startswith("standard input: line 9: ")
