"""Steps that take as long as an environment variable says, for workers to import."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from bench_lib.worker.workloads import Setting, UnsupportedError

VARIABLE = "BENCH_LIB_TEST_NAPS"
"""By case: ``planted=12,steady=10`` are milliseconds of a step."""
SPIN_S = 0.002
"""A sleep ends when the kernel likes; the end of a step is waited for awake."""


def nap(_setting: Setting, name: str) -> Callable[[], None]:
    """Wait as long as this environment takes; raises UnsupportedError where it lacks the step."""
    taken = dict(word.split("=") for word in os.environ[VARIABLE].split(","))
    if name not in taken:
        raise UnsupportedError(f"this environment has no {name}")
    step_s = float(taken[name]) / 1e3

    def step() -> None:
        end = time.perf_counter() + step_s
        time.sleep(max(0.0, step_s - SPIN_S))
        while time.perf_counter() < end:
            pass

    return step
