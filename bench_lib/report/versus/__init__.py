"""Two sides beside each other: runs, baselines or kinds of hardware, case by case.

``sides`` finds out what A and B are, ``rows`` aligns them.  Nothing is judged: a verdict needs an
accepted baseline, the case's tolerance and what the whole suite's processes say.
"""

from bench_lib.report.versus.rows import (
    Alignment,
    ComparedRow,
    SideFigures,
    align,
    for_a_verdict,
)
from bench_lib.report.versus.sides import SideError, SideValues, find

__all__ = [
    "Alignment",
    "ComparedRow",
    "SideError",
    "SideFigures",
    "SideValues",
    "align",
    "find",
    "for_a_verdict",
]
