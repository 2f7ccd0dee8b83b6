"""What can be measured: code that builds a step.

A workload is named in the case, either by one of the names here or as
``package.module:factory``; the factory is called as ``factory(setting, **params)`` and
returns a Workload, or just a callable that does one step.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from bench_lib.model import Case, Numerics


class UnsupportedError(Exception):
    """This device or this torch cannot do what the case asks: a skip, with the reason."""


@dataclass(frozen=True)
class Setting:
    """Where a workload runs."""

    device: torch.device
    rank: int = 0
    local_rank: int = 0
    ranks: int = 1


def _nothing() -> None:
    return None


@dataclass
class Workload:
    """A step and what is known of it without running it."""

    step: Callable[[], object]
    """Does one iteration; issues work to the device and does not wait for it."""
    items_per_step: int = 1
    item: str = "step"
    compiled: bool = False
    parameters: int | None = None
    least_bytes_per_step: int | None = None
    flops_per_step: Callable[[], float | None] = _nothing
    """Called after measuring; FLOPs of one step on this rank."""
    first_step_done: Callable[[], None] = _nothing
    """Called once after the first step has ended on the device."""
    numerics: Callable[[], Numerics | None] = _nothing
    """Called last; may free what the step needs."""
    warnings: list[str] = field(default_factory=list)


def build(case: Case, setting: Setting) -> Workload:
    """Build the case's workload on the setting's device.

    Raises UnsupportedError where device or torch cannot do it, and LookupError or
    ImportError for a workload that does not exist.
    """
    built: Any = _factory(case.workload)(setting, **case.params)
    return built if isinstance(built, Workload) else Workload(step=built)


def _factory(name: str) -> Callable[..., Any]:
    if name == "network":
        from bench_lib.worker.workloads.networks import network

        return network
    module, separator, attribute = name.partition(":")
    if not separator:
        raise LookupError(f"no workload {name!r}; there is network, or package.module:factory")
    factory: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return factory
