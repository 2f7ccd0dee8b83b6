"""The part of the spread between processes that recorded probes explain, if any.

A probe is a cost that no case has a part in (a tiny kernel's, some plain Python's).  So if more of
it goes with more time, the process is slower and not the software.  Nothing is assumed of the
hardware: a probe counts where it predicts processes that it has not seen better than their mean
does, over the suite and beyond chance, and only in the cases where it does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHANCE = 0.02
"""Probes count, all together, where fewer shuffles than this of their values predict as well."""
SHUFFLES = 499
SEED = 1337
LEAST_GAIN = 0.25
"""Share of the squared error of prediction that it has to save in a case to be used there."""
LEAST_DEGREES = 4
"""Fewer leave nothing to tell a slope from chance."""
ALONE = 0.98
"""A process of more leverage than this carries the slope by itself: none predicts it."""
SHOWN = frozenset({"launch_us"})
"""Probes that software can raise by itself: kept for people to see, and never taken off."""
LEAST_SPREAD = 1e-4
"""A probe whose logarithms differ by less, in standard deviations, is constant."""

Probes = Mapping[str, Mapping[str, float]]
"""By process, then by probe, each in a unit of its own."""


@dataclass(frozen=True)
class ProcessGroup:
    """Processes of one case that only chance tells apart: log times, and their probes."""

    values: Mapping[str, float]
    probes: Probes
    """Each in its own unit."""


@dataclass(frozen=True)
class Slope:
    """How a case's log time goes with the logarithm of a probe."""

    probe: str
    slope: float
    gain: float
    """Share of the squared error of prediction that it saves, each process left out in turn."""
    squares: float
    """Squared deviations of the probe from its groups' means; the slope's certainty."""


def slopes(suite: Sequence[Sequence[ProcessGroup]]) -> list[Slope | None]:
    """Return the slope that explains each case's spread; None if nothing does."""
    names = sorted({name for groups in suite for name in _shared_probes(groups)} - SHOWN)
    best: list[Slope | None] = [None] * len(suite)
    gained = [LEAST_GAIN] * len(suite)
    for name in names:
        fits = [_Fit.of(groups, name) for groups in suite]
        if not _counts([fit for fit in fits if fit is not None], CHANCE / len(names)):
            continue
        for i, fit in enumerate(fits):
            if fit is not None and fit.gain > gained[i]:
                gained[i] = fit.gain
                best[i] = Slope(name, fit.slope, fit.gain, fit.squares)
    return best


def log_probe(group: ProcessGroup, name: str) -> dict[str, float]:
    """Return the logarithm of a probe by process."""
    return {process: math.log(group.probes[process][name]) for process in group.values}


def _shared_probes(groups: Sequence[ProcessGroup]) -> set[str]:
    """Return the probes that every process of a case has, above zero."""
    probed = [group.probes.get(process, {}) for group in groups for process in group.values]
    if not probed:
        return set()
    named = set.intersection(*(set(probes) for probes in probed))
    return {name for name in named if all(0 < p[name] < math.inf for p in probed)}


def _counts(fits: Sequence[_Fit], chance: float) -> bool:
    """Whether a probe saves more over the suite than its values in another order would.

    A process changes places in all its cases at once, so what its cases share is no evidence.
    """
    import numpy as np  # noqa: PLC0415 - most sessions judge nothing

    found = sum(fit.evidence for fit in fits)
    random = np.random.default_rng(SEED)
    keys = {process: random.random(SHUFFLES) for fit in fits for process in fit.processes}
    shuffled = np.zeros(SHUFFLES)
    for fit in fits:
        shuffled += fit.shuffled(keys)
    # Rounding makes an order that changes nothing seem a little better or worse.
    as_good = int((shuffled >= found * (1 - 1e-9)).sum())
    return (1 + as_good) / (1 + SHUFFLES) <= chance


@dataclass(frozen=True)
class _Fit:
    """A case's log times over a probe: one line, but a level of its own for each group."""

    processes: list[tuple[int, str]]
    """By group, so that a candidate and a baseline process of one name are two."""
    bounds: list[tuple[int, int]]
    """Start and end of each group."""
    y: NDArray[Any]
    """Deviations from the group's mean, as are those of the probe."""
    z: NDArray[Any]
    left_out: NDArray[Any]
    """Leverage of each process on its group's mean: 1/n."""

    @classmethod
    def of(cls, groups: Sequence[ProcessGroup], name: str) -> _Fit | None:
        """Fit a case, or None if it has too few processes or the probe does not vary."""
        import numpy as np  # noqa: PLC0415

        if name not in _shared_probes(groups):
            return None
        several = [(i, group) for i, group in enumerate(groups) if len(group.values) > 1]
        processes = [(i, process) for i, group in several for process in group.values]
        if len(processes) - len(several) < LEAST_DEGREES:
            return None
        y, z, bounds = [], [], []
        left_out: list[float] = []
        for _, group in several:
            values = np.array(list(group.values.values()))
            probes = np.array(list(log_probe(group, name).values()))
            bounds.append((len(left_out), len(left_out) + len(values)))
            y.append(values - values.mean())
            z.append(probes - probes.mean())
            left_out += [1 / len(values)] * len(values)
        fit = cls(processes, bounds, np.concatenate(y), np.concatenate(z), np.array(left_out))
        varies = fit.squares > LEAST_SPREAD**2 * len(processes)
        return fit if varies and fit.y.any() else None

    @property
    def squares(self) -> float:
        return float(self.z @ self.z)

    @property
    def slope(self) -> float:
        return float(self.z @ self.y) / self.squares

    @property
    def gain(self) -> float:
        return 1 - math.exp(-self.evidence)

    @property
    def evidence(self) -> float:
        return float(self._evidence(self.z[None, :])[0])

    def shuffled(self, keys: Mapping[tuple[int, str], NDArray[Any]]) -> NDArray[Any]:
        """Return the evidence of the probe's values in as many orders as there are keys."""
        import numpy as np  # noqa: PLC0415

        by_key = np.stack([keys[process] for process in self.processes], axis=1)
        parts = [self.z[a:b][np.argsort(by_key[:, a:b])] for a, b in self.bounds]
        return self._evidence(np.concatenate(parts, axis=1))

    def _evidence(self, z: NDArray[Any]) -> NDArray[Any]:
        """Return ln of by how much a line predicts better than means, for each row of ``z``.

        Each process is predicted from the others (after Allen's PRESS, 1974).  Never below
        zero: a line that does not help, or that goes down, would not be used.
        """
        import numpy as np  # noqa: PLC0415

        slope = np.maximum(0.0, z @ self.y / self.squares)
        without = float(((self.y / (1 - self.left_out)) ** 2).sum())
        leverage = self.left_out + z**2 / self.squares
        line = (self.y - slope[:, None] * z) / (1 - np.minimum(leverage, ALONE))
        rest = np.where(leverage > ALONE, self.y / (1 - self.left_out), line)
        within = np.maximum((rest**2).sum(axis=1), 1e-12 * without)
        found: NDArray[Any] = np.maximum(0.0, np.log(without / within))
        return found
