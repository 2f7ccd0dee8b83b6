"""Language models as cases: the axes, and invalid combinations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench_lib.cases.axes import BATCH_SIZE, Axis, WorkloadAxes, choice, one_of, positive, quiet
from bench_lib.formulas.transformer import GENERATED, PARALLEL, SIZES
from bench_lib.model import COMPILE_MODES, GENERATION, QUANTIZED

WORKLOAD = "language_model"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "amp-bf16", *QUANTIZED)
RECORDING = ("reduce-overhead", "max-autotune")


def language_axes() -> WorkloadAxes:
    """Return the axes of ``language_models``."""
    return WorkloadAxes(
        WORKLOAD,
        (
            Axis("network", one_of("language model", tuple(SIZES))),
            BATCH_SIZE,
            Axis("length", positive("length"), 1024, in_id="{}t".format),
            choice("precision", PRECISIONS, "bf16"),
            choice("compile_mode", COMPILE_MODES, "eager"),
            quiet("parallel", one_of("parallel", PARALLEL), "ddp"),
            choice("task", ("train", *GENERATION), "train"),
        ),
        _clash,
    )


def _clash(chosen: Mapping[str, Any]) -> str | None:
    network, length, ranks, task = (chosen[n] for n in ("network", "length", "ranks", "task"))
    mode, precision, size = chosen["compile_mode"], chosen["precision"], SIZES[network]
    parallel = chosen["parallel"]
    if length + (GENERATED if task == "decode" else 0) > size.context:
        generated = f" and {GENERATED} tokens are generated" if task == "decode" else ""
        return f"length is {length}{generated}, but {network} has only {size.context} positions"
    if parallel == "fsdp2" and ranks > 1 and task in GENERATION:
        return f"fsdp2 would gather all weights in every pass of {task}; use ddp"
    if parallel == "fsdp2" and mode in RECORDING:
        return f"compile_mode {mode} records graphs, which fsdp2 does not support"
    if task in GENERATION and precision.startswith("amp-"):
        return f"precision {precision} casts in each operation, but the task is {task}; use bf16"
    if task == "train" and precision in (*QUANTIZED, "fp16"):
        return f"precision {precision} is for inference, but the task is train"
    return None
