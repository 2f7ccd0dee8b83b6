"""Training of image networks as cases: data sets, networks, how they are fed, and the axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench_lib.cases.axes import Axis, WorkloadAxes, case_of, count, one_of, positive
from bench_lib.model import MEMORY_FORMATS, Case, Param

SAMPLES = {"cifar100": 50_000, "cifar10": 50_000, "mnist": 60_000}
"""Training samples of each data set."""
IMAGE_SIZES = {"cifar100": 32, "cifar10": 32, "mnist": 28}
INPUT_ALONE = "none"
"""Stands for no network at all: what is measured is the input pipeline."""
COLOUR_NETWORKS = ("resnet50", "swin_v2_t", "vit_b_16", "inception_v3")
TRAINED_NETWORKS = (*COLOUR_NETWORKS, "cnn", INPUT_ALONE)
FEEDS = ("fixed", "device", "loader")
"""``fixed``: one batch that stays on the device, which is the device's step alone; ``device``: the
whole data set on the device, shuffled and augmented there; ``loader``: torch's DataLoader."""
SOURCES = ("generated", "files")
TRAINING_PRECISIONS = ("fp32", "tf32", "tf32-conv", "bf16", "amp-fp16", "amp-bf16")
"""Without ``fp16``: Adam's smallest numbers are zero in it."""
TRAINING_MODES = (
    *("eager", "graph", "default", "reduce-overhead", "max-autotune"),
    "max-autotune-no-cudagraphs",
)
SEED = 1337
WORKERS = 4
"""A loader's processes where a command is not told."""


def training_axes() -> WorkloadAxes:
    """Return the axes of ``training``."""
    return WorkloadAxes(
        "training",
        (
            Axis("dataset", one_of("dataset", tuple(SAMPLES))),
            Axis("network", one_of("network", TRAINED_NETWORKS)),
            Axis("batch_size", positive("batch_size"), in_id=lambda n: f"b{n}"),
            Axis("precision", one_of("precision", TRAINING_PRECISIONS), "fp32"),
            Axis(
                "memory_format",
                one_of("memory_format", MEMORY_FORMATS),
                "nchw",
                in_id=lambda layout: "" if layout == "nchw" else layout,
            ),
            _number("image_size", lambda n: f"{n}px"),
            Axis("compile_mode", one_of("compile_mode", TRAINING_MODES), "eager"),
            Axis("feed", one_of("feed", FEEDS)),
            Axis("workers", _workers, "", in_id=lambda n: "" if n == "" else f"w{n}", told=False),
            _number("epochs", lambda n: f"e{n}"),
            Axis(
                "data",
                one_of("data", SOURCES),
                "generated",
                in_id=lambda source: "" if source == "generated" else source,
                told=False,
            ),
            Axis(
                "seed",
                count("seed"),
                SEED,
                in_id=lambda n: "" if n == SEED else f"seed{n}",
                told=False,
            ),
        ),
        _clash,
    )


def training_case(base: Case | None = None, **values: Param) -> Case:
    """Return the case with these values; an image size that is the network's own goes without.

    Raises UserError where they cannot be meant.
    """
    if values.get("image_size") == own_size(values):
        values.pop("image_size", None)
    return case_of(training_axes(), values, base)


def own_size(chosen: Mapping[str, Any]) -> int | None:
    """Return the pixels of a side where nothing else is asked: the data's, or Inception's 299."""
    if chosen.get("network") == "inception_v3":
        return 299
    return IMAGE_SIZES.get(chosen.get("dataset", ""))


def _number(name: str, in_id: Callable[[int], str]) -> Axis:
    return Axis(name, count(name), 0, in_id=lambda n: in_id(n) if n else "", told=False)


def _workers(value: Any) -> str | None:
    return None if value == "" else count("workers")(value)


def _clash(chosen: Mapping[str, Any]) -> str | None:
    return _pipeline_clash(chosen) or _network_clash(chosen) or _size_clash(chosen)


def _pipeline_clash(chosen: Mapping[str, Any]) -> str | None:
    feed, workers, epochs = chosen["feed"], chosen["workers"], chosen["epochs"]
    if feed == "loader" and workers == "":
        return f"feed loader needs workers, its number of processes, such as {WORKERS}"
    if feed != "loader" and workers != "":
        return f"workers is {workers}, and feed {feed} has no processes that load"
    if epochs and feed == "fixed":
        return f"epochs is {epochs}, and feed fixed is one batch over and over"
    batch, samples = chosen["batch_size"], SAMPLES[chosen["dataset"]]
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
    if network != INPUT_ALONE:
        return None
    if feed == "fixed":
        return "network none is the input alone, and feed fixed has none"
    if chosen["epochs"]:
        return f"epochs is {chosen['epochs']}, and network none learns nothing"
    if chosen["precision"] not in ("fp32", "bf16"):
        return f"network none makes images in fp32 or bf16; precision is {chosen['precision']}"
    if mode not in ("eager", "graph"):
        return f"network none has nothing to compile; compile_mode is {mode}"
    if mode == "graph" and feed == "loader":
        return "compile_mode graph records a device's work, and the loader's is the host's"
    return None


def _size_clash(chosen: Mapping[str, Any]) -> str | None:
    size, network = chosen["image_size"], chosen["network"]
    if not size:
        return None
    if size == own_size(chosen):
        return f"image_size {size} is the size that {network} has here anyway; leave it out"
    if network == "vit_b_16" and size % 16:
        return f"vit_b_16 takes patches of 16 pixels, and image_size is {size}"
    least = {"inception_v3": 75, "cnn": 6}.get(network, 1)
    if size < least:
        return f"{network} needs image_size {least} or more; it is {size}"
    if size > LARGEST_SIDE:
        return f"image_size is {size}; at most {LARGEST_SIDE} is taken"
    return None


LARGEST_SIDE = 1024
