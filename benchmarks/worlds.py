"""What does the verdict do in worlds where nights, devices and processes have effects of their own?

    python benchmarks/error_rates.py --worlds [NAME] [--nights 60] [--seed 1] [--json]

A world is played night by night.  A run is accepted as the pinned baseline; each later night is
measured in up to six processes and judged as the suite judges, and the nights that were fine make
the rolling baseline.  Nothing is ever slower, so each REGRESSED is false.  On some nights the same
measurements are judged once more with slowdowns planted in five cases, which no later night sees.

All nights together are asked every night as well (``verdict/nights.py``), so each slowdown that
they tell is false.  From some nights on, slowdowns that last are planted in a copy of the nights,
and it counts how many slower nights there are when they are told.

Processes differ by 0.02 to 0.3%, case by case, as on an H200.  A median of iterations repeats so
well there that a process is one value here.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench_lib.engine import past
from bench_lib.model import Accepted, Baseline, ProcessSummary, SlowDown, Status, Verdict
from bench_lib.verdict import judge
from bench_lib.verdict import nights as over
from bench_lib.verdict.evidence import Evidence

CASES = 100
FAMILIES = 5
"""Cases move in families of twenty, which the rule is not told of."""
PINNED, PLANNED = 5, 6
HISTORY = 60
"""Nights after one acceptance."""
PLANTED = 5
EFFECTS = (0.01, 0.02, 0.03, 0.05)
PLANT_EVERY = 10
"""On the first night and on each tenth, slowdowns are planted."""
LASTING = {"1% in a case": (0.01, 15), "2% in a case": (0.02, 15)}
"""Slowdowns that last: how large, and in how many cases."""
LASTING_FROM = (20, 40)
"""Nights on which they begin."""
FOLLOWED = 10
"""So many slower nights are looked at."""
SUSPICIOUS = 0.015
"""A case that is slower by more, of logarithms, is measured again."""
MOST_FALSE = 0.02
LEAST_FOUND = 0.9
"""Of 2%, on the first night of a world without effects."""


@dataclass(frozen=True)
class World:
    """What runs, devices and processes have in common; each size is a fraction."""

    name: str
    case: float = 0.0
    """Standard deviation from run to run of each case by itself."""
    family: float = 0.0
    """The same of the cases of a family together."""
    suite: float = 0.0
    """The same of all cases together."""
    devices: int = 1
    apart: float = 0.0
    """Two devices differ by this standard deviation in a case, half of it in all cases alike."""
    kinds: tuple[float, float] | None = None
    """Half of the workers are slower, each case by something between these."""
    stalled: float = 0.0
    """Share of a case's processes that something slows down by 5 to 50%."""
    slow: float = 0.0
    """Every second worker is slower by this."""
    drift: float = 0.0
    """All cases get slower by this, night by night."""
    heavy: bool = False
    """Whether runs differ as Student's t with three degrees of freedom does."""
    uneven: bool = False
    """Whether some cases vary more from run to run than others: by a factor whose logarithm has a
    standard deviation of one."""
    correlation: float = 0.0
    """Of what two successive runs have in common besides the device."""
    pinned_runs: int = 1
    clean: bool = True
    """Whether what is called slower is a false alarm."""


_Night = tuple[list[ProcessSummary], list[Verdict]]
"""A case's processes of a night, and what they were called."""

