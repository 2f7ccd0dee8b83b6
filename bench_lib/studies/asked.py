"""What a study is to measure: lists as users type them, and the cases made of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench_lib.cases.axes import LARGEST, case_of, network_axes, one_of
from bench_lib.model import Case, Param, Sampling, UserError

TIME_LIMIT_S = 300.0
TUNING_LIMIT_S = 1200.0
"""Time limit of a case that tries many kernels before it chooses one."""


@dataclass(frozen=True)
class Template:
    """The common part of an exercise's cases."""

    sizes: Mapping[str, int]
    """Image sizes in pixels, by network."""
    values: Mapping[str, Param]
    sampling: Sampling = field(default_factory=Sampling)
    time_limit_s: float | None = None
    """None takes what the mode needs."""

    def case(self, **values: Param) -> Case:
        """Return the case with these values; raises UserError where they are invalid."""
        chosen = {**self.values, **values}
        tuning = str(chosen.get("compile_mode", "")).startswith("max-autotune")
        limit = self.time_limit_s or (TUNING_LIMIT_S if tuning else TIME_LIMIT_S)
        base = Case("", "", sampling=self.sampling, time_limit_s=limit)
        return case_of(network_axes(self.sizes), chosen, base)


def names_in(text: str, option: str, kind: str, choices: Sequence[str]) -> list[str]:
    """Return the names in a list; raises UserError for an unknown or a repeated one."""
    names = _parts(text, option, f"{choices[0]},{choices[-1]}")
    check = one_of(kind, choices)
    for name in names:
        if problem := check(name):
            raise UserError(f"{option}: {problem}")
    return _without_duplicates(names, option)


def numbers_in(text: str, option: str) -> list[int]:
    """Return the numbers in a list; raises UserError for one below 1 or a repeated one."""
    parts = _parts(text, option, "8,32,128")
    numbers = []
    for part in parts:
        # isdigit, and int itself, would take digits of other scripts and 1_000 too.
        number = int(part) if re.fullmatch(r"[0-9]{1,10}", part) else 0
        if not 1 <= number <= LARGEST:
            rule = f"use whole numbers from 1 to {LARGEST}, as in 8,32,128"
            raise UserError(f"{option} names {part!r}; {rule}")
        numbers.append(number)
    _without_duplicates([str(number) for number in numbers], option)
    return numbers


def check_limit(time_limit_s: float | None) -> None:
    """Raise UserError for a time limit that is not above zero."""
    if time_limit_s is not None and not (math.isfinite(time_limit_s) and time_limit_s > 0):
        raise UserError(f"--time-limit {time_limit_s:g}: it must be a time above 0, in seconds")


def _parts(text: str, option: str, example: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        what = f"is {text!r}, with an empty item" if any(parts) else "is empty"
        raise UserError(f"{option} {what}; write a list as in {example}")
    return parts


def _without_duplicates(names: list[str], option: str) -> list[str]:
    if duplicates := [name for i, name in enumerate(names) if name in names[:i]]:
        raise UserError(f"{option} names {duplicates[0]} twice")
    return names
