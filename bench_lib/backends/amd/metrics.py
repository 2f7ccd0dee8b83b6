"""The kernel's ``gpu_metrics`` file, which has all of a card's sensors in one read.

The layouts are from the kernel's kgd_pp_interface.h.  MI200 and Radeon have revision 1.3, MI300 and
MI350 have 1.4 to 1.8, and 1.9 is a list of self-describing attributes.  Linux 6.12 had a different
1.6, so a table is read only if its size is the expected one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

Table = Mapping[str, Sequence[float | None]]
"""A table's values by field name; a value is None if the firmware does not have it."""

_RESIDENCIES = (
    "prochot_residency_acc",
    "ppt_residency_acc",
    "socket_thm_residency_acc",
    "vr_thm_residency_acc",
    "hbm_thm_residency_acc",
)
COUNTERS = ("accumulation_counter", *_RESIDENCIES)
"""A clock, and five counters of the time spent throttled for a reason, in the clock's unit."""

BUSY_DIES = "gfx_busy_inst"
"""The field of revision 1.9 with the load of each die of the card, in percent."""

_MI200 = {
    "temperature_edge": (4, "H"),
    "temperature_hotspot": (6, "H"),
    "average_gfx_activity": (16, "H"),
    "average_socket_power": (22, "H"),
    "current_gfxclk": (54, "H"),
    "current_uclk": (58, "H"),
    "indep_throttle_status": (112, "Q"),
}
_MI300 = {
    "temperature_hotspot": (4, "H"),
    "curr_socket_power": (10, "H"),
    "average_gfx_activity": (12, "H"),
}


def _layout(clocks: int, counters: int | None = None) -> dict[str, tuple[int, str]]:
    """Return offset (in bytes) and format of the fields in an MI300's table."""
    fields = {**_MI300, "current_gfxclk": (clocks, "8H"), "current_uclk": (clocks + 40, "H")}
    if counters is not None:
        fields |= {name: (counters + 4 * n, "I") for n, name in enumerate(COUNTERS)}
    return fields


_LAYOUTS = {
    3: (120, _MI200),
    4: (288, _layout(240)),
    5: (360, _layout(312)),
    6: (1664, _layout(264, 32)),
    7: (2208, _layout(296, 40)),
    8: (3872, _layout(296, 40)),
}
"""By revision, the table's size in bytes, and offset and format of each field."""
_PARTITIONS_AT = {6: (312, 168), 7: (344, 232), 8: (344, 440)}
"""Offset of the first partition's values, and size of a partition's values, in bytes."""
_PARTITIONS = 8

_ATTRIBUTES = {
    0: "temperature_hotspot",
    3: "curr_socket_power",
    4: "average_gfx_activity",
    **{9 + n: name for n, name in enumerate(COUNTERS)},
    33: "current_gfxclk",
    37: "current_uclk",
    40: BUSY_DIES,
}
"""Attributes of revision 1.9 by id (``enum amdgpu_metrics_attr_id``)."""
_TYPES = "BbHhIiQq"


def read(content: bytes) -> Table:
    """Parse the file; empty if it is truncated or has an unknown layout."""
    if len(content) < 4:
        return {}
    size, layout, revision = struct.unpack_from("<HBB", content)
    if layout != 1 or len(content) < size:
        return {}
    if revision == 9:
        return dict(_attributes(content[:size]))
    expected_size, fields = _LAYOUTS.get(revision, (None, {}))
    if size != expected_size:
        return {}
    table = {name: _values(content, at, form) for name, (at, form) in fields.items()}
    if revision in _PARTITIONS_AT:
        first, step = _PARTITIONS_AT[revision]
        for n in range(_PARTITIONS):
            table[busy_of(n)] = _values(content, first + n * step, "8I")
    return table


def busy_of(partition: int) -> str:
    """Return the name of the field with the load of each die of a partition, in percent."""
    return f"gfx_busy_inst of {partition}"


def _attributes(content: bytes) -> Iterator[tuple[str, list[int | None]]]:
    """Yield the attributes of a table of revision 1.9, up to where it is truncated."""
    try:
        (count,) = struct.unpack_from("<i", content, 4)
        at = 8
        for _ in range(count):
            (encoded,) = struct.unpack_from("<Q", content, at)
            kind, id_, instances = encoded >> 20 & 0xF, encoded >> 10 & 0x3FF, encoded & 0x3FF
            form = f"{instances}{_TYPES[kind]}"
            values = _values(content, at + 8, form)
            if id_ in _ATTRIBUTES:
                yield _ATTRIBUTES[id_], values
            at += 8 + struct.calcsize(f"<{form}")
    except (struct.error, IndexError):
        return


def _values(content: bytes, at: int, form: str) -> list[int | None]:
    """Unpack values; all ones, or -1, mean that the firmware does not have the value."""
    unknown = (1 << 8 * struct.calcsize(f"<{form[-1]}")) - 1
    return [None if n in (unknown, -1) else n for n in struct.unpack_from(f"<{form}", content, at)]


def one(table: Table, *names: str) -> float | None:
    """Return the first known value among the named fields, in the table's unit."""
    values = (value for name in names for value in table.get(name, ())[:1])
    return next((value for value in values if value is not None), None)
