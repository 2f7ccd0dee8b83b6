"""Device time without the host: which figure is taken, how a graph is made, what is summed up.

There is no GPU here.  The order of things is tested on a scripted clock, and what talks to
torch on stand-ins that have the names, arguments and manners of torch.cuda.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from standins.device import Device

from bench_lib.worker import graph as graph_module
from bench_lib.worker import profiling
from bench_lib.worker.device_time import PROFILED, device_time
from bench_lib.worker.graph import AGAIN, WARMUP, recorded
from bench_lib.worker.workload import Setting
from bench_lib.worker.workloads import steps
from bench_lib.worker.workloads.networks import network

# --- which figure is taken -----------------------------------------------------------------

STEP_S = 1 / 64
NO_GRAPH = "the step could not be replayed as a graph: "
KERNELS = f"the device time is the sum of the kernels' times; {NO_GRAPH}"


@pytest.fixture
def _scripted(monkeypatch):
    monkeypatch.setattr(profiling, "kernels", lambda step, clock, n: clock.profiled(step, n))


def test_an_ordinary_step_follows_the_last_replay_before_memory_is_given_back():
    clock = Device(launch_s=1 / 64)
    device_time(clock, clock.step, STEP_S)
    assert clock.log[-4:] == ["drop graph", "step", "synchronize", "release"]


@pytest.mark.usefixtures("_scripted")
def test_replays_that_the_host_cannot_issue_in_time_are_not_the_devices_time():
    clock = Device(launch_s=1 / 8, replays_s=[1 / 16])
    found = device_time(clock, clock.step, STEP_S)
    assert (found.seconds, found.source) == (1 / 32, "kernels")
    reason = "the device finishes each replay before the host issues the next"
    assert found.warnings == [f"{KERNELS}RuntimeError: {reason}"]


@pytest.mark.usefixtures("_scripted")
def test_a_step_that_cannot_be_recorded_is_profiled():
    clock = Device(launch_s=1 / 64)
    clock.no_graph = ValueError("no graph\nhere")
    found = device_time(clock, clock.step, STEP_S)
    assert (found.seconds, found.source) == (1 / 32, "kernels")
    assert found.warnings == [f"{KERNELS}ValueError: no graph"]
    assert clock.log.count("step") == PROFILED
    assert clock.log[-1] == "release"


@pytest.mark.usefixtures("_scripted")
def test_where_neither_works_both_reasons_are_told():
    clock = Device(launch_s=1 / 64)
    clock.no_graph, clock.no_profile = ValueError("this"), RuntimeError()
    found = device_time(clock, clock.step, STEP_S)
    assert (found.seconds, found.source) == (None, None)
    reasons = f"{NO_GRAPH}ValueError: this; no profile: RuntimeError"
    assert found.warnings == [f"no device time: {reasons}"]
    assert clock.log[-1] == "release"


# --- the graph -----------------------------------------------------------------------------


class Cuda:
    """torch.cuda as far as a graph needs it: streams, one recording at a time, a generator.

    A recording that the driver has given up leaves the current stream, the generator and the
    allocator as they are during one, as it does in torch 2.7.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.default = self.current = Stream(self, "default")
        self.generator = Generator(self)
        self.default_generators = (self.generator,)
        self.recording: Graph | None = None
        self.capture_error_mode = "global"
        self.given_up = False
        self.allocating_to: list[tuple[int, int]] = []
        self.pools: list[tuple[int, int]] = []
        self.held_bytes: list[int | None] = []
        """What recordings hold, one after the other, and then the last; None if nobody tells."""
        self.replays_ms: list[float] = []
        self.ms = 0.0
        self.graphs: list[Graph] = []
        self.reset_fails = False

    def work(self) -> None:
        self.log.append(f"work on {self.current.name}")
        if self.recording is not None:
            self.recording.nodes += 1

    def wait(self) -> None:
        if self.recording is not None:
            self.given_up = True
            raise RuntimeError("operation not permitted when stream is capturing")

    def synchronize(self, _device: object = None) -> None:
        self.log.append("synchronize")

    def current_stream(self, _device: object = None) -> Stream:
        return self.current

    def current_device(self) -> int:
        return 0

    def graph_pool_handle(self) -> tuple[int, int]:
        return (0, 7 + len(self.graphs))

    def new_graph(self) -> Graph:
        self.graphs.append(Graph(self, len(self.graphs)))
        return self.graphs[-1]

    def memory_snapshot(self) -> list[dict[str, Any]]:
        sizes = {"total_size": 1 << 30, "allocated_size": 1 << 30}
        found: list[dict[str, Any]] = [{"segment_pool_id": (0, 0), **sizes}]
        for graph, held in zip(self.graphs, self.held_bytes, strict=False):
            if graph.recorded and held is not None:
                sizes = {"total_size": held, "allocated_size": 0}
                found.append({"segment_pool_id": graph.pool(), **sizes})
        return found

    def empty_cache(self) -> None:
        for graph in self.graphs:
            graph.recorded = graph.recorded and graph.ended

    def end_allocating(self, device: int, pool: tuple[int, int]) -> None:
        assert device == 0
        if pool not in self.allocating_to:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.allocating_to.remove(pool)

    def release_pool(self, device: int, pool: tuple[int, int]) -> None:
        assert device == 0
        self.pools.remove(pool)

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def graph(
        self, graph: Graph, *, pool: tuple[int, int], stream: Stream, capture_error_mode: str
    ) -> Iterator[None]:
        assert self.recording is None
        self.capture_error_mode = capture_error_mode
        self.log.append("begin recording")
        before, self.current = self.current, stream
        self.recording = graph
        self.allocating_to.append(pool)
        self.pools.append(pool)
        self.generator.recording = True
        graph.own = pool
        try:
            yield
        finally:
            self.recording = None
            if self.given_up:
                self.given_up = False
                raise RuntimeError("operation failed due to a previous error during capture")
            self.allocating_to.remove(pool)
            self.generator.recording = False
            graph.ended = graph.recorded = True
            self.current = before
            self.log.append("end recording")


