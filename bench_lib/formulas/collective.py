"""One collective call: validation, element counts, bytes and bandwidths.

A size is the larger of a rank's input and output, as in nccl-tests (doc/PERFORMANCE.md and each
test's GetCollByteCount).  Standard library only, because both the matrix and the worker use it.
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
"""By the names in nccl-tests; torch's NCCL has no unsigned integers of more than one byte."""
SPLIT = ("all_gather", "reduce_scatter", "all_to_all")
"""Operations whose size is that of all ranks' parts together."""
REDUCING = ("all_reduce", "reduce_scatter")
IN_PLACE = ("all_reduce", "broadcast")
"""Operations whose result overwrites the input; others have an output buffer."""
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
MOST_BYTES = 2**40
"""The largest buffer; a larger size is a typing error."""
ALIGNED = 16
"""nccl-tests rounds each rank's part down to a multiple of this many bytes."""


@dataclass(frozen=True)
class Collective:
    """One collective call of all ranks."""

    op: str
    size: int
    """Bytes of one rank's buffer; for SPLIT operations, of all ranks' parts together."""
    dtype: str
    ranks: int

    def __post_init__(self) -> None:
        """Raise UserError if it is invalid."""
        _check("op", self.op, OPS)
        _check("dtype", self.dtype, tuple(ITEM_BYTES))
        if self.ranks < 2:
            raise UserError(f"{self.op} needs 2 ranks or more, but ranks is {self.ranks}")
        if not 0 < self.size <= MOST_BYTES:
            raise UserError(f"bytes is {self.size}; it must be 1 to {MOST_BYTES}")
        if self.size % self.unit:
            parts = f" in {self.ranks} parts" if self.op in SPLIT else ""
            raise UserError(
                f"bytes is {self.size}; {self.op} has elements of {self.item_bytes} bytes{parts}, "
                f"so it must be a multiple of {self.unit}"
            )

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.dtype]

    @property
    def parts(self) -> int:
        """Number of parts of the size: one per rank, or one."""
        return self.ranks if self.op in SPLIT else 1

    @property
    def unit(self) -> int:
        """Bytes of which a size has to be a multiple."""
        return self.item_bytes * self.parts

    @property
    def count(self) -> int:
        """Elements of a part, as in the ``count`` column of nccl-tests."""
        return self.size // self.unit

    @property
    def given(self) -> int:
        """Elements of a rank's input."""
        return self.count if self.op == "all_gather" else self.count * self.parts

    @property
    def got(self) -> int:
        """Elements of a rank's output."""
        return self.count if self.op == "reduce_scatter" else self.count * self.parts

    @property
    def held_bytes(self) -> int:
        """Bytes of a rank's buffers."""
        separate = 0 if self.op in IN_PLACE else min(self.given, self.got)
        return self.size + separate * self.item_bytes

    def algorithm_bandwidth(self, seconds: float) -> float:
        """Bytes per second: the size divided by the time of a call."""
        return self.size / seconds

    def bus_bandwidth(self, seconds: float) -> float:
        """Bytes per second on each rank's link, comparable between numbers of ranks.

        nccl-tests, doc/PERFORMANCE.md: algorithm bandwidth × 2(n-1)/n for all_reduce, 1 for
        broadcast, (n-1)/n for the others.
        """
        share = (self.ranks - 1) / self.ranks
        factor = {"all_reduce": 2 * share, "broadcast": 1.0}.get(self.op, share)
        return self.algorithm_bandwidth(seconds) * factor


def rounded(op: str, size: int, dtype: str, ranks: int) -> int:
    """Round a size down as nccl-tests does: to whole elements, and to parts of whole 16 bytes.

    The result may be 0.  Raises UserError for an unknown op or dtype.
    """
    _check("op", op, OPS)
    _check("dtype", dtype, tuple(ITEM_BYTES))
    unit = ALIGNED * ranks if op in SPLIT else ITEM_BYTES[dtype]
    return size // unit * unit


def _check(kind: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UserError(unknown(kind, value, allowed))
