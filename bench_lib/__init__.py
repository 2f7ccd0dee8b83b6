"""Performance regression testing for PyTorch on GPUs.

The names below are the public ones.  Each is imported when it is first used: a process that only
declares cases loads nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench_lib.backends import Backend, Source
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

__version__ = "0.3.0.dev0"

_PUBLIC = {
    **dict.fromkeys(
        (
            *("Case", "Hardware", "Launch", "Limits", "Measurement", "Record", "Sampling"),
            *("Status", "Telemetry", "UserError", "Verdict"),
        ),
        "bench_lib.model",
    ),
    **dict.fromkeys(("Backend", "Source"), "bench_lib.backends"),
    **dict.fromkeys(("Metric", "Rule"), "bench_lib.verdict.metrics.metric"),
    **dict.fromkeys(("Setting", "UnsupportedError", "Workload"), "bench_lib.worker.workload"),
}
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
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
