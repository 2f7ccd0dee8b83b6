"""Precisions side by side: speed, memory, cost and how far the answer is from FP32's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench_lib import backends
from bench_lib.model import Hardware
from bench_lib.studies.figures import Figures, Table, number, percent, ratio, table_of, times

MILLION = 1e6
HOUR_S = 3600.0


@dataclass(frozen=True)
class PrecisionRow:
    """One precision beside the first one; figures that cannot be compared are None."""

    precision: str
    figures: Figures
    speed_up: float | None = None
    memory_saved: float | None = None
    """As a share of the first's."""
    cost_per_million: float | None = None
    """Cost of a million items, in the currency of the price an hour."""


def default_precisions(device: Hardware, task: str) -> list[str]:
    """Return the precisions that are worth comparing on a device."""
    if not backends.is_gpu(device):
        return ["fp32", "bf16", "amp-bf16"] if task == "infer" else ["fp32", "amp-bf16"]
    has_tf32 = backends.of(device).has_tf32(device)
    names = ["fp32", *(["tf32"] if has_tf32 else []), "fp16", "bf16", "amp-fp16", "amp-bf16"]
    return [*names, "int8"] if task == "infer" else names


def few_precisions(device: Hardware) -> list[str]:
    """Return those that stand for the rest where each takes long: FP16 too where it is fast."""
    return ["fp32", "fp16"] if backends.is_gpu(device) else ["fp32"]


def compare(figures: Sequence[Figures], price_per_hour: float | None = None) -> list[PrecisionRow]:
    """Hold every precision against the first."""
    return [_row(each, figures[0], price_per_hour) for each in figures]


def _row(seen: Figures, first: Figures, price_per_hour: float | None) -> PrecisionRow:
    rate, memory = seen.items_per_s, seen.memory_bytes
    saved = None
    if memory is not None and first.memory_bytes:
        saved = 1 - memory / first.memory_bytes
    return PrecisionRow(
        str(seen.params["precision"]),
        seen,
        ratio(seen, first),
        saved,
        price_per_hour / HOUR_S * MILLION / rate if price_per_hour and rate else None,
    )


COLUMNS = (
    ("precision", lambda row: row.precision),
    *("status", "throughput"),
    ("speed-up", lambda row: times(row.speed_up)),
    *("step", "per image", "memory"),
    ("less memory", lambda row: percent(row.memory_saved)),
    *("finite", "max diff", "cosine", "loss error", "grad error"),
    ("cost/million", lambda row: number(row.cost_per_million, ".3g")),
)


def as_table(rows: Sequence[PrecisionRow]) -> Table:
    """Return the table; precisions without figures have their reasons below it."""
    return table_of(rows, COLUMNS)
