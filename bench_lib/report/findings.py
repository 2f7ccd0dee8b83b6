"""What every form of the report says of a failure: since when, why, and what to do."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench_lib.cases.matrix import usual_tier
from bench_lib.environment.fingerprint import difference
from bench_lib.formats import many, on_one_line, shortened, signed_percent, some
from bench_lib.model import Status
from bench_lib.report.night import Night, NightCase
from bench_lib.verdict import metrics
from bench_lib.verdict.severity import FAILING

if TYPE_CHECKING:
    from bench_lib.storage.archive import Point

OWN = ("commit ", "checkout ")
"""Prefixes of changes in the project's own code, which changes every night."""
MOST_TITLE = 240
MOST_FAULT = 120
"""Characters of an error's message that distinguish it from others."""


# --- a failure ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Onset:
    """When a case began to fail, as far as its history shows."""

    since: str
    """In words: ``2026-11-18 (+8.0%)``, ``2026-11-18 or before``; empty if unknown."""
    run_id: str
    """The first run that was bad; empty if unknown."""
    changes: list[str]
    """Changes in the environment at the change point, else since the last OK night.

    Changes of the project's own code come last.
    """


def onset(night: Night, entry: NightCase) -> Onset:
    """Return since when a case has failed, and what changed in the environment then."""
    if (moved := entry.slower_since) is not None:
        since = f"{moved.time[:10]} ({signed_percent(moved.change.ratio - 1)})"
        return Onset(since, moved.run_id, own_last(moved.environment))
    latest = itertools.takewhile(lambda point: point.status in FAILING, reversed(entry.points))
    failing = list(latest)[::-1]
    good = entry.last_good
    before = night.environments.get(good.environment) if good else None
    after = night.environments.get(failing[0].environment) if failing else entry.environment
    changes = difference(before, after) if before and after else []
    first = failing[0].run_id if failing else ""
    return Onset(_since(entry, failing), first, own_last(changes))


def _since(entry: NightCase, failing: list[Point]) -> str:
    if len(entry.points) == 1 and failing:
        return ""  # the first run that measured it, as on a pull request, tells no date
    if failing:
        # Without an older point, it may have failed before.
        return failing[0].time[:10] + (" or before" if len(failing) == len(entry.points) else "")
    if entry.points and entry.points[-1].run_id != entry.run_id:
        return f"last measured on {entry.points[-1].time[:10]}"
    return ""


def own_last(changes: Iterable[str]) -> list[str]:
    """Order changes so that those of the project's own code come last."""
    return sorted(changes, key=lambda change: change.startswith(OWN))


def device(night: Night, entry: NightCase) -> str:
    """Return a case's hardware key, with its device if the night has several of that key."""
    hardware = entry.hardware
    if len(night.devices[hardware.key]) < 2:
        return hardware.key
    return f"{hardware.key}, GPU {hardware.index}" + (f" ({hardware.bdf})" if hardware.bdf else "")


