"""Reads the tables of rccl-tests, nccl-tests, hipblaslt-bench and rocprofv3.

Columns are those of

- rccl-tests: ``projects/rccl-tests/src/util.cu`` of ROCm/rocm-systems at fe174e50f801 and
  ``src/common.cu`` of ROCm/rccl-tests at ae3e6357cb35; ``src/util.cu`` of NVIDIA/nccl-tests at
  a0b82b2260cf.  Times are in us; only versions with ``Collective test starting`` name the
  collective;
- hipblaslt-bench: ``projects/hipblaslt/clients/common/include/argument_model.hpp`` of
  ROCm/rocm-libraries at 1ab6a5cb117a and ``clients/include/argument_model.hpp`` of ROCm/hipBLASLt
  at 7d9fb683db25.  ``us`` is the mean of its iterations;
- ``rocprofv3 --kernel-trace --stats --output-format csv``: ``NAME_kernel_stats.csv`` as in
  ``Rocprofv3`` of amd/HPCTrainingExamples.  Times are in ns.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from bench_lib.storage.foreign.figures import Format, FormatError, Reported

ROCPROF = "rocprofv3 --kernel-trace --stats"

# ---- rccl-tests -------------------------------------------------------------------------

STARTING = "# Collective test starting:"
RANK = re.compile(r"#\s+Rank\s+\d+\s")
PLACES = re.compile(r"out-of-place|in-place")
TIMES = ("time", "cputime")
RIGHT = ("0", "N/A")
"""Values of the column of wrong elements if all are right; N/A if nothing was checked."""


def _rccl(data: bytes) -> Iterator[Reported]:
    collective, ranks, previous = "collective", 0, ""
    headings: list[str] = []
    places: list[str] = []
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        fields = line.split()
        if line.startswith(STARTING):
            collective, ranks = line.removeprefix(STARTING).strip().rpartition("/")[2], 0
        elif RANK.match(line):
            ranks += 1
        elif fields[:2] == ["#", "size"]:
            headings, places = fields[1:], PLACES.findall(previous)
        elif headings and fields and fields[0].isdigit():
            case = collective.removesuffix("_perf") + (f"-x{ranks}" if ranks else "")
            yield from _row(number, case, headings, places, fields)
        previous = line


def _row(
    number: int, case: str, headings: Sequence[str], places: Sequence[str], fields: Sequence[str]
) -> Iterator[Reported]:
    begins = [at for at, heading in enumerate(headings) if heading in TIMES]
    if not begins or len(begins) != len(places):
        hint = "its headings do not say which times are in-place; use rccl-tests of"
        raise FormatError(f"line {number}: {hint} ROCm 5 or later")
    if len(fields) < len(headings):
        raise FormatError(f"line {number}: it is cut off; let the test run to its end")
    cells = dict(zip(headings[: begins[0]], fields, strict=False))
    case += f"-{cells['size']}B-{cells.get('type', '')}"
    case += "" if cells.get("redop", "none") == "none" else f"-{cells['redop']}"
    case += "" if cells.get("root", "-1") == "-1" else f"-root{cells['root']}"
    for place, (begin, end) in zip(places, pairwise([*begins, len(headings)]), strict=True):
        group = dict(zip(headings[begin:end], fields[begin:end], strict=True))
        wrong = group.get("#wrong", "0")
        problem = "" if wrong in RIGHT else f"line {number}: {wrong} wrong elements"
        yield Reported(f"{case}-{place}", _number(fields[begin], number) / 1e6, problem=problem)


def _number(text: str, line: int) -> float:
    """Return a number, in the unit of its column; raises FormatError naming the line."""
    try:
        return float(text)
    except ValueError as error:
        raise FormatError(
            f"line {line}: {text[:40]!r} is not a number; run the program again"
        ) from error


# ---- hipblaslt-bench --------------------------------------------------------------------

NAMES = re.compile(r"\s*(?:\[\d+\]:?)?(transA,transB,.*)")
WINNER = "Winner:"
NEEDED = ("m", "n", "k", "us")
USUAL = dict.fromkeys(
    ("grouped_gemm", "beta", "scaleA", "scaleB", "bias_vector", "rotating_buffer", "flush"), "0"
) | {"batch_count": "1", "activation_type": "none", "use_gpu_timer": "0"}
"""Usual values of arguments; a case's id names only those that differ."""


def _hipblaslt(data: bytes) -> list[Reported]:
    rows = list(_rows(data.decode(errors="replace").splitlines()))
    won = {figure.case for figure, is_winner in rows if is_winner}
    return [figure for figure, is_winner in rows if is_winner or figure.case not in won]


def _rows(lines: Sequence[str]) -> Iterator[tuple[Reported, bool]]:
    """Yield each problem's time, and whether it is the winner's."""
    names: list[str] = []
    is_winner = False
    for number, line in enumerate(lines, 1):
        if line.strip() == WINNER:
            is_winner = True
        elif match := NAMES.fullmatch(line.rstrip()):
            names = match[1].split(",")
        elif names:
            values = [value.strip() for value in line.split(",")]
            if len(values) != len(names) or not set(NEEDED) <= set(names):
                raise FormatError(
                    f"line {number}: it is cut off, or of another version; run the program again"
                )
            cells = dict(zip(names, values, strict=True))
            yield Reported(_case(cells), _number(cells["us"], number) / 1e6), is_winner
            names, is_winner = [], False


def _case(cells: Mapping[str, str]) -> str:
    """Return ``TN-4096x4096x4096-bf16_r-f32_r``, and anything unusual."""
    types = [cells[f"{which}_type"] for which in "abcd" if f"{which}_type" in cells]
    types = types[:1] if len(set(types)) == 1 else types
    parts = [f"{cells['transA']}{cells['transB']}", f"{cells['m']}x{cells['n']}x{cells['k']}"]
    parts += [*types, cells.get("compute_type", "")]
    parts += [
        f"{name}={cells[name]}" for name, usual in USUAL.items() if cells.get(name, usual) != usual
    ]
    return "-".join(part for part in parts if part)


# ---- rocprofv3 --------------------------------------------------------------------------


def _rocprof(data: bytes) -> Iterator[Reported]:
    """Yield the mean time of each kernel."""
    rows = csv.DictReader(io.StringIO(data.decode(errors="replace")))
    try:
        if not {"Name", "AverageNs"} <= set(rows.fieldnames or ()):
            raise FormatError(f"it is not a table of kernels of {ROCPROF}")
        for row in rows:
            yield Reported(row["Name"], _number(row["AverageNs"] or "", rows.line_num) / 1e9)
    except csv.Error as error:
        raise FormatError(f"it is not a table of {ROCPROF}: {error}") from error


FORMATS = (
    Format("rccl-tests", "rccl-tests or nccl-tests, without -J and -Z", _rccl),
    Format("hipblaslt-bench", "hipblaslt-bench", _hipblaslt),
    Format("rocprofv3", ROCPROF, _rocprof),
)
