"""How often does the verdict cry wolf, and what does it find?

    python benchmarks/error_rates.py [--nights 1000] [--seed 1] [--json]
    python benchmarks/error_rates.py --worlds [NAME] [--together] [--nights 60] [--seed 1] [--json]
    python benchmarks/error_rates.py --interleaved [NAME] [--nights 60] [--seed 1]

Simulates nights of a hundred cases and has the project's own rule judge their latencies,
sequential confirmation included; beside it stand the gates that other tools have.  With
``--worlds`` it plays nights one after the other in worlds that have effects of runs, devices and
processes (``worlds``), with ``--together`` without judging each by itself, which takes most of the
time.  With ``--interleaved`` such nights are judged by pairs with the accepted environment.
The exit status is 1 if a figure that the project promises is missed.

The model (docs/statistics.md): processes differ by 0.4%, which the cases of one worker share
wholly, half or not at all; iterations by 0.6% with a lag-one correlation of 0.5; one
iteration in fifty is a spike; processes drift; one process of a case in fifty is throttled
by 2 to 5%, which nothing sees.  The pinned baseline is taken as it comes, throttled processes
and all; of the accepted nights those are left out that would have been looked at twice.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special, stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import interleaved
import worlds

from bench_lib.findings import Difference
from bench_lib.model import Origin, Status, Verdict
from bench_lib.verdict import judge
from bench_lib.verdict.chance import Question, answers
from bench_lib.verdict.metrics import LEADING
from bench_lib.verdict.statistics.change import Contrast

CASES = 100
TOLERANCE = 0.01
FAR = math.log1p(0.01)
"""An accepted process is no farther from the others; nearer odd ones a second look clears."""
PLANNED = 6
"""Processes of a case that stays suspicious, as ``perf_confirm`` has it by default."""
ITERATIONS = 20
OTHERS_ITERATIONS = 50
"""What the gates of other tools are given."""
PINNED, ROLLING = 5, 20
PLANTED = 5
EFFECTS = (0.01, 0.015, 0.02, 0.03, 0.05)
SHARING = (0.0, 0.5, 1.0)
STANDARDS = (("pinned", "rolling"), ("rolling",), ("pinned",))
"""What a night is held against; the suite itself always uses both."""
CHUNK = 5
"""Nights a task; few, so that all cores end together."""

MOST_FALSE = 0.02
LEAST_FOUND = {0.02: 0.70, 0.03: 0.99}
MOST_ITERATIONS, MOST_PROCESSES = 25.0, 1.2


# --- the model -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """What simulated timings are made of; each size is a fraction."""

    shared: float = 0.0
    """Share of the variance between processes that all cases of a worker have in common."""
    between: float = 0.004
    within: float = 0.006
    correlation: float = 0.5
    spikes: float = 0.02
    spike: float = 0.05
    drift: float = 0.001
    throttled: float = 0.02
    """Share of the processes of a case that are slower by something in ``throttle``."""
    throttle: tuple[float, float] = (0.02, 0.05)

    def workers(self, rng: np.random.Generator, n: int, iterations: int) -> np.ndarray:
        """Run every case in some fresh processes.

        Returns logarithms of iteration times, by worker, case and iteration.
        """
        common = rng.normal(0, math.sqrt(self.shared), (n, 1))
        own = rng.normal(0, math.sqrt(1 - self.shared), (n, CASES))
        slower = (rng.random((n, CASES)) < self.throttled) * rng.uniform(*self.throttle, (n, CASES))
        process = self.between * (common + own) + np.log1p(slower)
        ramp = np.linspace(-0.5, 0.5, iterations)
        drift = rng.normal(0, self.drift, (n, CASES, 1)) * ramp
        return np.asarray(process[:, :, None] + drift + self._inside(rng, (n, CASES, iterations)))

    def _inside(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        noise: np.ndarray = rng.standard_normal(shape) * self.within
        innovation = math.sqrt(1 - self.correlation**2)
        for i in range(1, shape[-1]):
            noise[..., i] = self.correlation * noise[..., i - 1] + innovation * noise[..., i]
        hit = rng.random(shape) < self.spikes
        noise[hit] += rng.exponential(self.spike, int(hit.sum()))
        return noise


def medians(workers: np.ndarray) -> np.ndarray:
    """Return what the suite judges of each worker and case: the log median of 20 iterations."""
    return np.asarray(np.median(workers[..., :ITERATIONS], axis=-1))


def accepted(workers: np.ndarray) -> list[dict[str, float]]:
    """Return each case's processes of the last accepted nights.

    An approximation: a process that differs much from the others would have made its night
    suspicious, and is passed over for that of a night further back.
    """
    nights = medians(workers)
    nights[abs(nights - np.median(nights, axis=0)) > FAR] = np.nan
    return [
        dict([(f"night-{i}", x) for i, x in enumerate(case) if not math.isnan(x)][:ROLLING])
        for case in nights.T.tolist()
    ]


# --- a night under the project's rule ------------------------------------------------------


def confirmed(
    standards: Mapping[str, Sequence[Mapping[str, float]]],
    worker: Callable[[int], Sequence[float]],
    tolerance: float = TOLERANCE,
) -> tuple[list[list[Verdict]], int]:
    """Judge a night as the suite does; return each case's verdicts and the processes it took.

    ``worker(n)`` gives the n-th fresh worker's log medians, a case each.  What is suspicious
    is measured again in workers shared by all such cases, and leaves when it no longer is.
    """
    questions: dict[tuple[str, int], Question] = {}
    candidates: list[dict[str, float]] = [{} for _ in range(CASES)]
    histories = [
        [
            _by_run(standards[against][case])
            for against in ("pinned", "rolling")
            if against in standards
        ]
        for case in range(CASES)
    ]
    suspicious = list(range(CASES))
    verdicts: list[list[Verdict]] = []
    for n in range(PLANNED):
        values = worker(n)
        for case in suspicious:
            candidates[case] = {**candidates[case], f"worker-{n}": values[case]}
            for against, baselines in standards.items():
                contrast = Contrast(
                    [*candidates[case].values()],
                    [*baselines[case].values()],
                    PLANNED,
                    candidate_origins=[*_origins(candidates[case]).values()],
                    baseline_origins=[*_origins(baselines[case]).values()],
                    history=histories[case],
                )
                question = Question(str(case), LEADING, against, contrast, tolerance)
                questions[against, case] = question
        verdicts = [[] for _ in range(CASES)]
        for of in standards:
            family = [question for question in questions.values() if question.against == of]
            for question, verdict in zip(family, answers(family), strict=True):
                verdicts[int(question.case_id)].append(verdict)
        suspicious = [case for case in suspicious if judge.is_suspicious(verdicts[case])]
        if not suspicious:
            break
    return verdicts, sum(map(len, candidates))


def _origins(names: Iterable[str]) -> dict[str, Origin]:
    """Return which run each process is of: each accepted night is one of its own."""
    return {
        name: Origin(name if name.startswith("night") else name.partition("-")[0]) for name in names
    }


def _by_run(values: Mapping[str, float]) -> dict[Origin, list[float]]:
    """Return the values of an accepted run, or of nights, by run; the oldest night first."""
    found: dict[Origin, list[float]] = {}
    for name, origin in reversed(_origins(values).items()):
        found.setdefault(origin, []).append(values[name])
    return found


# --- gates of other tools ------------------------------------------------------------------


def mean_5(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Fail where the mean is 5% slower than the stored run's (pytest-benchmark, ReFrame)."""
    return np.asarray(np.exp(new).mean(axis=-1) > 1.05 * np.exp(old).mean(axis=-1))


