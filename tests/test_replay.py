"""Two gates that 0.1.0 recorded on an H200 are judged as it judged them, planted changes too.

``recorded/`` has the two runs, the baselines that they were judged by, and the verdicts of 0.1.0:
of the runs as they are, and with a change planted in most cases.  Of a verdict everything but the
words is held.  Since then two things are judged differently.  A case that becomes host-bound and
30% slower is SUSPECT on a device that its baseline lacks, where 0.1.0 said NOISY.  And a stalled
process is set aside in a suite whose cases differ much in their spread: one in the second gate, in
the throughput of a small GEMM, which moves the intervals of that family in their fourth digit and
no status.  ``python tests/test_replay.py`` writes ``verdicts.json.xz`` anew.  That is right only
where a pull request means to judge differently, and says so.
"""

from __future__ import annotations

import functools
import json
import lzma
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench_lib.engine.settings import Outcome, Settings
from bench_lib.engine.suite import Suite
from bench_lib.model import Attempt, Hardware, Measurement, Numerics, Telemetry
from bench_lib.storage import baselines, history

RECORDED = Path(__file__).parent / "recorded"
RUNS = ("h200-gate-1", "h200-gate-2")
SINCE = {"tolerance", "unit"}
"""Of numerics 0.1.0 gave the floor instead of the tolerance, no unit, and other fields never."""
PROCESSES = 6
"""What a planted change is measured in: the first process, and five fresh ones."""


def slower(factor: float) -> Callable[[Attempt, int], Attempt]:
    def plant(attempt: Attempt, process: int) -> Attempt:
        jitter = factor * (1 + 0.0004 * math.sin(process + 1))
        seen = attempt.measurement
        return _with(
            attempt,
            iteration_s=[s * jitter for s in seen.iteration_s],
            wall_s=seen.wall_s * jitter,
            device_s=None if seen.device_s is None else seen.device_s * jitter,
        )

    return plant


def _with(attempt: Attempt, **changed: Any) -> Attempt:
    return replace(attempt, measurement=replace(attempt.measurement, **changed))


def more_memory(attempt: Attempt, _process: int) -> Attempt:
    return _with(attempt, peak_memory_bytes=int(1.2 * (attempt.measurement.peak_memory_bytes or 0)))


def compiles_longer(attempt: Attempt, _process: int) -> Attempt:
    seconds = attempt.measurement.compile_s
    return _with(attempt, compile_s=None if seconds is None else 3 * seconds + 20)


def unsteady(attempt: Attempt, _process: int) -> Attempt:
    samples = attempt.measurement.iteration_s
    return _with(attempt, iteration_s=[s * (1 + i % 2 / 3) for i, s in enumerate(samples)])


def wrong(attempt: Attempt, _process: int) -> Attempt:
    answer = attempt.measurement.numerics or Numerics(finite=True)
    return _with(attempt, numerics=replace(answer, finite=False))


def stalls(attempt: Attempt, _process: int) -> Attempt:
    return _with(attempt, wall_s=1.1 * attempt.measurement.wall_s)


def slow_clock(attempt: Attempt, process: int) -> Attempt:
    seen = attempt.telemetry or Telemetry("nvml", 10)
    seen = replace(seen, clock_mhz=0.9 * (seen.clock_mhz or 1980.0))
    return replace(slower(1 / 0.9)(attempt, process), telemetry=seen)


def host_bound(attempt: Attempt, process: int) -> Attempt:
    return _with(slower(1.3)(attempt, process), host_bound=True)


PLANTS: tuple[Callable[[Attempt, int], Attempt] | None, ...] = (
    *(None, slower(1.05), slower(0.93), more_memory, compiles_longer, unsteady, wrong, stalls),
    *(slow_clock, host_bound, slower(1.25)),
)


def outcomes_of(run: history.Run, first_plant: int | None) -> list[tuple[Outcome, str | None]]:
    outcomes = []
    hardware = msgspec.convert(_line(run.path, "environment")["hardware"], Hardware)
    for position, record in enumerate(run.records.values()):
        attempts = record.attempts
        environment = run.environments[attempts[0].environment]
        plant = None if first_plant is None else PLANTS[(first_plant + position) % len(PLANTS)]
        if plant is not None:
            seen = next(a for a in attempts if a.accepted)
            attempts = [plant(_process(seen, n), n) for n in range(PROCESSES)]
        outcomes.append((Outcome(record.case, attempts, environment, hardware), record.nodeid))
    return outcomes


def _process(attempt: Attempt, number: int) -> Attempt:
    measurement: Measurement = replace(attempt.measurement, context_id=f"context-{number}")
    return replace(attempt, process=number, confirms=number > 0, measurement=measurement)


def _line(path: Path, kind: str) -> dict[str, Any]:
    for line in path.read_text().splitlines():
        found: dict[str, Any] = json.loads(line)
        if found["kind"] == kind:
            return found
    raise AssertionError(f"no line of kind {kind} in {path}")


def unpacked(name: str, folder: Path) -> Path:
    path = folder / name.removesuffix(".xz")
    path.write_bytes(lzma.decompress((RECORDED / name).read_bytes()))
    return path


def verdicts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        lzma.decompress((RECORDED / "verdicts.json.xz").read_bytes())
    )
    return found


