"""Constants about devices that an H200 gave, and what becomes of each where nobody measured it.

A new one has to be named here: it is measured by ``baseline record`` and kept with the baseline, or
does not decide on AMD, or the list says why it may.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders import make_process

from bench_lib import backends
from bench_lib.launch.zygote import SAME_KIND
from bench_lib.verdict.nights import CaseNights, CaseRun
from bench_lib.verdict.statistics.change import (
    ALPHA,
    UNMEASURED,
    Comparison,
    Contrast,
    Origin,
    compare,
    paired,
)

PACKAGE = Path(backends.__file__).parents[1]
NOT_USED = {
    "launch/zygote.py SAME_KIND": "under HIP contexts are taken as they come",
    "verdict/statistics/change.py GUESSED_DEVICE": "another device makes no case REGRESSED",
    "verdict/statistics/change.py GUESSED_RUN": "runs are taken to be farther apart",
    "verdict/statistics/change.py GUESS_WEIGHT": "no guess counts once five devices are known",
    "verdict/statistics/change.py LEAST_FAMILY": "no family moves together",
    "verdict/statistics/levels.py DEVICES": "nights on another device fail nothing",
}
MEASURED_HERE = {
    "worker/bursts.py WATCHED_S": "how long the clock stays up is measured on each device",
}
WEAKENS = {
    "verdict/evidence.py BETWEEN_HOST_STATES": "makes a host-bound case harder to call slower",
    "verdict/stragglers.py LAGGING": "names a rank beside a verdict, and decides none",
    "verdict/statistics/change.py EXCESS_DEGREES": "makes a run's spread less certain",
    "verdict/statistics/change.py MOST_APART": "bounds what a run explains, not what it is",
    "verdict/validity.py CLOCK_SLACK": "leaves a slowdown beside its family as it is",
    "verdict/validity.py OUT_OF_ORDER": "disturbs a measurement, and calls nothing slower",
    "verdict/validity.py SAME_CLOCK": "is half of the tolerance of a time",
    "worker/launches.py LONGEST_HOLD": "an upper bound of what is tried",
    "worker/clock.py _TRIED_SPINS": "an upper bound of what is tried",
    "worker/graph.py AGAIN": "recordings are timed on the very device",
}
NO_DEVICE_S = {
    "verdict/nights.py NIGHT": "of people's day",
    "verdict/pairing.py DEFAULT": "a choice",
    "verdict/statistics/change.py LEAST_PAIRS": "a count",
    "verdict/statistics/change.py LEAST_SUITE": "a count",
    "verdict/statistics/change.py LEAST_RUNS": "a count",
    "verdict/statistics/change.py USUAL": "a chance",
    "verdict/statistics/change.py FAR": "a chance",
    "verdict/statistics/change.py UNKNOWN_APART": "a choice, for where nothing is known",
    "verdict/validity.py BUSY": "a choice",
    "verdict/validity.py MOST_HELD_BACK": "a choice; what is said of it was an MI300's",
    "verdict/validity.py CROWDED": "of the host",
    "verdict/validity.py CLOCK_CHANCE": "a chance",
}
SAYS = re.compile(r"\b(devices?|GPUs?|clocks?|runs?)\b", re.IGNORECASE)


def constants() -> Iterator[str]:
    """Yield each constant whose comment in a string names an H200.

    In the room that judges, those as well that are or hold numbers and speak of devices or runs.
    """
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE)
        for constant, said in itertools.pairwise(ast.parse(file.read_text()).body):
            if not (isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant)):
                continue
            if not isinstance(constant, (ast.Assign, ast.AnnAssign)) or constant.value is None:
                continue
            words = str(said.value.value)
            judges = place.parts[0] == "verdict" and SAYS.search(words)
            if "H200" in words or (judges and holds_a_number(constant.value)):
                first = constant.targets[0] if isinstance(constant, ast.Assign) else constant.target
                name = first.elts[0] if isinstance(first, ast.Tuple) else first
                yield f"{place} {ast.unparse(name)}"


def holds_a_number(value: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Constant) and type(node.value) in (int, float)
        for node in ast.walk(value)
    )


def test_every_constant_about_devices_is_listed_with_what_becomes_of_it():
    listed = NOT_USED | MEASURED_HERE | WEAKENS | NO_DEVICE_S
    assert set(constants()) == set(listed)


DEVICES = [f"GPU-{n}" for n in range(8)]


def judged(
    slower: float, family: str, *, here: str, known: Sequence[str] = DEVICES[:1], cases: int = 1
) -> list[Comparison]:
    """Hold cases that are slower in a later run on a device against runs on the known ones."""
    found = []
    for case in range(cases):
        wobble = [0.0005 * ((7 * n + case) % 5 - 2) for n in range(6)]
        history = {
            Origin(f"run {device}", device): [
                0.01 * (DEVICES.index(device) % 3) + wobble[n] for n in range(5)
            ]
            for device in known
        }
        found.append(
            Contrast(
                [slower + wobble[n] for n in range(6)],
                [x for values in history.values() for x in values],
                6,
                candidate_origins=[Origin("tonight", here)] * 6,
                baseline_origins=[origin for origin in history for _ in range(5)],
                history=[history],
                family=family,
            )
        )
    return [each for each in compare(found, [0.01] * cases) if each is not None]


@pytest.mark.parametrize("cases", [1, 12])
def test_another_device_makes_nothing_slower_where_nobody_measured_how_far_they_are_apart(cases):
    for family, most in (("networks", 0.05), (UNMEASURED, 1.0)):
        (first, *_) = judged(0.05, family, here="GPU-7", cases=1)
        assert (first.p_slower < ALPHA) is (most < 1)
    for each in judged(0.25, UNMEASURED, here="GPU-7", cases=cases):
        assert each.p_slower > ALPHA
        assert each.shift == 0
        assert each.detectable > 0.3
    assert all(e.p_slower < ALPHA for e in judged(0.8, UNMEASURED, here="GPU-7", cases=cases))


def test_five_devices_tell_how_far_the_sixth_may_be():
    (four,) = judged(0.15, UNMEASURED, here="GPU-7", known=DEVICES[:4])
    (five,) = judged(0.15, UNMEASURED, here="GPU-7", known=DEVICES[:5])
    assert five.p_slower < ALPHA < four.p_slower
    assert five.detectable < four.detectable / 2


def test_one_case_is_suspicious_and_not_slower_where_nobody_knows_how_far_runs_are():
    known, unknown = (judged(0.03, family, here="GPU-0")[0] for family in ("networks", UNMEASURED))
    assert known.p_slower < ALPHA < unknown.p_slower
    assert unknown.estimate > unknown.bound
    assert judged(0.1, UNMEASURED, here="GPU-0")[0].p_slower < ALPHA


def test_pairs_need_no_knowledge_of_other_devices():
    pairs = [(0.02 + 0.0005 * (n % 3), 0.0) for n in range(6)]
    (slower,) = compare([replace(paired(pairs, 6), family=UNMEASURED)], [0.01])
    assert slower.p_slower < ALPHA
    assert not slower.parts


def test_nights_on_another_device_do_not_make_tonight_s_slow_where_nobody_measured():
    runs = [
        CaseRun(f"{n}", f"2026-01-{n + 1:02}T02:00:00Z", [make_process(device_uuid=device)])
        for n, device in enumerate(["GPU-1", "GPU-1", "GPU-2", "GPU-1", "GPU-2"])
    ]
    assert [run.run_id for run in CaseNights(runs).on_one_device.runs] == ["2", "4"]


def test_only_vendors_whose_devices_were_measured_go_by_them():
    measured = {backend.name for backend in backends.every() if backend.is_measured}
    assert measured == {"nvidia", "cpu"}


def test_under_hip_no_context_is_drawn_again(monkeypatch):
    from test_launches import GPU, FakeGpu, excess

    FakeGpu(default_us=2.0 * (1 + 2 * SAME_KIND), blocks_us=[2.0]).install(monkeypatch)
    assert (excess(GPU) or 0) > SAME_KIND
    monkeypatch.setattr(torch.version, "hip", "7.15.26333")
    assert excess(GPU) is None
