"""The type of a workload: a step, its setting, and figures that are known without running it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor, nn

    from bench_lib.model import Numerics, Training


class UnsupportedError(Exception):
    """This device or this torch cannot do what the case asks: a skip, with the reason."""


def skip_where(error: RuntimeError, signs: Sequence[str], who: str) -> None:
    """Raise UnsupportedError if an error shows, by one of ``signs``, that ``who`` lacks a call."""
    message = str(error).partition("\n")[0]
    if isinstance(error, NotImplementedError) or any(s.lower() in message.lower() for s in signs):
        raise UnsupportedError(f"{who} does not support this: {message}") from error


@dataclass(frozen=True)
class Setting:
    """The setting in which a workload runs."""

    device: torch.device
    rank: int = 0
    local_rank: int = 0
    ranks: int = 1


def _nothing() -> None:
    return None


@dataclass
class Workload:
    """A step and its figures."""

    step: Callable[[], object]
    """Does one iteration; issues work to the device and does not wait for it."""
    items_per_step: int = 1
    item: str = "step"
    compiled: bool = False
    parameters: int | None = None
    least_bytes_per_step: int | None = None
    flops_per_step: Callable[[], float | None] = _nothing
    """Called after measuring; FLOPs of one step on this rank."""
    traffic_bytes_per_step: Callable[[], float | None] = _nothing
    """Called after measuring; bytes that the operations of one step read and write on this rank."""
    reduced_flops_share: Callable[[], float | None] = _nothing
    """Called after measuring; as ``Measurement.reduced_flops_share``."""
    first_step_done: Callable[[], None] = _nothing
    """Called once after the first step has ended on the device."""
    steps: int | None = None
    """Steps of the measured stretch, if the work has an end of its own."""
    rewind: Callable[[], None] = _nothing
    """Called just before the measured stretch; undoes the changes of the warm-up."""
    portions: dict[str, Callable[[], object]] = field(default_factory=dict)
    """Parts of a step, by name; in order they make one step."""
    waits: tuple[str, ...] = ("backward",)
    """Parts in which one of several ranks waits for the others."""
    fed_by_host: bool = False
    """Whether the host makes every step's input, so that the device has to wait for it."""
    documents: Callable[[], list[str]] | None = None
    """Called after measuring; as ``Measurement.documents``, for steps that are programs."""
    training: Callable[[], Training | None] = _nothing
    """Called after measuring; the training's results in the measured stretch."""
    close: Callable[[], None] = _nothing
    """Called at the end, whatever happened; ends what the workload has started."""
    numerics: Callable[[], Numerics | None] = _nothing
    """Called last; may free what the step needs."""
    loss: Callable[[], Tensor | None] = _nothing
    """The loss of the previous step, on the device; in inference, that of a new answer."""
    layers: Callable[[], tuple[nn.Module, Tensor] | None] = _nothing
    """The step's network, not compiled and with its current weights, and its input; called before
    ``numerics``."""
    warnings: list[str] = field(default_factory=list)
