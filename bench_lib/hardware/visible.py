"""The variables that hide devices and renumber them: reading them, and pinning by them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bench_lib.hardware.sysfs import warn_once
from bench_lib.model import Hardware


def on_amd(gpus: Sequence[Hardware], environ: Mapping[str, str]) -> list[Hardware]:
    """Keep what ROCR_ and then HIP_ or CUDA_VISIBLE_DEVICES leave, in their order.

    As ROCR-Runtime (amd_filter_device.cpp) and clr (rocdevice.cpp) read them: both stop at
    the first word that names no device; a repeated one ends ROCR's list, HIP passes it by.
    """
    left = list(gpus)
    rocr = environ.get("ROCR_VISIBLE_DEVICES")
    if rocr is not None:
        named = _named((word.strip() for word in rocr.split(",")), left)
        repeated = (n for n, device in enumerate(named) if device in named[:n])
        left = named[: next(repeated, None)]
    hip = _hip_variable(environ)[1]
    if hip is not None:
        named = _named(hip.split(","), left)
        left = [device for n, device in enumerate(named) if device not in named[:n]]
    return [replace(device, index=index) for index, device in enumerate(left)]


def on_nvidia(gpus: Sequence[Hardware], environ: Mapping[str, str]) -> list[Hardware]:
    """Keep what CUDA_VISIBLE_DEVICES leaves, in its order.

    As torch.cuda reads it: an index ends at its last digit, a word that names no device
    ends the list, a repeated one empties it.
    """
    left, value = list(gpus), environ.get("CUDA_VISIBLE_DEVICES")
    if value is not None:
        by_uuid = value.startswith("GPU-")
        words = value.split(",")
        if not by_uuid:
            indices = (re.match(r"\s*\+?(\d+)", word) for word in words)
            words = [index[1] if index else "" for index in indices]
            if environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({g.key for g in gpus}) > 1:
                warn_once(
                    "this machine has different NVIDIA GPUs and CUDA numbers them by speed; set "
                    "CUDA_DEVICE_ORDER=PCI_BUS_ID so that CUDA_VISIBLE_DEVICES counts as NVML does"
                )
        left = _named(words, gpus)
        if any(device in left[:n] for n, device in enumerate(left)):
            left = []
    return [replace(device, index=index) for index, device in enumerate(left)]


def visibility(device: Hardware, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Choose environment variables that leave a worker only `device`, whatever is set.

    `device` is one that `detect` found under the same `environ`; ValueError where it
    cannot be.
    """
    if device.vendor == "cpu":
        # "-1", not "": HIP takes an empty list as if it were not set.
        return {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
    if device.vendor == "nvidia":
        # By uuid where there is one: an index would depend on CUDA_DEVICE_ORDER.
        name, value = "CUDA_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES")
        return {name: device.uuid or _word(device, name, value)}
    # By HIP's index: partitions of one card may share a uuid.  ROCR's choice stays.
    word = _word(device, *_hip_variable(environ))
    return {"HIP_VISIBLE_DEVICES": word, "CUDA_VISIBLE_DEVICES": word}


def _hip_variable(environ: Mapping[str, str]) -> tuple[str, str | None]:
    """Return name and value of the variable that HIP obeys."""
    name = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"
    return name, environ.get(name)


def _named(words: Iterable[str], devices: Sequence[Hardware]) -> list[Hardware]:
    """Find the devices that indices or starts of uuids mean, up to the first of no meaning."""
    named = []
    for word in words:
        if word.isdecimal():
            alike = list(devices[int(word) : int(word) + 1])
        else:
            # Shorter than "GPU-" and a digit is no uuid, to either runtime.
            prefix = word.lower() if len(word) > 4 else None
            alike = [d for d in devices if prefix and (d.uuid or "").lower().startswith(prefix)]
        if len(alike) != 1:
            break
        named += alike
    return named


def _word(device: Hardware, name: str, value: str | None) -> str:
    """Choose what the variable `name`, now `value`, must say to mean `device` alone."""
    if value is None:
        return str(device.index)
    words = list(dict.fromkeys(value.split(","))) if value else []
    if device.index >= len(words):
        raise ValueError(
            f"{device.key} is device {device.index}, but {name}={value!r} shows "
            f"{len(words)}; detect the devices again after changing that variable"
        )
    return words[device.index]
