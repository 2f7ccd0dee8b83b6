"""Units and directions of other programs' metrics, from their names.

PyTorch's benchmark record holds neither; its writers put the unit at the end of the name.
"""

from __future__ import annotations

import re

from bench_lib.verdict.metrics.builtin import BETWEEN_TOKENS, FIRST_TOKEN, PER_TOKEN, TOKEN_RATE
from bench_lib.verdict.metrics.metric import Metric

KNOWN = {
    "median_ttft_ms": FIRST_TOKEN,
    "median_tpot_ms": PER_TOKEN,
    "median_itl_ms": BETWEEN_TOKENS,
    "tokens_per_second": TOKEN_RATE,
}
"""vLLM's, which have names of ours."""
SECONDS = {"_ns": 1e-9, "_us": 1e-6, "_ms": 1e-3, "_s": 1.0}
MORE = re.compile(r"speedup|throughput|per_s(?:ec|$)|/s$|flops|bps|bandwidth|accuracy|qps|tps")
LESS = re.compile(r"time|latency|mem|bytes|count|size|loss|error|overhead")


def scale_of(name: str) -> float | None:
    """Return how many seconds its unit has; None for what is no time."""
    if MORE.search(name):
        return None
    return next((scale for end, scale in SECONDS.items() if name.endswith(end)), None)


def named(name: str, *, more_is_better: bool | None = None) -> Metric | None:
    """Return what a name means; None where neither it nor its writer says what is better."""
    is_time = scale_of(name) is not None
    more = MORE.search(name) is not None if more_is_better is None else more_is_better
    if more_is_better is None and not (more or is_time or LESS.search(name)):
        return None
    label, unit = name.replace("_", " "), "s" if is_time else "1"
    return KNOWN.get(name) or Metric(
        name, label, unit, more_is_better=more, worse="worse", better="better"
    )
