"""The stream that a context measures in: the one whose launches cost least.

On an H200 a launch costs 1.8 us in some streams and 2.0 us in others, which makes a step of
ResNet-50 0.6% slower; which of them the default stream is, is a coin toss in every context.
Streams that are made one after the other are alike, some forty at a time (docs/statistics.md).
So many are made, some of them compared, and the context stays in the cheapest.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from bench_lib.worker.probe import LaunchCost

VARIABLE = "BENCH_LIB_STREAM"
"""``default`` keeps a context in the default stream; ``cheapest`` is what it does by itself."""
MADE = 192
EVERY = 8


@dataclass(frozen=True)
class Stream:
    """What is known of the stream that a context works in."""

    probe: dict[str, float] = field(default_factory=dict)
    """``launch_us``, a launch's cost on the device in microseconds."""
    warnings: list[str] = field(default_factory=list)


def enter_stream(device: torch.device) -> Stream:
    """Make the cheapest of many streams the current one of this thread, for good.

    Takes some 70 ms on a GPU and nothing on a CPU.  Where streams cannot be compared, the
    default stream stays, with a warning.  Raises ValueError where the variable is neither
    of its values.
    """
    wanted = os.environ.get(VARIABLE, "cheapest")
    if wanted not in ("cheapest", "default"):
        raise ValueError(f"{VARIABLE}={wanted!r}: cheapest or default")
    if device.type != "cuda":
        return Stream()
    try:
        with _made(MADE) as streams:
            compared = [torch.cuda.default_stream(device), *streams[::EVERY]]
            costs = _costs(compared, LaunchCost(device))
            chosen = 0 if wanted == "default" else cheapest(costs)
            torch.cuda.set_stream(compared[chosen])
            if chosen:
                streams.remove(compared[chosen])
    except (RuntimeError, AttributeError) as error:
        torch.cuda.set_stream(torch.cuda.default_stream(device))
        return Stream(warnings=[f"measured in the default stream: {error}"])
    return Stream({"launch_us": round(costs[chosen], 4)})


def cheapest(costs: Sequence[float]) -> int:
    """Return the position of the cheapest stream besides the first, which is the default one.

    Always one that was made, so that all contexts measure in the same kind.
    """
    return min(range(1, len(costs)), key=costs.__getitem__)


def _costs(streams: Sequence[torch.cuda.Stream], launch: LaunchCost) -> list[float]:
    # In a context that has used only one stream yet, launches cost less than they will.
    for stream in streams:
        with torch.cuda.stream(stream):
            launch.touch()
    costs = []
    for stream in streams:
        with torch.cuda.stream(stream):
            costs.append(launch.us())
    return costs


@contextlib.contextmanager
def _made(count: int) -> Iterator[list[torch.cuda.Stream]]:
    """Lend new streams; what is still in the list at the end is destroyed.

    torch's own come from a pool of 32 that others draw from too, a prefetcher for example,
    whose copies would then wait for the step that they should overlap.  These wait for the
    default stream and it for them, as if they were it.
    """
    runtime = torch.cuda.cudart()
    streams: list[torch.cuda.Stream] = []
    try:
        for _ in range(count):
            address = ctypes.c_uint64()
            if code := int(runtime.cudaStreamCreate(ctypes.addressof(address))):
                raise RuntimeError(f"no stream could be made (error {code} of the GPU's runtime)")
            streams.append(torch.cuda.ExternalStream(address.value))
        yield streams
    finally:
        torch.cuda.synchronize()
        for stream in streams:
            runtime.cudaStreamDestroy(stream.cuda_stream)
