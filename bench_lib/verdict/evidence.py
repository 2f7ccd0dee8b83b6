"""The evidence on a case when its suite is judged, and whether it can be judged at all.

Like is compared with like: a device with itself if there is enough data on it.  No files, no
clocks, no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from bench_lib import backends
from bench_lib.model import Baseline, Case, Choices, Hardware, Limits, ProcessSummary
from bench_lib.verdict.statistics.change import AGREEING, UNMEASURED

BETWEEN_HOST_STATES = 0.10
"""A host-bound step may differ by this much from one run to the next: small training steps on
one idle H200 machine took 3 to 6% less three minutes later, with 2% between processes."""
LEAST_NIGHTS = 5
"""Fewer nights are no baseline."""
PINNED, ROLLING = "pinned", "rolling"
"""Both are needed.  With the accepted processes alone no slowdown of 2% is found on later nights
where four devices are 1% apart, and with the nights all are (``error_rates.py --worlds``, seed 31).
The nights alone would follow creep."""
REFERENCE = "reference"
"""``Verdict.against`` if processes were interleaved with the accepted environment's."""
IN_GRAPHS = ("graph", "reduce-overhead", "max-autotune")
"""Compile modes whose steps are replayed."""


@dataclass(frozen=True)
class Pairing:
    """Measurements interleaved with the accepted environment's, on one device."""

    reference: str
    """The accepted environment, in words."""
    pairs: Sequence[tuple[ProcessSummary, ProcessSummary]] = ()
    """A process of the candidate and one of the reference."""
    planned: int = 1
    """How many pairs the case gets at most, until they decide."""
    without: str = ""
    """Why the case is judged without the reference; empty where it is not."""
    ended: str = ""
    """Why there are no more pairs than these; empty where there may be."""
    shared: Sequence[str] = ()
    """Changes since the baseline that both sides share, such as the driver's."""
    decides_alone: bool = False
    """Whether nothing else is compared: the reference judges every metric."""


NO_PAIRING = Pairing("", planned=0)
"""No accepted environment was named."""


@dataclass(frozen=True)
class Evidence:
    """All evidence on one case when its suite is judged."""

    candidate: Sequence[ProcessSummary]
    baseline: Baseline | None
    limits: Limits = field(default_factory=Limits)
    rolling: Sequence[ProcessSummary] = ()
    """Processes of the nights that were fine by the baseline; see docs/baselines.md."""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Compared with the baseline's; an unknown value on either side is skipped."""
    planned: int = 1
    """How many candidate processes the case gets where it looks suspicious."""
    tried: int = 0
    """Processes in which the case was tried, those that the hardware disturbed among them."""
    family: str = ""
    """The name of the cases that vary alike from run to run and from device to device."""
    ranks: int = 1
    pairing: Pairing = NO_PAIRING
    tunings: int = 0
    """How often the compiler tuned for the candidate, if it did; 0 means once a process."""
    here: Collection[str] = ()
    """The devices of this host, as ``Origin`` names them; host names change, and are not unique."""

    @cached_property
    def references(self) -> dict[str, Sequence[ProcessSummary]]:
        """What to compare with, by its name; the nights only where they are enough."""
        if self.baseline is None:
            return {}
        nights = not_chosen_otherwise(self.rolling, self.candidate)
        accepted = self.baseline.processes
        draw = next(filter(None, map(known_choices, self.candidate)), None)
        if draw is not None and len(alike := chosen_alike(accepted, draw)) >= AGREEING:
            accepted = alike
        # A night counts once, however many processes it has; one of an unknown run is a night.
        runs = {process.run or n for n, process in enumerate(nights)}
        return {PINNED: accepted, **({ROLLING: nights} if len(runs) >= LEAST_NIGHTS else {})}

    @property
    def most_spread(self) -> float:
        """The spread of its iterations that a process may have."""
        own = self.limits.spread
        return own if self.baseline is None else min(own, self.baseline.limits.spread)

    @property
    def is_unjudged(self) -> bool:
        """Whether there is nothing to compare the case with."""
        return not self.has_baseline or bool(self.unlike)

    @property
    def has_baseline(self) -> bool:
        """Whether measured values were accepted."""
        stored = self.baseline
        return stored is not None and bool(stored.processes) and stored.provenance == "measured"

    @property
    def unlike(self) -> list[str]:
        """The conditions that are not the baseline's, in words."""
        return differing(self.conditions, self.baseline.conditions) if self.baseline else []

    def waits(self) -> bool:
        """Whether the device mostly waited for its host."""
        return mostly_waited(self.candidate)

    @cached_property
    def waits_as_before(self) -> bool:
        """Whether the device waited for its host here and in the baseline."""
        return self.waits() and mostly_waited(self.references[PINNED])

    def like(self, against: str) -> Sequence[ProcessSummary]:
        """Return the processes of a reference to compare by chance.

        A device's own processes are the best measure of it, where there are two or more.  A case
        that does not wait for its host is compared with those of them that did not either, unless
        most waited: then the device's own time tells more than the wall times of a few.
        """
        own = self._on_its_devices(against)
        alike = own if len(own) >= AGREEING else self.references[against]
        if mostly_waited(alike) or any(process.host_bound for process in self.candidate):
            return alike
        calm = [process for process in alike if not process.host_bound]
        return calm if len(calm) >= AGREEING else alike

    def is_new_to(self, against: str) -> bool:
        """Whether a reference's processes hardly know the device that measured."""
        known = [process for process in self.references[against] if process.origin.device]
        is_known_here = any(process.origin.device for process in self.candidate)
        return is_known_here and len(self._on_its_devices(against)) < min(AGREEING, len(known))

    def is_elsewhere(self, against: str) -> bool:
        """Whether a reference's processes hardly know the device, and some are of other hosts."""
        used = {p.origin.device for p in (*self.candidate, *self.references[against])} - {""}
        return self.is_new_to(against) and not used.issubset(self.here)

    def _on_its_devices(self, against: str) -> list[ProcessSummary]:
        """Return a reference's processes on the candidate's devices; none unless on all of them."""
        devices = {process.origin.device for process in self.candidate} - {""}
        own = [p for p in self.references[against] if p.origin.device in devices]
        return own if devices == {process.origin.device for process in own} else []

    def earlier(self) -> list[list[ProcessSummary]]:
        """Return the processes of earlier runs in the order of time: accepted ones, and nights."""
        pinned = self.baseline.processes if self.baseline is not None else []
        return [list(pinned), list(reversed(self.rolling))]


