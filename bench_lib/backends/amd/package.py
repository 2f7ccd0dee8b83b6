"""Looking at an AMD GPU through ROCm's own Python package, ``amdsmi``."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_lib.backends.amd.sensors import (
    REASONS,
    Partition,
    mean_busy,
    median,
    merged,
    partition,
    places,
    reasons_in,
    told,
)
from bench_lib.backends.amd.tools.figures import words
from bench_lib.backends.looks import BELOW_LIMIT, NothingToldError, Source
from bench_lib.backends.processes import described
from bench_lib.model import Hardware


def source(device: Hardware, root: Path) -> Source:
    """Look through the package; raises NothingToldError where it does not work here."""
    with quiet():
        smi = load(root)
        try:
            smi.amdsmi_init()
            handles = list(smi.amdsmi_get_processor_handles())
        except (Exception, SystemExit) as error:  # whatever the library makes of this machine
            raise NothingToldError(f"cannot start: {_words(error)}") from error
    gpu = _Gpu(smi)
    own, card = places(device, [words(gpu.ask("gpu_device_bdf", h)) for h in handles])
    part = partition(device)

    def look(*, with_pids: bool) -> dict[str, Any]:
        seen = gpu.reading(handles[own], part, rarely=with_pids)
        if own != card:
            seen = merged(seen, gpu.reading(handles[card], part, rarely=with_pids))
        if with_pids:
            seen |= gpu.processes(handles[own])
        return seen

    return Source("amdsmi", look)


def load(root: Path) -> Any:
    """Import the package, first of all as ROCm installs it.

    The registry's package of that name is not AMD's: without ROCm its import prints and
    raises KeyError.  Raises NothingToldError with the causes.
    """
    rocm = os.environ.get("ROCM_PATH")
    folder = (Path(rocm) if rocm else root / "opt/rocm") / "share/amd_smi"
    causes = []
    for path in ([str(folder)], []) if folder.is_dir() else ([],):
        sys.path[:0] = path
        try:
            return importlib.import_module("amdsmi")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - see above
            causes.append(_words(error))
            for name in [name for name in sys.modules if name.partition(".")[0] == "amdsmi"]:
                del sys.modules[name]
        finally:
            del sys.path[: len(path)]
    raise NothingToldError("; ".join(causes))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what libraries print, in whatever language, off standard output and error."""
    kept = {number: os.dup(number) for number in (1, 2)}
    try:
        with (
            Path(os.devnull).open("w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            for number in kept:
                os.dup2(nowhere.fileno(), number)
            yield
    finally:
        for number, old in kept.items():
            os.dup2(old, number)
            os.close(old)


class _Gpu:
    """The package's answers in our words; what it refuses is not known."""

    def __init__(self, smi: Any) -> None:
        self._smi = smi
        heats = getattr(smi, "AmdSmiTemperatureType", None)
        self._heats = [getattr(heats, name, None) for name in ("HOTSPOT", "JUNCTION", "EDGE")]
        self._now = getattr(getattr(smi, "AmdSmiTemperatureMetric", None), "CURRENT", None)
        self._not_counting: list[object] = []

    def ask(self, what: str, *arguments: object) -> Any:
        try:
            return getattr(self._smi, f"amdsmi_get_{what}")(*arguments)
        except Exception:  # noqa: BLE001 - its own kinds of error differ between versions
            return None

    def part(self, what: str, *arguments: object) -> dict[str, Any]:
        found = self.ask(what, *arguments)
        return found if isinstance(found, dict) else {}

    def reading(self, handle: object, part: Partition | None, *, rarely: bool) -> dict[str, Any]:
        """Return a handle's figures; clock and load are those of the partition, if it has one.

        ``rarely`` is whether to ask as well for what takes long.
        """
        metrics = self.part("gpu_metrics_info", handle)
        if part is None:
            clock = self._clock(handle, "GFX")
            load = mean_busy([self.part("gpu_activity", handle).get("gfx_activity")])
        else:
            dies = _listed(metrics.get("current_gfxclks"))
            clock = median(part.own([told(die, "MHz") for die in dies]))
            busy = _listed(metrics.get("xcp_stats.gfx_busy_inst"))
            load = mean_busy(busy[part.number]) if part.number < len(busy) else None
        power = self.part("power_info", handle)
        powers = ("socket_power", "current_socket_power", "average_socket_power")
        return {
            "clock_mhz": clock,
            "memory_clock_mhz": self._clock(handle, "MEM"),
            # The second die of an MI250X has no sensor of its own and says 0.
            "power_w": next((w for name in powers if (w := told(power.get(name), "W"))), None),
            "temperature_c": self._heat(handle),
            "utilization": load,
            **self._throttling(handle, metrics, rarely=rarely),
        }

    def processes(self, handle: object) -> dict[str, Any]:
        """List the processes with memory on the device; nothing where that is refused."""
        listed = self.ask("gpu_process_list", handle)
        if not isinstance(listed, list):
            return {}
        found = {}
        for entry in listed:
            # Up to ROCm 6.1 the list holds handles.
            about = (
                entry if isinstance(entry, dict) else self.part("gpu_process_info", handle, entry)
            )
            pid, uses = about.get("pid"), about.get("memory_usage")
            memory = told(uses.get("vram_mem"), "B") if isinstance(uses, dict) else None
            # A process has every GPU open that it may see, and memory on those that it uses.
            if isinstance(pid, int) and memory != 0:
                found[pid] = described(pid, words(about.get("name")), memory)
        return {"pids": list(found), "names": found}

    def _clock(self, handle: object, kind: str) -> float | None:
        about = self.part(
            "clock_info", handle, getattr(getattr(self._smi, "AmdSmiClkType", None), kind, None)
        )
        clocks = (told(about.get(name), "MHz") for name in ("clk", "cur_clk"))
        return next((clock for clock in clocks if clock is not None), None)

    def _heat(self, handle: object) -> float | None:
        kinds = (kind for kind in self._heats if kind is not None)
        heats = (told(self.ask("temp_metric", handle, kind, self._now), "C") for kind in kinds)
        heat = next((heat for heat in heats if heat), None)
        # Thousandths, as the library below it has them.
        return heat / 1000 if heat is not None and heat > 1000 else heat

    def _throttling(
        self, handle: object, metrics: dict[str, Any], *, rarely: bool
    ) -> dict[str, Any]:
        """Read the counters of MI300 and later, or the flags of MI200.

        The table of metrics has the counters at once; ``violation_status`` waits 100 ms for
        percentages (amd_smi.cc), so it is asked rarely, and only where the table lacks them.
        """
        counts = {
            "prochot": "prochot_residency_acc",
            "ppt": "ppt_residency_acc",
            "socket": "socket_thm_residency_acc",
            "vr": "vr_thm_residency_acc",
            "hbm": "hbm_thm_residency_acc",
        }
        found = {REASONS[kind]: told(metrics.get(name)) for kind, name in counts.items()}
        if any(count is not None for count in found.values()):
            counters = {name: count for name, count in found.items() if count is not None}
            return {"counters": counters, "ticks": told(metrics.get("accumulation_counter"))}
        return (self._violations(handle) if rarely else {}) or self._flags(metrics)

    def _violations(self, handle: object) -> dict[str, Any]:
        if handle in self._not_counting:
            return {}
        status = self.part("violation_status", handle)
        fields = {
            "prochot_thrm": REASONS["prochot"],
            "ppt_pwr": REASONS["ppt"],
            "socket_thrm": REASONS["socket"],
            "vr_thrm": REASONS["vr"],
            "hbm_thrm": REASONS["hbm"],
            "gfx_clk_below_host_limit": BELOW_LIMIT,
        }
        found = {name: told(status.get(f"acc_{field}")) for field, name in fields.items()}
        counters = {name: count for name, count in found.items() if count is not None}
        if not counters:  # as on MI200, and for good
            self._not_counting.append(handle)
            return {}
        active = [name for field, name in fields.items() if status.get(f"active_{field}") is True]
        return {
            "counters": counters,
            "ticks": told(status.get("acc_counter")),
            "throttle": [name for name in active if name != BELOW_LIMIT],
        }

    def _flags(self, metrics: dict[str, Any]) -> dict[str, Any]:
        flags = told(metrics.get("indep_throttle_status"))
        if flags is not None:
            return {"throttle": reasons_in(flags)}
        status = metrics.get("throttle_status")
        return {"throttle": ["throttled"] if status is True or told(status) else []}


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
