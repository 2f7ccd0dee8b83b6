"""Ranks that keep one network together: each has a part of every block.

With FSDP2 each rank has a batch of its own and gathers what it needs of others.  With tensor
parallelism it computes with its part, and all ranks compute one batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench_lib.worker.device import AUTOCAST
from bench_lib.worker.workload import Setting
from bench_lib.worker.workloads.compilation import arguments_of


class Division:
    """How a network is divided, so that no rank ever holds all of it; as it stands not at all."""

    sharing: int = 1
    """Ranks that compute one batch together."""

    def block(self, block: nn.Module) -> None:
        """Keep this rank's part of a block that has just been built."""

    def rest(self, network: Any) -> None:
        """Keep this rank's part of everything outside the blocks."""


WHOLE = Division()
"""Every rank has all weights."""


class FullyShard(Division):
    """FSDP2.  Blocks are compiled one by one, before they are divided.

    Under ``amp-bf16`` weights are kept in FP32, gathered in bf16, and gradients are averaged in
    FP32.
    """

    def __init__(self, precision: str, compile_mode: str, setting: Setting) -> None:
        """Have all ranks meet."""
        from torch.distributed.fsdp import MixedPrecisionPolicy

        self._mesh, self._mode = _mesh(setting), compile_mode
        self._policy = MixedPrecisionPolicy()
        if precision in AUTOCAST:
            self._policy = MixedPrecisionPolicy(AUTOCAST[precision], torch.float32)

    def block(self, block: nn.Module) -> None:
        """Compile it if the case says so, and divide it."""
        if self._mode != "eager":
            block.compile(**arguments_of(self._mode, ""))
        self._divide(block)

    def rest(self, network: Any) -> None:
        """Divide embeddings, norm and head."""
        self._divide(network)

    def _divide(self, part: nn.Module) -> None:
        from torch.distributed.fsdp import fully_shard

        fully_shard(part, mesh=self._mesh, mp_policy=self._policy)


class TensorParallel(Division):
    """Attention by heads, and SwiGLU by rows, as Shoeybi et al. 2019 divide them.

    A block's ranks meet twice in a pass.  The head is divided by tokens of the vocabulary unless it
    is the embedding, which every rank has whole.
    """

    def __init__(self, setting: Setting) -> None:
        """Have all ranks meet."""
        self._mesh, self.sharing = _mesh(setting), setting.ranks

    def block(self, block: nn.Module) -> None:
        """Keep the rows of a block's first layers, and the columns of its second ones."""
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        self._divide(
            block,
            {
                "attention.inputs": ColwiseParallel(),
                "attention.output": RowwiseParallel(),
                "mlp.inputs": ColwiseParallel(),
                "mlp.output": RowwiseParallel(),
            },
        )

    def rest(self, network: Any) -> None:
        """Keep a part of the head, and caches of this rank's heads."""
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel

        network.kv_heads //= self.sharing
        if network.head.weight is not network.tokens.weight:
            self._divide(network, {"head": ColwiseParallel(output_layouts=Replicate())})

    def _divide(self, part: nn.Module, plan: dict[str, Any]) -> None:
        from torch.distributed.tensor.parallel import parallelize_module

        parallelize_module(part, self._mesh, plan)


def _mesh(setting: Setting) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(setting.device.type, (setting.ranks,))
