"""Profiles one step of a network layer by layer with DeepSpeed, which waits after each layer."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from bench_lib.model import UserError
from bench_lib.worker.caches import environment

TOP = 10
"""Layers that DeepSpeed lists at each depth."""


def profile(
    network: nn.Module,
    batch: Tensor,
    *,
    training: bool,
    autocast: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    profile_step: int = 0,
    ranks: int = 1,
) -> str:
    """Profile the forward pass of an uncompiled network's step; returns DeepSpeed's output.

    ``batch`` is (n, ...), as the network takes it.  The network runs on its device, in its current
    mode and under ``autocast``; ``profile_step`` and ``ranks`` are only printed.  Raises
    UserError without DeepSpeed, and whatever the network or the profiler raises.
    """
    # Those attributes of DeepSpeed's training engine that the profiler prints.
    engine = SimpleNamespace(
        world_size=ranks,
        dp_world_size=ranks,
        mp_world_size=1,
        has_moe_layers=False,
        train_micro_batch_size_per_gpu=lambda: len(batch),
        wall_clock_breakdown=lambda: False,
    )
    profiler = _deepspeed().FlopsProfiler(network, ds_engine=engine)
    fast = torch.backends.mha.get_fastpath_enabled()
    # The single kernel of ``nn.MultiheadAttention`` in inference hides its layers.
    torch.backends.mha.set_fastpath_enabled(False)
    text = io.StringIO()
    try:
        with torch.set_grad_enabled(training), autocast():
            network(batch)  # to warm up
            profiler.start_profile()
            network(batch)
        with contextlib.redirect_stdout(text):
            profiler.print_model_profile(profile_step=profile_step, top_modules=TOP, detailed=True)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        profiler.end_profile()
    return text.getvalue()


def _deepspeed() -> Any:
    """Import the profiler's module, whose output goes to standard error, as its logger's does.

    The environment is restored: torch would count GPUs another way, here and in every process that
    is started later.
    """
    try:
        with environment({}), warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            return importlib.import_module("deepspeed.profiling.flops_profiler.profiler")
    except Exception as error:  # its import looks for compilers, and may fail in many ways
        raise UserError(
            f"DeepSpeed's profiler cannot be imported ({error}); pip install deepspeed"
        ) from error
