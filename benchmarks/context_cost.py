"""What a fresh device context costs, from the fork to its first measured iteration.

    python benchmarks/context_cost.py [--contexts 5] [CASE ...]

Each case is measured alone in fresh contexts, of a zygote that has imported the compiler and
of one that has not, after one context that fills the compiler's caches.  The time includes
drawing a context (taken as it comes with BENCH_LIB_CONTEXTS=any), opening the device, building
the network, compiling (from the caches), the first step and three more; no warming up.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_lib import backends
from bench_lib.cases.matrix import read_matrix, tables
from bench_lib.launch.catalogue import network_sizes
from bench_lib.launch.zygote import Zygote
from bench_lib.model import Case, Sampling
from bench_lib.worker.zygote import PRELOAD_VARIABLE

CASES = (
    "resnet50-b64-fp16-eager-infer",
    "resnet50-b64-fp16-default-infer",
    "resnet50-b64-fp16-reduce-overhead-infer",
)
MATRIX = Path(__file__).resolve().parents[1] / "perf_tests" / "matrix.toml"


def main() -> int:
    """Print a line for each case and kind of zygote."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE")
    parser.add_argument("--contexts", type=int, default=5)
    options = parser.parse_args()
    tiers = read_matrix(MATRIX, tables(network_sizes()))
    known = {case.id: case for tier in tiers.values() for case in tier}
    if unknown := [name for name in options.cases if name not in known]:
        parser.error(f"{MATRIX} has no case {', '.join(unknown)}")
    visible = backends.visibility(backends.detect()[0])
    print("zygote has  case                                      median s  of each context")
    for preload in ("no", ""):
        with Zygote(environment={**visible, PRELOAD_VARIABLE: preload}) as zygote:
            for name in options.cases:
                case = _briefly(known[name])
                seconds = [_once(zygote, case) for _ in range(options.contexts + 1)][1:]
                each = " ".join(f"{s:.2f}" for s in seconds)
                kind = "torch" if preload else "compiler"
                line = f"{kind:11} {name:42} {statistics.median(seconds):7.2f}  {each}"
                print(line, flush=True)
    return 0


def _briefly(case: Case) -> Case:
    sampling = Sampling(warmup_s=0.0, warmup_max_s=0.0, iterations=5, max_iterations=5)
    return replace(case, sampling=sampling)


def _once(zygote: Zygote, case: Case) -> float:
    begin = time.monotonic()
    context = zygote.context()
    try:
        return context.measure(case).window_s[0] - begin
    finally:
        context.close()


if __name__ == "__main__":
    sys.exit(main())