def family_of(case: Case, device: Hardware, processes: Iterable[ProcessSummary]) -> str:
    """Return the name of the cases that vary alike between devices and runs, few but large.

    Devices of a model differ by their clocks, memories and layout of units.  A replayed graph
    hardly feels it; a memory-bound operator does, and work at the power cap, which is measured in
    bursts, most.  All cases are one family unless it has been measured how far the vendor's devices
    differ.
    """
    if not backends.of(device).is_measured:
        return UNMEASURED
    if any(process.in_bursts for process in processes):
        return "large GEMMs" if case.params.get("op") == "gemm" else "power-bound"
    if case.workload == "operator":
        return "operators"
    return "graphs" if case.params.get("compile_mode") in IN_GRAPHS else "networks"


def known_choices(process: ProcessSummary) -> Choices | None:
    """Return the compiler's choices for a process; None if there are none, or not known."""
    return process.draw if process.draw is not None and process.draw.kernels else None


def chosen_alike(processes: Sequence[ProcessSummary], draw: Choices) -> list[ProcessSummary]:
    """Return the processes for which the compiler chose so."""
    return [p for p in processes if (own := known_choices(p)) and own.chooses_as(draw)]


def not_chosen_otherwise(
    processes: Sequence[ProcessSummary], like: Sequence[ProcessSummary]
) -> Sequence[ProcessSummary]:
    """Return the processes without those whose choices are known, and not those of ``like``."""
    if (draw := next(filter(None, map(known_choices, like)), None)) is None:
        return processes
    return [p for p in processes if (own := known_choices(p)) is None or own.chooses_as(draw)]


def mostly_waited(processes: Sequence[ProcessSummary]) -> bool:
    """Whether the device waited for its host in more than half of some processes."""
    return 2 * [p.host_bound for p in processes].count(True) > len(processes)


def differing(conditions: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Name the conditions that differ from a baseline's; unknown values are skipped."""
    return [
        f"{name} {conditions[name]}, not {stored[name]}"
        for name in sorted(conditions.keys() & stored.keys())
        if None not in (conditions[name], stored[name]) and conditions[name] != stored[name]
    ]
