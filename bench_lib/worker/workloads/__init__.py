"""What can be measured: code that builds a step.

A workload is named in the case, either by one of the names here or as
``package.module:factory``; the factory is called as ``factory(setting, **params)`` and
returns a Workload, or just a callable that does one step.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bench_lib.worker.workload import Setting, UnsupportedError, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench_lib.model import Case

__all__ = ["Setting", "UnsupportedError", "Workload", "build"]

NAMED = {
    "network": "bench_lib.worker.workloads.networks:network",
    "training": "bench_lib.worker.workloads.training:training",
    "language_model": "bench_lib.worker.workloads.language_model:language_model",
    "collective": "bench_lib.worker.workloads.collectives:collective",
    "operator": "bench_lib.worker.workloads.operators:operator",
    "planted": "bench_lib.worker.workloads.planted:planted",
    "delay": "bench_lib.worker.workloads.planted:delay",
}


def build(case: Case, setting: Setting) -> Workload:
    """Build the case's workload on the setting's device.

    Raises UnsupportedError where device or torch cannot do it, and LookupError or
    ImportError for a workload that does not exist.
    """
    built: Any = _factory(case.workload)(setting, **_params(case, setting))
    return built if isinstance(built, Workload) else Workload(step=built)


def _params(case: Case, setting: Setting) -> dict[str, Any]:
    """Return what the factory is told: of a batch that the ranks share, this rank's part."""
    if not case.launch.strong:
        return case.params
    share, left = divmod(int(case.params["batch_size"]), setting.ranks)
    if left or not share:
        batch = case.params["batch_size"]
        raise ValueError(f"batch_size {batch} cannot be divided among {setting.ranks} ranks evenly")
    return {**case.params, "batch_size": share}


def _factory(name: str) -> Callable[..., Any]:
    module, separator, attribute = NAMED.get(name, name).partition(":")
    if not separator:
        known = ", ".join(NAMED)
        raise LookupError(f"no workload {name!r}; there is {known}, or package.module:factory")
    factory: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return factory
