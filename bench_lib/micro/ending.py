"""The first rank's work for all: it lends a companion, then prints, keeps, writes and judges."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_lib import backends, files
from bench_lib.engine.engine import Engine, opened
from bench_lib.engine.processes import Companion
from bench_lib.engine.settings import PLANNED, Settings
from bench_lib.engine.suite import Suite
from bench_lib.formulas.roofline import place
from bench_lib.launch import launchers
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.wire import PRELOAD_VARIABLE
from bench_lib.launch.zygote import Zygote
from bench_lib.micro import lines
from bench_lib.micro.flags import MicroOptions, RankPlace
from bench_lib.micro.session import RankSeen
from bench_lib.model import Hardware, UserError
from bench_lib.report import console
from bench_lib.worker.profiling import external_profiler


@contextlib.contextmanager
def companion(device: Hardware, ranks: int) -> Iterator[Companion | None]:
    """Lend the process that uses a GPU before the measured stretch, as in the suite.

    It imports torch while we do.  Without it a run that is kept would not be in the state of its
    baseline (docs/architecture.md).  None for several ranks, a CPU, and a process that is profiled,
    and if it cannot be started.
    """
    if not backends.is_gpu(device) or ranks > 1 or external_profiler() is not None:
        yield None
        return
    variables = {**backends.visibility(device), PRELOAD_VARIABLE: "torch"}
    try:
        zygote = Zygote(environment=variables)
    except LaunchError:
        yield None
        return
    with contextlib.closing(zygote):
        yield Companion(lambda: zygote.context(draws=1))


@contextlib.contextmanager
def keeping(
    options: MicroOptions, place: RankPlace, device: Hardware, say: Callable[[str], None]
) -> Iterator[Engine | None]:
    """Open the history and watch the device, before anything is measured; None without history.

    Raises HistoryError, BaselineError and DeviceBusyError.
    """
    if options.history is None:
        yield None
        return
    settings = Settings(
        history=options.history,
        baselines=options.baselines,
        command="micro",
        judged=options.judge,
        # Ranks that somebody else started cannot be started anew from one of them.
        planned=PLANNED if place.ranks == 1 else 1,
        launcher=launchers.who_am_i(os.environ).launcher or launchers.DEFAULT,
        say=say,
    )
    with opened(device, settings) as engine:
        yield engine


@dataclass
class Ending:
    """The first rank's work for all ranks once they are measured.

    Each step is done even if others fail, so that no measurement is lost.
    """

    options: MicroOptions
    device: Hardware
    engine: Engine | None
    """Keeps and judges; None without ``--history``."""
    companion: Companion | None
    say: Callable[[str], None]
    trouble: list[str] = field(default_factory=list)
    """Errors, in words."""
    began_s: float = field(default_factory=time.monotonic)

    def conclude(self, seen: RankSeen) -> bool:
        """Print, keep, write and judge; returns whether the case passes."""
        folded, options = seen.folded, self.options
        result = lines.result(options, seen.place, folded)
        if seen.place.is_rank:
            self.say("\n".join(lines.overall_summary(options, seen.place, folded)))
        params = seen.case.params
        precision, mode = str(params["precision"]), str(params["compile_mode"])
        placed = place(folded, self.device, precision, mode)
        below = lines.performance(
            options,
            folded,
            seen.measured,
            precision=f"{options.dtype.partition(':')[0]} ({precision})",
            roofline=placed,
        )
        self.say("\n".join(["", *below]))
        with self._going_on():
            self.keep(seen)
        self._write(result)
        passes = True
        if self.engine is not None and self.engine.suite.records:
            with self._going_on():
                passes = self.engine.conclude()
            self.say("\n".join(standing(self.engine.suite)))
        return passes

    def keep(self, seen: RankSeen) -> None:
        """Write down what the ranks measured; raises HistoryError.

        Raises UserError where it was another device.
        """
        if self.engine is None:
            return
        if differing := backends.confirm(self.device, seen.device):
            raise UserError(f"this ran on another device than {self.device.key}: {differing[0]}")
        about = seen.outcomes[0]
        others = [] if self.companion is None else self.companion.pids
        outcome = self.engine.held.take_in(
            seen.case,
            seen.folded,
            began_s=self.began_s,
            versions={**about["versions"], "cudnn": about["cudnn"]},
            threads=about["threads"],
            pids=[*(int(outcome["pid"]) for outcome in seen.outcomes), *others],
        )
        self.engine.note(outcome)

    def _write(self, result: dict[str, Any]) -> None:
        """Write the JSON file and append a row to the CSV, below a header if that is new."""
        options = self.options
        with self._going_on(options.result):
            if options.result is not None:
                options.result.parent.mkdir(parents=True, exist_ok=True)
                files.replace(options.result, json.dumps(result, indent=2).encode())
        file = Path(options.csv_name)
        with self._going_on(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            is_new = not file.exists() or not file.stat().st_size
            text = io.StringIO(newline="")
            rows = csv.DictWriter(text, list(result))
            if is_new:
                rows.writeheader()
            rows.writerow(result)
            files.append(file, text.getvalue().encode())
            self.say(f"Benchmark result saved to {options.csv_name}")

    @contextlib.contextmanager
    def _going_on(self, file: Path | None = None) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            self.trouble.append(str(error))
        except BrokenPipeError:  # of the output
            raise
        except OSError as error:
            self.trouble.append(f"{file} cannot be written: {error.strerror}")


def standing(suite: Suite) -> list[str]:
    """Say how the case stands and where it is kept."""
    kept = [f"History: {suite.writer.path}"]
    record = next(iter(suite.records.values()))
    if record.status is None:
        return kept
    return [f"Verdict: {record.status.value}", *console.explanations([record], every=True), *kept]
