"""What redraws of a compiler do to a suite's verdicts, night by night.

    python benchmarks/draw_nights.py [--nights 60] [--seeds 4] [--only WORLD] [--json]

A hundred cases, of which thirty are compiled.  With some chance a night a compiled case draws
anew and is from then on 2 to 5% slower or faster than as it was accepted.  The project's own rule
judges each night: a pinned baseline of five processes, the nights that were fine since, up to six
processes for what looks different, and replays of the accepted draw where one is known.  Every
fifth night is judged once more with five compiled cases slowed down.

``known`` says whether draws are recorded: without them the rule is what it was before.  ``other
sources`` are nights in which the compiler is another one, so that nothing can be replayed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_lib.model import Accepted, Baseline, Choice, Draw, ProcessSummary, Status
from bench_lib.verdict import draws, judge
from bench_lib.verdict.evidence import Evidence

CASES, COMPILED = 100, 30
PROCESS_SD = 0.001
"""Between processes of one run: 0.02 to 0.15% on an H200 (docs/statistics.md)."""
LEAST, MOST = 0.02, 0.05
"""By how much a new draw is slower or faster."""
PLANNED, NIGHTS_KEPT, PINNED = 6, 20, 5
PLANTED = (0.01, 0.02, 0.03, 0.05)
IN_CASES = 5
NAMES = tuple(f"case-{i:02}" for i in range(CASES))


@dataclass(frozen=True)
class World:
    """How often compiled cases draw anew, and what is known of it."""

    name: str
    redraws: float
    known: bool = True
    other_sources: bool = False


WORLDS = (
    World("no redraws", 0.0),
    World("one night in ten, unknown", 0.1, known=False),
    World("every night, unknown", 1.0, known=False),
    World("one night in ten", 0.1),
    World("every night", 1.0),
    World("every night, other sources", 1.0, other_sources=True),
)


@dataclass
class Tally:
    """What became of the nights of a world."""

    nights: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    processes: int = 0
    planted: Counter[float] = field(default_factory=Counter)
    found: Counter[float] = field(default_factory=Counter)
    beside: int = 0
    """Cases called slower in which nothing was planted, in nights with planted ones."""


@dataclass
class Case:
    """A case as it stands: its draw, and what was accepted of it."""

    shift: float = 0.0
    draw: Draw | None = None
    rolling: list[list[ProcessSummary]] = field(default_factory=list)
    baseline: Baseline | None = None


def draw_of(number: int, source: str) -> Draw:
    """Return a draw like no other of one kernel, and another kernel that is always alike."""
    return Draw(
        {
            "triton_poi_fused_0": Choice(f"{source}0", {"XBLOCK": number, "num_warps": 4}),
            "triton_poi_fused_1": Choice(f"{source}1", {"XBLOCK": 1024, "num_warps": 4}),
        }
    )


def process_of(log_median: float, draw: Draw | None, worker: str) -> ProcessSummary:
    """Return one process."""
    values = {"latency": math.exp(log_median), "stability": 0.01, "finite": 1.0}
    return ProcessSummary(values, 20, "", "", draw=draw, worker=worker)


def play(world: World, seed: int, nights: int) -> Tally:
    """Play so many nights."""
    rng = np.random.default_rng([seed, WORLDS.index(world)])
    tally, drawn = Tally(), 0
    cases = {name: Case() for name in NAMES}
    for i, (name, case) in enumerate(cases.items()):
        if i < COMPILED and world.known:
            case.draw = draw_of(0, "a")
        pinned = [
            process_of(rng.normal(0, PROCESS_SD), case.draw, f"accepted/{k}") for k in range(PINNED)
        ]
        case.baseline = Baseline(name, pinned, Accepted("0", "", ""))
    for night in range(nights):
        for name in NAMES[:COMPILED]:
            if rng.random() < world.redraws:
                drawn += 1
                case = cases[name]
                case.shift = rng.uniform(LEAST, MOST) * rng.choice((-1, 1))
                source = f"b{night}" if world.other_sources else "a"
                case.draw = draw_of(drawn, source) if world.known else None
        if night % 5 == 4:
            for slower in PLANTED:
                names = rng.choice(NAMES[:COMPILED], IN_CASES, replace=False)
                chosen = {str(name): math.log1p(slower) for name in names}
                _, suite = judged(cases, chosen, rng, f"{night}-{slower}")
                worse = {name for name, (_, s) in suite.items() if s is Status.REGRESSED}
                tally.planted[slower] += len(chosen)
                tally.found[slower] += len(worse & chosen.keys())
                tally.beside += len(worse - chosen.keys())
        processes, suite = judged(cases, {}, rng, f"{night}")
        tally.nights += 1
        tally.processes += processes
        for name, (evidence, status) in suite.items():
            tally.statuses[status.value] += 1
            if status in (Status.OK, Status.IMPROVED):
                kept = [list(evidence.candidate), *cases[name].rolling]
                cases[name].rolling = kept[:NIGHTS_KEPT]
    return tally


def judged(
    cases: Mapping[str, Case],
    slower: Mapping[str, float],
    rng: np.random.Generator,
    night: str,
) -> tuple[int, dict[str, tuple[Evidence, Status]]]:
    """Measure every case once, and what looks different up to five times more.

    Returns how many processes that took, and by case what is known and its status.
    """
    processes = 0
    candidates: dict[str, list[ProcessSummary]] = {name: [] for name in cases}
    replays: dict[str, list[ProcessSummary]] = {name: [] for name in cases}
    replayed: dict[str, Draw] = {}
    doubtful: Sequence[str] = list(cases)
    for look in range(PLANNED):
        for name in doubtful:
            case, processes = cases[name], processes + 1
            noise = rng.normal(slower.get(name, 0.0), PROCESS_SD)
            worker = f"{night}/{look}"
            if name in replayed:
                replays[name].append(process_of(noise, replayed[name], worker))
            else:
                candidates[name].append(process_of(case.shift + noise, case.draw, worker))
        suite = {
            name: Evidence(
                candidates[name],
                case.baseline,
                rolling=[p for kept in case.rolling for p in kept],
                planned=PLANNED,
                tried=look + 1,
                replays=replays[name],
            )
            for name, case in cases.items()
        }
        verdicts = judge.judge(suite)
        found = {name: draws.to_replay(suite[name]) for name in doubtful}
        suspicious = {name for name in doubtful if judge.is_suspicious(verdicts[name])}
        unseen = {name for name, draw in found.items() if draw and not replays[name]}
        doubtful = [name for name in doubtful if name in suspicious | unseen]
        replayed = {name: draw for name in doubtful if (draw := found[name]) is not None}
        if not doubtful:
            break
    return processes, {name: (suite[name], judge.overall(verdicts[name])) for name in cases}


def figures(tallies: Sequence[Tally]) -> dict[str, Any]:
    """Add up what the seeds of a world gave."""
    nights = sum(t.nights for t in tallies)
    statuses = sum((t.statuses for t in tallies), Counter())
    planted = sum((t.planted for t in tallies), Counter())
    found = sum((t.found for t in tallies), Counter())
    return {
        "nights": nights,
        **{
            f"{status} a night": round(statuses[status] / nights, 3)
            for status in ("REGRESSED", "SUSPECT", "REDRAWN", "IMPROVED")
        },
        "alarms beside what was planted": sum(t.beside for t in tallies),
        "processes a case": round(sum(t.processes for t in tallies) / nights / CASES, 3),
        "found": {f"{x:.0%}": round(found[x] / planted[x], 3) for x in PLANTED if planted[x]},
    }


def main() -> int:
    """Play the worlds and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nights", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", metavar="WORLD", choices=[world.name for world in WORLDS])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    document = {}
    with ProcessPoolExecutor(asked.workers) as pool:
        played = {
            world: [
                pool.submit(play, world, seed, asked.nights) for seed in range(1, asked.seeds + 1)
            ]
            for world in WORLDS
            if asked.only in (None, world.name)
        }
        for world, runs in played.items():
            document[world.name] = figures([run.result() for run in runs])
            if not asked.json:
                print(f"{world.name}: {json.dumps(document[world.name])}", flush=True)
    if asked.json:
        print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