NOTHING = World("process noise only")
WORLDS = (
    NOTHING,
    *(World(f"case {size:.1%}", case=size) for size in (0.002, 0.003, 0.005, 0.01)),
    World("case 0.5%, pinned from five runs", case=0.005, pinned_runs=5),
    *(World(f"family {size:.1%}", family=size) for size in (0.001, 0.003, 0.005, 0.01)),
    *(World(f"suite {size:.1%}", suite=size) for size in (0.005, 0.01)),
    World("4 devices 1% apart", devices=4, apart=0.01),
    World("32 devices 1% apart", devices=32, apart=0.01),
    World("two kinds of process", kinds=(0.0025, 0.008)),
    World("5% of processes stalled", stalled=0.05),
    World("every second process slow", slow=0.02),
    World("drift of 0.02% a night", drift=0.0002, clean=False),
    World("case 0.5%, heavy tails", case=0.005, heavy=True),
    World("case 0.3%, uneven", case=0.003, uneven=True),
    World(
        "everything at once",
        case=0.002,
        family=0.002,
        suite=0.002,
        devices=4,
        apart=0.007,
        stalled=0.02,
        heavy=True,
        uneven=True,
        correlation=0.3,
    ),
    *(
        World(f"nights alike: case {size:.1%}, {rho}", case=size, correlation=rho)
        for size in (0.002, 0.005)
        for rho in (0.3, 0.5, 0.8)
    ),
    *(
        World(f"nights alike: suite {size:.1%}, 0.8", suite=size, correlation=0.8)
        for size in (0.005, 0.01)
    ),
)
LASTING_WITHIN = {
    "1% in a case": (3, {NOTHING.name, "case 0.2%", "case 0.3%", "family 0.1%", "family 0.3%"}),
    "2% in a case": (5, {NOTHING.name, "case 0.5%", "family 0.5%"}),
}
"""In so many nights, in the median, of those worlds."""


@dataclass
class Played:
    """What came of a world's nights."""

    nights: int = 0
    processes: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    found: dict[str, Counter[float]] = field(default_factory=dict)
    """Cases called slower by effect, planted on the ``first`` night and ``later``."""
    planted: dict[str, int] = field(default_factory=dict)
    """Cases planted for each effect, likewise."""
    detects: dict[str, list[float]] = field(default_factory=dict)
    """The median case's smallest slowdown that is found, by night."""
    alarms: list[int] = field(default_factory=list)
    """Cases called slower, by night."""
    told: int = 0
    """Slowdowns that the nights told together."""
    until: dict[str, list[int]] = field(default_factory=dict)
    """By slowdown that lasts, on which slower night each was told; one too many if on none."""

    def add(self, other: Played) -> None:
        """Take in another history."""
        self.nights += other.nights
        self.processes += other.processes
        self.statuses += other.statuses
        self.alarms += other.alarms
        self.told += other.told
        for name, each in other.until.items():
            self.until.setdefault(name, []).extend(each)
        for when, counts in other.found.items():
            self.found.setdefault(when, Counter()).update(counts)
            self.planted[when] = self.planted.get(when, 0) + other.planted[when]
            self.detects.setdefault(when, []).extend(other.detects[when])

    @property
    def false_per_night(self) -> float:
        """Cases a night that were called slower, and slowdowns that nights told together."""
        return (self.statuses["REGRESSED"] + self.told) / max(1, self.nights)


