"""How often does interleaving with the accepted environment err, and what does it cost?

    python benchmarks/error_rates.py --interleaved [WORLD] [--nights 60] [--seed 1]

A world is played night by night with 100 cases.  Five processes of one run are accepted; each
later night is measured in one process, or in one pair, and in up to six where that is open, and
judged as the suite judges.  Nights that were fine make the rolling baseline.  What a night or a
device adds to a case is the same for both sides of a pair.  Processes differ by 0.02 to 0.3%, case
by case, as on an H200.

Nothing is ever slower, so each REGRESSED is false.  On every tenth night the same measurements are
judged once more with slowdowns planted in five cases.  What is not found then stays for the next
night, so that "within two" nights tells both.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench_lib.model import Accepted, Baseline, Limits, ProcessSummary, Status, Verdict
from bench_lib.verdict import judge, pairing
from bench_lib.verdict.evidence import NO_PAIRING, REFERENCE, Evidence, Pairing

CASES, PINNED, PLANNED, ROLLING = 100, 5, 6, 20
EFFECTS = (0.01, 0.015, 0.02, 0.03, 0.05)
FINE_EFFECTS = (0.007, 0.0085, 0.01, 0.013, 0.02)
PLANTED = 5
PLANT_EVERY = 10
FASTER, OFTEN = 0.014, 2 / 9
FINE = (Status.OK, Status.IMPROVED)
"""What makes the rolling baseline."""


@dataclass(frozen=True)
class World:
    """What nights and devices have in common; each size is a standard deviation."""

    name: str
    case: float = 0.0
    """From run to run, each case by itself."""
    suite: float = 0.0
    """From run to run, all cases together."""
    devices: int = 1
    apart: float = 0.0
    """From device to device, each case by itself."""
    unshared: float = 0.0
    """From run to run in each case, and not the same for the two sides of a pair."""
    stalled: float = 0.0
    """Share of a case's processes that something slows down."""
    stall: tuple[float, float] = (0.05, 0.5)
    """By how much it does."""
    heavy: bool = False
    """Whether processes differ as Student's t with three degrees of freedom does."""
    pairs: bool = True
    """Whether there is a reference."""
    accepted: bool = True
    """Whether there is a baseline."""
    wild: int = 0
    """Cases whose processes differ by 5%, such as those that wait for their host."""
    states: int = 0
    """Cases of which two processes in nine are 1.4% faster, as ConvNeXt-T's were on an H100."""
    tolerance: float = 0.01
    effects: Sequence[float] = EFFECTS


WORLDS = (
    World("process noise only"),
    *(World(f"case {size:.1%}", case=size) for size in (0.003, 0.005, 0.01)),
    World("suite 1.0%", suite=0.01),
    World("4 devices 1% apart", devices=4, apart=0.01),
    World("32 devices 1% apart", devices=32, apart=0.01),
    World("case 0.5%, 0.1% of it not shared", case=0.005, unshared=0.001),
    World("case 0.5%, 0.3% of it not shared", case=0.005, unshared=0.003),
    World("5% of processes stalled", stalled=0.05),
    World("no baseline", accepted=False, tolerance=0.005, effects=FINE_EFFECTS),
    World("no baseline, 3 wild", accepted=False, wild=3, tolerance=0.005, effects=FINE_EFFECTS),
    World("no baseline, 5 of two states", accepted=False, states=5),
    World(
        "no baseline, 5 of two states, 0.5%",
        accepted=False,
        states=5,
        tolerance=0.005,
        effects=FINE_EFFECTS,
    ),
    *(
        World(
            f"no baseline, {share:.0%} stalled by 3 to 20%",
            accepted=False,
            stalled=share,
            stall=(0.03, 0.2),
            tolerance=0.005,
            effects=FINE_EFFECTS,
        )
        for share in (0.05, 0.1)
    ),
    World(
        "no baseline, heavy tails",
        accepted=False,
        heavy=True,
        tolerance=0.005,
        effects=FINE_EFFECTS,
    ),
    World("without a reference: process noise only", pairs=False),
    World("without a reference: case 0.5%", case=0.005, pairs=False),
    World("without a reference: 4 devices 1% apart", devices=4, apart=0.01, pairs=False),
)


