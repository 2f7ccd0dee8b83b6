"""What somebody who reads of a night should know of it as a whole, and can do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from bench_lib import backends
from bench_lib.model import Hardware, Status
from bench_lib.report.night import Night, NightCase
from bench_lib.verdict.statistics.comparison import LEAST_PROCESSES

LEAST = 2
"""Cases of one device that have to go wrong before the device is suspected."""
BY_HARDWARE = (Status.ERROR, Status.INVALID)
MOST_REASON = 240


def hints(night: Night) -> list[str]:
    """Return a line for each, with what is to be done: as a command, where one does it.

    On devices that are not there any more, or on which everything went wrong, GPUs that nobody
    watched, conditions that changed, cases without a baseline, and runs that were killed.
    """
    told = (_on_devices, _on_blind, _on_unlike, _on_new, _on_torn)
    return [*night.absent, *(line for tell in told for line in tell(night))]


def _on_devices(night: Night) -> Iterator[str]:
    """Name the devices that nothing worked on, where something worked on others of their key."""
    # Those of several ranks tell nothing of one device.
    alone = [entry for entry in night.entries if entry.record.case.launch.ranks == 1]
    for key, entries in _by_key(alone).items():
        by_device: dict[str, list[NightCase]] = {}
        for entry in entries:
            by_device.setdefault(entry.hardware.uuid or "", []).append(entry)
        bad = {uuid: held for uuid, held in by_device.items() if _is_broken(held)}
        if len(by_device) < 2 or len(bad) == len(by_device):
            continue
        for held in bad.values():
            words = " and ".join(sorted({e.status.value for e in held if e.status}))
            named = _named(held[0].hardware)
            yield f"{key}: all {len(held)} cases on {named} are {words}: look at that device first"


def _is_broken(entries: list[NightCase]) -> bool:
    return len(entries) >= LEAST and all(entry.status in BY_HARDWARE for entry in entries)


def _named(device: Hardware) -> str:
    return f"GPU {device.index} ({', '.join(filter(None, (device.bdf, device.uuid)))})"


def _on_blind(night: Night) -> Iterator[str]:
    """Say where nobody watched the GPUs."""
    for key, entries in _by_key(night.entries).items():
        measured = [
            attempt
            for entry in entries
            if backends.is_gpu(entry.hardware)
            for attempt in entry.record.attempts
            if attempt.measurement is not None
        ]
        blind = sum(attempt.telemetry is None for attempt in measured)
        if blind and blind == len(measured):
            yield (
                f"{key}: no telemetry this night, so that nobody knows whether GPUs were shared, "
                "hot or held back: bench-lib env says why"
            )


def _on_unlike(night: Night) -> Iterator[str]:
    """Say why cases could not be compared, or tell nothing: the commonest reason of each."""
    for key, entries in _by_key(night.entries).items():
        for status in (Status.INCOMPARABLE, Status.INVALID):
            held = [entry for entry in entries if entry.status is status and entry.verdict]
            if not held:
                continue
            reasons = Counter(entry.verdict.reason for entry in held if entry.verdict)
            ((why, count),) = reasons.most_common(1)
            more = "" if count == len(held) else f" ({count} of them)"
            words = f"{key}: {_cases(len(held))} {status.value}: {_shortened(why)}{more}"
            if status is Status.INCOMPARABLE:
                words += "; set that back, or accept values measured so: bench-lib baseline record"
            yield words


def _on_new(night: Night) -> Iterator[str]:
    """Say how cases without a baseline get one."""
    for key, entries in _by_key(night.entries).items():
        held = [entry for entry in entries if entry.status is Status.NO_BASELINE]
        few = any(len({m.process for m in e.record.attempts}) < LEAST_PROCESSES for e in held)
        for run_id in dict.fromkeys(entry.run_id for entry in held):
            count = sum(entry.run_id == run_id for entry in held)
            do = "record" if few else f"accept --run {run_id}"
            words = f"{key}: {_cases(count)} without a baseline"
            yield f"{words}: bench-lib baseline {do} --reason 'first baseline'"


def _on_torn(night: Night) -> Iterator[str]:
    """Say how to look at what a run that was killed has measured."""
    for run in night.unfinished:
        # A run that was interrupted has judged what it had; and a later run's may count instead.
        own = (e for e in night.entries if e.run_id == run.run_id and e.status is None)
        if unjudged := sum(bool(entry.accepted) for entry in own):
            words = f"{_cases(unjudged)} of run {run.run_id} with measurements and no verdict"
            yield f"{run.key}: {words}: bench-lib compare baseline {run.run_id}"


def _by_key(entries: Iterable[NightCase]) -> dict[str, list[NightCase]]:
    found: dict[str, list[NightCase]] = {}
    for entry in entries:
        found.setdefault(entry.hardware.key, []).append(entry)
    return found


def _cases(count: int) -> str:
    return f"{count} case{'' if count == 1 else 's'}"


def _shortened(words: str) -> str:
    flat = " ".join(words.split())
    return flat if len(flat) <= MOST_REASON else f"{flat[: MOST_REASON - 1]}…"
