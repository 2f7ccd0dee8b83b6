"""The lines that hipblaslt-bench prints: names of columns, and below them their values.

Columns: ``projects/hipblaslt/clients/common/include/argument_model.hpp`` of ROCm/rocm-libraries at
1ab6a5cb117a and ``clients/include/argument_model.hpp`` of ROCm/hipBLASLt at 7d9fb683db25.  ``us``
is the mean of its iterations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bench_lib.storage.foreign.figures import FormatError, OtherProgramError, Reported
from bench_lib.storage.foreign.rccl_tests import number_of

NAMES = re.compile(r"\s*(?:\[\d+\]:?)?(transA,transB,.*)")
WINNER = "Winner:"
NEEDED = ("m", "n", "k", "us")
USUAL = {
    "batch_count": "1",
    "grouped_gemm": "0",
    "beta": "0",
    "scaleA": "0",
    "scaleB": "0",
    "activation_type": "none",
    "bias_vector": "0",
    "rotating_buffer": "0",
    "flush": "0",
    "use_gpu_timer": "0",
}
"""Arguments that a case's id names where they are not these."""


class HipblasltBench:
    """Output of hipblaslt-bench."""

    name = "hipblaslt-bench"
    program = "hipblaslt-bench"

    def figures(self, data: bytes) -> Iterable[Reported]:
        """Return what a file tells, in its order; raises FormatError."""
        found = list(_rows(data.decode(errors="replace").splitlines()))
        if not found:
            raise OtherProgramError(f"it holds no lines of {self.program}")
        won = {figure.case for figure, is_winner in found if is_winner}
        return [figure for figure, is_winner in found if is_winner or figure.case not in won]


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
                    f"line {number}: another version wrote it, or it is cut off: "
                    f"{len(values)} values below {len(names)} names; run it again with this version"
                )
            cells = dict(zip(names, values, strict=True))
            yield Reported(_case(cells), number_of(cells["us"], number) / 1e6), is_winner
            names, is_winner = [], False


def _case(cells: Mapping[str, str]) -> str:
    """Return ``TN-4096x4096x4096-bf16_r-f32_r``, and anything unusual."""
    types = [cells[f"{which}_type"] for which in "abcd" if f"{which}_type" in cells]
    types = types[:1] if len(set(types)) == 1 else types
    words = [f"{cells['transA']}{cells['transB']}", f"{cells['m']}x{cells['n']}x{cells['k']}"]
    words += [*types, cells.get("compute_type", "")]
    words += [
        f"{name}={cells[name]}" for name, usual in USUAL.items() if cells.get(name, usual) != usual
    ]
    return "-".join(word for word in words if word)