@dataclass
class Tally:
    """What came of a world's nights."""

    nights: int = 0
    processes: int = 0
    """Of the candidate."""
    pairs: int = 0
    statuses: Counter[Status] = field(default_factory=Counter)
    detects: list[float] = field(default_factory=list)
    """Of what was interleaved."""
    planted: Counter[float] = field(default_factory=Counter)
    found: Counter[float] = field(default_factory=Counter)
    """On the first night."""
    found_next: Counter[float] = field(default_factory=Counter)
    """On the night after it, where the first night did not see it."""


class Night:
    """One night's effects, from which processes are drawn the same way whoever asks."""

    def __init__(
        self, world: World, seed: int, night: int, sds: np.ndarray, at: np.ndarray
    ) -> None:
        """Draw what the night adds to each case."""
        self.world, self.seed, self.night, self.sds = world, seed, night, sds
        rng = self._rng("night")
        self.device = int(rng.integers(world.devices)) if night else 0
        self.shared = (
            at[self.device] + rng.normal(0, world.case, CASES) + rng.normal(0, world.suite)
        )
        self.own = {
            side: rng.normal(0, world.unshared, CASES) if world.unshared else np.zeros(CASES)
            for side in ("here", REFERENCE)
        }

    def _rng(self, *words: object) -> np.random.Generator:
        text = " ".join(map(str, (self.world.name, self.seed, self.night, *words)))
        return np.random.default_rng(zlib.crc32(text.encode()))

    def process(self, number: int, side: str = "here") -> list[float]:
        """Return a process's logarithm of each case's time."""
        rng = self._rng(side, number)
        noise = rng.standard_t(3, CASES) if self.world.heavy else rng.normal(0, 1, CASES)
        x = self.shared + self.own[side] + noise * self.sds
        stalled = rng.random(CASES) < self.world.stalled
        x += stalled * np.log1p(rng.uniform(*self.world.stall, CASES))
        x[: self.world.states] -= FASTER * (rng.random(self.world.states) < OFTEN)
        return list(x)

    def summary(self, x: float, number: int, side: str = "here") -> ProcessSummary:
        """Return a process of a case."""
        return ProcessSummary(
            values={"latency": math.exp(x)},
            n=20,
            environment="e",
            time="",
            device_uuid=f"GPU-{self.device}",
            worker=f"{self.night:08x}/{side}-{number}",
        )


def judged(
    night: Night,
    pinned: Mapping[int, Baseline],
    rolling: Mapping[int, list[ProcessSummary]],
    slower: Mapping[int, float],
) -> tuple[dict[int, list[Verdict]], dict[int, list[ProcessSummary]], int]:
    """Play a night's looks; return its verdicts, its processes, and how many pairs were made."""
    here: dict[int, list[ProcessSummary]] = {case: [] for case in range(CASES)}
    pairs: dict[int, list[tuple[ProcessSummary, ProcessSummary]]] = {c: [] for c in range(CASES)}
    doubtful = set(range(CASES))
    verdicts: dict[int, list[Verdict]] = {}
    for number in range(PLANNED):
        own, theirs = night.process(number), night.process(number, REFERENCE)
        for case in doubtful:
            x = own[case] + math.log1p(slower.get(case, 0.0))
            here[case].append(night.summary(x, number))
            if night.world.pairs:
                other = night.summary(theirs[case], number, REFERENCE)
                pairs[case].append((here[case][-1], other))
        suite = {
            str(case): Evidence(
                here[case],
                pinned[case] if night.world.accepted else None,
                Limits(tolerance=night.world.tolerance),
                rolling=rolling[case],
                planned=PLANNED,
                tried=len(here[case]),
                pairing=Pairing("the reference", pairs[case], PLANNED)
                if night.world.pairs
                else NO_PAIRING,
            )
            for case in range(CASES)
        }
        verdicts = {int(case): found for case, found in judge.judge(suite).items()}
        doubtful = {
            case
            for case, found in verdicts.items()
            if judge.is_suspicious(found) or pairing.want_more(found, suite[str(case)])
        }
        if not doubtful:
            break
    return verdicts, here, sum(map(len, pairs.values()))


