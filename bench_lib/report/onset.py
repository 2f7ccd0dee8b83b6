"""A failure's story: since when it fails, what changed there, and both in a line of words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench_lib.environment.fingerprint import difference
from bench_lib.model import Environment, Status
from bench_lib.report.night import Moved, Night, NightCase
from bench_lib.verdict.severity import FAILING

if TYPE_CHECKING:
    from bench_lib.storage.archive import Point

OWN = ("commit ", "checkout ")
"""What a difference of the project's own code begins with: it is another every night."""
MOST_CHANGES = 200
"""Characters of a line on what changed in the environment."""
MOST_REASON = 300


@dataclass(frozen=True)
class Onset:
    """When a case began to fail, as far as its history tells."""

    since: str
    """In words: ``2026-11-18 (+8.0%)``, ``2026-11-18 or before``; empty where nothing tells."""
    moved: Moved | None
    """The change point that it began with."""
    last_good: Point | None
    """The last of the nights before that was OK, where there is no change point."""
    changes: list[str]
    """What changed in the environment at the change point, else from the last OK night on."""


def onset(night: Night, entry: NightCase) -> Onset:
    """Say since when a case fails, and what changed in the environment there."""
    if (moved := entry.slower_since) is not None:
        words = f"{_day(moved.time)} ({moved.step.ratio - 1:+.1%})"
        return Onset(words, moved, None, moved.environment)
    failing = _failing(entry)
    good = entry.last_good
    first = failing[0].environment if failing else None
    changes = _changes(
        night.environments.get(good.environment) if good else None,
        night.environments.get(first) if first else entry.environment,
    )
    return Onset(_since(entry, failing), None, good, changes)


def _failing(entry: NightCase) -> list[Point]:
    """Return the last points, as far back as all of them fail; oldest first."""
    found: list[Point] = []
    for point in reversed(entry.points):
        if point.status not in FAILING:
            break
        found.insert(0, point)
    return found


def _since(entry: NightCase, failing: list[Point]) -> str:
    if failing:
        # Where no point is from before, nobody knows how it stood then.
        return _day(failing[0].time) + (" or before" if len(failing) == len(entry.points) else "")
    if entry.points and entry.points[-1].run_id != entry.run_id:
        return f"measured last on {_day(entry.points[-1].time)}"
    return ""


def _changes(before: Environment | None, after: Environment | None) -> list[str]:
    return difference(before, after) if before and after else []


def _day(time: str) -> str:
    return time[:10]


# --- in words ----------------------------------------------------------------------------------


def in_words(night: Night, entry: NightCase) -> str:
    """Tell a failure in a line: what, where, by how much, since when, what changed, and why."""
    verdict, status = entry.verdict, entry.status
    words = f"{entry.record.case.id} on {device(night, entry)}: {status.value if status else ''}"
    if verdict is not None and verdict.ratio is not None:
        low_high = " to ".join(f"{bound:.3f}" for bound in verdict.interval or ())
        words += f", {verdict.ratio:.3f} times {verdict.metric}"
        words += f" ({low_high})" if low_high else ""
    began = onset(night, entry)
    if began.since:
        words += ", " if began.since.startswith("measured") else ", since "
        words += began.since
    if began.last_good is not None and entry.status is Status.REGRESSED:
        words += f", last OK {_day(began.last_good.time)}"
    if began.changes:
        words += f", with {_shortened('; '.join(own_last(began.changes)), MOST_CHANGES)}"
    elif began.moved or began.last_good:
        words += ", with no change known in the environment"
    return f"{words}: {reason(entry)}"


def reason(entry: NightCase) -> str:
    """Return why a case stands as it does, in one line of at most MOST_REASON characters."""
    return _shortened(entry.verdict.reason if entry.verdict else "", MOST_REASON)


def device(night: Night, entry: NightCase) -> str:
    """Name a case's hardware, and the very device where the night has several of its key."""
    key, here = entry.hardware.key, entry.hardware
    if len({other.hardware.uuid for other in night.entries if other.hardware.key == key}) < 2:
        return key
    return f"{key}, GPU {here.index}" + (f" ({here.bdf})" if here.bdf else "")


def own_last(changes: Iterable[str]) -> list[str]:
    """Order changes so that those of the project's own code come last."""
    return sorted(changes, key=lambda words: words.startswith(OWN))


def _shortened(words: str, most: int) -> str:
    flat = " ".join(words.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"
