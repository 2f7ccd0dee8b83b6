"""Which rule tells a step in a year of nights from noise, how late, and how often wrongly?

    python benchmarks/change_points.py [--histories 40] [--seed 1] [--real FILE] [--only NAME]

Simulates years of nights of one case, of many kinds, without and with one step, and asks the
project's own rule and others for the steps: once at the end of the year, and night by night as
they come in.  Rules that know nothing of devices are given the values less their device's
median.  Prints the tables of docs/error-rates.md.  Apache Otava's and MongoDB's are asked where
they can be imported.  ``--real`` adds years drawn from the processes of real timings, in the
form that error_rates.py takes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import ruptures

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_lib.verdict.statistics.changes import steps

NIGHTS = 365
MISSING = 0.03
SIZES = (0.005, 0.01, 0.02, 0.05)
NEAR = 5
"""A call so many nights from the step is of the step."""
EARLIEST, LATEST = 60, 305
"""Nights on which steps are planted."""
WATCHED = 30
"""Nights after a step in which it may be called."""
FIRST = 8
"""Nights of history when it is first asked for."""
NOT_ASKED = "-"


# --- years of nights -----------------------------------------------------------------------


@dataclass(frozen=True)
class Year:
    """One case's logarithms of nightly times, and on which device each was measured."""

    values: np.ndarray
    devices: list[str] = field(default_factory=list)

    @property
    def groups(self) -> list[str]:
        """Name each night's device."""
        return self.devices or ["one"] * len(self.values)

    def until(self, nights: int) -> Year:
        """Return what was known after so many nights."""
        return Year(self.values[:nights], self.groups[:nights])


Draw = Callable[[np.random.Generator, int], Year]


def white(rng: np.random.Generator, n: int, sd: float) -> np.ndarray:
    """Draw nights that have nothing to do with each other."""
    return rng.normal(0, sd, n)


def clusters(rng: np.random.Generator, n: int) -> np.ndarray:
    """Toss a coin each night between two kinds of processes."""
    return rng.integers(0, 2, n) * rng.uniform(0.0025, 0.008) + white(rng, n, 0.0005)


def correlated(rng: np.random.Generator, n: int, sd: float) -> np.ndarray:
    """Draw nights that resemble the one before, AR(1)."""
    phi = rng.uniform(0.2, 0.6)
    noise = white(rng, n, sd)
    for i in range(1, n):
        noise[i] = phi * noise[i - 1] + math.sqrt(1 - phi**2) * noise[i]
    return noise


