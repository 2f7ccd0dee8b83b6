"""Collectives as cases: the axes, sizes such as ``64M``, and the sizes of a sweep."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bench_lib.cases.axes import Axis, WorkloadAxes, case_of, choice, refused
from bench_lib.formulas.collective import ITEM_BYTES, MOST_BYTES, OPS, Collective
from bench_lib.model import Case, Param, UserError

WORKLOAD = "collective"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
"""Suffixes of sizes, which are powers of 1024 as in nccl-tests."""


def collective_axes() -> WorkloadAxes:
    """Return the axes of ``collectives``, whose values are checked together."""
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
    """Return the case with these values; raises UserError if they are invalid."""
    return case_of(collective_axes(), values, base)


def collective_of(params: Mapping[str, Param], ranks: int) -> Collective:
    """Return the collective of a case's parameters; raises UserError if they are invalid."""
    return Collective(
        op=str(params["op"]),
        size=bytes_in(params["bytes"]),
        dtype=str(params.get("dtype", "float")),
        ranks=ranks,
    )


def bytes_in(value: Any) -> int:
    """Return the bytes of a number or a text such as ``64M``; raises UserError if it is invalid."""
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
    """Return a size as a whole number of the largest possible unit, such as ``64M``."""
    name, unit = max(
        ((name, unit) for name, unit in UNITS.items() if size % unit == 0), key=lambda item: item[1]
    )
    return f"{size // unit}{name}"


def sizes(least: int, most: int, factor: int) -> list[int]:
    """Return the sizes of a sweep in bytes, each ``factor`` times the previous one.

    Raises UserError if there are none.
    """
    if least > most:
        raise UserError(f"--minbytes {least} is above --maxbytes {most}")
    if factor < 2:
        raise UserError(f"--stepfactor is {factor}; it must be a whole number of 2 or more")
    sweep = [least]
    while (size := sweep[-1] * factor) <= most:
        sweep.append(size)
    return sweep
