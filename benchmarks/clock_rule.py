"""How often the clock is blamed: simulated nights of a device whose clock is lower than it was.

    python benchmarks/clock_rule.py [--nights 2000]

A case has a baseline of five processes and a night of five, 0.2% apart in time.  Tonight the
clock is lower by some shift, and time follows it wholly (the compute units set the pace) or not
at all (memory does).  Clocks differ by 0.2% from process to process, and are read with the same
error.  Printed is how many of the nights are REGRESSED and INVALID, by the case's true slow-down.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_lib.model import Accepted, Baseline, ProcessSummary
from bench_lib.verdict.judge import Evidence, judge, overall

BETWEEN = 0.002
CLOCK_SD = 0.002
USUAL_MHZ = 2000.0
SHIFTS = (0.0, -0.006, -0.01, -0.015, -0.03)
SLOWER = (0.0, 0.01, 0.015, 0.02, 0.03, 0.05)


def main() -> int:
    """Print a table for each way in which time follows the clock."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nights", type=int, default=2000)
    options = parser.parse_args()
    for follows in (1.0, 0.0):
        print(f"\ntime follows the clock {'wholly' if follows else 'not at all'}; R/I in percent")
        print("clock   " + "".join(f"{slower:>12.1%}" for slower in SLOWER))
        for shift in SHIFTS:
            cells = [_rates(shift, slower, follows, options.nights) for slower in SLOWER]
            print(f"{shift:+6.1%}  " + "".join(f"{cell:>12}" for cell in cells), flush=True)
    return 0


def _rates(shift: float, slower: float, follows: float, nights: int) -> str:
    chance = random.Random(1)
    found: Counter[str] = Counter()
    for _ in range(nights):
        old = Baseline("case", _processes(chance, 0.0, 0.0, follows), Accepted("r", "r", "d"))
        new = _processes(chance, shift, slower, follows)
        verdicts = judge({"case": Evidence(new, old, planned=5)})["case"]
        found[overall(verdicts).value] += 1
    return f"{100 * found['REGRESSED'] / nights:.0f}/{100 * found['INVALID'] / nights:.0f}"


def _processes(
    chance: random.Random, shift: float, slower: float, follows: float
) -> list[ProcessSummary]:
    processes = []
    for _ in range(5):
        clock = shift + chance.gauss(0, CLOCK_SD)
        time = slower - follows * clock + chance.gauss(0, BETWEEN)
        read = clock + chance.gauss(0, CLOCK_SD)
        processes.append(
            ProcessSummary(
                {"latency": math.exp(time)}, 20, "e", "t", clock_mhz=USUAL_MHZ * (1 + read)
            )
        )
    return processes


if __name__ == "__main__":
    sys.exit(main())
