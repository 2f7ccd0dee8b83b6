"""Training by DeepSpeed's engine: ranks divide what ZeRO's stage says (Rajbhandari et al. 2020)."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench_lib.worker.workload import Setting, UnsupportedError, Workload
from bench_lib.worker.workloads.compilation import arguments_of
from bench_lib.worker.workloads.dividing import Division
from bench_lib.worker.workloads.steps import TrainingStep

BF16 = {
    "amp-bf16": {"enabled": True},
    "bf16": {
        "enabled": True,
        "bf16_master_weights_and_grads": True,
        "bf16_optimizer_states": True,
    },
}
"""Weights are bf16; the optimizer's own ones and its moments are FP32 unless DeepSpeed is told."""
NEVER = 10**9
"""Steps between DeepSpeed's lines about its progress."""


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Have DeepSpeed speak to standard error alone, without warnings.

    So do its logger's later lines, since it keeps the stream that it found.
    """
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        yield


def deepspeed_module(name: str) -> Any:
    """Import DeepSpeed or a part of it; raises whatever it raises while it looks for compilers.

    The environment stays as it is: torch would count GPUs another way, here and in every process
    started later.
    """
    before = dict(os.environ)
    try:
        with quietly():
            return importlib.import_module(name)
    finally:
        for added in os.environ.keys() - before.keys():
            del os.environ[added]
        os.environ.update(before)


class Zero(Division):
    """ZeRO: ranks divide moments, from stage 2 gradients, from stage 3 weights too.

    Under ``amp-bf16`` the weights are bf16, and ranks divide FP32 ones that the optimizer updates.
    """

    def __init__(self, stage: int, precision: str, compile_mode: str, setting: Setting) -> None:
        """Import DeepSpeed; raises UnsupportedError without it."""
        try:
            self._deepspeed = deepspeed_module("deepspeed")
        except Exception as error:  # looking for compilers, its import has errors of its own
            raise UnsupportedError(
                f"zero{stage} needs DeepSpeed, which cannot be imported ({error}); "
                "pip install deepspeed"
            ) from error
        if precision == "bf16" and not self._keeps_bf16_alone():
            raise UnsupportedError(
                f"DeepSpeed {self._deepspeed.__version__} keeps FP32 weights beside bf16's; "
                "precision amp-bf16 is that"
            )
        self.whole = 3 - stage
        self._stage, self._mode, self._setting = stage, compile_mode, setting
        self._dtype = torch.bfloat16 if precision in BF16 else torch.float32
        self.linear = functional.linear
        """The linear layer that DeepSpeed computes with."""
        self._config = {
            "train_micro_batch_size_per_gpu": 1,
            "steps_per_print": NEVER,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            "bf16": BF16.get(precision, {"enabled": False}),
        }
        self._tell_device()

    def _keeps_bf16_alone(self) -> bool:
        """Whether this DeepSpeed can leave FP32 weights out."""
        try:
            known = deepspeed_module("deepspeed.runtime.precision_config").DeepSpeedBF16Config
        except (ImportError, AttributeError):
            return False
        return set(BF16["bf16"]) <= set(known.model_fields)

    def _tell_device(self) -> None:
        """Name the device: DeepSpeed takes the launcher's number of a rank for the device's."""
        index = self._setting.device.index
        os.environ["LOCAL_RANK"] = str(self._setting.local_rank if index is None else index)
        if self._setting.device.type == "cpu":
            # It would compile collectives of its own for a minute; gloo has them.
            self._deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

    def block(self, block: nn.Module) -> None:
        """Keep this rank's part of a block in stage 3; otherwise the block."""
        block.to(self._dtype)
        if self._stage == 3:
            with self._putting_back(), quietly():
                self._deepspeed.zero.Init(module=block, config_dict_or_path=self._config)

    def rest(self, network: Any) -> None:
        """Do the same with everything outside the blocks, and compile the whole."""
        self.block(network)
        if self._mode != "eager":
            network.compile(**arguments_of(self._mode, ""))

    def engine(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        """Return DeepSpeed's engine around a network and its optimizer; all ranks meet."""
        with self._putting_back(), quietly():
            engine, *_ = self._deepspeed.initialize(
                model=network, optimizer=optimizer, config=self._config, dist_init_required=False
            )
        return engine

    @contextlib.contextmanager
    def _putting_back(self) -> Iterator[None]:
        """Put torch's linear layer back, and note the one that stage 3 had in its place."""
        before = functional.linear
        try:
            yield
        finally:
            if functional.linear is not before:
                self.linear, functional.linear = functional.linear, before


class ZeroStep(TrainingStep):
    """Steps by DeepSpeed's engine, which goes backward and updates.

    The built object's ``division`` is ``Zero``.
    """

    built: Any

    def __init__(self, built: Any) -> None:
        """Put the engine around the network."""
        super().__init__(built)
        self.run: Any = built.division.engine(self.run, self.optimizer)
        self._engine: Any = self.run

    def compute_loss(self) -> Tensor:
        """Return the loss, a scalar, of the step's input."""
        before, functional.linear = functional.linear, self.built.division.linear
        try:
            return super().compute_loss()
        finally:
            functional.linear = before

    def backward(self) -> None:
        """Do the second part."""
        assert self.loss is not None
        self.run.backward(self.loss)
        self.loss = self.loss.detach()

    def optimize(self) -> None:
        """Do the last part."""
        self.run.step()

    def workload(self, **about: Any) -> Workload:
        """Return the step and its figures, ``about`` besides the usual."""
        return super().workload(close=self.close, **about)

    def release(self) -> None:
        """Give back what only a step needs."""
        self.close()
        super().release()

    def close(self) -> None:
        """Have DeepSpeed forget the network; numerics may have done so before."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.destroy()