class Pool:
    """The machines of a world, and the processes that run on them."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        """Draw what stays the same from night to night."""
        self.world, self.rng = world, rng
        self.between = np.exp(rng.normal(math.log(0.0006), 0.7, CASES)).clip(0.0002, 0.003)
        self.before = np.zeros(CASES)
        half = world.apart / 2  # two devices differ by sqrt(2) times what each differs by
        self.devices = rng.normal(0, half, (world.devices, 1)) + rng.normal(
            0, half, (world.devices, CASES)
        )
        self.kinds = rng.uniform(*(world.kinds or (0.0, 0.0)), CASES)
        self.uneven = np.exp(rng.normal(size=CASES)) if world.uneven else np.ones(CASES)

    def run(self, name: str, night: int) -> Run:
        """Begin a run: everything that its processes share is drawn."""
        world, rng = self.world, self.rng
        families = np.repeat(rng.normal(0, world.family, FAMILIES), CASES // FAMILIES)
        drawn = rng.standard_t(3, CASES) / math.sqrt(3) if world.heavy else rng.normal(size=CASES)
        effect = world.case * self.uneven * drawn + families + rng.normal(0, world.suite)
        if world.correlation:
            effect *= math.sqrt(1 - world.correlation**2) if self.before.any() else 1.0
            effect += world.correlation * self.before
            self.before = effect
        device = int(rng.integers(world.devices))
        effect = effect + self.devices[device] + world.drift * night
        return Run(self, name, f"device-{device}", effect, int(rng.integers(2)))


@dataclass
class Run:
    """One run: its processes share what is drawn for it."""

    pool: Pool
    name: str
    device: str
    effect: np.ndarray
    first: int = 0
    """Whether the first worker is a slow one, where every second is."""
    workers: int = 0

    def worker(self) -> list[ProcessSummary]:
        """Measure every case in a fresh process."""
        world, rng = self.pool.world, self.pool.rng
        times = self.effect + rng.normal(0, self.pool.between)
        times = times + rng.integers(2) * self.pool.kinds
        times = times + (rng.random(CASES) < world.stalled) * rng.uniform(0.05, 0.5, CASES)
        times = times + math.log1p(world.slow) * ((self.first + self.workers) % 2)
        name = f"{self.name}/{self.workers}"
        self.workers += 1
        return [_process(float(time), name, self.device) for time in times]


def _process(log_median: float, worker: str, device: str) -> ProcessSummary:
    return ProcessSummary(
        {"latency": math.exp(log_median)}, 20, "", "", device_uuid=device, worker=worker
    )


def play(world: World, nights: int, entropy: Sequence[int], *, each_night: bool = True) -> Played:
    """Play some nights of a world, from an accepted run on.

    Without ``each_night`` no night is judged by itself: only all together are asked.
    """
    rng = np.random.default_rng(entropy)
    pool = Pool(world, rng)
    accepted: list[list[ProcessSummary]] = [[] for _ in range(CASES)]
    runs = [pool.run(f"pinned-{n}", 0) for n in range(world.pinned_runs)]
    for n in range(PINNED):
        for case, process in enumerate(runs[n % len(runs)].worker()):
            accepted[case].append(process)
    baselines = [Baseline(str(i), each, Accepted("", "", "")) for i, each in enumerate(accepted)]
    fine: list[list[_Night]] = [[] for _ in range(CASES)]
    played = Played()
    together = _Together(pool, accepted)
    for night in range(nights):
        run = pool.run(f"night-{night}", night + 1)
        workers = [run.worker() for _ in range(PLANNED)]
        known = [_rolling(nights_of) for nights_of in fine]
        if each_night and night % PLANT_EVERY == 0:
            _plant(played, "later" if night else "first", workers, baselines, known, rng=rng)
        if each_night:
            verdicts, candidates = _judged(workers, baselines, known)
            statuses = [judge.overall(found) for found in verdicts]
        else:
            candidates = _measured(workers, baselines)
            verdicts, statuses = [[]] * CASES, [Status.OK] * CASES
        played.nights += 1
        played.processes += sum(map(len, candidates))
        played.statuses.update(status.value for status in statuses)
        played.alarms.append(statuses.count(Status.REGRESSED))
        for case, status in enumerate(statuses):
            if status in (Status.OK, Status.IMPROVED):
                fine[case].insert(0, (candidates[case], verdicts[case]))
        together.add(run.name, candidates, statuses)
        played.told += together.look()
        for begin in LASTING_FROM:
            if begin <= night < begin + FOLLOWED:
                together.plant(begin)
    played.until = together.until()
    return played


def _rolling(nights: Sequence[_Night]) -> list[ProcessSummary]:
    """Return the processes of the rolling baseline, from nights that were fine, newest first."""
    known: list[Sequence[ProcessSummary]] = []
    gone: set[str] = set()
    for processes, verdicts in nights[: past.NIGHTS + past.LASTING]:
        past.take_in(known, gone, processes, verdicts)
    return [process for night in known for process in night]


class _Together:
    """All nights of a suite, asked every night what they show together."""

    def __init__(self, pool: Pool, accepted: Sequence[Sequence[ProcessSummary]]) -> None:
        """Begin with the accepted processes, by case."""
        self.pool = pool
        self.runs: list[list[over.CaseRun]] = [[] for _ in range(CASES)]
        for case, processes in enumerate(accepted):
            by_run: dict[str, list[ProcessSummary]] = {}
            for process in processes:
                by_run.setdefault(process.run, []).append(process)
            for number, (name, held) in enumerate(by_run.items()):
                self.runs[case].append(over.CaseRun(name, _date(number - len(by_run)), held))
        self.told_since = [""] * CASES
        self.first: dict[tuple[str, int, int], int] = {}
        """By slowdown, the night it begins and its number, the night on which it was told."""
        self.nights = 0

    def add(
        self,
        run: str,
        candidates: Sequence[Sequence[ProcessSummary]],
        statuses: Sequence[Status],
    ) -> None:
        """Take in a night."""
        for case in range(CASES):
            if statuses[case] in over.COMPARED:
                is_slower = statuses[case] is Status.REGRESSED
                night = over.CaseRun(run, _date(self.nights), candidates[case], is_slower)
                self.runs[case].append(night)
        self.nights += 1

    def look(self) -> int:
        """Return how many slowdowns the nights tell that none told before."""
        found = self._asked(self.runs)
        for one in found:
            for case in map(int, one.cases):
                self.told_since[case] = one.since
        return len(found)

    def plant(self, begin: int) -> None:
        """Look at the nights as they would have been with slowdowns since one of them."""
        rng = np.random.default_rng(begin)
        for name, (effect, cases) in LASTING.items():
            chosen = rng.choice(CASES, cases, replace=False).tolist()
            slower = [
                [
                    over.CaseRun(
                        run.run_id,
                        run.time,
                        [_slower(process, effect) for process in run.processes],
                        run.regressed,
                    )
                    if case in chosen and run.time >= _date(begin)
                    else run
                    for run in runs
                ]
                for case, runs in enumerate(self.runs)
            ]
            told = {int(case) for one in self._asked(slower) for case in one.cases}
            slowed = [[case] for case in chosen] if cases else [chosen]
            for number, held in enumerate(slowed):
                known = self.first.setdefault((name, begin, number), FOLLOWED + 1)
                if 2 * len(told.intersection(held)) >= len(held):
                    self.first[name, begin, number] = min(known, self.nights - begin)

    def until(self) -> dict[str, list[int]]:
        """Return by slowdown on which slower night each was told."""
        found: dict[str, list[int]] = {}
        for (name, _, _), nights in self.first.items():
            found.setdefault(name, []).append(nights)
        return found

    def _asked(self, runs: Sequence[Sequence[over.CaseRun]]) -> list[SlowDown]:
        cases = {
            str(case): over.CaseNights(each, self.told_since[case])
            for case, each in enumerate(runs)
        }
        return over.over_nights(cases, "tonight")[0]


def _date(night: int) -> str:
    return f"{FIRST_NIGHT + dt.timedelta(days=night):%Y-%m-%dT%H:%M:%SZ}"


FIRST_NIGHT = dt.datetime(2026, 1, 31, 2, tzinfo=dt.timezone.utc)


def _plant(
    played: Played,
    when: str,
    workers: Sequence[Sequence[ProcessSummary]],
    baselines: Sequence[Baseline],
    known: Sequence[Sequence[ProcessSummary]],
    *,
    rng: np.random.Generator,
) -> None:
    """Judge a night as it would have been with slowdowns in some cases."""
    chosen = set(rng.choice(CASES, PLANTED, replace=False).tolist())
    found = played.found.setdefault(when, Counter())
    played.planted[when] = played.planted.get(when, 0) + PLANTED
    for effect in EFFECTS:
        slower = [
            [
                _slower(process, effect) if case in chosen else process
                for case, process in enumerate(worker)
            ]
            for worker in workers
        ]
        verdicts, _ = _judged(slower, baselines, known)
        found[effect] += sum(judge.overall(verdicts[c]) is Status.REGRESSED for c in chosen)
    detects = [min(v.detectable_effect or math.inf for v in each) for each in verdicts]
    played.detects.setdefault(when, []).append(float(np.median(detects)))


def _slower(process: ProcessSummary, effect: float) -> ProcessSummary:
    latency = process.values["latency"] * (1 + effect)
    return ProcessSummary(
        {"latency": latency}, 20, "", "", device_uuid=process.device_uuid, worker=process.worker
    )


def _judged(
    workers: Sequence[Sequence[ProcessSummary]],
    baselines: Sequence[Baseline],
    known: Sequence[Sequence[ProcessSummary]],
) -> tuple[list[list[Verdict]], list[list[ProcessSummary]]]:
    """Judge a night as the engine does: what is suspicious is measured again."""
    candidates: list[list[ProcessSummary]] = [[] for _ in range(CASES)]
    suspicious = list(range(CASES))
    verdicts: dict[str, list[Verdict]] = {}
    for worker in workers:
        for case in suspicious:
            candidates[case].append(worker[case])
        suite = {
            str(case): Evidence(
                candidates[case], baselines[case], rolling=known[case], planned=PLANNED
            )
            for case in range(CASES)
        }
        verdicts = judge.judge(suite)
        suspicious = [c for c in suspicious if judge.is_suspicious(verdicts[str(c)])]
        if not suspicious:
            break
    return [verdicts[str(case)] for case in range(CASES)], candidates


def _measured(
    workers: Sequence[Sequence[ProcessSummary]], baselines: Sequence[Baseline]
) -> list[list[ProcessSummary]]:
    """Measure a night as the engine does, as long as a case is 1.5% slower than accepted."""
    candidates: list[list[ProcessSummary]] = []
    for case, baseline in enumerate(baselines):
        accepted = float(np.median([process.log_median for process in baseline.processes]))
        own = [workers[0][case]]
        while len(own) < len(workers) and _mean(own) > accepted + SUSPICIOUS:
            own.append(workers[len(own)][case])
        candidates.append(own)
    return candidates


def _mean(processes: Sequence[ProcessSummary]) -> float:
    return float(np.mean([process.log_median for process in processes]))


def report(name: str, nights: int, seed: int, *, each_night: bool = True) -> dict[str, Any]:
    """Play the worlds whose names begin so, on all cores; raises ValueError where there are none.

    Each world's nights are histories of 60 nights at most, with a seed each.
    """
    kinds = chosen(name)
    lengths = [min(HISTORY, nights - begin) for begin in range(0, nights, HISTORY)]
    tasks = [
        (world, length, (seed, zlib.crc32(world.name.encode()), number))
        for world in kinds
        for number, length in enumerate(lengths)
    ]
    played = {world: Played() for world in kinds}
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        work = functools.partial(play, each_night=each_night)
        for (world, *_), each in zip(tasks, pool.map(work, *zip(*tasks, strict=True)), strict=True):
            played[world].add(each)
    rows = [figures(world, each) for world, each in played.items()]
    return {"worlds": rows, "missed": missed(rows)}


def chosen(name: str) -> list[World]:
    """Return the worlds whose names begin so; raises ValueError where there are none."""
    found = [world for world in WORLDS if world.name.startswith(name)]
    if not found:
        raise ValueError(f"no world begins with {name!r}; there are {', '.join(_names())}")
    return found


def _names() -> Iterator[str]:
    return (world.name for world in WORLDS)


def figures(world: World, played: Played) -> dict[str, Any]:
    """Return what came of a world as a plain object."""
    return {
        "world": world.name,
        "nights": played.nights,
        "false_per_night": played.false_per_night,
        "nights_with_an_alarm": sum(map(bool, played.alarms)),
        "told_over_nights": played.told / played.nights,
        "nights_until_told": {name: float(np.median(each)) for name, each in played.until.items()},
        "statuses_per_night": {
            name: count / played.nights for name, count in sorted(played.statuses.items())
        },
        "processes_per_case": played.processes / played.nights / CASES,
        "found": {
            when: {effect: counts[effect] / played.planted[when] for effect in EFFECTS}
            for when, counts in played.found.items()
        },
        "detects": {when: float(np.median(each)) for when, each in played.detects.items()},
    }


def missed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which promises the worlds break."""
    words = []
    for row, world in ((row, w) for row in rows for w in WORLDS if w.name == row["world"]):
        if world.clean and row["false_per_night"] > MOST_FALSE:
            words.append(f"{world.name}: {row['false_per_night']:.3f} false alarms a night")
        first = row["found"].get("first")
        if world == NOTHING and first and first[0.02] < LEAST_FOUND:
            words.append(f"{world.name}: {first[0.02]:.0%} of 2% found at first")
        for name, nights in row.get("nights_until_told", {}).items():
            most, of = LASTING_WITHIN[name]
            if world.name in of and nights > most:
                words.append(f"{world.name}: {name} told on night {nights:g} of it")
    return words