def judged(run: str, first_plant: int | None, folder: Path) -> dict[str, Any]:
    recorded = history.read(unpacked(f"{run}.jsonl.xz", folder))
    (folder / "baselines").mkdir(exist_ok=True)
    unpacked("h200.json.xz", folder / "baselines")
    outcomes = outcomes_of(recorded, first_plant)
    suite = Suite(
        folder / "history",
        functools.cache(functools.partial(baselines.load, folder / "baselines")),
        outcomes[0][0].hardware,
        settings=Settings(planned=PROCESSES),
    )
    for outcome, nodeid in outcomes:
        suite.note(outcome, nodeid)
    records = suite.judge()
    suite.writer.close()
    return {
        record.case.id: {
            "status": record.status.value,
            "verdicts": [_but_words(verdict) for verdict in record.verdicts],
        }
        for record in records
    }


def _but_words(verdict: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(verdict)
    del plain["reason"]
    return plain


BEYOND_0_1_0 = {"status", "tolerance", "detectable_effect", "interval"}
"""What nights and devices changed in every time: 0.1.0 allowed 2% for the unknown device that both
runs were made on, and knew no night.  Now their components widen the error instead."""
SET_ASIDE = 0.01
"""A side whose disturbed process is set aside, or no longer is, moves by at most this fraction."""
NOW = {
    ("h200-gate-1", None, "vit_b_16-b128-bf16-eager-infer"): "OK",
    ("h200-gate-2", None, "vit_b_16-b128-bf16-eager-infer"): "OK",
    ("h200-gate-1", 0, "op-sdpa-b8h16s2048d64-bf16-bwd"): "SUSPECT",
    ("h200-gate-1", 4, "op-conv2d-64x256x56x56-256x256x3x3-fp16-nchw-fwd"): "SUSPECT",
    ("h200-gate-1", 4, "op-gemm-8192x8192x8192-nn-bf16"): "REGRESSED",
    ("h200-gate-1", 8, "op-gemm-8192x8192x8192-nt-tf32"): "NOISY",
    ("h200-gate-2", 0, "op-batch_norm-64x256x56x56-fp16-nchw-fwd"): "SUSPECT",
    ("h200-gate-2", 4, "op-copy_d2h-16x1024x1024-fp32-pinned"): "REGRESSED",
    ("h200-gate-2", 4, "op-gemm-8192x8192x8192-nn-bf16"): "NOISY",
    ("h200-gate-2", 4, "op-softmax-64x16x512x512-bf16-fwd"): "SUSPECT",
}
"""Statuses that differ from those of 0.1.0, by run, plant and case: each is of a case close to a
bound, or in which 0.1.0 took a device for known that it had never seen."""
CASES = [(run, plant) for run in RUNS for plant in (None, 0, 4, 8)]


@pytest.mark.parametrize(("run", "first_plant"), CASES)
def test_a_run_of_the_first_version_is_judged_as_it_was(
    run: str, first_plant: int | None, tmp_path: Path
) -> None:
    before = verdicts()[f"{run} {first_plant}"]
    now = judged(run, first_plant, tmp_path)
    assert now.keys() == before.keys()
    for case_id, then in before.items():
        (time, *_) = now[case_id]["verdicts"]
        is_hosts = any(finding.get("elsewhere") for finding in time["findings"])
        expected = NOW.get((run, first_plant, case_id), "SUSPECT" if is_hosts else then["status"])
        assert now[case_id]["status"] == expected, case_id
        found, held = (sorted(side["verdicts"], key=_name) for side in (now[case_id], then))
        assert list(map(_name, found)) == list(map(_name, held)), case_id
        for one, other in zip(found, held, strict=True):
            compared = set(other)
            if other["metric"] == "numerics":
                compared = {name for name in compared - SINCE if other[name] is not None}
            if one["metric"] in ("latency", "throughput"):
                compared -= BEYOND_0_1_0 | {"value", "baseline", "ratio"}
                if other["ratio"] is not None:  # the ratio leaves out what a device's family shares
                    for name in ("value", "baseline"):
                        assert one[name] == pytest.approx(other[name], rel=SET_ASIDE)
            assert [n for n in compared if not _alike(one[n], other[n])] == [], (case_id, one)


def _name(verdict: dict[str, Any]) -> tuple[str, str]:
    return verdict["metric"], verdict["against"]


def _alike(found: Any, held: Any) -> bool:
    if isinstance(found, (list, tuple)) and isinstance(held, list):
        return len(found) == len(held) and all(map(_alike, found, held))
    if isinstance(found, float) and isinstance(held, (float, int)):
        return math.isclose(found, held, rel_tol=1e-9, abs_tol=1e-12)
    return bool(found == held)


@pytest.mark.parametrize("run", RUNS)
def test_a_run_of_the_first_version_has_the_verdicts_that_it_was_given(
    run: str, tmp_path: Path
) -> None:
    then = history.read(unpacked(f"{run}.jsonl.xz", tmp_path)).records
    held = verdicts()[f"{run} None"]
    assert {id_: record.status.value for id_, record in then.items()} == {
        id_: found["status"] for id_, found in held.items()
    }


def main() -> None:
    found = {}
    for run, plant in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found[f"{run} {plant}"] = judged(run, plant, Path(folder))
    plain = json.dumps(found, sort_keys=True).encode()
    (RECORDED / "verdicts.json.xz").write_bytes(lzma.compress(plain, preset=9))


if __name__ == "__main__":
    sys.exit(main())
