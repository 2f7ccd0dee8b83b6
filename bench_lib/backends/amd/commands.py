"""Looking at an AMD GPU through ROCm's commands, where nothing else tells of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench_lib.backends.amd import files
from bench_lib.backends.amd.sensors import (
    MOST_DIES,
    REASONS,
    Partition,
    mean_busy,
    median,
    merged,
    partition,
    places,
    told,
)
from bench_lib.backends.amd.tools import amd_smi, rocm_smi
from bench_lib.backends.amd.tools.figures import whole, words
from bench_lib.backends.looks import BELOW_LIMIT, COMMAND_TIMEOUT_S, Source
from bench_lib.backends.processes import described
from bench_lib.backends.tool import ToolError, ask
from bench_lib.model import Hardware


def amd_smi_source(device: Hardware, root: Path) -> Source:
    """Look through ``amd-smi``; raises ToolError or NothingToldError where it does not work."""
    del root
    listed = amd_smi.entries(_ask("amd-smi", "list", "--json"))
    spots = places(device, [words(entry.get("bdf")) for entry in listed])
    own, card = (_number(listed[spot]) for spot in spots)
    asked = [str(number) for number in dict.fromkeys((own, card))]
    part = partition(device)
    lists_processes = True

    def look(*, with_pids: bool) -> dict[str, Any]:
        nonlocal lists_processes
        answer = amd_smi.entries(_ask("amd-smi", "metric", "-g", *asked, "--json"))
        about = {_number(entry): entry for entry in answer}
        if own not in about:
            raise ToolError(f"amd-smi metric does not tell of GPU {own}")
        seen = merged(*(_reading(about.get(which, {}), part) for which in (own, card)))
        if with_pids and lists_processes:
            try:
                answer = amd_smi.entries(_ask("amd-smi", "process", "-g", str(own), "--json"))
                seen |= _processes(entry for entry in answer if _number(entry) == own)
            except ToolError:  # a hang costs seconds each time
                lists_processes = False
        return seen

    return Source("amd-smi", look, is_command=True)


def rocm_smi_source(device: Hardware, root: Path) -> Source:
    """Look through ``rocm-smi``; raises ToolError or NothingToldError where it does not work."""
    kfd_id, part = files.number_of(device, root), partition(device)
    shown = ("--showbus", "--showclocks", "--showpower", "--showtemp", "--showuse", "--json")

    def look(*, with_pids: bool) -> dict[str, Any]:
        cards = list(rocm_smi.cards(_ask("rocm-smi", *shown)).values())
        spots = places(device, [words(card.get("pci bus")) for card in cards])
        seen = merged(*(_card(cards[spot], part) for spot in spots))
        return seen | (files.processes(kfd_id, root) if with_pids else {})

    return Source("rocm-smi", look, is_command=True)


def _ask(*command: str) -> str:
    return ask(command, timeout_s=COMMAND_TIMEOUT_S)


def _number(entry: dict[str, Any]) -> int | None:
    return whole(entry.get("gpu", entry.get("gpu_id")))


def _reading(entry: dict[str, Any], part: Partition | None) -> dict[str, Any]:
    """Read one entry of ``amd-smi metric``; clock and load are the partition's, if it has one."""
    parts = {
        name: amd_smi.section(entry, name)
        for name in ("clock", "power", "temperature", "usage", "throttle")
    }
    usage, heat, power = parts["usage"], parts["temperature"], parts["power"]
    if part is None:
        # An MI300X has a clock for each of its eight dies.
        clock = _clock(parts["clock"], "gfx")
        load = mean_busy([usage.get("gfx_activity")])
    else:
        dies = (amd_smi.section(parts["clock"], f"gfx_{n}") for n in range(MOST_DIES))
        clock = median(part.own([_speed(die) for die in dies]))
        load = mean_busy(amd_smi.section(usage, "gfx_busy_inst").get(f"xcp_{part.number}"))
    powers = ("socket_power", "current_socket_power", "average_socket_power")
    heats = (told(heat.get(name), "C") for name in ("hotspot", "junction", "edge"))
    seen = {
        "clock_mhz": clock,
        "memory_clock_mhz": _clock(parts["clock"], "mem"),
        # The second die of an MI250X has no sensor of its own and says 0.
        "power_w": next((w for name in powers if (w := told(power.get(name), "W"))), None),
        "temperature_c": next((degrees for degrees in heats if degrees is not None), None),
        "utilization": load,
        **_throttling(parts["throttle"]),
    }
    if words(power.get("throttle_status")) == "THROTTLED":
        seen["throttle"] = seen["throttle"] or ["throttled"]
    return seen


