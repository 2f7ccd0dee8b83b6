"""What makes tests that measure in their own process quick; everything is given back."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import pytest
import torch

from bench_lib.model import Sampling


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread, which is quickest for what is tiny; give torch's switches back too."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn


def hardly_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``micro`` warm up for an instant, on small images."""
    from bench_lib.micro import session

    short = functools.partial(Sampling, warmup_s=0.01, warmup_max_s=0.02)
    monkeypatch.setattr(session, "Sampling", short)
    monkeypatch.setattr(session, "SIZE", 64)
