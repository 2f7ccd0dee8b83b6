"""``amd-smi … --json``, whose envelopes and names changed from ROCm 6.0 to 7.x."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench_lib.backends.amd import sensors
from bench_lib.backends.amd.sensors import MOST_DIES, REASONS, Partition, mean_busy, paced, told
from bench_lib.backends.amd.tools import written
from bench_lib.backends.amd.tools.written import figure, whole, words
from bench_lib.backends.looks import Source
from bench_lib.backends.tool import ToolError, parse
from bench_lib.model import Hardware

T = TypeVar("T")

_ENVELOPES = ("gpu_data", "current_partition")
"""Keys under which 7.x puts the list that 6.x printed bare."""


class RefusedError(ToolError):
    """An answer that is an error, which amd-smi of ROCm 6.3 prints with status 0."""


def entries(text: str) -> list[dict[str, Any]]:
    """Return one dictionary a GPU from the answer of any command and version.

    Raises ToolError where the answer holds no JSON, or other than a list of GPUs;
    RefusedError where it says that this version does not know the question.
    """
    answer = parse(text, "amd-smi")
    if isinstance(answer, dict) and "error" in answer:
        raise RefusedError(f"amd-smi refused: {answer['error']}")
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
    found = [{_number(entry): entry for entry in each} for each in (static, listed, partitions)]
    numbers = sorted({number for each in found for number in each if number is not None})
    # One that is missing in a single answer still counts: HIP numbers the others after it.
    gpus = [tuple(each.get(number, {}) for each in found) for number in numbers]
    order = ([whole(gpu[1].get(name)) for gpu in gpus] for name in ("node_id", "hip_id"))
    return [_identity(*gpu) for gpu in written.in_order(gpus, *order)]


def _number(entry: dict[str, Any]) -> int | None:
    return whole(entry.get("gpu", entry.get("gpu_id")))


def _identity(static: dict[str, Any], listed: dict[str, Any], current: dict[str, Any]) -> Hardware:
    asic, limit, vram = (section(static, name) for name in ("asic", "limit", "vram"))
    # `static -p` has a section for what `partition -c` has on its own.
    parts = (section(static, "partition"), {**current, **section(current, "partition")})
    compute = _first(
        written.mode,
        *(part.get("accelerator_partition", part.get("compute_partition")) for part in parts),
        current.get("accelerator_type"),
    )
    number = _first(whole, *(part.get("partition_id") for part in (listed, *parts)))
    is_card = compute in (None, "SPX")
    return Hardware(
        vendor="amd",
        name="",
        key="",
        arch=written.arch(asic.get("target_graphics_version")),
        pci_device_id=written.pci_id(asic.get("device_id")),
        bdf=_first(
            lambda address: written.bdf(address, number),
            section(static, "bus").get("bdf"),
            listed.get("bdf"),
        ),
        # The serial number is the card's; a partition has a unique id of its own.
        uuid=_first(
            written.uuid, listed.get("hip_uuid"), asic.get("asic_serial") if is_card else None
        ),
        compute_units=whole(asic.get("num_compute_units")) or None,
        # The first partition is said to have all the card's memory.
        memory_bytes=_bytes(vram.get("size", vram.get("vram_size_mb"))) if is_card else None,
        compute_partition=compute,
        memory_partition=_first(
            written.mode, *(part.get("memory_partition", part.get("memory")) for part in parts)
        ),
        # The cap in force, and not `max_power`, which is the highest that can be set.
        power_cap_w=_first(
            _watts,
            limit.get("socket_power"),
            section(limit, "ppt0").get("socket_power_limit"),
            limit.get("current_power"),
        ),
    )


def _first(read: Callable[[Any], T | None], *values: Any) -> T | None:
    """Return the first of the values that says something to ``read``."""
    return next((said for said in map(read, values) if said is not None), None)


def _watts(value: object) -> float | None:
    return figure(value, "W") or None  # the second die of an MI250X has a cap of 0


def _bytes(value: object) -> int | None:
    return int(figure(value, "B") or 0) or None


# --- watching ----------------------------------------------------------------------------

_COUNTED = ("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal")
"""The names of `REASONS` in ``amd-smi metric``."""


def source(device: Hardware, _root: Path) -> Source:
    """Look through ``amd-smi``; raises ToolError or NothingToldError where it does not work."""
    listed = _asked("list")
    spots = sensors.places(device, [words(entry.get("bdf")) for entry in listed])
    own, card = (_number(listed[spot]) for spot in spots)
    asked = [str(number) for number in dict.fromkeys((own, card))]
    part = sensors.partition(device)
    lists_processes = True

    def look(*, with_pids: bool) -> dict[str, Any]:
        nonlocal lists_processes
        about = {_number(entry): entry for entry in _asked("metric", "-g", *asked)}
        if own not in about:
            raise ToolError(f"amd-smi metric does not tell of GPU {own}")
        seen = sensors.merged(*(_reading(about.get(which, {}), part) for which in (own, card)))
        if with_pids and lists_processes:
            try:
                entries = _asked("process", "-g", str(own))
                seen |= sensors.processes(_processes(e for e in entries if _number(e) == own))
            except ToolError:  # a hang costs seconds each time
                lists_processes = False
        return seen

    return Source("amd-smi", look, is_command=True)


def _asked(*command: str) -> list[dict[str, Any]]:
    return entries(sensors.ask("amd-smi", *command, "--json"))


def _reading(entry: dict[str, Any], part: Partition | None) -> dict[str, Any]:
    """Read one entry of ``amd-smi metric``; clock and load are the partition's, if it has one."""
    clocks, power, heat, usage, throttle = (
        section(entry, name) for name in ("clock", "power", "temperature", "usage", "throttle")
    )
    dies = [_speed(section(clocks, f"gfx_{n}")) for n in range(MOST_DIES)]
    if part is None:
        pace = paced(dies, None) if any(dies) else {"clock_mhz": _speed(section(clocks, "gfx"))}
        load = mean_busy([usage.get("gfx_activity")])
    else:
        pace = paced(dies, part)
        load = mean_busy(section(usage, "gfx_busy_inst").get(f"xcp_{part.number}"))
    named = zip(REASONS, _COUNTED, strict=True)
    held = [name for name, it in named if throttle.get(f"{it}_violation_status") == "ACTIVE"]
    if not held and words(power.get("throttle_status")) == "THROTTLED":
        held = ["throttled"]
    counters = [f"{name}_accumulated" for name in (*_COUNTED, "gfx_clk_below_host_limit")]
    return {
        **pace,
        "memory_clock_mhz": _first(_speed, *(section(clocks, n) for n in ("mem_0", "mem"))),
        "power_w": sensors.watts(power),
        "temperature_c": sensors.first(map(heat.get, ("hotspot", "junction", "edge")), "C"),
        "utilization": load,
        **sensors.counted(throttle, counters, "accumulation_counter"),
        "throttle": held,
    }


def _speed(clock: dict[str, Any]) -> float | None:
    return told(clock.get("clk", clock.get("cur_clk")), "MHz")


def _processes(
    entries: Iterable[dict[str, Any]],
) -> Iterator[tuple[int | None, str | None, float | None]]:
    for entry in entries:
        listed = entry.get("process_list")
        for item in listed if isinstance(listed, list) else []:
            about = section(item, "process_info") if isinstance(item, dict) else {}
            memory = told(section(about, "memory_usage").get("vram_mem"), "B")
            if memory is None:
                memory = told(about.get("mem_usage", about.get("mem")), "B") or None
            yield whole(about.get("pid")), words(about.get("name")), memory
