"""The kernel's ``gpu_metrics`` files, written field by field after kgd_pp_interface.h.

Revisions 1.3 (MI200 and Radeon), 1.4 to 1.8 (MI300 and MI350), and 1.9, a list of attributes.
Standard library only, as all that is laid out with a machine.  What is not given is all ones,
which is how firmware says that it does not know.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence

U16, U32, U64 = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64

Figures = Mapping[str, int | Sequence[int]]
Fields = list[tuple[str, type, int]]
"""A name, a type, and how many of it."""


def _each(kind: type, names: str) -> Fields:
    return [(name, kind, 1) for name in names.split()]


def _v1_3() -> Fields:
    heats = ["edge", "hotspot", "mem", "vrgfx", "vrsoc", "vrmem"]
    clocks = ["gfxclk", "socclk", "uclk", "vclk0", "dclk0", "vclk1", "dclk1"]
    return [
        *_each(U16, " ".join(f"temperature_{name}" for name in heats)),
        *_each(U16, "average_gfx_activity average_umc_activity average_mm_activity"),
        *_each(U16, "average_socket_power"),
        *_each(U64, "energy_accumulator system_clock_counter"),
        *_each(U16, " ".join(f"average_{name}_frequency" for name in clocks)),
        *_each(U16, " ".join(f"current_{name}" for name in clocks)),
        *_each(U32, "throttle_status"),
        *_each(U16, "current_fan_speed pcie_link_width pcie_link_speed padding"),
        *_each(U32, "gfx_activity_acc mem_activity_acc"),
        ("temperature_hbm", U16, 4),
        *_each(U64, "firmware_timestamp"),
        *_each(U16, "voltage_soc voltage_gfx voltage_mem padding1"),
        *_each(U64, "indep_throttle_status"),
    ]


def _partition(revision: int) -> Fields:
    """Return what a table tells of each partition."""
    fields = [
        ("gfx_busy_inst", U32, 8),
        ("jpeg_busy", U16, 40 if revision == 8 else 32),
        ("vcn_busy", U16, 4),
        ("gfx_busy_acc", U64, 8),
    ]
    if revision == 7:
        fields.append(("gfx_below_host_limit_acc", U64, 8))
    if revision == 8:
        names = ("below_host_limit_ppt", "below_host_limit_thm", "low_utilization")
        fields += [(f"gfx_{name}_acc", U64, 8) for name in (*names, "below_host_limit_total")]
    return fields


def _v1_4_to_8(revision: int) -> Fields:
    counts = revision >= 6
    residencies = " ".join(
        f"{n}_residency_acc" for n in ["prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm"]
    )
    fields = [
        *_each(U16, "temperature_hotspot temperature_mem temperature_vrsoc curr_socket_power"),
        *_each(U16, "average_gfx_activity average_umc_activity"),
        *([] if counts else [("vcn_activity", U16, 4)]),
        *([("jpeg_activity", U16, 32)] if revision == 5 else []),
        *(_each(U64, "mem_max_bandwidth") if revision >= 7 else []),
        *_each(U64, "energy_accumulator system_clock_counter"),
        *_each(U32, f"accumulation_counter {residencies}" if counts else "throttle_status"),
        *_each(U32, "gfxclk_lock_status"),
        *_each(U16, "pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed"),
        *_each(U32, "gfx_activity_acc mem_activity_acc"),
        *_each(U64, "pcie_bandwidth_acc pcie_bandwidth_inst pcie_l0_to_recov_count_acc"),
        *_each(U64, "pcie_replay_count_acc pcie_replay_rover_count_acc"),
        *(_each(U32, "pcie_nak_sent_count_acc pcie_nak_rcvd_count_acc") if revision >= 5 else []),
        ("xgmi_read_data_acc", U64, 8),
        ("xgmi_write_data_acc", U64, 8),
        *([("xgmi_link_status", U16, 8), ("padding", U16, 1)] if revision >= 7 else []),
        *_each(U64, "firmware_timestamp"),
        ("current_gfxclk", U16, 8),
        ("current_socclk", U16, 4),
        ("current_vclk0", U16, 4),
        ("current_dclk0", U16, 4),
        *_each(U16, "current_uclk"),
    ]
    if not counts:
        return [*fields, ("padding", U16, 1)]
    partition = _structure(f"Partition{revision}", _partition(revision))
    return [
        *fields,
        *_each(U16, "num_partition"),
        ("xcp_stats", partition, 8),
        *_each(U32, "pcie_lc_perf_other_end_recovery"),
    ]


def _structure(name: str, fields: Fields) -> type[ctypes.Structure]:
    kinds = [(field, kind if n == 1 else kind * n) for field, kind, n in fields]
    return type(name, (ctypes.Structure,), {"_fields_": kinds})


HEADER: Fields = [("structure_size", U16, 1), ("revisions", U16, 1)]
LAYOUTS: Mapping[int, type[ctypes.Structure]] = {
    3: _structure("V1_3", [*HEADER, *_v1_3()]),
    **{n: _structure(f"V1_{n}", [*HEADER, *_v1_4_to_8(n)]) for n in range(4, 9)},
}
"""By the content revision of format 1."""


def table(revision: int, figures: Figures, busy: Sequence[Sequence[int]] = ()) -> bytes:
    """Lay out a table; ``busy`` is the load of each die in percent, by partition."""
    if revision == 9:
        return _attributes(figures)
    layout = LAYOUTS[revision]
    told = layout.from_buffer_copy(b"\xff" * ctypes.sizeof(layout))
    told.structure_size, told.revisions = ctypes.sizeof(layout), 1 | revision << 8
    for name, value in figures.items():
        if not hasattr(told, name):
            continue
        if isinstance(value, int):
            setattr(told, name, value)
        else:
            getattr(told, name)[: len(value)] = list(value)
    for partition, dies in zip(getattr(told, "xcp_stats", ()), busy, strict=False):
        partition.gfx_busy_inst[: len(dies)] = list(dies)
    return bytes(told)


# --- 1.9: attributes, each with its unit, type, id and count before its value

_IDS = [
    "temperature_hotspot",
    "temperature_mem",
    "temperature_vrsoc",
    "curr_socket_power",
    "average_gfx_activity",
    "average_umc_activity",
    "mem_max_bandwidth",
    "energy_accumulator",
    "system_clock_counter",
    "accumulation_counter",
    "prochot_residency_acc",
    "ppt_residency_acc",
    "socket_thm_residency_acc",
    "vr_thm_residency_acc",
    "hbm_thm_residency_acc",
    "gfxclk_lock_status",
    "pcie_link_width",
    "pcie_link_speed",
    "xgmi_link_width",
    "xgmi_link_speed",
    "gfx_activity_acc",
    "mem_activity_acc",
    "pcie_bandwidth_acc",
    "pcie_bandwidth_inst",
    "pcie_l0_to_recov_count_acc",
    "pcie_replay_count_acc",
    "pcie_replay_rover_count_acc",
    "pcie_nak_sent_count_acc",
    "pcie_nak_rcvd_count_acc",
    "xgmi_read_data_acc",
    "xgmi_write_data_acc",
    "xgmi_link_status",
    "firmware_timestamp",
    "current_gfxclk",
    "current_socclk",
    "current_vclk0",
    "current_dclk0",
    "current_uclk",
    "average_uclk",
    "average_socclk",
    "gfx_busy_inst",
]
_UNITS = {"clk": 1, "temperature": 2, "power": 3, "activity": 10}
_WIDE = ("energy_accumulator", "system_clock_counter", "firmware_timestamp", "mem_max_bandwidth")
_TYPES = {"H": 2, "I": 4, "Q": 6}


def _attributes(figures: Figures) -> bytes:
    told = {name: value for name, value in figures.items() if name in _IDS}
    body = b"".join(_attribute(name, value) for name, value in told.items())
    return struct.pack("<HBBi", 8 + len(body), 1, 9, len(told)) + body


def _attribute(name: str, value: int | Sequence[int]) -> bytes:
    values = [value] if isinstance(value, int) else list(value)
    kind = "Q" if name in _WIDE else "I" if name.endswith(("_acc", "_counter", "_inst")) else "H"
    unit = next((unit for word, unit in _UNITS.items() if word in name), 0)
    encoded = unit << 24 | _TYPES[kind] << 20 | _IDS.index(name) << 10 | len(values)
    return struct.pack(f"<Q{len(values)}{kind}", encoded, *values)
