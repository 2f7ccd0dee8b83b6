"""``bench-lib collectives``: a sweep over sizes, with the options of nccl-tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from bench_lib.cases.collectives import bytes_in, collective_case, sizes
from bench_lib.cli.measuring import Keeping, Measuring
from bench_lib.cli.options import grouped
from bench_lib.cli.output import say
from bench_lib.formulas.collective import OPS, SPLIT, rounded
from bench_lib.launch.launchers import ranks_launched
from bench_lib.model import Case, Hardware, Sampling, UserError
from bench_lib.studies.asked import names_in

RANKS_ON_A_CPU = 2
WARMUP_S, WARMUP_MAX_S, MEASURE_S = 0.3, 1.5, 0.15
"""Seconds for each of a hundred sizes; earlier measurements have warmed the GPU."""
MOST_RANKS = 1024


@grouped
def collectives(
    *,
    op: Annotated[
        str, typer.Option(help="all_reduce, all_gather, reduce_scatter, broadcast, all_to_all.")
    ] = "all_reduce,all_gather,reduce_scatter",
    least: Annotated[
        str, typer.Option("--minbytes", "-b", help="Smallest size; K, M and G are powers of 1024.")
    ] = "8",
    most: Annotated[str, typer.Option("--maxbytes", "-e", help="Largest size.")] = "128M",
    factor: Annotated[
        int, typer.Option("--stepfactor", "-f", help="Factor from one size to the next.")
    ] = 2,
    dtype: Annotated[
        str, typer.Option("--datatype", "-d", help="float, half, bfloat16, int32, uint8 ...")
    ] = "float",
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            "-g",
            help="Processes (default: those of the launcher, else one per GPU, or 2 on a CPU).",
        ),
    ] = None,
    keeping: Keeping,
) -> None:
    """Measure collectives by size: time per call, algorithm and bus bandwidth, wrong elements."""
    from bench_lib import backends
    from bench_lib.studies.calls import COLLECTIVES, wrong

    devices = backends.detect()
    count, ops = _ranks(ranks, devices), names_in(op, "--op", "op", OPS)
    requested = sizes(_bytes("--minbytes", least), _bytes("--maxbytes", most), factor)
    sampling = Sampling(warmup_s=WARMUP_S, warmup_max_s=WARMUP_MAX_S, measure_s=MEASURE_S)
    base = Case("", "", sampling=sampling)
    cases = [
        collective_case(base, op=name, bytes=size, dtype=dtype, ranks=count)
        for name in ops
        for size in _sizes(name, requested, dtype, count)
    ]
    session = Measuring("collectives", devices[0], keeping)
    rows = COLLECTIVES.rows(cases, session.figures_of_all(cases), session.device)
    session.conclude(COLLECTIVES, rows, passes=not any(map(wrong, rows)))


def _ranks(requested: int | None, devices: Sequence[Hardware]) -> int:
    """Return the number of ranks; raises UserError where that is impossible."""
    from bench_lib import backends

    on_cpu, launched = not backends.is_gpu(devices[0]), ranks_launched()
    usual = RANKS_ON_A_CPU if on_cpu else len(devices)
    ranks = next(n for n in (requested, launched, usual) if n is not None)
    if requested is None and ranks < 2:
        raise UserError("a collective needs at least 2 GPUs, and there is 1 here")
    if not 2 <= ranks <= MOST_RANKS:
        raise UserError(f"--ranks is {ranks}; it must be 2 to {MOST_RANKS}")
    if launched is None and not on_cpu and ranks > len(devices):
        raise UserError(f"--ranks is {ranks}, but there are only {len(devices)} GPUs")
    return ranks


def _sizes(op: str, requested: Sequence[int], dtype: str, ranks: int) -> list[int]:
    """Return an operation's sizes as nccl-tests rounds them, each once; reports changes."""
    adjusted = [rounded(op, size, dtype, ranks) for size in requested]
    kept = list(dict.fromkeys(size for size in adjusted if size))
    if not kept:
        largest = f"the largest size, {requested[-1]} bytes of {dtype}"
        raise UserError(
            f"{largest}, is too small for {ranks} ranks; raise --minbytes or --maxbytes"
        )
    if kept != requested:
        what = f"16 bytes for each of {ranks} ranks" if op in SPLIT else f"elements of {dtype}"
        fewer = f"; {len(requested)} sizes became {len(kept)}" if len(kept) < len(requested) else ""
        say(f"{op}: sizes are rounded down to whole {what}, as nccl-tests does{fewer}")
    return kept


def _bytes(flag: str, text: str) -> int:
    try:
        return bytes_in(int(text) if text.isdecimal() else text)
    except UserError as error:
        raise UserError(f"{flag}: {error}") from error
