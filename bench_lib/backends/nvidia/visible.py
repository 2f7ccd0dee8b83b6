"""The variable by which CUDA hides GPUs and renumbers them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench_lib.backends.sysfs import warn_once
from bench_lib.backends.visible import named, word_for
from bench_lib.model import Hardware

VARIABLE = "CUDA_VISIBLE_DEVICES"


def left(gpus: Sequence[Hardware], environ: Mapping[str, str]) -> list[Hardware]:
    """Keep what CUDA_VISIBLE_DEVICES leaves, in its order.

    As torch.cuda reads it: an index ends at its last digit, a word that names no device
    ends the list, a repeated one empties it.
    """
    left, value = list(gpus), environ.get(VARIABLE)
    if value is not None:
        words = value.split(",")
        if not value.startswith("GPU-"):
            indices = (re.match(r"\s*\+?(\d+)", word) for word in words)
            words = [index[1] if index else "" for index in indices]
            if environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({g.key for g in gpus}) > 1:
                warn_once(
                    "this machine has different NVIDIA GPUs and CUDA numbers them by speed; set "
                    "CUDA_DEVICE_ORDER=PCI_BUS_ID so that CUDA_VISIBLE_DEVICES counts as NVML does"
                )
        left = named(words, gpus)
        if any(device in left[:n] for n, device in enumerate(left)):
            left = []
    return [replace(device, index=index) for index, device in enumerate(left)]


def only(device: Hardware, environ: Mapping[str, str]) -> dict[str, str]:
    """Choose the variable that leaves a worker only `device`.

    By uuid where there is one: an index would depend on CUDA_DEVICE_ORDER.
    """
    return {VARIABLE: device.uuid or word_for(device, VARIABLE, environ.get(VARIABLE))}
