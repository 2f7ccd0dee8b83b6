"""A network with a known delay inside its step, to see whether that is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from bench_lib.worker.workload import Setting, Workload
from bench_lib.worker.workloads.networks import network

ELEMENTS = 1024
"""Numbers in the tensor that a CPU works on: one unit is some microseconds, on one thread."""


def planted(setting: Setting, *, delay_units: int, **params: Any) -> Workload:
    """Build the workload ``network`` with a delay at the end of its step.

    ``params`` are those of ``network``.  With no units it is that workload, and nothing else;
    apart from the step it is so with any number.
    """
    _require_units(delay_units, least=0)
    inner = network(setting, **params)
    if delay_units == 0:
        return inner
    wait = _delay(setting.device, delay_units)

    def step() -> object:
        output = inner.step()
        wait()
        return output

    return replace(inner, step=step)


def delay(setting: Setting, *, delay_units: int) -> Workload:
    """Build a step that is the delay alone; its time over ``delay_units`` is that of a unit."""
    _require_units(delay_units, least=1)
    return Workload(_delay(setting.device, delay_units))


def _require_units(delay_units: object, *, least: int) -> None:
    """Raise ValueError for an invalid number of units."""
    if not isinstance(delay_units, int) or isinstance(delay_units, bool) or delay_units < least:
        nothing = " (0 adds nothing)" if least == 0 else ""
        raise ValueError(
            f"delay_units is {delay_units!r}; it has to be a whole number, {least} or more{nothing}"
        )


def _delay(device: torch.device, units: int) -> Callable[[], None]:
    """Return a function that keeps the device busy for a time that grows linearly with ``units``.

    A unit is a cycle of a GPU's clock.  On a CPU it is one pass over a small tensor, each
    of which needs the one before, so that none can be left out.
    """
    if device.type == "cuda":
        return lambda: torch.cuda._sleep(units)  # noqa: SLF001 - no public name
    numbers = torch.ones(ELEMENTS, device=device)

    def work() -> None:
        for _ in range(units):
            torch.sin_(numbers)

    return work
