"""Lists as people type them: ``fp32,fp16`` and ``8,32,128``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from bench_lib.cases.axes import LARGEST, one_of
from bench_lib.model import UserError


def names_in(text: str, option: str, kind: str, known: Sequence[str]) -> list[str]:
    """Return the names in a list; raises UserError for one that is not known or stands twice."""
    names = _parts(text, option, f"{known[0]},{known[-1]}")
    check = one_of(kind, known)
    for name in names:
        if problem := check(name):
            raise UserError(f"{option}: {problem}")
    return _without_doubles(names, option)


def numbers_in(text: str, option: str) -> list[int]:
    """Return the numbers in a list; raises UserError for one below 1 or that stands twice."""
    parts = _parts(text, option, "8,32,128")
    numbers = []
    for part in parts:
        # isdigit, and int itself, would take digits of other scripts and 1_000 too.
        number = int(part) if re.fullmatch(r"[0-9]{1,10}", part) else 0
        if not 1 <= number <= LARGEST:
            rule = f"it has to be whole numbers from 1 to {LARGEST}, as in 8,32,128"
            raise UserError(f"{option} names {part!r}; {rule}")
        numbers.append(number)
    _without_doubles([str(number) for number in numbers], option)
    return numbers


def above_zero(value: float, option: str, what: str) -> float:
    """Return a number of any unit, above zero and finite; raises UserError otherwise."""
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{option} {value:g}: {what} has to be a number above 0")
    return value


def _parts(text: str, option: str, example: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        what = "names nothing" if not any(parts) else f"is {text!r}, with nothing between commas"
        raise UserError(f"{option} {what}; write a list as in {example}")
    return parts


def _without_doubles(names: list[str], option: str) -> list[str]:
    if doubles := [name for i, name in enumerate(names) if name in names[:i]]:
        raise UserError(f"{option} names {doubles[0]} twice")
    return names