def play(world: World, nights: int, seed: int) -> Tally:
    """Play a world."""
    rng = np.random.default_rng(zlib.crc32(f"{world.name} {seed}".encode()))
    sds = np.exp(rng.uniform(math.log(0.0002), math.log(0.003), CASES))
    sds[: world.wild] = 0.05
    odd = world.wild + world.states
    at = rng.normal(0, world.apart, (world.devices, CASES))
    first = Night(world, seed, 0, sds, at)
    accepted = [first.process(number) for number in range(PINNED)]
    nobody = Accepted(run_id="", reason="", date="")
    pinned = {
        case: Baseline("", [first.summary(x[case], i) for i, x in enumerate(accepted)], nobody)
        for case in range(CASES)
    }
    past: dict[int, list[list[ProcessSummary]]] = {case: [] for case in range(CASES)}
    tally = Tally(nights)
    for number in range(1, nights + 1):
        night = Night(world, seed, number, sds, at)
        rolling = {case: [p for each in past[case] for p in each] for case in past}
        if number % PLANT_EVERY == 0:
            for effect in world.effects:
                cases = odd + rng.choice(CASES - odd, PLANTED, replace=False)
                planted = {int(case): effect for case in cases}
                found, here, _ = judged(night, pinned, rolling, planted)
                slower = {c for c in planted if judge.overall(found[c]) is Status.REGRESSED}
                tally.planted[effect] += PLANTED
                tally.found[effect] += len(slower)
                if slower == set(planted):
                    continue
                # The next night takes for granted what this one took for fine.
                fine = {
                    case: here[case] if judge.overall(found[case]) in FINE else [] for case in found
                }
                next_night = Night(world, seed, number + 1, sds, at)
                grown = {case: [*fine[case], *rolling[case]] for case in rolling}
                found, *_ = judged(next_night, pinned, grown, planted)
                tally.found_next[effect] += sum(
                    judge.overall(found[case]) is Status.REGRESSED for case in set(planted) - slower
                )
        verdicts, here, pairs = judged(night, pinned, rolling, {})
        tally.pairs += pairs
        for case, found in verdicts.items():
            status = judge.overall(found)
            tally.statuses[status] += 1
            tally.processes += len(here[case])
            tally.detects += [
                v.detectable_effect for v in found if v.against == REFERENCE and v.detectable_effect
            ]
            if status in FINE:
                past[case] = [here[case], *past[case]][:ROLLING]
    return tally


def play_all(name: str, nights: int, seed: int) -> None:
    """Play the worlds with these words in their names, and print a row of a table for each."""
    print(
        "| world | false a night | SUSPECT | NOISY | found | within two "
        "| processes | detects, median (nine of ten) |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for world in WORLDS:
        if name not in world.name:
            continue
        tally = play(world, nights, seed)
        of = " / ".join(f"{100 * effect:g}" for effect in world.effects)
        rates = " / ".join(
            f"{tally.found[e] / max(1, tally.planted[e]):.0%}" for e in world.effects
        )
        both = tally.found + tally.found_next
        within = " / ".join(f"{both[e] / max(1, tally.planted[e]):.0%}" for e in world.effects)
        a_night = {s: tally.statuses[s] / tally.nights for s in Status}
        cost = (tally.processes + tally.pairs) / tally.nights / CASES
        half, most = np.quantile(tally.detects, (0.5, 0.9)) if tally.detects else (0.0, 0.0)
        detects = f"{half:.2%} ({most:.2%})" if tally.detects else ""
        print(
            f"| {world.name} | {a_night[Status.REGRESSED]:.2f} | {a_night[Status.SUSPECT]:.2f} "
            f"| {a_night[Status.NOISY]:.2f} | {of}%: {rates} | {within} | {cost:.2f} | {detects} |",
            flush=True,
        )
