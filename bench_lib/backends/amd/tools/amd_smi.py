"""``amd-smi … --json``, whose envelopes and names changed from ROCm 6.0 to 7.x."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bench_lib.backends.amd.tools import ids
from bench_lib.backends.amd.tools.figures import figure, whole
from bench_lib.backends.tool import ToolError, parse
from bench_lib.model import Hardware

T = TypeVar("T")

_ENVELOPES = ("gpu_data", "current_partition")
"""Keys under which 7.x puts the list that 6.x printed bare."""


def entries(text: str) -> list[dict[str, Any]]:
    """Return one dictionary a GPU from the answer of any command and version.

    Raises ToolError where the answer holds no JSON, or other than a list of GPUs.
    """
    answer = parse(text, "amd-smi")
    if isinstance(answer, dict):
        answer = next((answer[key] for key in _ENVELOPES if key in answer), [answer])
    if not isinstance(answer, list):
        raise ToolError(f"amd-smi printed {type(answer).__name__}, not a list of GPUs")
    found = [entry for entry in answer if isinstance(entry, dict)]
    gpus = [entry for entry in found if "gpu" in entry or "gpu_id" in entry]
    if answer and not gpus:
        raise ToolError("amd-smi printed no entry of a GPU")
    return gpus


def section(entry: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a part of an entry; empty where it is ``N/A``, missing or no dictionary."""
    part = entry.get(name)
    return part if isinstance(part, dict) else {}


def identities(
    static: Sequence[dict[str, Any]],
    listed: Sequence[dict[str, Any]] = (),
    partitions: Sequence[dict[str, Any]] = (),
) -> list[Hardware]:
    """Describe the GPUs of ``static``, ``list`` and ``partition -c`` or ``static -p``.

    In HIP's order, which is that of KFD's nodes, where ``list`` tells it.
    """
    told = [_by_number(answer) for answer in (static, listed, partitions)]
    numbers = sorted({number for answer in told for number in answer})
    # One that is missing in a single answer still counts: HIP numbers the others after it.
    gpus = [[answer.get(number, {}) for answer in told] for number in numbers]
    order = _order([listed for _, listed, _ in gpus])
    return [_identity(*gpus[position]) for position in order]


def _by_number(answer: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    numbered = ((whole(entry.get("gpu", entry.get("gpu_id"))), entry) for entry in answer)
    return {number: entry for number, entry in numbered if number is not None}


def _order(listed: Sequence[dict[str, Any]]) -> list[int]:
    """Return positions by the first number that all GPUs have, each its own."""
    positions = range(len(listed))
    for name in ("node_id", "hip_id"):
        keys = [whole(entry.get(name)) for entry in listed]
        known = [key for key in keys if key is not None]
        if len(set(known)) == len(listed):
            return sorted(positions, key=known.__getitem__)
    return list(positions)


def _identity(static: dict[str, Any], listed: dict[str, Any], current: dict[str, Any]) -> Hardware:
    asic, limit, vram = (section(static, name) for name in ("asic", "limit", "vram"))
    # `static -p` has a section for what `partition -c` has on its own.
    parts = (section(static, "partition"), {**current, **section(current, "partition")})
    compute = _told(
        ids.mode,
        *(part.get("accelerator_partition", part.get("compute_partition")) for part in parts),
        current.get("accelerator_type"),
    )
    number = _told(whole, *(part.get("partition_id") for part in (listed, *parts)))
    is_card = compute in (None, "SPX")
    return Hardware(
        vendor="amd",
        name="",
        key="",
        arch=ids.arch(asic.get("target_graphics_version")),
        pci_device_id=ids.pci_id(asic.get("device_id")),
        bdf=_told(
            lambda address: ids.bdf(address, number),
            section(static, "bus").get("bdf"),
            listed.get("bdf"),
        ),
        # The serial number is the card's; a partition has a unique id of its own.
        uuid=_told(ids.uuid, listed.get("hip_uuid"), asic.get("asic_serial") if is_card else None),
        compute_units=whole(asic.get("num_compute_units")) or None,
        # The first partition is said to have all the card's memory.
        memory_bytes=_bytes(vram.get("size", vram.get("vram_size_mb"))) if is_card else None,
        compute_partition=compute,
        memory_partition=_told(
            ids.mode, *(part.get("memory_partition", part.get("memory")) for part in parts)
        ),
        # The cap in force, and not `max_power`, which is the highest that can be set.
        power_cap_w=_told(
            _watts,
            limit.get("socket_power"),
            section(limit, "ppt0").get("socket_power_limit"),
            limit.get("current_power"),
        ),
    )


def _told(read: Callable[[object], T | None], *values: object) -> T | None:
    """Return the first of the values that says something to ``read``."""
    return next((said for said in map(read, values) if said is not None), None)


def _watts(value: object) -> float | None:
    return figure(value, "W") or None  # the second die of an MI250X has a cap of 0


def _bytes(value: object) -> int | None:
    return int(figure(value, "B") or 0) or None
