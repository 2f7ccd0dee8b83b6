"""Workloads of a few tiny operations, for workers to import."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench_lib.worker.workloads import Setting, Workload


def relu(_setting: Setting) -> Callable[[], Tensor]:
    matrix = torch.ones(32, 32)
    return lambda: torch.relu(matrix @ matrix)


def warning(_setting: Setting) -> Workload:
    """Have something to say."""
    return Workload(torch.zeros(3).exp, warnings=["it is tiny"])
