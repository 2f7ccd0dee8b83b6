"""A tolerance as one writes it: 1% or 0.01."""

from __future__ import annotations

import math

import typer

MOST = 0.5
"""A tolerance above this is a slip of the pen."""


def tolerance_of(text: str) -> float:
    """Return the share that ``1%`` or ``0.01`` stands for, above 0 and at most MOST.

    Raises typer.BadParameter where it is neither.
    """
    percent = text.strip().endswith("%")
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _refused(f"{text!r} is no share; write it as 1% or 0.01")
    share = value / 100 if percent else value
    if 0 < share <= MOST:
        return share
    words = text if percent else f"{text} is {share:.0%}"
    if not percent and MOST < value <= 100 * MOST:
        raise _refused(f"{words}; did you mean {text}%?")
    raise _refused(f"{words}; it has to be above 0 and at most {MOST:.0%}")


def _refused(why: str) -> typer.BadParameter:
    return typer.BadParameter(why, param_hint="--tolerance")
