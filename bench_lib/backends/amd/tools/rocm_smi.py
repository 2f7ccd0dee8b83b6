"""``rocm-smi … --json``, deprecated, whose keys differ between versions in case and words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_lib.backends.amd import files, sensors
from bench_lib.backends.amd.sensors import Partition, mean_busy, told
from bench_lib.backends.amd.tools import written
from bench_lib.backends.amd.tools.written import figure, whole, words
from bench_lib.backends.looks import Source
from bench_lib.backends.tool import ToolError, parse
from bench_lib.model import Hardware


def cards(text: str) -> dict[int, dict[str, str]]:
    """Return each card's fields by its number; names in lower case without a last colon.

    Raises ToolError where the answer holds no JSON, or no card.
    """
    answer = parse(text, "rocm-smi")
    found = {}
    for name, about in answer.items() if isinstance(answer, dict) else ():
        card = re.fullmatch(r"card(\d+)", name)
        if card and isinstance(about, dict):
            found[int(card[1])] = {
                key.lower().rstrip(": "): str(value) for key, value in about.items()
            }
    if not found:
        raise ToolError("rocm-smi printed no card")
    return found


def identities(text: str) -> list[Hardware]:
    """Describe the cards in the order of KFD's nodes, which is HIP's, where all tell theirs.

    Without compute units, which rocm-smi does not count.  Raises ToolError as `cards` does.
    """
    found = [card for _, card in sorted(cards(text).items())]
    nodes = [whole(card.get("node id")) for card in found]
    gpus = [_identity(card) for card in written.in_order(found, nodes)]
    # Some kernels tell partitions apart in bits of the address that rocm-smi leaves out.
    addresses = [gpu.bdf for gpu in gpus]
    return [
        gpu
        if gpu.compute_partition in (None, "SPX") or addresses.count(gpu.bdf) == 1
        else replace(gpu, bdf=written.bdf(gpu.bdf, addresses[:position].count(gpu.bdf)))
        for position, gpu in enumerate(gpus)
    ]


def _identity(card: Mapping[str, str]) -> Hardware:
    compute = written.mode(card.get("compute partition"))
    memory = figure(card.get("vram total memory (b)"), "B") or 0.0
    return Hardware(
        vendor="amd",
        name="",
        key="",
        arch=written.arch(card.get("gfx version")),
        # `Card model` is the subsystem's id in some versions.
        pci_device_id=written.pci_id(card.get("device id", card.get("gpu id"))),
        bdf=written.bdf(card.get("pci bus")),
        uuid=written.uuid(card.get("unique id")),
        # The first partition is said to have all the card's memory.
        memory_bytes=int(memory) or None if compute in (None, "SPX") else None,
        compute_partition=compute,
        memory_partition=written.mode(card.get("memory partition")),
        # Called the highest, but it is the cap in force (rsmi_dev_power_cap_get).
        power_cap_w=figure(card.get("max graphics package power (w)"), "W") or None,
    )


# --- watching ----------------------------------------------------------------------------

_SHOWN = ("--showbus", "--showclocks", "--showpower", "--showtemp", "--showuse", "--json")
_POWERS = ("average", "current socket")


def source(device: Hardware, root: Path) -> Source:
    """Look through ``rocm-smi``; raises ToolError or NothingToldError where it does not work."""
    kfd_id, part = files.number_of(device, root), sensors.partition(device)

    def look(*, with_pids: bool) -> dict[str, Any]:
        there = list(cards(sensors.ask("rocm-smi", *_SHOWN)).values())
        spots = sensors.places(device, [words(card.get("pci bus")) for card in there])
        seen = sensors.merged(*(_reading(there[spot], part) for spot in spots))
        return seen | (files.processes(kfd_id, root) if with_pids else {})

    return Source("rocm-smi", look, is_command=True)


def _reading(card: dict[str, str], part: Partition | None) -> dict[str, Any]:
    """Read one card, whose words differ between versions.

    It knows the clock and the load of whole cards only, so a partition has none.
    """

    def clock(kind: str) -> float | None:
        speed = told(card.get(f"{kind} clock speed"), "MHz")
        # "1" or, without a speed, "1 (2100Mhz)"
        level = re.search(r"\(.*\)", card.get(f"{kind} clock level", ""))
        return told(level[0], "MHz") if speed is None and level is not None else speed

    powers = (card.get(f"{which} graphics package power (w)") for which in _POWERS)
    heats = (card.get(f"temperature (sensor {name}) (c)") for name in ("junction", "edge"))
    return {
        "clock_mhz": clock("sclk") if part is None else None,
        "memory_clock_mhz": clock("mclk"),
        "power_w": sensors.first(powers, "W") or None,
        "temperature_c": sensors.first(heats, "C"),
        "utilization": mean_busy([card.get("gpu use (%)")]) if part is None else None,
    }
