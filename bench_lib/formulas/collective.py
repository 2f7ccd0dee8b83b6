"""One collective call: its validity, counts, time and bytes.

Sizes count the larger of a rank's input and its output, as nccl-tests does (doc/PERFORMANCE.md and
each test's GetCollByteCount).  Standard library only, because the matrix and the worker both ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench_lib.model import UserError, unknown

ITEM_BYTES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "half": 2,
    "bfloat16": 2,
    "float": 4,
    "double": 8,
}
"""By nccl-tests' names; torch's NCCL has no unsigned integers of more than one byte."""
SPLIT = ("all_gather", "reduce_scatter", "all_to_all")
"""Operations whose bytes are all ranks' parts together."""
REDUCING = ("all_reduce", "reduce_scatter")
IN_PLACE = ("all_reduce", "broadcast")
"""Operations whose result takes the place of the input; others have a buffer for it."""
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
MOST_BYTES = 2**40
"""No buffer is larger; a larger one is a slip of the keyboard."""
ALIGNED = 16
"""nccl-tests rounds each rank's part down to a multiple of so many bytes."""


@dataclass(frozen=True)
class Collective:
    """One call of all ranks."""

    op: str
    size: int
    """Bytes: those of one rank's buffer; for SPLIT operations those of all ranks' parts
    together."""
    dtype: str
    ranks: int

    def __post_init__(self) -> None:
        """Raise UserError where it cannot be meant."""
        _among("op", self.op, OPS)
        _among("dtype", self.dtype, tuple(ITEM_BYTES))
        if self.ranks < 2:
            raise UserError(f"{self.op} is of 2 ranks or more, and ranks is {self.ranks}")
        if not 0 < self.size <= MOST_BYTES:
            raise UserError(f"bytes is {self.size}; it must be 1 to {MOST_BYTES}")
        if self.size % self.unit:
            among = f" in {self.ranks} parts" if self.op in SPLIT else ""
            raise UserError(
                f"bytes is {self.size}; {self.op} has elements of {self.item_bytes} bytes{among}, "
                f"so it must be a multiple of {self.unit}"
            )

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.dtype]

    @property
    def parts(self) -> int:
        """How many parts the bytes have: one for each rank, or one."""
        return self.ranks if self.op in SPLIT else 1

    @property
    def unit(self) -> int:
        """Bytes that a size is a multiple of."""
        return self.item_bytes * self.parts

    @property
    def count(self) -> int:
        """Elements of a part, which is what nccl-tests' ``count`` column shows."""
        return self.size // self.unit

    @property
    def given(self) -> int:
        """Elements that a rank gives."""
        return self.count if self.op == "all_gather" else self.count * self.parts

    @property
    def got(self) -> int:
        """Elements that a rank has afterwards."""
        return self.count if self.op == "reduce_scatter" else self.count * self.parts

    @property
    def held_bytes(self) -> int:
        """Bytes of a rank's buffers."""
        apart = 0 if self.op in IN_PLACE else min(self.given, self.got)
        return self.size + apart * self.item_bytes

    def algorithm_bandwidth(self, seconds: float) -> float:
        """Bytes a second: the size over the time of a call."""
        return self.size / seconds

    def bus_bandwidth(self, seconds: float) -> float:
        """Bytes a second that each rank's link has to carry, whatever the number of ranks.

        nccl-tests, doc/PERFORMANCE.md: algorithm bandwidth × 2(n-1)/n for all_reduce, 1 for
        broadcast, (n-1)/n for the others.
        """
        share = (self.ranks - 1) / self.ranks
        factor = {"all_reduce": 2 * share, "broadcast": 1.0}.get(self.op, share)
        return self.algorithm_bandwidth(seconds) * factor


def rounded(op: str, size: int, dtype: str, ranks: int) -> int:
    """Return the size that nccl-tests makes of one: whole elements, parts of whole 16 bytes.

    Zero where nothing is left.  Raises UserError for an op or a dtype that does not exist.
    """
    _among("op", op, OPS)
    _among("dtype", dtype, tuple(ITEM_BYTES))
    unit = ALIGNED * ranks if op in SPLIT else ITEM_BYTES[dtype]
    return size // unit * unit


def _among(kind: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UserError(unknown(kind, value, allowed))
