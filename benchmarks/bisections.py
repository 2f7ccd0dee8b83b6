"""How often a bisection names the right change, and what that takes: simulated pairs.

    python benchmarks/bisections.py [--seeds 20]

Each row plays searches among candidates of which one (or two) is slower.  Pairs have normal noise,
known as well as 20 earlier processes tell, and every third row not at all.  ``said`` is what the
search says before it starts.  Of two changes, the second call goes on from where the first ended.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from bench_lib.verdict.statistics.search import ERROR, Bisection, PairNoise, expected

DEGREES = 20.0
TOLERANCE = 0.01
ROWS = (
    # candidates, slow-downs, noise of a pair, noise is known
    (64, (0.02,), 0.04, True),
    (64, (0.02,), 0.08, True),
    (64, (0.02,), 0.04, False),
    (64, (0.02, 0.02), 0.04, True),
    (64, (0.02,), 0.005, True),
    (8, (0.02,), 0.04, True),
    (1000, (0.02,), 0.04, True),
    (64, (), 0.04, True),
)
HEADINGS = ("candidates", "planted", "noise", "right", "none", "steps", "said", "pairs", "said")


@dataclass(frozen=True)
class Played:
    """One search and what it took."""

    answer: int | None
    shows_none: bool
    steps: int
    pairs: int


def play(
    last: int, planted: Mapping[int, float], noise: PairNoise, *, known: bool, seed: int
) -> Played:
    """Bisection among candidates of which those from each key on are slower."""
    draw = random.Random(seed)
    search = Bisection(last, tolerance=TOLERANCE, noise=noise if known else None)
    at, steps = None, 0
    while (candidate := search.next()) is not None:
        steps += candidate != at
        at = candidate
        level = sum(math.log1p(size) for k, size in planted.items() if candidate >= k)
        search.add(candidate, draw.gauss(level, noise.sd))
    answer = None if search.found is None else search.found.after
    return Played(answer, search.shows_none, steps, search.pairs)


def both(last: int, planted: Mapping[int, float], noise: PairNoise, seed: int) -> bool:
    """Whether two planted changes are found by a first call and a second one."""
    first = play(last, planted, noise, known=True, seed=seed).answer
    if first not in planted:
        return False
    (other,) = planted.keys() - {first}
    begin, end = (first, last) if other > first else (0, first - 1)
    left = {other - begin: planted[other]}
    return play(end - begin, left, noise, known=True, seed=seed + 1).answer == other - begin


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    print(f"stated error {ERROR:.0%}, {seeds} seeds; steps and pairs are medians")
    print(" ".join(f"{heading:>10}" for heading in HEADINGS))
    for last, sizes, sd, known in ROWS:
        noise = PairNoise(sd, DEGREES)
        played, right = [], 0
        for seed in range(seeds):
            where = sorted(random.Random(seed).sample(range(1, last + 1), len(sizes)))
            planted = dict(zip(where, sizes, strict=True))
            one = play(last, planted, noise, known=known, seed=seed)
            played.append(one)
            found = both(last, planted, noise, seed) if len(sizes) > 1 else one.answer in planted
            right += found
        plan = expected(last, sizes[0] if sizes else TOLERANCE, noise)
        cells = (
            str(last),
            " ".join(f"{size:.0%}" for size in sizes) or "none",
            f"{sd:.1%}" if known else f"({sd:.1%})",
            f"{right}/{seeds}",
            str(sum(one.shows_none for one in played)),
            f"{statistics.median(one.steps for one in played):g}",
            str(plan.steps),
            f"{statistics.median(one.pairs for one in played):g}",
            str(plan.pairs),
        )
        print(" ".join(f"{cell:>10}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