def _clock(clocks: dict[str, Any], kind: str) -> float | None:
    named = (
        amd_smi.section(clocks, name) for name in clocks if re.fullmatch(rf"{kind}(_\d+)?", name)
    )
    return median(_speed(clock) for clock in named)


def _speed(clock: dict[str, Any]) -> float | None:
    return told(clock.get("clk", clock.get("cur_clk")), "MHz")


def _throttling(throttle: dict[str, Any]) -> dict[str, Any]:
    fields = {
        "prochot": REASONS["prochot"],
        "ppt": REASONS["ppt"],
        "socket_thermal": REASONS["socket"],
        "vr_thermal": REASONS["vr"],
        "hbm_thermal": REASONS["hbm"],
        "gfx_clk_below_host_limit": BELOW_LIMIT,
    }
    counts = {name: told(throttle.get(f"{field}_accumulated")) for field, name in fields.items()}
    statuses = {
        name: throttle.get(f"{field}_violation_status")
        for field, name in fields.items()
        if name != BELOW_LIMIT
    }
    return {
        "counters": {name: count for name, count in counts.items() if count is not None},
        "ticks": told(throttle.get("accumulation_counter")),
        "throttle": [name for name, status in statuses.items() if status == "ACTIVE"],
    }


def _processes(entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Read ``amd-smi process``: the processes with memory on the device."""
    found = {}
    for entry in entries:
        listed = entry.get("process_list")
        for item in listed if isinstance(listed, list) else []:
            about = amd_smi.section(item, "process_info") if isinstance(item, dict) else {}
            pid = whole(about.get("pid"))
            memory = told(amd_smi.section(about, "memory_usage").get("vram_mem"), "B")
            # A process has every GPU open that it may see, and memory on those that it uses.
            if pid is not None and memory != 0:
                memory = memory or told(about.get("mem_usage", about.get("mem")), "B")
                found[pid] = described(pid, words(about.get("name")), memory)
    return {"pids": list(found), "names": found}


def _card(card: dict[str, str], part: Partition | None) -> dict[str, Any]:
    """Read one card of ``rocm-smi``, whose words differ between versions.

    It knows the clock and the load of whole cards only, so a partition has none.
    """

    def first(pattern: str, unit: str) -> float | None:
        values = (value for name, value in card.items() if re.fullmatch(pattern, name))
        return next((found for value in values if (found := told(value, unit)) is not None), None)

    def clock(kind: str) -> float | None:
        speed = told(card.get(f"{kind} clock speed"), "MHz")
        # "1" or, without a speed, "1 (2100Mhz)"
        level = re.search(r"\(.*\)", card.get(f"{kind} clock level", ""))
        return told(level[0], "MHz") if speed is None and level is not None else speed

    heats = (first(rf"temperature \(sensor {name}\) \(c\)", "C") for name in ("junction", "edge"))
    return {
        "clock_mhz": clock("sclk") if part is None else None,
        "memory_clock_mhz": clock("mclk"),
        "power_w": first(r"(average|current socket) graphics package power \(w\)", "W") or None,
        "temperature_c": next((degrees for degrees in heats if degrees is not None), None),
        "utilization": mean_busy([first(r"gpu use \(%\)", "%")]) if part is None else None,
    }
