"""The table that rccl-tests and nccl-tests print.

Columns: ``projects/rccl-tests/src/util.cu`` of ROCm/rocm-systems at fe174e50f801 and
``src/common.cu`` of ROCm/rccl-tests at ae3e6357cb35; ``src/util.cu`` of NVIDIA/nccl-tests at
a0b82b2260cf.  Times are in us; only versions with ``Collective test starting`` name the collective.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from bench_lib.storage.foreign.figures import FormatError, OtherProgramError, Reported

STARTING = "# Collective test starting:"
RANK = re.compile(r"#\s+Rank\s+\d+\s")
PLACES = re.compile(r"out-of-place|in-place")
TIMES = ("time", "cputime")
RIGHT = ("0", "N/A")
"""Values of the column of wrong elements if all are right; N/A if nothing was checked."""


class RcclTests:
    """Output of rccl-tests."""

    name = "rccl-tests"
    program = "rccl-tests or nccl-tests"

    def figures(self, data: bytes) -> Iterable[Reported]:
        """Return what a file tells, in its order; raises FormatError."""
        found = list(_figures(data.decode(errors="replace").splitlines()))
        if found:
            return found
        why = (
            "; name what it prints, and not what -J or -Z writes"
            if data.lstrip()[:1] in b"{["
            else ""
        )
        raise OtherProgramError(f"it is no table of {self.program}{why}")


def _figures(lines: Sequence[str]) -> Iterator[Reported]:
    collective, ranks, before = "collective", 0, ""
    headings: list[str] = []
    places: list[str] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if line.startswith(STARTING):
            collective, ranks = line.removeprefix(STARTING).strip().rpartition("/")[2], 0
        elif RANK.match(line):
            ranks += 1
        elif words[:2] == ["#", "size"]:
            headings, places = words[1:], PLACES.findall(before)
        elif headings and words and words[0].isdigit():
            case = collective.removesuffix("_perf") + (f"-x{ranks}" if ranks else "")
            yield from _row(number, case, headings, places, words)
        before = line


def _row(
    number: int, case: str, headings: Sequence[str], places: Sequence[str], words: Sequence[str]
) -> Iterator[Reported]:
    begins = [at for at, heading in enumerate(headings) if heading in TIMES]
    if not begins or len(begins) != len(places):
        raise FormatError(
            f"line {number}: another version wrote it: its headings do not say which times are "
            "in-place; print it with rccl-tests of ROCm 5 or later"
        )
    if len(words) < len(headings):
        raise FormatError(f"line {number}: it is cut off; run the test again to its end")
    cells = dict(zip(headings[: begins[0]], words, strict=False))
    case += f"-{cells['size']}B-{cells.get('type', '')}"
    case += "" if cells.get("redop", "none") == "none" else f"-{cells['redop']}"
    case += "" if cells.get("root", "-1") == "-1" else f"-root{cells['root']}"
    for place, (begin, end) in zip(places, pairwise([*begins, len(headings)]), strict=True):
        group = dict(zip(headings[begin:end], words[begin:end], strict=True))
        wrong = group.get("#wrong", "0")
        problem = "" if wrong in RIGHT else f"line {number}: {wrong} wrong elements"
        yield Reported(f"{case}-{place}", number_of(words[begin], number) / 1e6, problem=problem)


def number_of(text: str, line: int) -> float:
    """Return a number, in the unit of its column; raises FormatError naming the line."""
    try:
        return float(text)
    except ValueError as error:
        raise FormatError(
            f"line {line}: {text[:40]!r} is no number; print the table again"
        ) from error