class Stream:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self.cuda = cuda
        self.name = name

    def wait_stream(self, other: Stream) -> None:
        self.cuda.log.append(f"{self.name} waits for {other.name}")


class Generator:
    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.recording = False

    def clone_state(self) -> Generator:
        clone = Generator(self.cuda)
        clone.recording = self.recording
        return clone

    def graphsafe_set_state(self, other: Generator) -> None:
        self.recording = other.recording


class Graph:
    def __init__(self, cuda: Cuda, number: int) -> None:
        self.cuda = cuda
        self.number = number
        self.nodes = 0
        self.ended = self.recorded = False
        self.own: tuple[int, int] | None = None

    def pool(self) -> tuple[int, int]:
        assert self.own is not None
        return self.own

    def replay(self) -> None:
        assert self.ended
        if self.cuda.replays_ms:
            self.cuda.ms += self.cuda.replays_ms[self.number]
        self.cuda.log.append(f"replay {self.nodes} on {self.cuda.current.name}")

    def reset(self) -> None:
        self.cuda.log.append("reset")
        if self.ended:
            self.cuda.release_pool(0, self.pool())
            self.ended = False


class Event:
    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.ms = math.nan

    def record(self) -> None:
        self.ms = self.cuda.ms

    def synchronize(self) -> None:
        """Wait."""

    def elapsed_time(self, end: Event) -> float:
        return end.ms - self.ms


@pytest.fixture
def cuda(monkeypatch):
    cuda = Cuda()
    for name in (
        *("synchronize", "current_stream", "current_device", "graph_pool_handle"),
        *("stream", "graph", "default_generators", "memory_snapshot", "empty_cache"),
    ):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", cuda.new_graph)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: Event(cuda))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: Stream(cuda, "side"))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", cuda.end_allocating, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", cuda.release_pool, raising=False)
    monkeypatch.setattr(graph_module, "_broken", [])
    return cuda


