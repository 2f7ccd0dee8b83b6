"""Collectives as cases: their axes, how sizes are written, and the sizes of a sweep."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bench_lib.cases.axes import Axis, WorkloadAxes, case_of, choice, refused
from bench_lib.formulas.collective import ITEM_BYTES, MOST_BYTES, OPS, Collective
from bench_lib.model import Case, Param, UserError

WORKLOAD = "collective"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
"""Suffixes of numbers in nccl-tests, which are powers of 1024."""


def collective_axes() -> WorkloadAxes:
    """Return the axes of ``collectives``; the operation is checked with all of them."""
    return WorkloadAxes(
        WORKLOAD,
        (
            choice("op", OPS),
            Axis("bytes", refused(bytes_in), in_id=in_words, canonical=bytes_in),
            choice("dtype", tuple(ITEM_BYTES), "float"),
        ),
        refused(lambda chosen: collective_of(chosen, chosen["ranks"])),
    )


def collective_case(base: Case | None = None, **values: Param) -> Case:
    """Return the case with these values; raises UserError where they cannot be meant."""
    return case_of(collective_axes(), values, base)


def collective_of(params: Mapping[str, Param], ranks: int) -> Collective:
    """Return the call that a case's parameters describe; raises UserError."""
    return Collective(
        op=str(params["op"]),
        size=bytes_in(params["bytes"]),
        dtype=str(params.get("dtype", "float")),
        ranks=ranks,
    )


def bytes_in(value: Any) -> int:
    """Return the bytes that a number or words such as ``64M`` mean; raises UserError.

    K, M and G are powers of 1024, as for nccl-tests.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMG]?)", str(value).upper())
        if match is None or not isinstance(value, str):
            raise UserError(f"bytes is {value!r}; write a number of bytes, or 64K, 16M, 1G")
        size = int(float(match[1]) * UNITS[match[2]])
    if not 0 < size <= MOST_BYTES:
        raise UserError(f"bytes is {value}; it must be 1 to {MOST_BYTES}")
    return size


def in_words(size: int) -> str:
    """Return a size in the largest unit that it is a whole number of: ``64M``."""
    name, unit = max(
        ((name, unit) for name, unit in UNITS.items() if size % unit == 0), key=lambda one: one[1]
    )
    return f"{size // unit}{name}"


def sizes(least: int, most: int, factor: int) -> list[int]:
    """Return the sizes of a sweep in bytes, each ``factor`` times the one before.

    Raises UserError where there are none.
    """
    if least > most:
        raise UserError(f"--minbytes {least} is above --maxbytes {most}")
    if factor < 2:
        raise UserError(f"--stepfactor is {factor}; it must be a whole number of 2 or more")
    found = [least]
    while (size := found[-1] * factor) <= most:
        found.append(size)
    return found
