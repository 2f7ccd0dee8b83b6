"""A GPU whose streams have scripted launch costs, instead of what torch.cuda offers."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch

ALIKE = 43
"""Streams made one after the other that cost the same, as on an H200."""
CYCLES_PER_US = 1000


@dataclass(frozen=True)
class FakeStream:
    """A stream by its address; 0 is the default one."""

    cuda_stream: int


DEFAULT = FakeStream(0)


class FakeGpu:
    """One device with one queue, its host, and a runtime that makes and destroys streams.

    A kernel costs the host ``issue_us``, then the device what its stream costs.  As on an
    H200, all are cheaper by ``discount_us`` as long as only one stream has been used.  By
    chance those of one timing, by its number, are cheaper by what ``luck_us`` says.
    """

    def __init__(
        self,
        *,
        default_us: float = 2.0,
        blocks_us: Sequence[float] = (2.0,),
        issue_us: float = 0.5,
        discount_us: float = 0.0,
        luck_us: Mapping[int, float] | None = None,
        makes: int | None = None,
    ) -> None:
        """Script the costs; the last block repeats, and ``makes`` streams is the most."""
        self.default_us = default_us
        self.blocks_us = blocks_us
        self.issue_us = issue_us
        self.discount_us = discount_us
        self.luck_us = luck_us or {}
        self.makes = makes
        self.current = DEFAULT
        self.made: list[FakeStream] = []
        self.alive: set[FakeStream] = set()
        self.used: set[FakeStream] = set()
        self.used_before_timing: set[FakeStream] | None = None
        self.holds: list[int] = []
        self._now_us = 0.0
        self._busy_until_us = 0.0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
        """Stand where torch.cuda's streams, events and runtime are, and its tensors."""
        for name in ("default_stream", "stream", "synchronize", "_sleep"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "ExternalStream", FakeStream)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: FakeEvent(self))
        monkeypatch.setattr(torch, "ones", lambda _n, device: FakeTensor(self))
        return self

    def cost_us(self, stream: FakeStream) -> float:
        cost = self.default_us
        if stream != DEFAULT:
            cost = self.blocks_us[min(self.block(stream), len(self.blocks_us) - 1)]
        cost -= self.discount_us if len(self.used) < 2 else 0
        return cost - self.luck_us.get(len(self.holds) - 1, 0)

    def block(self, stream: FakeStream) -> int:
        """Which of the streams that are alike it belongs to."""
        return self.made.index(stream) // ALIKE

    # --- the runtime

    def cudaStreamCreate(self, pointer: int) -> int:  # noqa: N802 - the runtime's name
        """Write a new stream's address; error 2 where there can be no more."""
        if len(self.made) == self.makes:
            return 2
        stream = FakeStream(0x7F00_0000_0000 + 16 * len(self.made))
        ctypes.c_uint64.from_address(pointer).value = stream.cuda_stream
        self.made.append(stream)
        self.alive.add(stream)
        return 0

    def cudaStreamDestroy(self, address: int) -> int:  # noqa: N802 - the runtime's name
        assert self._busy_until_us <= self._now_us
        self.alive.remove(FakeStream(address))
        return 0

    # --- torch.cuda

    def default_stream(self, device: torch.device | None = None) -> FakeStream:
        return DEFAULT

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """Make a stream that is there the current one for a while."""
        assert stream in {DEFAULT, *self.alive}
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def synchronize(self) -> None:
        self._now_us = max(self._now_us, self._busy_until_us)

    def _sleep(self, cycles: int) -> None:
        if self.used_before_timing is None:
            self.used_before_timing = set(self.used)
        self.holds.append(cycles)
        self._busy_until_us = self.device_now_us() + cycles / CYCLES_PER_US

    # --- work

    def launch(self) -> None:
        self.used.add(self.current)
        self._now_us += self.issue_us
        self._busy_until_us = self.device_now_us() + self.cost_us(self.current)

    def now_us(self) -> float:
        """Time on the host."""
        return self._now_us

    def device_now_us(self) -> float:
        """When the device will have done all that was issued."""
        return max(self._now_us, self._busy_until_us)


class FakeTensor:
    """Numbers on a fake GPU."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu

    def add_(self, _value: float) -> None:
        self._gpu.launch()


class FakeEvent:
    """A point in a fake GPU's order of work."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self._at_us = 0.0

    def record(self) -> None:
        self._at_us = self._gpu.device_now_us()

    def query(self) -> bool:
        return self._gpu.now_us() >= self._at_us

    def elapsed_time(self, other: FakeEvent) -> float:
        """Milliseconds until another one; only when the device has passed it."""
        assert other.query()
        return (other._at_us - self._at_us) / 1e3
