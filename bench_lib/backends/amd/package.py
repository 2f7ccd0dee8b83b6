"""Monitoring an AMD GPU through ROCm's Python package, ``amdsmi``."""

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

    def ask(self, what: str, handle: object) -> Any:
        try:
            return getattr(self._smi, f"amdsmi_get_{what}")(handle)
        except Exception:  # noqa: BLE001 - its own kinds of error differ between versions
            return None

    def reading(self, handle: object, part: Partition | None) -> dict[str, Any]:
        """Return the figures of a handle's table of metrics, which has them all.

        Clock and load are those of the partition, if it has one.
        """
        told_of = self.ask("gpu_metrics_info", handle)
        metrics = told_of if isinstance(told_of, dict) else {}
        dies = [told(die) for die in _listed(metrics.get("current_gfxclks"))]
        if part is None:
            if not any(dies):
                dies = [told(metrics.get("current_gfxclk"))]
            load = mean_busy([metrics.get("average_gfx_activity")])
        else:
            busy = _listed(metrics.get("xcp_stats.gfx_busy_inst"))
            load = mean_busy(busy[part.number]) if part.number < len(busy) else None
        flags = metrics.get("indep_throttle_status")
        # The package makes a bool of an MI200's word of flags, which names no reason any more.
        reasons = ["throttled"] if flags is True else sensors.reasons_in(told(flags))
        return {
            **paced(dies, part),
            "memory_clock_mhz": told(metrics.get("current_uclk")),
            "power_w": sensors.watts(metrics),
            "temperature_c": sensors.first(map(metrics.get, _HEATS)),
            "utilization": load,
            **(sensors.counted(metrics, COUNTERS[1:], COUNTERS[0]) or {"throttle": reasons}),
        }

    def processes(self, handle: object) -> dict[str, Any]:
        """List the processes with memory on the device; nothing if that is refused."""
        listed = self.ask("gpu_process_list", handle)
        return sensors.processes(_using(listed)) if isinstance(listed, list) else {}


def _using(listed: list[Any]) -> Iterator[tuple[int | None, str | None, float | None]]:
    for about in listed:
        if isinstance(about, dict):
            pid, uses = about.get("pid"), about.get("memory_usage")
            memory = told(uses.get("vram_mem")) if isinstance(uses, dict) else None
            yield pid if isinstance(pid, int) else None, _text(about.get("name")), memory


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    """Return a text that says something; None for ``N/A`` and whatever is none."""
    is_text = isinstance(value, str) and value.strip().upper() not in ("", "N/A")
    return str(value).strip() if is_text else None


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