def drift(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw a line of up to 1% in the year, and a season of 0.2%."""
    year = np.linspace(0, 1, n)
    season = 0.002 * np.sin(2 * np.pi * (year + rng.random()))
    return np.asarray(rng.uniform(-0.01, 0.01) * year + season)


def odd(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw one night in thirty by itself, slower or (one in five) faster, by 5% on average."""
    sign = np.where(rng.random(n) < 0.2, -1, 1)
    return np.asarray((rng.random(n) < 1 / 30) * sign * np.log1p(rng.exponential(0.05, n)))


def on_devices(rng: np.random.Generator, values: np.ndarray, count: int) -> Year:
    """Put each night on one of some devices, which are 1.8% apart at most."""
    drawn = rng.integers(0, count, len(values))
    return Year(values + rng.uniform(-0.009, 0.009, count)[drawn], [f"gpu-{i}" for i in drawn])


def moved(rng: np.random.Generator, n: int) -> Year:
    """Spend months on one device, months on another, and go back to the first."""
    first, second = sorted(rng.integers(30, n - 30, 2))
    device = (np.arange(n) >= first) & (np.arange(n) < second)
    values = white(rng, n, 0.001) + device * rng.uniform(-0.018, 0.018)
    return Year(values, [f"gpu-{int(d)}" for d in device])


def noisier(rng: np.random.Generator, n: int) -> Year:
    """Become four times as noisy on some night."""
    late = np.arange(n) >= rng.integers(EARLIEST, LATEST)
    return Year(white(rng, n, 0.001) * np.where(late, 4, 1))


KINDS: dict[str, Draw] = {
    "steady, 0.05%": lambda rng, n: Year(white(rng, n, 0.0005)),
    "0.2%": lambda rng, n: Year(white(rng, n, 0.002)),
    "0.5%": lambda rng, n: Year(white(rng, n, 0.005)),
    "two clusters 0.25 to 0.8% apart": lambda rng, n: Year(clusters(rng, n)),
    "heavy tails (t with 3 degrees, 0.15%)": lambda rng, n: Year(0.0015 * rng.standard_t(3, n)),
    "correlated, 0.2%": lambda rng, n: Year(correlated(rng, n, 0.002)),
    "drift and season, 0.1%": lambda rng, n: Year(drift(rng, n) + white(rng, n, 0.001)),
    "wandering by 0.02% a night, 0.1%": lambda rng, n: Year(
        np.cumsum(white(rng, n, 0.0002)) + white(rng, n, 0.001)
    ),
    "odd nights, 0.1%": lambda rng, n: Year(odd(rng, n) + white(rng, n, 0.001)),
    "8 devices, 0.1%": lambda rng, n: on_devices(rng, white(rng, n, 0.001), 8),
    "64 devices, 0.1%": lambda rng, n: on_devices(rng, white(rng, n, 0.001), 64),
    "another device for months, 0.1%": moved,
    "noise grows from 0.1 to 0.4%": noisier,
    "host-bound, 4%": lambda rng, n: Year(white(rng, n, 0.04)),
    "clusters, drift, odd nights, 8 devices": lambda rng, n: on_devices(
        rng, clusters(rng, n) + drift(rng, n) + odd(rng, n) + correlated(rng, n, 0.001), 8
    ),
}


def real(path: Path) -> dict[str, Draw]:
    """Return years whose nights are processes of real timings, drawn with replacement."""
    medians: dict[str, list[float]] = defaultdict(list)
    for line in path.read_text().splitlines():
        process = json.loads(line)
        if not process.get("slow"):
            times = process.get("ms") or process["times"]
            medians[process.get("workload") or process["case"]].append(math.log(np.median(times)))

    def year(values: Sequence[float]) -> Draw:
        return lambda rng, n: Year(rng.choice(values, n))

    return {f"drawn from {name}": year(values) for name, values in medians.items()}


@dataclass(frozen=True)
class History:
    """A year and where the step is; None in a clean one."""

    kind: str
    year: Year
    size: float
    at: int | None


def history(kind: str, draw: Draw, size: float, seed: Sequence[int]) -> History:
    """Draw a year, plant a step of ``size`` up or down, and lose some nights."""
    rng = np.random.default_rng(seed)
    year = draw(rng, NIGHTS)
    night = int(rng.integers(EARLIEST, LATEST))
    step = math.log1p(size) * (1 if rng.random() < 0.5 else -1)
    kept = rng.random(NIGHTS) >= MISSING
    values = (year.values + step * (np.arange(NIGHTS) >= night))[kept]
    devices = [name for name, there in zip(year.groups, kept, strict=True) if there]
    return History(kind, Year(values, devices), size, int(kept[:night].sum()) if size else None)


# --- the rules -----------------------------------------------------------------------------


def without_devices(year: Year) -> np.ndarray:
    """Take each device's median off."""
    values, groups = year.values.copy(), np.array(year.groups)
    for name in set(year.groups):
        values[groups == name] -= np.median(values[groups == name])
    return values


def scaled(year: Year) -> np.ndarray:
    """Return values in standard deviations, as the differences of neighbours tell them."""
    values = without_devices(year)
    spread = 1.4826 * np.median(np.abs(np.diff(values))) / math.sqrt(2)
    return np.asarray(values / max(spread, 1e-5))


def own(year: Year) -> list[int]:
    """Ask the project's own rule."""
    return [step.index for step in steps(year.values.tolist(), groups=year.groups)]


def own_without_devices(year: Year) -> list[int]:
    """Ask it as the others are asked."""
    return [step.index for step in steps(without_devices(year).tolist())]


def partition(price: float, kernel: str = "linear") -> Callable[[Year], list[int]]:
    """Return ruptures' optimal partition by squares or a Gaussian kernel, at so many ln(n)."""

    def rule(year: Year) -> list[int]:
        values = scaled(year)[:, None]
        search = ruptures.KernelCPD(kernel=kernel, min_size=3).fit(values)
        return list(map(int, search.predict(pen=price * math.log(len(values)))[:-1]))

    return rule


def searched(name: str, cost: str, price: float) -> Callable[[Year], list[int]]:
    """Return another of ruptures' searches and costs."""

    def rule(year: Year) -> list[int]:
        values = scaled(year)
        search = getattr(ruptures, name)(model=cost, min_size=3, jump=1).fit(values)
        return list(map(int, search.predict(pen=price * math.log(len(values)))[:-1]))

    return rule


def cusum(year: Year, slack: float = 0.5, limit: float = 8.0, training: int = 20) -> list[int]:
    """Run Page's two-sided sums (1954), trained on nights and again after each alarm."""
    values, found, start = without_devices(year), [], 0
    while start + training < len(values):
        known = values[start : start + training]
        scores = (values[start + training :] - known.mean()) / max(known.std(ddof=1), 1e-5)
        up = down = 0.0
        up_from = down_from = 0
        for i, score in enumerate(scores):
            up, down = max(0.0, up + score - slack), max(0.0, down - score - slack)
            up_from, down_from = (up_from if up else i + 1), (down_from if down else i + 1)
            if max(up, down) > limit:
                start += training + (up_from if up > down else down_from)
                found.append(start)
                break
        else:
            break
    return found


def windows(year: Year, back: int = 12, most: int = 24, limit: float = 7.0) -> list[int]:
    """Compare by Student's t the nights before and after, near ones weighing more (Perfherder)."""
    values = without_devices(year)
    t = np.zeros(len(values))
    for i in range(back, len(values) - back + 1):
        sides = []
        for side in (values[max(0, i - most) : i][::-1], values[i : i + back]):
            weights = np.linspace(1, 0, len(side), endpoint=False)
            mean = float(weights @ side / weights.sum())
            sides.append((mean, float(((side - mean) ** 2).sum() / (len(side) - 1)), len(side)))
        (before, v, m), (after, w, k) = sides
        t[i] = abs(after - before) / max(math.sqrt(v / m + w / k), 1e-9)
    peaks = (t[max(0, i - back) : i + back].max() for i in range(len(t)))
    return [i for i, peak in enumerate(peaks) if t[i] == peak > limit]


def otava(least: float) -> Callable[[Year], list[int]]:
    """Return Apache Otava's e-divisive with Student's t, of changes that are large enough."""

    def rule(year: Year) -> list[int]:
        from otava.analysis import compute_change_points  # noqa: PLC0415 - may not be there

        times = np.exp(without_devices(year)).tolist()
        points, _ = compute_change_points(
            times, window_len=50, max_pvalue=0.001, min_magnitude=least
        )
        return [point.index for point in points]

    return rule


def mongodb(year: Year) -> list[int]:
    """Ask MongoDB's e-divisive with permutations, as it comes."""
    from signal_processing_algorithms.energy_statistics import energy_statistics  # noqa: PLC0415

    return sorted(map(int, energy_statistics.e_divisive(without_devices(year).tolist())))


@dataclass(frozen=True)
class Rule:
    """A rule, and how much time there is for it."""

    name: str
    call: Callable[[Year], list[int]]
    every: int = 1
    """It is asked of one year in so many."""
    played: bool = False
    """Whether it is asked every night of clean years."""
    watched: bool = True
    """Whether it is asked every night after a step."""


RULES = [
    Rule("bench-lib", own, played=True),
    Rule("bench-lib, less medians of devices", own_without_devices, 4, played=True),
    Rule("optimal partition, squares, 2 ln n", partition(2), 2),
    Rule("optimal partition, squares, 6 ln n", partition(6), 4, played=True),
    Rule("optimal partition, squares, 20 ln n", partition(20), 4, played=True),
    Rule("optimal partition, Gaussian kernel, 1 ln n", partition(1, "rbf"), 8),
    Rule("optimal partition, Gaussian kernel, 2 ln n", partition(2, "rbf"), 8, played=True),
    Rule("PELT, normal, 6 ln n", searched("Pelt", "normal", 6), 16, watched=False),
    Rule("PELT, ranks, 3 ln n", searched("Pelt", "rank", 3), 16, watched=False),
    Rule("binary segmentation, squares, 6 ln n", searched("Binseg", "l2", 6), 8),
    Rule("binary segmentation, ranks, 3 ln n", searched("Binseg", "rank", 3), 8),
    Rule("CUSUM, k = 0.5, h = 8", cusum, 2, played=True),
    Rule("windows as Perfherder's, t > 7", windows, 8),
]
if find_spec("otava"):
    RULES.append(Rule("Apache Otava", otava(0), 8))
    RULES.append(Rule("Apache Otava, 0.3% or more", otava(0.003), 8))
if find_spec("signal_processing_algorithms"):
    RULES.append(Rule("MongoDB's e-divisive", mongodb, 8, watched=False))


# --- what they say -------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """What a rule said of one history."""

    rule: str
    kind: str
    size: float
    false: int
    """Steps called at the year's end that are none."""
    played: int | None
    """Steps called on any night that are none; None where it was not played."""
    off: int | None
    """Nights between the step and where it was called; None where it was not."""
    delay: int | None
    """Nights of the new level when it was first called; None where it was not in time."""
    seconds: float


def score(rule: Rule, story: History) -> Score:
    """Ask for the steps at the year's end, and after each night where that was wanted."""
    began = time.process_time()
    found = rule.call(story.year)
    seconds = time.process_time() - began
    far = [i for i in found if not is_of(i, story.at)]
    off = None
    if story.at is not None:
        off = min((abs(i - story.at) for i in found if i not in far), default=None)
    return Score(
        rule.name,
        story.kind,
        story.size,
        len(far),
        ever_called(rule, story) if rule.played and story.at is None else None,
        off,
        first_called(rule, story) if rule.watched and story.at is not None else None,
        seconds,
    )


def is_of(index: int, at: int | None) -> bool:
    """Tell whether a call is of the step."""
    return at is not None and abs(index - at) <= NEAR


def ever_called(rule: Rule, story: History) -> int:
    """Return how many steps were called on any night; calls near each other are one."""
    called = sorted(
        i
        for nights in range(FIRST, len(story.year.values) + 1)
        for i in rule.call(story.year.until(nights))
    )
    return sum(b - a > NEAR for a, b in itertools.pairwise([-NEAR - 1, *called]))


def first_called(rule: Rule, story: History) -> int | None:
    """Return how many nights of the new level it took."""
    assert story.at is not None
    for nights in range(1, WATCHED + 1):
        if any(is_of(i, story.at) for i in rule.call(story.year.until(story.at + nights))):
            return nights
    return None


def task(job: tuple[str, str | None, float, int, int, list[str]]) -> list[Score]:
    """Score all rules on one history."""
    kind, path, size, seed, number, only = job
    warnings.simplefilter("ignore")
    draws = KINDS | (real(Path(path)) if path else {})
    story = history(kind, draws[kind], size, [seed, number, list(draws).index(kind)])
    return [
        score(rule, story)
        for rule in RULES
        if number % rule.every == 0 and (not only or rule.name in only)
    ]


# --- tables --------------------------------------------------------------------------------


def share(values: Iterable[bool]) -> str:
    """Return how many are true, in percent."""
    known = list(values)
    return f"{100 * sum(known) / len(known):.0f}%" if known else NOT_ASKED


def mean(values: Iterable[float]) -> str:
    """Return the mean without zeros at its end."""
    known = list(values)
    return f"{statistics.fmean(known):.3f}".rstrip("0").rstrip(".") if known else NOT_ASKED


def middle(values: Iterable[int | None], part: float) -> str:
    """Return a quantile of delays, of which those not in time are longest."""
    known = sorted(math.inf if value is None else value for value in values)
    if not known:
        return NOT_ASKED
    value = known[min(len(known) - 1, int(part * len(known)))]
    return "late" if value == math.inf else f"{value:.0f}"


def tables(scores: Sequence[Score]) -> None:
    """Print what docs/error-rates.md shows."""
    sizes = [size for size in SIZES if any(s.size == size for s in scores)]
    percent = [f"{100 * size:g}%" for size in sizes]
    print("| rule | false a year | played nightly |", " | ".join(percent), "| ms |")
    print("|---" * (4 + len(sizes)) + "|")
    for rule in dict.fromkeys(s.rule for s in scores):
        mine = [s for s in scores if s.rule == rule]
        clean = [s for s in mine if not s.size]
        cells = [mean(s.false for s in clean)]
        cells.append(mean(s.played for s in clean if s.played is not None))
        cells += [share(s.off is not None for s in mine if s.size == size) for size in sizes]
        cells.append(f"{1000 * statistics.median(s.seconds for s in mine):.1f}")
        print(f"| {rule} |", " | ".join(cells), "|")
    print("\n| rule | the very night: ", " | ".join(percent), "| within 1 night:", end=" ")
    print(" | ".join(percent), "| nights until called, median (90%):", " | ".join(percent), "|")
    for rule in dict.fromkeys(s.rule for s in scores):
        mine = [s for s in scores if s.rule == rule]
        cells = []
        for most in (0, 1):
            for size in sizes:
                found = [s.off for s in mine if s.size == size and s.off is not None]
                cells.append(share(off <= most for off in found))
        watched = next(known.watched for known in RULES if known.name == rule)
        for size in sizes:
            delays = [s.delay for s in mine if s.size == size and watched]
            cells.append(f"{middle(delays, 0.5)} ({middle(delays, 0.9)})")
        print(f"| {rule} |", " | ".join(cells), "|")
    for rule in dict.fromkeys(s.rule for s in scores):
        print(f"\n{rule}\n| history | false | nightly | beside a step |", " | ".join(percent), "|")
        for kind in dict.fromkeys(s.kind for s in scores):
            mine = [s for s in scores if s.rule == rule and s.kind == kind]
            clean = [s for s in mine if not s.size]
            cells = [mean(s.false for s in clean)]
            cells.append(mean(s.played for s in clean if s.played is not None))
            cells.append(mean(s.false for s in mine if s.size))
            cells += [share(s.off is not None for s in mine if s.size == size) for size in sizes]
            print(f"| {kind} |", " | ".join(cells), "|")


def main() -> None:
    """Simulate, score, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--histories", type=int, default=40, help="of each kind and size")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", help="timings, one process a line")
    parser.add_argument("--only", action="append", default=[], help="name of a rule")
    parser.add_argument("--kind", action="append", default=[], help="name of a kind of year")
    parser.add_argument("--size", action="append", default=[], type=float, help="0 for no step")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    kinds = [*KINDS, *(real(Path(arguments.real)) if arguments.real else {})]
    jobs = [
        (kind, arguments.real, size, arguments.seed, number, arguments.only)
        for kind in arguments.kind or kinds
        for size in arguments.size or (0.0, *SIZES)
        for number in range(arguments.histories)
    ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        scores = [score for found in pool.map(task, jobs, chunksize=4) for score in found]
    tables(scores)


if __name__ == "__main__":
    main()
