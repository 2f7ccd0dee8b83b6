"""The workloads: code that builds a step.

A workload is named in the case: by one of the names in ``NAMED``, or as ``package.module:factory``.
The function is called as ``factory(setting, **params)`` and returns a Workload, or just a callable
that does one step.
"""

from __future__ import annotations

import importlib
from typing import Any

from bench_lib.model import Case
from bench_lib.worker.workload import Setting, UnsupportedError, Workload

__all__ = ["Setting", "UnsupportedError", "Workload", "build"]

NAMED = {
    "network": "bench_lib.worker.workloads.networks:network",
    "collective": "bench_lib.worker.workloads.collectives:collective",
    "operator": "bench_lib.worker.workloads.operators:operator",
    "training": "bench_lib.worker.workloads.training:training",
    "language_model": "bench_lib.worker.workloads.language_model:language_model",
    "command": "bench_lib.worker.workloads.command:command",
    "planted": "bench_lib.worker.workloads.networks:planted",
    "delay": "bench_lib.worker.workloads.networks:delay",
}
"""Where each workload's function is."""


def build(case: Case, setting: Setting) -> Workload:
    """Build the case's workload on the setting's device.

    Raises UnsupportedError if the device or torch cannot do it, LookupError or ImportError for a
    workload that does not exist, and TypeError if its factory returns no step.
    """
    params = case.params
    if case.launch.strong:  # the ranks share a batch
        params = {**params, "batch_size": int(params["batch_size"]) // setting.ranks}
    module, colon, attribute = NAMED.get(case.workload, case.workload).partition(":")
    if not colon:
        raise LookupError(
            f"no workload {case.workload!r}; choose from {', '.join(NAMED)}, or "
            "package.module:factory"
        )
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        error.msg += "; install it, or put its folder on PYTHONPATH"
        raise
    built: Any = getattr(imported, attribute)(setting, **params)
    if isinstance(built, Workload):
        return built
    if not callable(built):
        raise TypeError(
            f"{case.workload} returned an object of type {type(built).__name__}; it must return "
            "a function that runs one step, or a Workload"
        )
    return Workload(step=built)