def median_2(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Fail where the median is 2% slower than the stored run's."""
    return np.asarray(np.median(new, axis=-1) > np.median(old, axis=-1) + math.log(1.02))


def welch(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Fail where Welch's test of all iterations says different at p < 0.01, and slower."""
    test = stats.ttest_ind(np.exp(new), np.exp(old), axis=-1, equal_var=False)
    return np.asarray((test.pvalue < 0.01) & (test.statistic > 0))


OTHERS = {"mean +5%": mean_5, "median +2%": median_2, "Welch, pooled iterations": welch}


# --- nights by the hundred -----------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """One kind of night."""

    kind: str
    machine: Machine
    standards: tuple[str, ...] = STANDARDS[0]
    nights: int = 1
    planted: float = 0.0
    """Slowdown of five cases."""
    everywhere: float = 0.0
    """Slowdown of every case."""
    first_worker: float = 0.0
    """Slowdown of the first worker alone."""

    @property
    def rule(self) -> str:
        """What its nights are held against, in words."""
        return " and ".join(self.standards)


@dataclass
class Tally:
    """What came of some nights of one kind."""

    nights: int = 0
    processes: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    """Of cases in which nothing was planted."""
    planted: Counter[str] = field(default_factory=Counter)
    """Statuses of those in which something was."""
    hit_nights: int = 0
    """Nights on which a case was called slower in which nothing was planted."""
    together: int = 0
    """Cases of which the verdict says that most of the suite moved with them."""
    others_false: Counter[str] = field(default_factory=Counter)
    others_found: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Take in other nights."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def false_per_night(self) -> float:
        """Cases a night that were called slower and had nothing planted."""
        return self.statuses["REGRESSED"] / self.nights

    @property
    def false_at_most(self) -> float:
        """Upper end of a one-sided 95% interval of ``false_per_night``.

        Exact for nights that are hit at all (Poisson); alarms within a night come together,
        so each counts with as many as were seen in such a night.
        """
        nights = float(special.gammaincinv(self.hit_nights + 1, 0.95)) / self.nights
        return nights * (self.statuses["REGRESSED"] / self.hit_nights if self.hit_nights else 1)

    @property
    def power(self) -> float:
        """Share of planted slowdowns that were called REGRESSED."""
        return self.planted["REGRESSED"] / max(1, self.planted.total())

    @property
    def slower(self) -> float:
        """Share of the cases in which nothing was planted by itself that were called slower."""
        return self.statuses["REGRESSED"] / max(1, self.statuses.total())

    @property
    def processes_per_case(self) -> float:
        """Fresh processes that a case took."""
        return self.processes / self.nights / CASES


def simulate(scenario: Scenario, entropy: Sequence[int], nights: int) -> Tally:
    """Simulate some nights of a kind; the same entropy draws the same nights."""
    tally = Tally()
    for night in range(nights):
        _simulate_night(scenario, np.random.default_rng([*entropy, night]), tally)
    return tally


def _simulate_night(scenario: Scenario, rng: np.random.Generator, tally: Tally) -> None:
    machine = scenario.machine
    pinned = machine.workers(rng, PINNED, OTHERS_ITERATIONS)
    rolling = machine.workers(rng, ROLLING + ROLLING // 4, ITERATIONS)
    standards = {
        "pinned": [{f"pinned-{i}": x for i, x in enumerate(c)} for c in medians(pinned).T.tolist()],
        "rolling": accepted(rolling),
    }
    planted = np.zeros(CASES, dtype=bool)
    if scenario.planted:
        planted[rng.choice(CASES, PLANTED, replace=False)] = True
    slower = np.log1p(planted * scenario.planted + scenario.everywhere)
    tonight = machine.workers(rng, PLANNED, OTHERS_ITERATIONS)
    tonight += slower[:, None]
    tonight[0] += math.log1p(scenario.first_worker)
    values = medians(tonight).tolist()
    verdicts, processes = confirmed(
        {name: standards[name] for name in scenario.standards},
        values.__getitem__,
    )
    statuses = np.array([judge.overall(judge.skip_noisy(case)).value for case in verdicts])
    tally.nights += 1
    tally.processes += processes
    tally.planted.update(statuses[planted].tolist())
    tally.statuses.update(statuses[~planted].tolist())
    tally.hit_nights += Status.REGRESSED.value in statuses[~planted]
    tally.together += sum(
        any((found := v.found(Difference)) and found.moved for v in case) for case in verdicts
    )
    if scenario.standards == STANDARDS[0]:
        for name, gate in OTHERS.items():
            failed = gate(tonight[0], pinned[0])
            tally.others_false[name] += int((failed & ~planted).sum())
            tally.others_found[name] += int((failed & planted).sum())


def scenarios(nights: int) -> list[Scenario]:
    """Return all kinds of nights: so many clean ones under the suite's rule, fewer others."""
    some, few = max(1, nights // 10), max(1, nights // 40)
    kinds = []
    for machine in (Machine(shared) for shared in SHARING):
        kinds += [
            Scenario("clean", machine, standards, nights if len(standards) > 1 else some)
            for standards in STANDARDS
        ]
        kinds += [Scenario("planted", machine, nights=some, planted=e) for e in EFFECTS]
        kinds.append(Scenario("first worker slow", machine, nights=few, first_worker=0.015))
        kinds.append(Scenario("all 2% slower", machine, nights=few, everywhere=0.02))
    return kinds


def simulate_all(kinds: Sequence[Scenario], seed: int) -> dict[Scenario, Tally]:
    """Simulate all nights on all cores, saying on standard error how far it is."""
    trial = scenarios(1)[0]
    simulate(trial, [seed], 1)
    begin = time.monotonic()
    simulate(trial, [seed], 2)
    cores = os.cpu_count() or 1
    nights = [kind.nights * len(kind.standards) for kind in kinds]
    work = sum(nights) / len(trial.standards)
    _say(f"about {work * (time.monotonic() - begin) / 2 / cores:.0f} s on {cores} cores")
    tasks = [
        (kind, (seed, *_stream(kind), first), n)
        for kind in kinds
        for first in range(0, kind.nights, CHUNK)
        if (n := min(CHUNK, kind.nights - first))
    ]
    tallies = {kind: Tally() for kind in kinds}
    said = begin = time.monotonic()
    with ProcessPoolExecutor(cores) as pool:
        columns = zip(*tasks, strict=True)
        for done, (task, tally) in enumerate(
            zip(tasks, pool.map(simulate, *columns, chunksize=4), strict=True), 1
        ):
            tallies[task[0]].add(tally)
            if time.monotonic() - said > 10:
                said = time.monotonic()
                _say(f"{done / len(tasks):.0%} of the nights in {said - begin:.0f} s")
    _say(f"done in {time.monotonic() - begin:.0f} s")
    return tallies


def _stream(kind: Scenario) -> list[int]:
    """Return what sets a kind of night apart.

    Not what it is held against, and the tolerance: these judge the same nights.
    """
    sizes = (kind.machine.shared, kind.planted, kind.everywhere, kind.first_worker)
    return [round(size * 10_000) for size in sizes]


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


# --- the simulation's report ---------------------------------------------------------------


def report(tallies: Mapping[Scenario, Tally]) -> dict[str, Any]:
    """Return all figures, and what was promised and missed."""
    return {
        "nights": [_figures(kind, tally) for kind, tally in tallies.items()],
        "others": _others(tallies),
        "missed": missed(tallies),
    }


def _figures(kind: Scenario, tally: Tally) -> dict[str, Any]:
    return {
        "night": kind.kind,
        "effect": kind.planted,
        "against": kind.rule,
        "shared": kind.machine.shared,
        "nights": tally.nights,
        "false_alarms_per_night": tally.false_per_night,
        "false_alarms_at_most": tally.false_at_most,
        "found": tally.power,
        "processes_per_case": tally.processes_per_case,
        "iterations_per_case": tally.processes_per_case * ITERATIONS,
        "moved_together": tally.together / tally.nights / CASES,
        "statuses_per_night": {k: v / tally.nights for k, v in sorted(tally.statuses.items())},
        "statuses_of_planted": dict(sorted(tally.planted.items())),
    }


def _others(tallies: Mapping[Scenario, Tally]) -> list[dict[str, Any]]:
    """Return how the other gates do; what workers share is nothing to them."""
    rows = []
    for name in OTHERS:
        clean, found = Tally(), {effect: Tally() for effect in EFFECTS}
        for kind, tally in tallies.items():
            if kind.kind == "clean" and kind.standards == STANDARDS[0]:
                clean.add(tally)
            elif kind.planted:
                found[kind.planted].add(tally)
        rows.append(
            {
                "rule": name,
                "false_alarms_per_night": clean.others_false[name] / clean.nights,
                "found": {e: t.others_found[name] / t.planted.total() for e, t in found.items()},
            }
        )
    return rows


def missed(tallies: Mapping[Scenario, Tally]) -> list[str]:
    """Say which promised figures were missed by the rule as the suite uses it."""
    words = []
    for kind, tally in tallies.items():
        if kind.standards != STANDARDS[0]:
            continue
        where = f"with {kind.machine.shared:.0%} shared"
        if kind.kind == "clean":
            if tally.false_per_night > MOST_FALSE:
                words.append(f"{tally.false_per_night:.3f} false alarms a clean night {where}")
            if tally.processes_per_case > MOST_PROCESSES:
                words.append(f"{tally.processes_per_case:.2f} processes a case {where}")
            if tally.processes_per_case * ITERATIONS > MOST_ITERATIONS:
                words.append(f"{tally.processes_per_case * ITERATIONS:.1f} iterations {where}")
        elif tally.power < LEAST_FOUND.get(kind.planted, 0):
            words.append(f"of {kind.planted:.0%} {tally.power:.1%} found {where}")
    return words


def print_report(document: Mapping[str, Any], seed: int) -> None:
    """Print the figures, a table for each question."""
    nights: list[dict[str, Any]] = document["nights"]
    print(f"\nClean nights of {CASES} cases, seed {seed}")
    _print_clean([row for row in nights if row["night"] == "clean"])
    print(f"\nSlow-downs found, {PLANTED} a night, held against pinned and rolling")
    _print_planted([row for row in nights if row["night"] == "planted"])
    print("\nOther nights, held against pinned and rolling")
    _print_unusual([row for row in nights if row["night"] not in ("clean", "planted")])
    print(f"\nOther gates, {OTHERS_ITERATIONS} iterations against one stored run's")
    _print_others(document["others"])


def _print_clean(rows: Iterable[Mapping[str, Any]]) -> None:
    statuses = ("SUSPECT", "NOISY", "IMPROVED")
    lines = [
        [
            row["against"],
            f"{row['shared']:.0%}",
            str(row["nights"]),
            f"{row['false_alarms_per_night']:.4f}",
            f"{row['false_alarms_at_most']:.4f}",
            *_counts(row, statuses),
            f"{row['processes_per_case']:.3f}",
            f"{row['iterations_per_case']:.1f}",
        ]
        for row in rows
    ]
    headings = ("held against", "shared", "nights", "false alarms a night", "at most (95%)")
    _print_table((*headings, *statuses, "processes a case", "iterations"), lines)


def _print_planted(rows: Sequence[Mapping[str, Any]]) -> None:
    lines = []
    for shared in SHARING:
        of = [row for row in rows if row["shared"] == shared]
        false = statistics.fmean(row["false_alarms_per_night"] for row in of)
        found = [f"{row['found']:.1%}" for row in of]
        lines.append([f"{shared:.0%}", str(of[0]["nights"]), *found, f"{false:.4f}"])
    _print_table(("shared", "nights each", *_percents(EFFECTS), "false alarms a night"), lines)


def _print_unusual(rows: Iterable[Mapping[str, Any]]) -> None:
    statuses = ("REGRESSED", "SUSPECT", "NOISY", "OK", "IMPROVED")
    lines = [
        [
            row["night"],
            f"{row['shared']:.0%}",
            str(row["nights"]),
            *_counts(row, statuses),
            f"{row['processes_per_case']:.2f}",
            f"{row['moved_together']:.0%}",
        ]
        for row in rows
    ]
    headings = ("night", "shared", "nights", *statuses, "processes a case", "moved together")
    _print_table(headings, lines)


def _print_others(rows: Iterable[Mapping[str, Any]]) -> None:
    lines = [
        [row["rule"], f"{row['false_alarms_per_night']:.2f}", *_percents(row["found"].values())]
        for row in rows
    ]
    _print_table(("rule", "false alarms a night", *_percents(EFFECTS)), lines)


def _counts(row: Mapping[str, Any], statuses: Iterable[str]) -> list[str]:
    return [f"{row['statuses_per_night'].get(status, 0):.3f}" for status in statuses]


def _percents(shares: Iterable[float]) -> list[str]:
    return [f"{share:.1%}" for share in shares]


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join(cells))


def _print_worlds(rows: Iterable[Mapping[str, Any]]) -> None:
    lines = [
        [
            row["world"],
            str(row["nights"]),
            f"{row['false_per_night']:.3f}",
            *_counts(row, ("SUSPECT", "NOISY")),
            f"{row['processes_per_case']:.2f}",
            *(
                " / ".join(f"{found:.0%}" for found in row["found"].get(when, {}).values())
                for when in ("first", "later")
            ),
            *(f"{row['nights_until_told'].get(name, math.nan):g}" for name in worlds.LASTING),
        ]
        for row in rows
    ]
    headings = ("world", "nights", "false alarms a night", "SUSPECT", "NOISY", "processes a case")
    effects = " / ".join(f"{effect:.0%}" for effect in worlds.EFFECTS)
    found = (f"{effects} found on the first night", "on every tenth")
    lasting = (f"nights until {name} is told" for name in worlds.LASTING)
    _print_table((*headings, *found, *lasting), lines)


# --- the command ---------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the parts and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nights", type=int, help="of each kind; 1000, of --worlds 60")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--worlds", nargs="?", const="", metavar="NAME", help="play worlds whose names begin so"
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="of --worlds, ask only what the nights show together",
    )
    parser.add_argument(
        "--interleaved", nargs="?", const="", metavar="NAME", help="play these worlds interleaved"
    )
    options = parser.parse_args(arguments)
    if options.nights is None:
        options.nights = 1000 if options.worlds is None and options.interleaved is None else 60
    if options.nights < 1:
        parser.error(f"--nights is {options.nights}; it must be at least 1")
    if options.interleaved is not None:
        interleaved.play_all(options.interleaved, options.nights, options.seed)
        return 0
    document: dict[str, Any]
    if options.worlds is not None:
        try:
            document = worlds.report(
                options.worlds, options.nights, options.seed, each_night=not options.together
            )
        except ValueError as error:
            parser.error(str(error))
    else:
        document = report(simulate_all(scenarios(options.nights), options.seed))
    if options.json:
        print(json.dumps({"seed": options.seed, **document}, indent=2))
    elif options.worlds is not None:
        _print_worlds(document["worlds"])
    else:
        print_report(document, options.seed)
    for words in document["missed"]:
        _say(f"missed: {words}")
    return 1 if document["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
