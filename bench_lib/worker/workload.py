"""The type of a workload: a step, its device, and figures that are known without running it."""

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
    """Raise UnsupportedError where an error of a call says that ``who`` has no such call here."""
    words = str(error).partition("\n")[0]
    if isinstance(error, NotImplementedError) or any(s.lower() in words.lower() for s in signs):
        raise UnsupportedError(f"{who} cannot: {words}") from error


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
    """A step and its figures without running it."""

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
    """How many steps the measured stretch has, where the work has an end of its own."""
    rewind: Callable[[], None] = _nothing
    """Called just before the measured stretch; takes back what warming up has changed."""
    portions: dict[str, Callable[[], object]] = field(default_factory=dict)
    """Parts of a step, by name; done in order they are one."""
    waits: tuple[str, ...] = ("backward",)
    """Parts in which one of several ranks waits for the others."""
    fed_by_host: bool = False
    """Whether the host makes every step's input, and the device is there to wait for it."""
    documents: Callable[[], list[str]] | None = None
    """Called after measuring; as ``Measurement.documents``, of steps that are programs."""
    training: Callable[[], Training | None] = _nothing
    """Called after measuring; the training's results in the measured stretch."""
    close: Callable[[], None] = _nothing
    """Called in the end, whatever happened; ends what the workload has started."""
    numerics: Callable[[], Numerics | None] = _nothing
    """Called last; may free what the step needs."""
    loss: Callable[[], Tensor | None] = _nothing
    """The loss of the step before, on the device; in inference that of an answer asked for now."""
    layers: Callable[[], tuple[nn.Module, Tensor] | None] = _nothing
    """The network that the step runs, uncompiled and with its weights as they are, and its input;
    to be asked before ``numerics``."""
    warnings: list[str] = field(default_factory=list)
