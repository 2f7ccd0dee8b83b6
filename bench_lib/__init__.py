"""Performance regression testing for PyTorch on GPUs.

The names below are the public ones.  Each is imported when it is first used: a process that only
declares cases loads nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench_lib.backends.backend import Backend
    from bench_lib.backends.looks import Source
    from bench_lib.model import (
        Case,
        Hardware,
        Launch,
        Limits,
        Measurement,
        Record,
        Sampling,
        Status,
        Telemetry,
        UserError,
        Verdict,
    )
    from bench_lib.verdict.metrics.metric import Metric, Rule
    from bench_lib.worker.workload import Setting, UnsupportedError, Workload

__version__ = "0.3.0"

_HOMES = {
    "Backend": "bench_lib.backends.backend",
    "Source": "bench_lib.backends.looks",
    **dict.fromkeys(("Metric", "Rule"), "bench_lib.verdict.metrics.metric"),
    **dict.fromkeys(("Setting", "UnsupportedError", "Workload"), "bench_lib.worker.workload"),
}
"""Where the names live that are not in ``bench_lib.model``."""
__all__ = [
    "Backend",
    "Case",
    "Hardware",
    "Launch",
    "Limits",
    "Measurement",
    "Metric",
    "Record",
    "Rule",
    "Sampling",
    "Setting",
    "Source",
    "Status",
    "Telemetry",
    "UnsupportedError",
    "UserError",
    "Verdict",
    "Workload",
]


def __getattr__(name: str) -> Any:
    """Import a public name from where it lives."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "bench_lib.model")), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
