"""Keeping what micro measured in the history, and holding it against the baseline."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bench_lib import backends
from bench_lib.engine.runner import Outcome
from bench_lib.engine.telemetry import Sampler
from bench_lib.environment import fingerprint
from bench_lib.launch import launchers
from bench_lib.micro.beside import Beside
from bench_lib.micro.flags import Options
from bench_lib.micro.places import Place
from bench_lib.micro.session import Seen
from bench_lib.model import Attempt, Hardware, Measurement, Record, UserError
from bench_lib.report import console
from bench_lib.storage import acceptance, baselines, history
from bench_lib.studies.series import PLANNED, Series, open_series
from bench_lib.verdict import validity


@dataclass
class Keeper:
    """Writes down what the first rank saw of all of them."""

    options: Options
    series: Series
    device: Hardware
    sampler: Sampler
    other: Beside
    began_s: float

    def keep(self, seen: Seen) -> None:
        """Write it down; raises UserError where it was another device, and HistoryError."""
        if differing := backends.confirm(self.device, seen.device):
            raise UserError(f"this ran on another device than {self.device.key}: {differing[0]}")
        self.series.note(self._outcome(seen))

    def finish(self) -> bool:
        """Judge what is kept, where that was asked for; returns whether it passes.

        Raises LaunchError, HistoryError and BaselineError.
        """
        self.sampler.close()
        return self.series.finish()

    @property
    def record(self) -> Record | None:
        """The record, judged where that was asked for; None before anything is kept."""
        return next(iter(self.series.records), None)

    def in_words(self) -> list[str]:
        """Say how the case stands, and where it is kept; not what the summary says already."""
        record = self.record
        if record is None:
            return []
        kept = [f"History: {self.series.path}"]
        if record.status is None:
            return kept
        measured = [a.measurement for a in record.attempts if a.measurement]
        said = {f"{record.case.id}: warning: {text}" for text in measured[0].warnings}
        words = console.explanations([record], every=True)
        processes = len({attempt.process for attempt in record.attempts})
        return [
            f"Verdict: {record.status.value}",
            *(text for text in words if text not in said),
            *_on_processes(processes),
            *kept,
        ]

    def _outcome(self, seen: Seen) -> Outcome:
        measurement = seen.folded
        if self.device.uuid is not None:
            measurement = replace(measurement, device_uuid=self.device.uuid)
        pids = [*(int(outcome["pid"]) for outcome in seen.outcomes), *self.other.pids]
        telemetry = self.sampler.window(*measurement.window_s, own=pids)
        about = seen.outcomes[0]
        described = fingerprint.with_versions(
            fingerprint.collect(), {**about["versions"], "cudnn": about["cudnn"]}
        )
        described = launchers.noted_in(described, launchers.who_am_i(os.environ).launcher)
        environment = replace(described, threads=about["threads"])
        cause = validity.blame(telemetry, self.device, self._level(seen), _log_median(measurement))
        attempt = Attempt(
            case_id=seen.case.id,
            process=0,
            time=history.utc_now(),
            hardware_key=self.device.key,
            device_uuid=self.device.uuid,
            environment=history.reference(environment),
            measurement=measurement,
            telemetry=telemetry,
            accepted=cause is None,
            discarded=cause,
            invalid=cause is not None,
            took_s=round(time.monotonic() - self.began_s, 3),
        )
        return Outcome(seen.case, [attempt], environment, self.device)

    def _level(self, seen: Seen) -> validity.Level | None:
        """Return what the clock was when the case's baseline was recorded."""
        if not self.options.judge:
            return None
        accepted = baselines.load(self.options.baselines, self.device.key).measured
        return acceptance.level_of(accepted.get(seen.case.id), seen.case, self.device)


def _on_processes(processes: int) -> list[str]:
    if processes == 1:
        return []
    return [f"The summary above is of the first process of {processes}"]


def _log_median(measurement: Measurement) -> float | None:
    median = 0.0 if measurement.host_bound else statistics.median(measurement.iteration_s)
    return math.log(median) if median > 0 else None


@contextlib.contextmanager
def keeper(
    options: Options,
    place: Place,
    device: Hardware | None,
    other: Beside,
    say: Callable[[str], None],
) -> Iterator[Keeper | None]:
    """Open what is needed before anything is measured, and watch the device from now on.

    None where nothing is to be kept, or another rank does it.  Raises HistoryError,
    BaselineError and DeviceBusyError.
    """
    if options.history is None or device is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        if not options.history.exists():
            stack.callback(_remove_if_empty, options.history)
        series = stack.enter_context(
            open_series(
                "micro",
                device,
                history=options.history,
                baselines_folder=options.baselines,
                judged=options.judge,
                # Ranks that somebody else started cannot be started anew from one of them.
                planned=PLANNED if place.ranks == 1 else 1,
                ours=[os.getpid()],
                say=say,
            )
        )
        sampler = stack.enter_context(Sampler(device))
        yield Keeper(options, series, device, sampler, other, time.monotonic())


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
