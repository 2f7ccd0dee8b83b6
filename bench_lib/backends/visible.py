"""Reading the variables that hide devices and renumber them: the common part of every vendor's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench_lib.model import Hardware


def named(words: Iterable[str], devices: Sequence[Hardware]) -> list[Hardware]:
    """Find the devices that indices or starts of uuids mean, up to the first of no meaning."""
    found = []
    for word in words:
        if word.isdecimal():
            alike = list(devices[int(word) : int(word) + 1])
        else:
            # Shorter than "GPU-" and a digit is no uuid, to either runtime.
            prefix = word.lower() if len(word) > 4 else None
            alike = [d for d in devices if prefix and (d.uuid or "").lower().startswith(prefix)]
        if len(alike) != 1:
            break
        found += alike
    return found


def word_for(device: Hardware, name: str, value: str | None) -> str:
    """Choose what the variable `name`, now `value`, must say to mean `device` alone.

    Raises ValueError where the value shows fewer devices than were detected.
    """
    if value is None:
        return str(device.index)
    words = list(dict.fromkeys(value.split(","))) if value else []
    if device.index >= len(words):
        raise ValueError(
            f"{device.key} is device {device.index}, but {name}={value!r} shows "
            f"{len(words)}; detect the devices again after changing that variable"
        )
    return words[device.index]
