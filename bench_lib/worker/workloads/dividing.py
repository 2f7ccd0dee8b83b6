"""Shards a network over ranks with FSDP2; each rank has a batch of its own."""

from __future__ import annotations

import torch
from torch import nn

from bench_lib.worker.device import AUTOCAST
from bench_lib.worker.workload import Setting
from bench_lib.worker.workloads.compilation import arguments_of


class FullyShard:
    """FSDP2: no rank ever holds a whole network.  Blocks are compiled before they are sharded.

    Under ``amp-bf16`` weights are stored in FP32 and gathered in bf16, and gradients are averaged
    in FP32.
    """

    def __init__(self, precision: str, compile_mode: str, setting: Setting) -> None:
        """Have all ranks meet."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy

        self._mesh = init_device_mesh(setting.device.type, (setting.ranks,))
        self._mode = compile_mode
        self._policy = MixedPrecisionPolicy()
        if precision in AUTOCAST:
            self._policy = MixedPrecisionPolicy(AUTOCAST[precision], torch.float32)

    def block(self, block: nn.Module) -> None:
        """Compile a block just built, if the case says so, and keep this rank's part of it."""
        if self._mode != "eager":
            block.compile(**arguments_of(self._mode, ""))
        self.shard(block)

    def shard(self, part: nn.Module) -> None:
        """Keep this rank's part of whatever in a module is not sharded yet."""
        from torch.distributed.fsdp import fully_shard

        fully_shard(part, mesh=self._mesh, mp_policy=self._policy)
