"""Language models as cases: their axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench_lib.cases.axes import (
    BATCH_SIZE,
    Axis,
    WorkloadAxes,
    choice,
    one_of,
    positive,
    quiet,
)
from bench_lib.formulas.transformer import PARALLEL, SIZES
from bench_lib.model import TASKS

WORKLOAD = "language_model"
PRECISIONS = ("fp32", "tf32", "bf16", "amp-bf16")
MODES = ("eager", "graph", "default", "max-autotune-no-cudagraphs")


def language_axes() -> WorkloadAxes:
    """Return the axes of ``language_models``."""
    return WorkloadAxes(
        WORKLOAD,
        (
            Axis("network", one_of("language model", tuple(SIZES))),
            BATCH_SIZE,
            Axis("length", positive("length"), 1024, in_id="{}t".format),
            choice("precision", PRECISIONS, "bf16"),
            choice("compile_mode", MODES, "eager"),
            quiet("parallel", one_of("parallel", PARALLEL), "ddp"),
            choice("task", TASKS, "train"),
        ),
        _clash,
    )


def _clash(chosen: Mapping[str, Any]) -> str | None:
    network, length, ranks = chosen["network"], chosen["length"], chosen["ranks"]
    if length > SIZES[network].context:
        return f"length is {length}, and {network} has {SIZES[network].context} positions"
    if chosen["compile_mode"] == "graph" and ranks > 1:
        return f"compile_mode graph records one device's step, and ranks is {ranks}"
    return None
