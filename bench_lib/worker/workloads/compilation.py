"""Compile modes: their effect, with options, on a network and on a step.

A folded mode merges batch norms into the convolutions before them.  A fused one also takes the one
kernel that cuDNN or MIOpen has for a convolution, the addition of a shortcut and a ReLU.
"""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.optimization import fuse
from torch.nn import functional

from bench_lib.worker.graph import Recording, recorded
from bench_lib.worker.workload import Setting, UnsupportedError
from bench_lib.worker.workloads.weights import batch_norms

ARGUMENTS = ("fullgraph", "dynamic", "backend")
"""Options that are torch.compile's own arguments; all others are its compiler's."""
FOLDED, FUSED = "-folded", "-fused"
_ADDITIONS = (operator.add, operator.iadd, torch.add)
_RELUS = (functional.relu, functional.relu_, torch.relu, torch.relu_)


def plain_mode(mode: str) -> str:
    """Return the rest of a compile mode without the merging beforehand."""
    return mode.removesuffix(FOLDED).removesuffix(FUSED)


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
    plain = plain_mode(mode)
    if not options:
        return {"mode": plain, **arguments}
    arguments["options"] = {**_options_of_mode(plain), **options}
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
        side: torch.cuda.Stream | None = None,
        *,
        again: int = 0,
    ) -> None:
        """Call ``after_first`` when the first step has been issued, before it is recorded.

        ``side`` and ``again`` are as ``graph.recorded`` has them; see ``choose``.
        """
        self._step = step
        self._after_first = after_first
        self._side = side
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
            return self._enter(self._side)
        except RuntimeError as error:
            raise UnsupportedError(f"the step cannot be recorded in a graph: {error}") from error

    def _enter(self, side: torch.cuda.Stream | None, again: int = 0) -> Recording:
        return self._lent.enter_context(recorded(self._step, side, again=again))


# ---- merging --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fused:
    """A library's convolutions with a ReLU, and with an addition before it."""

    relu: Callable[..., Tensor]
    """Takes input, weight, bias, stride, padding, dilation and groups."""
    add_relu: Callable[..., Tensor]
    """Takes input, weight, the addend, its factor, bias and the rest as above."""


def fused_by(device: torch.device) -> Fused:
    """Return the fused convolutions of a device's library; UnsupportedError on a CPU."""
    if device.type != "cuda":
        raise UnsupportedError("fused convolutions are cuDNN's and MIOpen's; use a folded mode")
    if torch.version.hip is not None:
        return Fused(torch.miopen_convolution_relu, torch.miopen_convolution_add_relu)
    return Fused(torch.cudnn_convolution_relu, torch.cudnn_convolution_add_relu)


def merged(model: nn.Module, mode: str, device: torch.device) -> tuple[nn.Module, list[str]]:
    """Return a network merged as the mode asks, and what could not be, in words.

    Raises UnsupportedError where nothing can be merged, and where the network's flow depends
    on its data, so that nobody can tell what follows what.
    """
    plain = plain_mode(mode)
    if plain == mode:
        return model, []
    fused = fused_by(device) if mode.endswith(FUSED) else None
    try:
        traced = fx.symbolic_trace(model.eval())
        network = cast("fx.GraphModule", fuse(traced, no_trace=True))
    except (fx.proxy.TraceError, TypeError) as error:
        raise UnsupportedError(f"torch.fx cannot follow the network: {error}") from error
    warnings = _unfolded(traced, network, plain)
    if fused is not None and not fuse_relus(network, fused):
        raise UnsupportedError(f"no ReLU follows a convolution; use {plain}{FOLDED}")
    return network, warnings


def _unfolded(before: fx.GraphModule, after: nn.Module, plain: str) -> list[str]:
    norms, left = len(batch_norms(before)), len(batch_norms(after))
    if not norms:
        raise UnsupportedError(f"the network has no batch norms to fold; use {plain}")
    of_them = f"of the network's {norms} batch norms"
    if left == norms:
        raise UnsupportedError(f"none {of_them} follows a convolution of its own; use {plain}")
    kept = f"{left} {of_them} are not folded: they follow no convolution of their own"
    return [kept] if left else []


def fuse_relus(network: fx.GraphModule, fused: Fused) -> int:
    """Put fused convolutions in the place of convolution, addition and ReLU; returns how many."""
    modules = dict(network.named_modules())
    count = 0
    for relu in list(network.graph.nodes):
        before = relu.args[0] if relu.args else None
        if not _is_relu(relu, modules) or not isinstance(before, fx.Node):
            continue
        if _is_convolution(before, modules):
            _replace(network, before, [relu], fused)
            count += 1
            continue
        for own, other in _summands(before):
            if _is_convolution(own, modules):
                _replace(network, own, [relu, before], fused, other)
                count += 1
                break
    network.graph.lint()
    network.recompile()
    return count


def _is_relu(node: fx.Node, modules: Mapping[Any, nn.Module]) -> bool:
    if node.op == "call_module":
        return type(modules[node.target]) is nn.ReLU
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    return node.op == "call_function" and node.target in _RELUS


def _is_convolution(node: fx.Node, modules: Mapping[Any, nn.Module]) -> bool:
    """Whether a node is a convolution that the libraries fuse, and feeds nobody else."""
    if node.op != "call_module" or len(node.users) > 1:
        return False
    module = modules[node.target]
    return (
        type(module) is nn.Conv2d
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and module.bias is not None
    )


def _summands(node: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
    """Return a sum's addends, each with the other; nothing if it is no sum of two tensors."""
    added = node.op == "call_function" and node.target in _ADDITIONS
    if not added or len(node.users) > 1 or len(node.args) != 2 or node.kwargs:
        return []
    a, b = node.args
    return [(a, b), (b, a)] if isinstance(a, fx.Node) and isinstance(b, fx.Node) else []


def _replace(
    network: fx.GraphModule,
    convolution: fx.Node,
    after: list[fx.Node],
    fused: Fused,
    added: fx.Node | None = None,
) -> None:
    """Put one call in the place of a convolution and what comes ``after`` it, the last first."""
    module, graph = network.get_submodule(str(convolution.target)), network.graph
    assert isinstance(module, nn.Conv2d)
    with graph.inserting_before(after[0]):
        weight, bias = (graph.get_attr(f"{convolution.target}.{n}") for n in ("weight", "bias"))
        image = convolution.args[0]
        rest = (bias, module.stride, module.padding, module.dilation, module.groups)
        if added is None:
            new = graph.call_function(fused.relu, (image, weight, *rest))
        else:
            new = graph.call_function(fused.add_relu, (image, weight, added, 1.0, *rest))
    after[0].replace_all_uses_with(new)
    for node in (*after, convolution):
        graph.erase_node(node)
