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
"""Options that are torch.compile's own arguments; all others go to its compiler."""


def options_of(text: str) -> dict[str, Any]:
    """Return options by name: ``freezing,shape_padding=False`` sets the first to True.

    Values are Python literals, or else strings.
    """
    options: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        name, sign, value = part.partition("=")
        try:
            options[name] = ast.literal_eval(value) if sign else True
        except (ValueError, SyntaxError):
            options[name] = value
    return options


def arguments_of(mode: str, text: str) -> dict[str, Any]:
    """Return torch.compile's arguments for a mode and its options.

    torch takes either a mode or options, so with options the mode is replaced by its own.  Raises
    ValueError for an option or value that this torch's compiler does not have.
    """
    options = options_of(text)
    arguments = {name: options.pop(name) for name in ARGUMENTS if name in options}
    if not options:
        return {"mode": mode, **arguments}
    arguments["options"] = {**_options_of_mode(mode), **options}
    if arguments.get("backend", "inductor") == "inductor":
        from torch import _TorchCompileInductorWrapper

        try:
            _TorchCompileInductorWrapper(None, arguments["options"], None)
        except RuntimeError as error:
            message = str(error).partition(", known options are")[0]
            raise ValueError(f"torch {torch.__version__}: {message}") from error
    return arguments


def _options_of_mode(mode: str) -> dict[str, Any]:
    from torch import _inductor

    return dict(_inductor.list_mode_options(mode))


def compiled(model: nn.Module, mode: str, text: str = "") -> nn.Module:
    """Return the network as a mode runs it: itself, or torch.compile of it."""
    if mode in ("eager", "graph"):
        return model
    return cast("nn.Module", torch.compile(model, **arguments_of(mode, text)))


def averaged(model: nn.Module, setting: Setting, **options: Any) -> nn.Module:
    """Return the module to train: the network, or with several ranks DDP, which averages gradients.

    ``options`` are further arguments of ``DistributedDataParallel``.
    """
    if setting.ranks == 1:
        return model
    ids = [setting.device.index] if setting.device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(
        model, device_ids=ids, gradient_as_bucket_view=True, **options
    )


def records_graphs(mode: str, text: str = "") -> bool:
    """Whether the compiled step's tensors lie in graphs that the next step overwrites."""
    if mode in ("eager", "graph"):
        return False
    arguments = arguments_of(mode, text)
    options = arguments.get("options") or _options_of_mode(arguments["mode"])
    return bool(options.get("triton.cudagraphs", False))


class Recorded:
    """A step that is called the first time, and replayed as a graph from then on."""

    def __init__(
        self,
        step: Callable[[], object],
        after_first: Callable[[], None] = lambda: None,
        *,
        again: int = 0,
    ) -> None:
        """Call ``after_first`` when the first step has been issued, before it is recorded.

        ``again`` is that of ``graph.recorded``; see ``choose``.
        """
        self._step = step
        self._after_first = after_first
        self._again = again
        self._stack = contextlib.ExitStack()
        self._recording: Recording | None = None

    def __call__(self) -> object:
        """Do one step; returns the recorded step's answer, always at the same place in memory."""
        if self._recording is None:
            self._step()
            self._after_first()
            try:
                self._recording = self._enter()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                torch.cuda.synchronize()  # raises if the device has failed, which is no skip
                reason = f"the step cannot be recorded in a graph: {error}"
                raise UnsupportedError(reason) from error
        self._recording()
        return self._recording.answer

    @property
    def nodes(self) -> int | None:
        """Kernels, copies and fills of a step; None if unknown."""
        return None if self._recording is None else self._recording.nodes

    def choose(self) -> None:
        """Record the step anew, and ``again`` times more, and keep the fastest recording.

        Call it after the first step, so that the first step's time, which is judged, includes one
        recording.  Errors are raised unchanged, because the step can be recorded.
        """
        if self._recording is not None and self._again:
            side = self._recording.side
            self.release()
            self._recording = self._enter(side, self._again)

    def release(self) -> None:
        """Free the graph's memory, including the last answer; the next step records anew."""
        self._recording = None
        self._stack.close()

    def _enter(self, side: torch.cuda.Stream | None = None, again: int = 0) -> Recording:
        return self._stack.enter_context(recorded(self._step, side, again=again))
