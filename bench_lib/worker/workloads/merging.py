"""Networks for inference with what follows a convolution merged into it.

Batch norms into its weights (``-folded``); the addition of a shortcut and a ReLU besides, into
the one kernel that cuDNN or MIOpen has for all of it (``-fused``).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.optimization import fuse
from torch.nn import functional

from bench_lib.worker.workload import UnsupportedError
from bench_lib.worker.workloads.weights import batch_norms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FOLDED, FUSED = "-folded", "-fused"
_ADDITIONS = (operator.add, operator.iadd, torch.add)
_RELUS = (functional.relu, functional.relu_, torch.relu, torch.relu_)


def plain_mode(mode: str) -> str:
    """Return what is left of a compile mode without what is merged first."""
    return mode.removesuffix(FOLDED).removesuffix(FUSED)


@dataclass(frozen=True)
class Fused:
    """A library's convolutions with a ReLU, and with an addition before it."""

    relu: Callable[..., Tensor]
    """Of input, weight, bias, stride, padding, dilation and groups."""
    add_relu: Callable[..., Tensor]
    """Of input, weight, what is added, its factor, bias and the rest as above."""


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
    """Return what a sum adds, each with the other; nothing where it is no sum of two tensors."""
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
