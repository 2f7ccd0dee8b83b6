"""A step's work in a CUDA or HIP graph: issued once by the host, done again without it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

WARMUP = 3
"""Steps on the side stream before the one that is recorded, as torch's notes on graphs ask."""

_broken: list[torch.cuda.CUDAGraph] = []


@contextlib.contextmanager
def recorded(
    step: Callable[[], object], side: torch.cuda.Stream | None = None
) -> Iterator[Callable[[], None]]:
    """Record one step on the current device and lend its replay on the current stream.

    ``side`` is the stream it is recorded on, a new one unless autograd's nodes that outlive a step,
    which DDP keeps, were made on another.  A replay does to the step's tensors what the step does:
    weights are trained on.  The recorded step's results (gradients, a loss) lie in the graph's
    memory, and stay there until an ordinary step replaces them.  Afterwards the graph is gone.  If
    the step cannot be recorded, the reason is raised, and the device, its allocator and its random
    numbers can be used as before.
    """
    graph = torch.cuda.CUDAGraph()
    side = side or torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    try:
        # Also gives the current stream back where torch.cuda.graph fails before it does.
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                step()
            _record(step, graph, side)
        yield graph.replay
    finally:
        torch.cuda.synchronize()
        graph.reset()


def _record(
    step: Callable[[], object], graph: torch.cuda.CUDAGraph, side: torch.cuda.Stream
) -> None:
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    pool = torch.cuda.graph_pool_handle()
    try:
        # What other threads do meanwhile is no part of the step: a loader's pins memory.
        with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
            step()
    except Exception:
        # Whatever a step raises is its caller's to judge; here it is only cleaned up after.
        # Where the driver has given the recording up (a step that waits for the device),
        # torch raises before it has told anybody that it is over: the generator refuses to
        # be used outside a recording, and the allocator no longer frees its cache when
        # memory runs short.
        generator.graphsafe_set_state(before)
        _stop_allocating_to(pool)
        _broken.append(graph)  # the allocator of pinned memory goes on asking it
        raise


def _stop_allocating_to(pool: Any) -> None:
    """Tell the caching allocator that a recording is over; nothing if that is done."""
    device = torch.cuda.current_device()
    end: Callable[[int, Any], None] | None = getattr(
        torch._C,  # noqa: SLF001 - no public name
        "_cuda_endAllocateToPool",
        getattr(torch._C, "_cuda_endAllocateCurrentStreamToPool", None),  # noqa: SLF001 - its name before torch 2.8
    )
    if end is not None:
        with contextlib.suppress(RuntimeError):
            end(device, pool)
            torch._C._cuda_releasePool(device, pool)  # noqa: SLF001 - no public name
