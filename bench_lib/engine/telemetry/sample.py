"""One look at a device as the sampling process prints it, one JSON object a line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TelemetrySample:
    """One reading of the device; None and empty if unavailable."""

    t: float
    """Seconds on the machine's monotonic clock."""
    source: str = ""
    clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    utilization: float | None = None
    """0 to 1."""
    throttle: tuple[str, ...] = ()
    """Why the device was held back just then."""
    pids: tuple[int, ...] | None = None
    """Processes that had it open; None if this look was not for them."""
    kin: tuple[int, ...] = ()
    """Those of them that descend from the process that watches."""
    busy: tuple[int, ...] | None = None
    """Those that have run something since the last look for processes; None if unknown."""
    names: Mapping[int, str] = field(default_factory=dict)
    memory_clock_mhz: float | None = None
    steal: float | None = None
    """Share of the CPUs' time that a hypervisor gave to others, 0 to 1."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """How long or how often it was held back so far, by reason, in the source's units."""
    ticks: float | None = None
    """The counters' own clock in the same unit; None if they count events."""
    due: float | None = None
    """When the next sample is there, unless something is wrong; in seconds, as ``t``."""
    trouble: str | None = None
    """Why nothing is seen any more."""
    dies_mhz: Mapping[str, float] = field(default_factory=dict)
    """The clock of each die by its name, where there are several; the slowest is ``clock_mhz``."""


_FIGURES = ("clock_mhz", "power_w", "temperature_c", "memory_clock_mhz", "steal", "ticks", "due")


def parse(line: str) -> TelemetrySample:
    """Read one line of the process; ValueError with the cause where it is no sample."""
    try:
        values = json.loads(line)
        t = _figure(values["t"])
    except (ValueError, TypeError, KeyError, RecursionError):
        values = t = None
    if t is None:
        raise ValueError(f"the sampling process said {line.strip()[:200]!r}")
    if "error" in values:
        raise ValueError(str(values["error"]))
    reasons, pids, kin, busy = (values.get(name) for name in ("throttle", "pids", "kin", "busy"))
    names, trouble = values.get("names"), values.get("trouble")
    return TelemetrySample(
        t=t,
        source=str(values.get("source", "")),
        **{name: _figure(values.get(name)) for name in _FIGURES},
        dies_mhz=_figures(values.get("dies_mhz")),
        utilization=share(values.get("utilization")),
        throttle=tuple(
            reason
            for reason in (reasons if isinstance(reasons, list) else [])
            if isinstance(reason, str)
        ),
        pids=_pids(pids) if isinstance(pids, list) else None,
        kin=_pids(kin),
        busy=_pids(busy) if isinstance(busy, list) else None,
        names={
            int(pid): str(name)
            for pid, name in (names if isinstance(names, dict) else {}).items()
            if pid.isdecimal()
        },
        counters=_figures(values.get("counters")),
        trouble=None if trouble is None else str(trouble),
    )


def _figures(values: object) -> dict[str, float]:
    named = values if isinstance(values, dict) else {}
    found = {str(name): _figure(value) for name, value in named.items()}
    return {name: figure for name, figure in found.items() if figure is not None}


def _pids(values: object) -> tuple[int, ...]:
    listed = values if isinstance(values, list) else []
    return tuple(v for v in listed if isinstance(v, int) and not isinstance(v, bool))


def share(value: object) -> float | None:
    """Take a share, which some firmware reports above 1; one below 0 is none."""
    share = _figure(value)
    return None if share is None or share < 0 else min(share, 1.0)


def _figure(value: object) -> float | None:
    """Take a finite number as a float and anything else as None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        figure = float(value)
    except OverflowError:
        return None
    return figure if math.isfinite(figure) else None
