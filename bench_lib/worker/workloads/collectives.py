"""Collectives of torch.distributed's default group, called by all ranks.

A call of a few bytes takes a GPU less time than Python needs to issue it.  So a step is as many
calls as move TOGETHER bytes; on a GPU, several calls are recorded once and replayed as a graph.
Afterwards the answer is checked, element by element, against what it must be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from bench_lib.formulas.collective import IN_PLACE, REDUCING, Collective
from bench_lib.model import Numerics
from bench_lib.worker.device import require_memory
from bench_lib.worker.workload import Setting, Workload, skip_where
from bench_lib.worker.workloads.compilation import Recorded

DTYPES = {
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "float": torch.float32,
    "double": torch.float64,
}
TOGETHER = {"cuda": 64 * 2**20, "cpu": 2**20}
"""Bytes that the calls of a step move together, unless that takes more than MOST_CALLS."""
MOST_CALLS = 50
CHECKED = 2**22
"""Elements that are checked at once; their positions take eight bytes each."""
LARGEST_SUM = 120
"""Sums of all ranks' elements are below this, so that every dtype represents them exactly."""
UNTOUCHED = 121
"""The result's value before the checked call; no correct element equals it."""

_CANNOT = ("not supported", "not support", "unsupported", "scalar type", "unconvertible")
_CALLS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "all_reduce": lambda _input, output: dist.all_reduce(output),
    "all_gather": lambda input_, output: dist.all_gather_into_tensor(output, input_),
    "reduce_scatter": lambda input_, output: dist.reduce_scatter_tensor(output, input_),
    "broadcast": lambda _input, output: dist.broadcast(output, src=0),
    "all_to_all": lambda input_, output: dist.all_to_all_single(output, input_),
}


def collective(setting: Setting, **params: Any) -> Workload:
    """Build a step of calls; ``params`` are op, bytes and dtype.

    Raises UserError for an invalid call, and UnsupportedError if the device lacks the memory; the
    first step raises it for what its backend cannot do.
    """
    call = Collective(
        op=params["op"],
        size=params["bytes"],
        dtype=params.get("dtype", "float"),
        ranks=setting.ranks,
    )
    require_memory(f"the buffers of {call.op}", call.held_bytes, setting)
    calls = calls_in_a_step(call.size, setting.device)
    buffers = _Buffers(call, setting)
    make = buffers.call

    def step() -> None:
        try:
            for _ in range(calls):
                make()
        except RuntimeError as error:
            skip_where(error, _CANNOT, dist.get_backend())
            raise

    recorded = Recorded(step) if setting.device.type == "cuda" and calls > 1 else None

    def release() -> None:
        """Give the graph back before its group ends, which would wait for it."""
        if recorded is not None:
            recorded.release()

    def numerics() -> Numerics:
        release()
        return buffers.check()

    return Workload(
        step=recorded or step,
        # All ranks make a call together, and ranks' items are summed: the first one counts it.
        items_per_step=calls if setting.rank == 0 else 0,
        item="call",
        numerics=numerics,
        close=release,
    )


def calls_in_a_step(size: int, device: torch.device) -> int:
    """Return the number of calls of ``size`` bytes in a step, the same on all ranks."""
    return max(1, min(MOST_CALLS, TOGETHER[device.type] // size))


class _Buffers:
    """One rank's input and output, and the check of its answer."""

    def __init__(self, collective: Collective, setting: Setting) -> None:
        """Allocate and fill them.

        Buffers that are summed in place in every step are zero, because nothing else would stay
        finite.
        """
        self._collective = collective
        self._rank = setting.rank
        self._device = setting.device
        self._dtype = DTYPES[collective.dtype]
        self._input = self._output = self._zeros(collective.given)
        if collective.op not in IN_PLACE:
            self._output = self._zeros(collective.got)
        self._call = _CALLS[collective.op]
        if collective.op != "all_reduce":
            self._fill_input()

    def call(self) -> None:
        self._call(self._input, self._output)

    def check(self) -> Numerics:
        """Make one call with known numbers and compare.

        The number of correct elements on all ranks is reported as a loss, with that of all elements
        as its reference; a single wrong one makes the answer not finite.
        """
        self._output.fill_(UNTOUCHED)
        self._fill_input()
        self.call()
        wrong, farthest = 0, 0.0
        for begin, expected in self._expected():
            actual = self._output[begin : begin + len(expected)]
            differs = actual != expected.to(self._dtype)
            if count := int(differs.sum()):
                wrong += count
                distances = (actual.double() - expected.double()).abs()[differs]
                farthest = max(farthest, float(distances.max()))
        elements = self._output.numel() * self._collective.ranks
        total = torch.tensor([wrong], device=self._device)
        dist.all_reduce(total)
        wrong = max(wrong, int(total))
        return Numerics(
            finite=wrong == 0,
            max_abs_diff=farthest,
            loss=float(elements - wrong),
            reference_loss=float(elements),
        )

    def _zeros(self, elements: int) -> Tensor:
        return torch.zeros(elements, dtype=self._dtype, device=self._device)

    def _fill_input(self) -> None:
        """Fill this rank's input; for a broadcast only the root has one."""
        if self._collective.op == "broadcast" and self._rank:
            return
        for begin in range(0, len(self._input), CHECKED):
            part = self._input[begin : begin + CHECKED]
            part.copy_(self._elements(self._rank, begin, begin + len(part)))

    def _expected(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the expected elements of the result in stretches, each with its position."""
        call, parts = self._collective, [[0]]  # the source ranks of each part of the result
        if call.op in REDUCING:
            parts = [[*range(call.ranks)]]
        elif call.op != "broadcast":
            parts = [[source] for source in range(call.ranks)]
        is_scattered = call.op in ("reduce_scatter", "all_to_all")
        offset = self._rank * call.count if is_scattered else 0
        length = call.got // len(parts)
        for number, sources in enumerate(parts):
            for begin in range(0, length, CHECKED):
                span = offset + begin, offset + min(begin + CHECKED, length)
                total = sum(self._elements(source, *span) for source in sources)
                yield number * length + begin, cast("Tensor", total)

    def _elements(self, rank: int, begin: int, end: int) -> Tensor:
        """Return a rank's input from one position to another: small whole numbers."""
        below = max(2, LARGEST_SUM // self._collective.ranks)
        positions = torch.arange(begin, end, device=self._device)
        return (31 * positions + 17 * (positions // 251) + 7 * rank) % below