def test_a_step_is_warmed_up_and_recorded_on_a_side_stream_and_replayed_on_the_current_one(cuda):
    with recorded(cuda.work) as replay:
        replay()
        replay()
    assert cuda.log == [
        "side waits for default",
        *["work on side"] * WARMUP,
        *("begin recording", "work on side", "end recording"),
        *["replay 1 on default"] * 2,
        *("synchronize", "reset"),
    ]


def replayed(log: Sequence[str]) -> list[str]:
    return [line for line in log if line.startswith("replay")]


def test_the_fastest_of_several_recordings_is_lent_and_the_others_are_gone(cuda):
    cuda.held_bytes, cuda.replays_ms = [1 << 20], [6.03, 6.02, 5.98, 6.04]

    def step() -> int:
        cuda.work()
        return len(cuda.pools)

    with recorded(step, again=3) as replay:
        before = cuda.ms
        replay()
        assert cuda.ms - before == pytest.approx(5.98)
        assert replay.answer == 3  # the third recording's, and two pools lay beside it
        assert [graph.ended for graph in cuda.graphs] == [False, False, True, False]
        assert cuda.pools == [cuda.graphs[2].pool()]
    assert cuda.log.count("work on side") == WARMUP + 4
    assert not cuda.pools


@pytest.mark.parametrize(
    "held",
    [None, (64 << 20) + 1, RuntimeError("not meaningful")],
    ids=["not told", "more than a cache", "another allocator"],
)
def test_a_step_that_holds_much_or_nobody_knows_what_is_recorded_once(held, cuda, monkeypatch):
    def refused() -> None:
        assert isinstance(held, RuntimeError)
        raise held

    if isinstance(held, RuntimeError):
        monkeypatch.setattr(torch.cuda, "memory_snapshot", refused)
    else:
        cuda.held_bytes = [held]
    with recorded(cuda.work, again=7):
        assert len(cuda.graphs) == 1
        assert not replayed(cuda.log)


def test_a_step_of_one_rank_is_recorded_again_and_of_several_once(monkeypatch):
    asked: list[int] = []

    class Noted:
        def __init__(self, _step: Any, *, again: int) -> None:
            asked.append(again)

        def choose(self) -> None:
            asked.append(-1)

    monkeypatch.setattr(steps, "Recorded", Noted)
    monkeypatch.setattr(steps, "require_compile", lambda *_: None)  # a CPU has no graphs
    for ranks in (1, 2):
        built = network(
            Setting(torch.device("cpu"), ranks=ranks),
            network="resnet18",
            batch_size=1,
            image_size=32,
            compile_mode="graph",
        )
        built.first_step_done()
    assert asked == [AGAIN, -1, 0, -1]


def waiting(cuda: Cuda) -> Callable[[], None]:
    def step() -> None:
        cuda.work()
        cuda.wait()

    return step


def failing(cuda: Cuda) -> Callable[[], None]:
    def step() -> None:
        cuda.work()
        if cuda.recording is not None:
            raise RuntimeError("not while recording")

    return step


@pytest.mark.parametrize(
    ("kind", "words"), [(waiting, "not permitted when"), (failing, "not while recording")]
)
def test_after_a_recording_that_failed_the_device_can_be_used_as_before(kind, words, cuda):
    with pytest.raises(RuntimeError) as raised, recorded(kind(cuda)):
        raise AssertionError("nothing was recorded")
    assert words in str(raised.value.__context__ or raised.value)
    assert cuda.current is cuda.default
    assert not cuda.generator.recording
    assert (cuda.pools, cuda.allocating_to) == ([], [])
    assert cuda.log[-2:] == ["synchronize", "reset"]
    with recorded(cuda.work) as replay:
        replay()
    assert cuda.log[-3:] == ["replay 1 on default", "synchronize", "reset"]
