"""The variables by which ROCm hides GPUs and renumbers them: reading them, and pinning by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench_lib.backends.visible import named, word_for
from bench_lib.model import Hardware

VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""In the order in which they choose; HIP obeys one of the last two."""


def left(gpus: Sequence[Hardware], environ: Mapping[str, str]) -> list[Hardware]:
    """Keep what ROCR_ and then HIP_ or CUDA_VISIBLE_DEVICES leave, in their order.

    As ROCR-Runtime (amd_filter_device.cpp) and clr (rocdevice.cpp) read them: both stop at
    the first word that names no device; a repeated one ends ROCR's list, HIP passes it by.
    """
    left = list(gpus)
    rocr = environ.get("ROCR_VISIBLE_DEVICES")
    if rocr is not None:
        chosen = named((word.strip() for word in rocr.split(",")), left)
        repeated = (n for n, device in enumerate(chosen) if device in chosen[:n])
        left = chosen[: next(repeated, None)]
    hip = _hip_variable(environ)[1]
    if hip is not None:
        chosen = named(hip.split(","), left)
        left = [device for n, device in enumerate(chosen) if device not in chosen[:n]]
    return [replace(device, index=index) for index, device in enumerate(left)]


def only(device: Hardware, environ: Mapping[str, str]) -> dict[str, str]:
    """Choose the variables that leave a worker only `device`.

    By HIP's index: partitions of one card may share a uuid.  ROCR's choice stays.
    """
    word = word_for(device, *_hip_variable(environ))
    return {"HIP_VISIBLE_DEVICES": word, "CUDA_VISIBLE_DEVICES": word}


def _hip_variable(environ: Mapping[str, str]) -> tuple[str, str | None]:
    """Return name and value of the variable that HIP obeys."""
    name = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"
    return name, environ.get(name)
