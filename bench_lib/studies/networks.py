"""Studies of a network: precision, compile mode, depth, batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bench_lib import backends
from bench_lib.formats import SHARE, TIMES
from bench_lib.model import Hardware
from bench_lib.report.answer import Column
from bench_lib.studies.figures import PROBLEM, Figures, rate_in_words, ratio
from bench_lib.studies.registry import EAGER, Study, StudyRow, axis

ALIKE = 0.02
"""Gains closer than this count as equal: each is a ratio of two measurements."""
ENOUGH = 0.95
"""Share of the best throughput that makes a smaller batch the better choice."""
SPEED_UP: Column[StudyRow] = Column(
    "speed_up", lambda row: ratio(row.figures, row.base), TIMES, "speed-up"
)


def default_precisions(device: Hardware, task: str) -> list[str]:
    """Return the precisions that are worth comparing on a device."""
    if not backends.is_gpu(device):
        return ["fp32", "bf16", "amp-bf16"] if task == "infer" else ["fp32", "amp-bf16"]
    has_tf32 = backends.of(device).has_tf32(device)
    names = ["fp32", *(["tf32"] if has_tf32 else []), "fp16", "bf16", "amp-fp16", "amp-bf16"]
    return [*names, "int8"] if task == "infer" else names


def few_precisions(device: Hardware) -> list[str]:
    """Return the precisions to compare where each takes long: FP32, and on a GPU FP16."""
    return ["fp32", "fp16"] if backends.is_gpu(device) else ["fp32"]


# ---- precision ----------------------------------------------------------------------------


def _memory_saved(row: StudyRow) -> float | None:
    own, first = row.figures.memory_bytes, row.base and row.base.memory_bytes
    return 1 - own / first if own is not None and first else None


PRECISION = Study(
    name="precision",
    axes=("precision",),
    columns=(
        axis("precision"),
        *(PROBLEM, "items_per_s", SPEED_UP, "step_s", "item_s", "memory_bytes"),
        Column("memory_saved", _memory_saved, SHARE, "less memory"),
        *("finite", "max_abs_diff", "cosine", "loss_error", "grad_norm_error"),
    ),
    relative_to=("precision",),
    usual={"compile_mode": EAGER, "batch_size": "32"},
)


# ---- compile modes ------------------------------------------------------------------------


def pays_after(row: StudyRow) -> int | str | None:
    """Return after how many steps compiling has paid off: ``never``, or ``too close`` to tell.

    None for the eager step, and where something is unknown.
    """
    own, eager = row.figures, row.first("compile_mode")
    if own is eager or eager is None or own.compile_s is None:
        return None
    if own.step_s is None or eager.step_s is None:
        return None
    noise = max(ALIKE, eager.spread or 0.0, own.spread or 0.0)
    if abs(eager.step_s - own.step_s) <= eager.step_s * noise:
        return "too close"
    saved_s = eager.step_s - own.step_s
    return math.ceil(own.compile_s / saved_s) if saved_s > 0 else "never"


def _items_paid(row: StudyRow) -> int | None:
    steps = pays_after(row)
    return steps * (row.figures.items_per_step or 0) if isinstance(steps, int) else None


COMPILE = Study(
    name="compile",
    axes=("precision", "compile_mode"),
    columns=(
        axis("precision"),
        axis("compile_mode", "mode"),
        *(PROBLEM, "items_per_s", SPEED_UP),
        *("first_step_s", "step_s", "compile_s", "compile_cache"),
        Column("pays_after", pays_after, "steps"),
        Column("pays_after_items", _items_paid, lambda row: row.figures.item, "that is"),
    ),
    keys=2,
    relative_to=("precision", "compile_mode"),
    usual={"compile_mode": "eager,default,reduce-overhead,max-autotune", "batch_size": "64"},
)


# ---- depth --------------------------------------------------------------------------------


DEPTH = Study(
    name="depth",
    axes=("network", "compile_mode"),
    columns=(
        axis("network"),
        axis("compile_mode", "mode"),
        *(PROBLEM, "parameters", "items_per_s"),
        Column("gain", lambda row: ratio(row.figures, row.base), TIMES),
        "compile_s",
    ),
    keys=2,
    relative_to=("compile_mode",),
    usual={
        "network": "resnet18,resnet34,resnet50,resnet101,resnet152",
        "compile_mode": "default",
        "precision": "fp32",
        "batch_size": "64",
    },
)


# ---- batch size ---------------------------------------------------------------------------


def best(rows: Sequence[StudyRow]) -> Figures | None:
    """Return the smallest batch that reaches ENOUGH of the best throughput; None without any."""
    rates = [(row.figures.items_per_s, row.figures) for row in rows]
    known = [(rate, figures) for rate, figures in rates if rate is not None]
    enough = ENOUGH * max((rate for rate, _ in known), default=0.0)
    return min((figures for rate, figures in known if rate >= enough), key=_batch, default=None)


def _batch(figures: Figures) -> int:
    return int(figures.params["batch_size"])


def _on_sweep(rows: Sequence[StudyRow]) -> Iterator[str]:
    chosen = best(rows)
    if chosen is not None:
        measured = [row.figures for row in rows if row.figures.items_per_s is not None]
        fastest = max(measured, key=lambda figures: figures.items_per_s or 0.0)
        line = (
            f"best: batch {_batch(chosen)}, the smallest that reaches {ENOUGH:.0%} of the best "
            f"throughput, {rate_in_words(fastest)} with batch {_batch(fastest)}"
        )
        if len(measured) > 1 and chosen is max(measured, key=_batch):
            line += "; it is the largest that was measured, so a larger one may be better"
        yield line
        if chosen.flops_per_step and chosen.bound_by:
            yield f"batch {_batch(chosen)}: {chosen.bound_by}"
    if batches := ", ".join(str(_batch(row.figures)) for row in rows if row.figures.device_s):
        rates = "TFLOP/s, the share of the peak and the bandwidth"
        yield f"host-bound batches ({batches}): {rates} are computed from the time on the device"


SWEEP = Study(
    name="batch-sweep",
    axes=("batch_size",),
    columns=(
        axis("batch_size", "batch"),
        *(PROBLEM, "items_per_s", "step_s", "item_s", "memory_bytes", "items_per_s_per_gb"),
        *("tflop_per_s", "share_of_peak", "gb_per_s", "flops_per_byte", "bound"),
        Column("remark", lambda row: "best" if row.figures is best(row.rows) else None),
    ),
    usual={"batch_size": "8,32,128,256", "precision": "fp32", "compile_mode": EAGER},
    notes=_on_sweep,
)

STUDIES = {study.name: study for study in (PRECISION, COMPILE, DEPTH, SWEEP)}
