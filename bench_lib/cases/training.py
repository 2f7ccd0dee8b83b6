"""Training of image networks as cases: the axes, and invalid combinations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench_lib.cases.axes import (
    BATCH_SIZE,
    MEMORY_FORMAT,
    WorkloadAxes,
    case_of,
    choice,
    one_of,
    optional,
    positive,
    quiet,
)
from bench_lib.formulas.images import (
    COLOUR_NETWORKS,
    DATASETS,
    FEEDS,
    INPUT_ALONE,
    NETWORKS,
    PRECISIONS,
    SOURCES,
)
from bench_lib.model import COMPILE_MODES, Case, Param

WORKERS = 4
"""A command's default number of loader processes."""


def training_axes() -> WorkloadAxes:
    """Return the axes of ``training``."""
    return WorkloadAxes(
        "training",
        (
            choice("dataset", tuple(DATASETS)),
            choice("network", NETWORKS),
            BATCH_SIZE,
            choice("precision", PRECISIONS, "fp32"),
            MEMORY_FORMAT,
            choice("compile_mode", COMPILE_MODES, "eager"),
            choice("feed", FEEDS),
            optional("workers", positive("workers", 0), "w{}".format),
            quiet("epochs", positive("epochs", 0), 0, "e{}".format),
            quiet("data", one_of("data", SOURCES), "generated"),
        ),
        _clash,
    )


def training_case(base: Case | None = None, **values: Param) -> Case:
    """Return the case with these values; raises UserError if they are invalid."""
    return case_of(training_axes(), values, base)


def _clash(chosen: Mapping[str, Any]) -> str | None:
    network, mode = chosen["network"], chosen["compile_mode"]
    feed, workers, epochs = chosen["feed"], chosen["workers"], chosen["epochs"]
    if feed == "loader" and workers == "":
        return f"feed loader needs workers, its number of processes, such as {WORKERS}"
    if feed != "loader" and workers != "":
        return f"workers is {workers}, but feed {feed} has no loader processes"
    if epochs and feed == "fixed":
        return f"epochs is {epochs}, but feed fixed repeats one batch"
    batch, samples = chosen["batch_size"], DATASETS[chosen["dataset"]].train
    images = batch if chosen["strong"] else batch * chosen["ranks"]
    if images > samples:
        return (
            f"a step has {images} images, but {chosen['dataset']} has only {samples} images "
            "for training"
        )
    if chosen["dataset"] == "mnist" and network in COLOUR_NETWORKS:
        return f"network {network} needs images with three channels, and mnist has one; use cnn"
    if network != INPUT_ALONE:
        return None
    if feed == "fixed":
        return "network none measures only the input pipeline, but feed fixed has none"
    if epochs:
        return f"epochs is {epochs}, but network none learns nothing"
    if chosen["precision"] not in ("fp32", "bf16"):
        return f"network none produces images in fp32 or bf16; precision is {chosen['precision']}"
    if mode != "eager":
        return f"network none has nothing to compile; compile_mode is {mode}"
    return None
