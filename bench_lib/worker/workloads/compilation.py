"""Compile modes and options, applied to a network or a step."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from bench_lib.worker.graph import Recording, recorded
from bench_lib.worker.workload import Setting, UnsupportedError

ARGUMENTS = ("fullgraph", "dynamic", "backend")
"""Options that are torch.compile's own arguments; all others are its compiler's."""


def options_of(text: str) -> dict[str, Any]:
    """Return options by name: ``freezing,shape_padding=False`` sets the first to True.

    Values are Python's literals, and words where they are none.
    """
    return dict(_option(part) for part in text.split(",")) if text else {}


def _option(part: str) -> tuple[str, Any]:
    name, given, value = part.partition("=")
    if not given:
        return name, True
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def arguments_of(mode: str, text: str) -> dict[str, Any]:
    """Return torch.compile's arguments for a mode and its options.

    torch takes a mode or options; here a mode is the options it stands for.  Raises
    ValueError for an option that this torch's compiler has not, or not with such a value.
    """
    options = options_of(text)
    arguments = {name: options.pop(name) for name in ARGUMENTS if name in options}
    if not options:
        return {"mode": mode, **arguments}
    arguments["options"] = {**_options_of_mode(mode), **options}
    if arguments.get("backend", "inductor") == "inductor":
        _check(arguments["options"])
    return arguments


def _options_of_mode(mode: str) -> dict[str, Any]:
    from torch import _inductor

    return dict(_inductor.list_mode_options(mode))


def _check(options: dict[str, Any]) -> None:
    from torch import _TorchCompileInductorWrapper

    try:
        _TorchCompileInductorWrapper(None, options, None)
    except RuntimeError as error:
        words = str(error).partition(", known options are")[0]
        raise ValueError(f"torch {torch.__version__}: {words}") from error


def compiled(model: nn.Module, mode: str, text: str = "") -> nn.Module:
    """Return what runs a network in a mode: itself, or torch.compile of it."""
    if mode in ("eager", "graph"):
        return model
    return cast("nn.Module", torch.compile(model, **arguments_of(mode, text)))


def averaged(model: nn.Module, setting: Setting, **options: Any) -> nn.Module:
    """Return what trains a network: itself, or with several ranks DDP, which averages gradients.

    ``options`` are further arguments of ``DistributedDataParallel``.
    """
    if setting.ranks == 1:
        return model
    ids = [setting.device.index] if setting.device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(
        model, device_ids=ids, gradient_as_bucket_view=True, **options
    )


def records_graphs(mode: str, text: str = "") -> bool:
    """Whether the compiled step keeps its tensors in graphs that the next step overwrites."""
    if mode in ("eager", "graph"):
        return False
    arguments = arguments_of(mode, text)
    options = arguments.get("options") or _options_of_mode(arguments["mode"])
    return bool(options.get("triton.cudagraphs", False))


class Recorded:
    """A step that runs as it is the first time, and from then on as a graph of itself."""

    def __init__(
        self,
        step: Callable[[], object],
        after_first: Callable[[], None] = lambda: None,
        *,
        again: int = 0,
    ) -> None:
        """Call ``after_first`` when the first step has been issued, before it is recorded.

        ``again`` is as ``graph.recorded`` has it; see ``choose``.
        """
        self._step = step
        self._after_first = after_first
        self._again = again
        self._lent = contextlib.ExitStack()
        self._recording: Recording | None = None

    def __call__(self) -> object:
        """Do one step; returns what the step returned when it was recorded, at the same place."""
        if self._recording is None:
            self._step()
            self._after_first()
            self._recording = self._record()
        self._recording()
        return self._recording.answer

    @property
    def nodes(self) -> int | None:
        """Kernels, copies and fills of a step; None if unknown."""
        return None if self._recording is None else self._recording.nodes

    def choose(self) -> None:
        """Record the step anew, and ``again`` times more, and keep the fastest recording.

        To be called after the first step, so that its time, which is judged, has one recording in
        it.  An error here is raised as it is: the step can be recorded.
        """
        if self._recording is not None and self._again:
            side = self._recording.side
            self.release()
            self._recording = self._enter(side, self._again)

    def release(self) -> None:
        """Give the graph's memory back, with the last answer; the next step records anew."""
        self._recording = None
        self._lent.close()

    def _record(self) -> Recording:
        try:
            return self._enter()
        except RuntimeError as error:
            raise UnsupportedError(f"the step cannot be recorded in a graph: {error}") from error

    def _enter(self, side: torch.cuda.Stream | None = None, again: int = 0) -> Recording:
        return self._lent.enter_context(recorded(self._step, side, again=again))
