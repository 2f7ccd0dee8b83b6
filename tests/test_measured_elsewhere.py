"""Constants that were measured on an H200, and what becomes of each where nobody measured it.

A new one has to be named here: it is measured by ``baseline record`` and kept with the baseline, or
does not decide on AMD, or the list says why it may.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from builders import make_baseline, make_case, make_hardware, make_measurement, make_process

from bench_lib import backends
from bench_lib.formulas import floor
from bench_lib.launch.zygote import SAME_KIND
from bench_lib.verdict import families

PACKAGE = Path(backends.__file__).parents[1]
NOT_USED = {
    "launch/zygote.py SAME_KIND": "under HIP contexts are taken as they come",
    "verdict/families.py PROCESSES": "the baseline's processes tell, or iterations go on",
    "formulas/floor.py FLOORS": "only products, of which Instinct's shares were published",
}
MEASURED_HERE = {
    "worker/bursts.py WATCHED_S": "how long the clock stays up is measured on each device",
}
WEAKENS = {
    "verdict/evidence.py BETWEEN_HOST_STATES": "makes a host-bound case harder to call slower",
    "verdict/metrics/scaling.py LAGGING": "names a rank beside a verdict, and decides none",
    "worker/launches.py LONGEST_HOLD": "an upper bound of what is tried",
    "worker/clock.py _TRIED_SPINS": "an upper bound of what is tried",
    "worker/graph.py AGAIN": "recordings are timed on the very device",
    "worker/workloads/weights.py COMPILE_OPTIONS": "a compiler option, the same on all devices",
}
OPEN = {
    "verdict/statistics/change.py GUESSED_DEVICE": (
        "a guess, that counts like four devices, of how far a device the baseline lacks is away"
    ),
}


def constants() -> Iterator[str]:
    """Yield each constant of a module whose comment in a string names an H200."""
    for file in sorted(PACKAGE.rglob("*.py")):
        body = ast.parse(file.read_text()).body
        for constant, said in itertools.pairwise(body):
            if not (isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant)):
                continue
            if "H200" in str(said.value.value) and isinstance(
                constant, (ast.Assign, ast.AnnAssign)
            ):
                first = constant.targets[0] if isinstance(constant, ast.Assign) else constant.target
                name = first.elts[0] if isinstance(first, ast.Tuple) else first
                yield f"{file.relative_to(PACKAGE)} {ast.unparse(name)}"


def test_every_constant_that_was_measured_on_an_h200_is_listed() -> None:
    listed = NOT_USED | MEASURED_HERE | WEAKENS | OPEN
    # Where the shares of FLOORS are from is in its module's docstring.
    assert {*constants(), "formulas/floor.py FLOORS"} == set(listed)


def test_only_vendors_whose_devices_were_measured_go_by_them() -> None:
    measured = {backend.name for backend in backends.every() if backend.is_measured}
    assert measured == {"nvidia", "cpu"}


def test_how_much_processes_differ_is_the_baseline_s_own_where_nobody_measured_it() -> None:
    case = make_case()
    assert families.enough(case, None, is_measured=True) == pytest.approx(0.0003)
    assert families.enough(case, None, is_measured=False) is None
    processes = [
        make_process(log_median=x, device_uuid="GPU-1") for x in (0, 0.01, 0.02, 0.03, 0.04)
    ]
    recorded = make_baseline(processes=processes)
    spread = families.enough(case, recorded, is_measured=False)
    assert spread == pytest.approx(families.SHARE * 0.0158, rel=0.01)
    few = make_baseline(processes=processes[:4])
    assert families.enough(case, few, is_measured=False) is None


def test_under_hip_no_context_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from test_launches import GPU, FakeGpu, compare_streams

    FakeGpu(default_us=2.0 * (1 + 2 * SAME_KIND), blocks_us=[2.0]).install(monkeypatch)
    assert (compare_streams(GPU).excess or 0) > SAME_KIND
    monkeypatch.setattr(torch.version, "hip", "7.15.26333")
    assert compare_streams(GPU).excess is None


def test_a_floor_is_the_published_one_s_where_nobody_measured_the_others() -> None:
    slow = make_measurement(
        iteration_s=[1.0] * 20, flops_per_step=1e12, least_bytes_per_step=10**9, host_bound=False
    )
    device = make_hardware(peak_tflops={"fp32": 163.4}, peak_gb_per_s=5300.0)
    found = {}
    for op in ("gemm", "sdpa", "softmax"):
        params = {"op": op, "shape": "8192-8192-8192", "precision": "fp32"}
        case = make_case(workload="operator", params=params)
        found[op] = [
            floor.problem(case, slow, device, is_measured=measured) is not None
            for measured in (True, False)
        ]
    assert found == {"gemm": [True, True], "sdpa": [True, False], "softmax": [True, False]}
