"""Reads an AMD GPU's telemetry through ROCm's Python package, ``amdsmi``."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_lib.backends.amd import rocm, sensors
from bench_lib.backends.amd.metrics import COUNTERS, busy_of
from bench_lib.backends.amd.sensors import Partition, figure, supported
from bench_lib.backends.looks import NothingToldError, Source
from bench_lib.model import Hardware


def source(device: Hardware, root: Path) -> Source:
    """Return a source that reads the package; raises NothingToldError if it does not work."""
    with quiet():
        smi = load(root)
        try:
            smi.amdsmi_init()
            handles = list(smi.amdsmi_get_processor_handles())
        except (Exception, SystemExit) as error:  # the library raises exceptions of any type
            raise NothingToldError(f"cannot start: {_message(error)}") from error
    gpu = _Gpu(smi)
    own, card = sensors.places(device, [_text(gpu.ask("gpu_device_bdf", h)) for h in handles])
    part = sensors.partition(device)

    def look(*, with_pids: bool) -> dict[str, Any]:
        sample = gpu.reading(handles[own], part)
        if own != card:
            sample = sensors.merged(sample, gpu.reading(handles[card], part))
        if with_pids:
            sample |= gpu.processes(handles[own])
        return sample

    return Source("amdsmi", look)


def load(root: Path) -> Any:
    """Import the package, preferably the one that ROCm installs.

    PyPI's package of the same name is not AMD's: without ROCm, importing it prints text and raises
    KeyError.  Raises NothingToldError with the causes if no import works.
    """
    folders = [folder / "share/amd_smi" for folder in rocm.find(root).folders]
    causes = []
    for path in [*([str(folder)] for folder in folders if folder.is_dir()), []]:
        sys.path[:0] = path
        try:
            return importlib.import_module("amdsmi")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - see above
            causes.append(_message(error))
            for name in [name for name in sys.modules if name.partition(".")[0] == "amdsmi"]:
                del sys.modules[name]
        finally:
            del sys.path[: len(path)]
    raise NothingToldError("; ".join(causes))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard what libraries, C code included, print to standard output and error."""
    saved = {number: os.dup(number) for number in (1, 2)}
    try:
        with (
            Path(os.devnull).open("w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            for number in saved:
                os.dup2(nowhere.fileno(), number)
            yield
    finally:
        for number, old in saved.items():
            os.dup2(old, number)
            os.close(old)


class _Gpu:
    """Converts the package's answers; a value that it refuses is None."""

    def __init__(self, smi: Any) -> None:
        self._smi = smi

    def ask(self, what: str, handle: object) -> Any:
        try:
            return getattr(self._smi, f"amdsmi_get_{what}")(handle)
        except Exception:  # noqa: BLE001 - its exceptions differ between versions
            return None

    def reading(self, handle: object, part: Partition | None) -> dict[str, Any]:
        """Return the figures in the table of metrics of a handle.

        Clock and load are those of `part`, or of the whole card if it is None.
        """
        answer = self.ask("gpu_metrics_info", handle)
        metrics = answer if isinstance(answer, dict) else {}
        table = {
            name: [figure(value) if name in COUNTERS else supported(value)]
            for name, value in metrics.items()
        }
        clocks = [supported(clock) for clock in _as_list(metrics.get("current_gfxclks"))]
        if any(clocks) or part is not None:
            table["current_gfxclk"] = clocks
        for number, loads in enumerate(_as_list(metrics.get("xcp_stats.gfx_busy_inst"))):
            table[busy_of(number)] = [supported(load) for load in _as_list(loads)]
        sample = sensors.converted(table, part)
        # The package converts the flags of an MI200 to a bool, which loses the reason.
        if metrics.get("indep_throttle_status") is True:
            sample["throttle"] = ["throttled"]
        return sample

    def processes(self, handle: object) -> dict[str, Any]:
        """List the processes with memory on the device; empty if the package refuses."""
        answer = self.ask("gpu_process_list", handle)
        return sensors.processes(_users(answer)) if isinstance(answer, list) else {}


def _users(entries: list[Any]) -> Iterator[tuple[int | None, str | None, float | None]]:
    for entry in entries:
        if isinstance(entry, dict):
            pid, usage = entry.get("pid"), entry.get("memory_usage")
            memory = supported(usage.get("vram_mem")) if isinstance(usage, dict) else None
            yield pid if isinstance(pid, int) else None, _text(entry.get("name")), memory


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    """Return a text without surrounding whitespace; None for ``N/A`` and other types."""
    is_text = isinstance(value, str) and value.strip().upper() not in ("", "N/A")
    return str(value).strip() if is_text else None


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