# --- causes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NightCause:
    """Failures that began with one run, and blame one kind of kernel, error or metric."""

    run_id: str
    """The first run that was bad; for cases without a history, this night's."""
    kind: str
    """``GEMM``, ``memory``, an error without its numbers; empty if nothing is known to blame."""
    entries: list[NightCase]
    """The worst first."""
    onset: Onset
    """Of the worst."""

    @property
    def name(self) -> str:
        """The cause's name in a URL."""
        return re.sub(r"\W+", "-", f"{self.run_id} {self.kind}").strip("-")

    @property
    def blamed(self) -> str:
        """The kernels or the error, most cases first: ``GEMM MT128x128 → MT64x64 and 1 more``."""
        kernels = Counter(name for entry in self.entries for name in entry.record.blamed)
        names = [name for name, _ in kernels.most_common() if name.startswith(f"{self.kind}: ")]
        # Drop the role of kernels of unknown purpose.
        parts = [name.replace(": ", " ", 1).removeprefix("other ") for name in names]
        errors = {_error(entry) for entry in self.entries if entry.status is Status.ERROR}
        return some(parts, 1) or (errors.pop() if len(errors) == 1 else self.kind)

    @property
    def title(self) -> str:
        """The cause in one line: how many cases, what is to blame, since when, by how much."""
        case_id, count = self.entries[0].record.case.id, len(self.entries)
        blamed = [self.blamed, f"after {some(self.onset.changes, 1)}"]
        cause = " ".join(filter(None, blamed if self.onset.changes else blamed[:1]))
        title = f"{many(count, 'case') if count > 1 else case_id}: {cause or 'unknown cause'}"
        if self.onset.run_id and self.onset.since:
            title += f", since {self.onset.since.partition(' (')[0]}"
        verdict, worst = self.entries[0].verdict, _ratio(self.entries[0])
        if verdict is not None and worst > 1:
            how = "slower" if metrics.of(verdict.metric).unit in ("s", "1/s") else "worse"
            title += f", {'up to ' if count > 1 else ''}{worst - 1:.1%} {how}"
        return on_one_line(title, MOST_TITLE)


def causes(night: Night) -> list[NightCause]:
    """Group a night's failures by first bad run and by what is to blame; largest group first."""
    groups: dict[tuple[str, str], list[NightCase]] = {}
    for entry in night.failed:
        key = onset(night, entry).run_id or entry.run_id, _kind(entry)
        groups.setdefault(key, []).append(entry)
    all_causes = []
    for key, entries in groups.items():
        entries.sort(key=_ratio, reverse=True)
        all_causes.append(NightCause(*key, entries, onset(night, entries[0])))
    return sorted(all_causes, key=lambda cause: -len(cause.entries))


def _ratio(entry: NightCase) -> float:
    return (entry.verdict.ratio or 0.0) if entry.verdict else 0.0


def _kind(entry: NightCase) -> str:
    """Return what is to blame, in words that all cases with the same cause share."""
    verdict = entry.verdict
    if verdict is None:
        return ""
    if entry.status is Status.ERROR:
        return re.sub(r"0x[0-9a-f]+|\d+", "…", _error(entry))
    metric = metrics.find(verdict.metric)
    if metric is None or not metric.device_sets:
        return verdict.metric
    return next((name.partition(":")[0] for name in entry.record.blamed), "")


def _error(entry: NightCase) -> str:
    reason = entry.verdict.reason if entry.verdict else ""
    return shortened(reason.strip().partition("\n")[0], MOST_FAULT)


# --- commands ----------------------------------------------------------------------------------


FIND = "Find the change"
"""Label of the command that names the commit, the version or the image."""


def commands(entry: NightCase) -> list[tuple[str, str]]:
    """Return the commands that may help with a case: their effect, and the command line."""
    case_id, key, status = entry.record.case.id, entry.hardware.key, entry.status
    offered = []
    if nodeid := entry.record.nodeid:
        # Without this option, pytest finds no case of another tier.
        tier = entry.record.case.tier
        option = [] if tier == usual_tier(entry.hardware) else ["--perf-tier", tier]
        offered.append(("Measure again", ["pytest", nodeid, *option]))
    offered.append(("Profile", ["bench-lib", "profile", case_id]))
    if entry.record.measurements and status not in (None, Status.OK):
        argv = ["bench-lib", "baseline", "accept", "--run", entry.run_id, "--case", case_id]
        # Without the option, a worse value would be refused.
        argv += ["--force"] if status is Status.REGRESSED else []
        offered.append(("Accept these values", [*argv, "--reason", "WHY"]))
    if entry.failing:
        argv = ["bench-lib", "baseline", "quarantine", case_id, "--hardware", key]
        offered.append(("Quarantine", [*argv, "--until", "DATE", "--reason", "WHY"]))
    if status is Status.REGRESSED and entry.last_good:
        argv = ["bench-lib", "bisect", case_id, "--good", "last-ok"]
        offered.append((FIND, argv))
    return [(effect, shlex.join(argv)) for effect, argv in offered]
