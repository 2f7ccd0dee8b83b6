"""Looking at an AMD GPU through ROCm's own Python package, ``amdsmi``."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_lib.backends.amd import rocm, sensors
from bench_lib.backends.amd.metrics import COUNTERS
from bench_lib.backends.amd.sensors import Partition, mean_busy, paced, told
from bench_lib.backends.looks import NothingToldError, Source
from bench_lib.model import Hardware

_HEATS = ("temperature_hotspot", "temperature_edge")
"""In the table of metrics."""


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
    own, card = sensors.places(device, [_text(gpu.ask("gpu_device_bdf", h)) for h in handles])
    part = sensors.partition(device)

    def look(*, with_pids: bool) -> dict[str, Any]:
        seen = gpu.reading(handles[own], part)
        if own != card:
            seen = sensors.merged(seen, gpu.reading(handles[card], part))
        if with_pids:
            seen |= gpu.processes(handles[own])
        return seen

    return Source("amdsmi", look)


def load(root: Path) -> Any:
    """Import the package, first of all as ROCm installs it.

    The registry's package of that name is not AMD's: without ROCm its import prints and
    raises KeyError.  Raises NothingToldError with the causes.
    """
    folders = [folder / "share/amd_smi" for folder in rocm.find(root).folders]
    causes = []
    for path in [*([str(folder)] for folder in folders if folder.is_dir()), []]:
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
    """The package's answers in our words; a refused figure is unknown."""

    def __init__(self, smi: Any) -> None:
        self._smi = smi
        heats = getattr(smi, "AmdSmiTemperatureType", None)
        self._heats = [getattr(heats, name, None) for name in ("HOTSPOT", "JUNCTION", "EDGE")]
        self._now = getattr(getattr(smi, "AmdSmiTemperatureMetric", None), "CURRENT", None)

    def ask(self, what: str, *arguments: object) -> Any:
        try:
            return getattr(self._smi, f"amdsmi_get_{what}")(*arguments)
        except Exception:  # noqa: BLE001 - its own kinds of error differ between versions
            return None

    def part(self, what: str, *arguments: object) -> dict[str, Any]:
        found = self.ask(what, *arguments)
        return found if isinstance(found, dict) else {}

    def reading(self, handle: object, part: Partition | None) -> dict[str, Any]:
        """Return a handle's figures; clock and load are those of the partition, if it has one.

        The table of metrics has them all; every other call reads it anew, so that it is made
        only for what the table lacks.
        """
        metrics = self.part("gpu_metrics_info", handle)
        dies = [told(die) for die in _listed(metrics.get("current_gfxclks"))]
        if part is None and not any(dies):
            dies = [told(metrics.get("current_gfxclk"))]
        pace = paced(dies, part)
        if part is None:
            pace["clock_mhz"] = pace["clock_mhz"] or self._clock(handle, "GFX")
            load = mean_busy([metrics.get("average_gfx_activity")])
            if load is None:
                load = mean_busy([self.part("gpu_activity", handle).get("gfx_activity")])
        else:
            busy = _listed(metrics.get("xcp_stats.gfx_busy_inst"))
            load = mean_busy(busy[part.number]) if part.number < len(busy) else None
        power = sensors.watts(metrics)
        heat = _degrees(sensors.first(map(metrics.get, _HEATS)))
        memory_clock = told(metrics.get("current_uclk"))
        return {
            **pace,
            "memory_clock_mhz": memory_clock or self._clock(handle, "MEM"),
            "power_w": power or sensors.watts(self.part("power_info", handle)),
            "temperature_c": heat or self._heat(handle),
            "utilization": load,
            **(sensors.counted(metrics, COUNTERS[1:], COUNTERS[0]) or _flags(metrics)),
        }

    def processes(self, handle: object) -> dict[str, Any]:
        """List the processes with memory on the device; nothing if that is refused."""
        listed = self.ask("gpu_process_list", handle)
        return sensors.processes(self._using(handle, listed)) if isinstance(listed, list) else {}

    def _using(
        self, handle: object, listed: list[Any]
    ) -> Iterator[tuple[int | None, str | None, float | None]]:
        for each in listed:
            # Up to ROCm 6.1 the list holds handles.
            about = each if isinstance(each, dict) else self.part("gpu_process_info", handle, each)
            pid, uses = about.get("pid"), about.get("memory_usage")
            memory = told(uses.get("vram_mem")) if isinstance(uses, dict) else None
            yield pid if isinstance(pid, int) else None, _text(about.get("name")), memory

    def _clock(self, handle: object, kind: str) -> float | None:
        about = self.part(
            "clock_info", handle, getattr(getattr(self._smi, "AmdSmiClkType", None), kind, None)
        )
        return sensors.first((about.get("clk"), about.get("cur_clk")))

    def _heat(self, handle: object) -> float | None:
        kinds = (kind for kind in self._heats if kind is not None)
        heats = (told(self.ask("temp_metric", handle, kind, self._now)) for kind in kinds)
        return _degrees(next((heat for heat in heats if heat), None))


def _flags(metrics: dict[str, Any]) -> dict[str, Any]:
    """Read MI200's word of flags.

    The package makes a bool of it (ROCm 6.3), which shows no reason any more.
    """
    flags = metrics.get("indep_throttle_status")
    if not isinstance(flags, bool) and (word := told(flags)) is not None:
        return {"throttle": sensors.reasons_in(word)}
    status = metrics.get("throttle_status")
    return {"throttle": ["throttled"] if True in (flags, status) or told(status) else []}


def _degrees(heat: float | None) -> float | None:
    """Return a heat in degrees Celsius that may be in thousandths, as the library has it."""
    return heat / 1000 if heat is not None and heat > 1000 else heat


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    """Return a text that says something; None for ``N/A`` and whatever is none."""
    is_text = isinstance(value, str) and value.strip().upper() not in ("", "N/A")
    return str(value).strip() if is_text else None


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
