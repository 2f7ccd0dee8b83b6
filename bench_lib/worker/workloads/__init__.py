"""The workloads: code that builds a step.

A workload is named in the case: as a module here that has a function of its own name, by one of
the names in ``NAMED``, or as ``package.module:factory``.  The function is called as
``factory(setting, **params)`` and returns a Workload, or just a callable that does one step.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from bench_lib.model import Case
from bench_lib.worker.workload import Setting, UnsupportedError, Workload

__all__ = ["Setting", "UnsupportedError", "Workload", "build"]

NAMED = {
    "network": "bench_lib.worker.workloads.networks:network",
    "collective": "bench_lib.worker.workloads.collectives:collective",
    "operator": "bench_lib.worker.workloads.operators:operator",
    "planted": "bench_lib.worker.workloads.networks:planted",
    "delay": "bench_lib.worker.workloads.networks:delay",
}
"""Workloads whose function or module has another name."""


def build(case: Case, setting: Setting) -> Workload:
    """Build the case's workload on the setting's device.

    Raises UnsupportedError where device or torch cannot do it, LookupError or ImportError for a
    workload that does not exist, and TypeError where its factory returns no step.
    """
    built: Any = _factory(case.workload)(setting, **_params(case, setting))
    if isinstance(built, Workload):
        return built
    if not callable(built):
        raise TypeError(
            f"{case.workload} returned an object of type {type(built).__name__}; it has to return "
            "a function that does one step, or a Workload"
        )
    return Workload(step=built)


def _params(case: Case, setting: Setting) -> dict[str, Any]:
    """Return what the factory is told: of a batch that the ranks share, this rank's part."""
    if not case.launch.strong:
        return case.params
    return {**case.params, "batch_size": int(case.params["batch_size"]) // setting.ranks}


def _factory(name: str) -> Callable[..., Any]:
    module, _, attribute = _target(name).partition(":")
    factory: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return factory


def _target(name: str) -> str:
    """Return where a workload's function is, as ``package.module:factory``."""
    if ":" in name:
        return name
    if name in NAMED:
        return NAMED[name]
    if name.isidentifier() and find_spec(f"{__name__}.{name}"):
        return f"{__name__}.{name}:{name}"
    raise LookupError(
        f"no workload {name!r}; there is {', '.join(NAMED)}, or package.module:factory, or the "
        f"name of a module of {__name__} that has a function of that name"
    )
