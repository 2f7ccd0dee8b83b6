"""Records a step in a CUDA or HIP graph, and replays it without the host."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

WARMUP = 3
"""Steps on the side stream before the one that is recorded, as torch's notes on graphs ask."""
AGAIN = 7
"""Further recordings of a step; three in five are slow, and in 2% of processes all eight are.

On an H200 five recordings of one step, side by side, take 5.98 to 6.03 ms (an 8B model that decodes
in BF16) or 6.26 to 6.36 ms (in FP8).  Each repeats its own time within 0.2%, on any stream, even if
instantiated again.  One that takes another's place in memory takes as long as that one."""
CACHED_BYTES = 64 << 20
"""A step that holds more than a device's cache is recorded once: it streams from memory."""
SHORT_MS = 20.0
"""A step that takes longer is recorded once, too: replaying eight of them would take seconds."""
ROUNDS = 2
TIMED = 5
"""Replays of a recording in a round."""

_broken: list[torch.cuda.CUDAGraph] = []


@dataclass(frozen=True)
class Recording:
    """A step in a graph; calling it replays the step on the current stream."""

    graph: torch.cuda.CUDAGraph
    answer: object
    """The step's answer; tensors in it, of any shape, lie in the graph's memory."""
    side: torch.cuda.Stream
    """The stream it was recorded on; libraries keep memory for each stream they have used."""
    nodes: int | None = None
    """Kernels, copies and fills in it; None if unknown."""

    def __call__(self) -> None:
        """Issue a replay."""
        self.graph.replay()


@contextlib.contextmanager
def recorded(
    step: Callable[[], object], side: torch.cuda.Stream | None = None, *, again: int = 0
) -> Iterator[Recording]:
    """Record one step on the current device and lend its recording.

    ``side`` is the stream to record on, a new one by default; nodes of autograd that outlive a
    step, as DDP's do, tie it to the stream they were made on.  A replay changes the step's tensors
    as the step does: it goes on training the weights.  Results (gradients, a loss) lie in the
    graph's memory until an ordinary step replaces them.  Afterwards the graph is freed.  If the
    step cannot be recorded, the reason is raised, and the device, its allocator and its random
    numbers can be used as before.

    With ``again``, a small step is recorded so many times more, each in memory of its own, and the
    fastest is lent; the others' memory is freed.  Such a step's answer has to include everything
    that it leaves in its graph.
    """
    graphs = [_countable()]
    side = side or torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    try:
        # Also restores the current stream if torch.cuda.graph fails before it does.
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                step()
            recordings = [_record(step, graphs[0], side)]
            with contextlib.suppress(RuntimeError):  # such as too little memory
                wanted = 1 + again if again and _is_small(recordings[0]) else 1
                while len(graphs) < wanted:
                    graphs.append(_countable())
                    recordings.append(_record(step, graphs[-1], side))
        chosen = _fastest(recordings) if len(recordings) > 1 else recordings[0]
        del recordings  # and the others' answers, which lie in their memory
        if len(graphs) > 1:
            for graph in graphs:
                if graph is not chosen.graph:
                    graph.reset()
            graphs = [chosen.graph]
            torch.cuda.empty_cache()  # or the others' memory would count as held by graphs
        yield chosen
    finally:
        torch.cuda.synchronize()
        for graph in graphs:
            graph.reset()


def _is_small(recording: Recording) -> bool:
    """Whether a recording's memory, if this torch reports it, and its time are small."""
    pool = tuple(recording.graph.pool())
    segments = torch.cuda.memory_snapshot()
    own = (s for s in segments if tuple(s.get("segment_pool_id", ())) == pool)
    held_bytes = sum(segment["total_size"] for segment in own)
    return 0 < held_bytes <= CACHED_BYTES and _replays_ms(recording, 1) <= SHORT_MS


def _fastest(recordings: Sequence[Recording]) -> Recording:
    """Replay them alternately, and return the one that takes the least time."""
    least_ms = [float("inf")] * len(recordings)
    for _ in range(ROUNDS):
        for i, recording in enumerate(recordings):
            recording()
            least_ms[i] = min(least_ms[i], _replays_ms(recording, TIMED))
    return recordings[least_ms.index(min(least_ms))]


def _replays_ms(recording: Recording, times: int) -> float:
    """Replay a recording on the current stream; returns the device's time for all replays."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        recording()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def _record(
    step: Callable[[], object], graph: torch.cuda.CUDAGraph, side: torch.cuda.Stream
) -> Recording:
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    pool = torch.cuda.graph_pool_handle()
    try:
        # Other threads' work is not part of the step: a loader's thread pins memory.
        with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
            answer = step()
    except Exception:
        # The caller judges what a step raises; this only cleans up.  If the driver has
        # given the recording up (a step that waits for the device), torch raises before it
        # ends the recording everywhere: the generator refuses to be used outside of one, and
        # the allocator no longer frees its cache when memory runs short.
        generator.graphsafe_set_state(before)
        _stop_allocating_to(pool)
        _broken.append(graph)  # the allocator of pinned memory keeps asking it
        raise
    return Recording(graph, answer, side, _nodes(graph))


def _countable() -> torch.cuda.CUDAGraph:
    """Return an empty graph that ``_nodes`` can count once it is recorded, from torch 2.8 on."""
    try:
        return torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:
        return torch.cuda.CUDAGraph()


def _nodes(graph: torch.cuda.CUDAGraph, maps: Path = Path("/proc/self/maps")) -> int | None:
    """Return how many kernels, copies and fills a recorded graph holds; None if unknown.

    The graph can be replayed afterwards.
    """
    try:
        raw = ctypes.c_void_p(graph.raw_cuda_graph())
    except (AttributeError, RuntimeError):  # not kept: it is instantiated already
        return None
    graph.instantiate()
    try:
        count, number = _counting(maps), ctypes.c_size_t()
        failed = count(raw, None, ctypes.byref(number))
    except (AttributeError, OSError, StopIteration):
        return None
    return None if failed else number.value


def _counting(maps: Path) -> Any:
    """Return the function that counts, from the driver's library that this process has loaded."""
    loaded = [line.split(maxsplit=5)[-1] for line in maps.read_text(errors="replace").splitlines()]
    name, function = ("libamdhip64.so", "hipGraphGetNodes")
    if torch.version.hip is None:
        name, function = ("libcuda.so", "cuGraphGetNodes")
    path = next(path for path in loaded if Path(path).name.startswith(name))
    return getattr(ctypes.CDLL(path), function)


def _stop_allocating_to(pool: Any) -> None:
    """Tell the caching allocator that a recording is over, if it does not know yet."""
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
