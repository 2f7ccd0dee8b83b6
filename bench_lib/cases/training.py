"""Training of image networks as cases: the axes, and what cannot be combined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench_lib.cases.axes import (
    BATCH_SIZE,
    MEMORY_FORMAT,
    WorkloadAxes,
    case_of,
    choice,
    count,
    one_of,
    optional,
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
"""A loader's processes unless a command names a number."""


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
            optional("workers", count("workers"), "w{}".format),
            quiet("epochs", count("epochs"), 0, "e{}".format),
            quiet("data", one_of("data", SOURCES), "generated"),
        ),
        _clash,
    )


def training_case(base: Case | None = None, **values: Param) -> Case:
    """Return the case with these values; raises UserError where they cannot be meant."""
    return case_of(training_axes(), values, base)


def _clash(chosen: Mapping[str, Any]) -> str | None:
    return _pipeline_clash(chosen) or _network_clash(chosen)


def _pipeline_clash(chosen: Mapping[str, Any]) -> str | None:
    feed, workers, epochs = chosen["feed"], chosen["workers"], chosen["epochs"]
    if feed == "loader" and workers == "":
        return f"feed loader needs workers, its number of processes, such as {WORKERS}"
    if feed != "loader" and workers != "":
        return f"workers is {workers}, and feed {feed} has no processes that load"
    if epochs and feed == "fixed":
        return f"epochs is {epochs}, and feed fixed is one batch over and over"
    batch, samples = chosen["batch_size"], DATASETS[chosen["dataset"]].train
    together = batch if chosen["strong"] else batch * chosen["ranks"]
    if together > samples:
        return (
            f"a step of {together} images is more than the {samples} that {chosen['dataset']} "
            "has for training"
        )
    return None


def _network_clash(chosen: Mapping[str, Any]) -> str | None:
    network, mode, feed = chosen["network"], chosen["compile_mode"], chosen["feed"]
    if chosen["dataset"] == "mnist" and network in COLOUR_NETWORKS:
        return f"network {network} takes images of three colours, and mnist has one; there is cnn"
    if mode == "graph" and chosen["ranks"] > 1:
        return f"compile_mode graph records one device's step, and ranks is {chosen['ranks']}"
    if network != INPUT_ALONE:
        return None
    if feed == "fixed":
        return "network none is the input alone, and feed fixed has none"
    if chosen["epochs"]:
        return f"epochs is {chosen['epochs']}, and network none learns nothing"
    if chosen["precision"] not in ("fp32", "bf16"):
        return f"network none makes images in fp32 or bf16; precision is {chosen['precision']}"
    if mode != "eager":
        return f"network none has nothing to compile; compile_mode is {mode}"
    return None
