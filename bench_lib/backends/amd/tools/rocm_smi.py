"""``rocm-smi … --json``, deprecated, whose keys differ between versions in case and words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from bench_lib.backends.amd.tools import ids
from bench_lib.backends.amd.tools.figures import figure, whole
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


def first(card: Mapping[str, str], *names: str) -> str | None:
    """Return the first field that the card has of these names, in lower case."""
    return next((card[name] for name in names if name in card), None)


def identities(text: str) -> list[Hardware]:
    """Describe the cards in the order of KFD's nodes, which is HIP's, where all tell theirs.

    Without compute units, which rocm-smi does not count.  Raises ToolError as `cards` does.
    """
    found = [card for _, card in sorted(cards(text).items())]
    nodes = [whole(card.get("node id")) for card in found]
    known = [node for node in nodes if node is not None]
    if len(set(known)) == len(found):
        found = [card for _, card in sorted(zip(known, found, strict=True), key=lambda p: p[0])]
    gpus = [_identity(card) for card in found]
    # Some kernels tell partitions apart in bits of the address that rocm-smi leaves out.
    addresses = [gpu.bdf for gpu in gpus]
    return [
        gpu
        if gpu.compute_partition in (None, "SPX") or addresses.count(gpu.bdf) == 1
        else replace(gpu, bdf=ids.bdf(gpu.bdf, addresses[:position].count(gpu.bdf)))
        for position, gpu in enumerate(gpus)
    ]


def _identity(card: Mapping[str, str]) -> Hardware:
    compute = ids.mode(card.get("compute partition"))
    memory = figure(card.get("vram total memory (b)"), "B") or 0.0
    return Hardware(
        vendor="amd",
        name="",
        key="",
        arch=ids.arch(card.get("gfx version")),
        # `Card model` is the subsystem's id in some versions.
        pci_device_id=ids.pci_id(first(card, "device id", "gpu id")),
        bdf=ids.bdf(card.get("pci bus")),
        uuid=ids.uuid(card.get("unique id")),
        # The first partition is said to have all the card's memory.
        memory_bytes=int(memory) or None if compute in (None, "SPX") else None,
        compute_partition=compute,
        memory_partition=ids.mode(card.get("memory partition")),
        # Called the highest, but it is the cap in force (rsmi_dev_power_cap_get).
        power_cap_w=figure(card.get("max graphics package power (w)"), "W") or None,
    )
