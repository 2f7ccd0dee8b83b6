"""Speed-ups with their confidence intervals, and the two laws fitted to them.

Amdahl (1967): a share s of fixed work cannot be divided, T(n) = T(1) (s + (1 - s) / n).
Gustafson (1988): the work grows with the workers, R(n) = R(1) (s + (1 - s) n).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAST_POINTS = 3
"""A law has two unknowns, and any further point shows how well it holds."""
CONFIDENCE = 0.95
LEAST_ERROR = 1e-9
"""Relative; keeps samples that are all equal from dividing by zero."""


# ---- speed-up -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """A ratio and its 95% interval, if the spread is known."""

    value: float
    interval: tuple[float, float] | None = None

    def over(self, n: float) -> Share:
        """Return the ratio divided by a number."""
        low_high = self.interval and (self.interval[0] / n, self.interval[1] / n)
        return Share(self.value / n, low_high)


def speed_up(logs: Sequence[float], alone: Sequence[float]) -> Share:
    """Return a throughput over one worker's, each given as logarithms, one per process.

    The interval is Welch's, of the logarithms; there is none where a side has one process.
    """
    log = statistics.fmean(logs) - statistics.fmean(alone)
    if min(len(logs), len(alone)) < 2:
        return Share(math.exp(log))
    squares = [statistics.variance(side) / len(side) for side in (logs, alone)]
    variance = sum(squares)
    parts = sum(s**2 / (len(side) - 1) for s, side in zip(squares, (logs, alone), strict=True))
    degrees = variance**2 / parts if parts > 0 else len(logs) + len(alone) - 2
    half = _t_quantile(degrees) * math.sqrt(variance)
    return Share(math.exp(log), (math.exp(log - half), math.exp(log + half)))


def _t_quantile(degrees: float) -> float:
    from scipy.special import stdtrit  # noqa: PLC0415 - slow, and most commands fit nothing

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))


# ---- the laws -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Law:
    """A law fitted to measured values."""

    name: str
    """``Amdahl`` or ``Gustafson``."""
    serial: float
    """The share of the work that is not divided, 0 to 1."""
    interval: tuple[float, float]
    """95%, by what the law leaves unexplained; within 0 to 1."""
    points: int
    remark: str = ""

    def speed_up(self, n: float) -> float:
        """Return the speed-up that the law gives ``n`` workers."""
        return _speed_up(self.name, self.serial, n)

    def speed_ups(self, n: float) -> tuple[float, float]:
        """Return the least and the most that the interval gives ``n`` workers."""
        low, high = self.interval
        return _speed_up(self.name, high, n), _speed_up(self.name, low, n)


AMDAHL, GUSTAFSON = "Amdahl", "Gustafson"


def _speed_up(law: str, serial: float, n: float) -> float:
    return 1 / (serial + (1 - serial) / n) if law == AMDAHL else serial + (1 - serial) * n


def fit(name: str, values: Mapping[int, float]) -> Law | str:
    """Fit a law to values by number of workers, or say why not.

    Amdahl's are times of the same work, Gustafson's throughputs of work that grows with the
    workers, in any one unit; all are above 0.

    value(n) = value(1) (s + (1 - s) grows(n)) is fitted by least squares of relative errors.
    Both unknowns are fitted, s between 0 and 1.  The interval holds every s whose sum of
    squares, with the value(1) that suits it best, is not above the least one by more than
    Student's t allows, with two degrees of freedom taken by the fit.
    """
    if len(values) < LEAST_POINTS:
        return f"{name}'s law needs at least {LEAST_POINTS} points; {len(values)} could be measured"
    points = [(1 / n if name == AMDAHL else n, value) for n, value in values.items()]
    free = _unbounded(points)
    serial = min(1.0, max(0.0, free))
    least = _squares(points, serial)
    degrees = len(points) - 2
    most = least * (1 + _t_quantile(degrees) ** 2 / degrees) + LEAST_ERROR**2
    low = _edge(points, serial, 0.0, most)
    high = _edge(points, serial, 1.0, most)
    return Law(name, serial, (low, high), len(points), _remark(free))


def _unbounded(points: Sequence[tuple[float, float]]) -> float:
    """Return the serial share of the best line, possible or not.

    Relative errors: the line a + b grows(n) over the value is compared with 1.
    """
    rows = [(1 / value, grown / value) for grown, value in points]
    xx, xy, yy = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = sum(r[0] for r in rows), sum(r[1] for r in rows)
    constant, slope = x * yy - y * xy, y * xx - x * xy  # up to a common factor
    together = constant + slope
    # A line that is 0 or less at one worker has no share; only a rising one is that steep.
    return constant / together if together > 0 else math.copysign(math.inf, -slope)


def _squares(points: Sequence[tuple[float, float]], serial: float) -> float:
    """Return the squared relative errors of a serial share with the value(1) that suits it best."""
    shapes = [(serial + (1 - serial) * grown) / value for grown, value in points]
    scale = sum(shapes) / sum(shape**2 for shape in shapes)
    return math.fsum((scale * shape - 1) ** 2 for shape in shapes)


def _edge(
    points: Sequence[tuple[float, float]], serial: float, outermost: float, most: float
) -> float:
    """Return how far towards ``outermost`` the share may be moved, by bisection."""
    if _squares(points, outermost) <= most:
        return outermost
    inside, outside = serial, outermost
    for _ in range(60):
        middle = (inside + outside) / 2
        if _squares(points, middle) <= most:
            inside = middle
        else:
            outside = middle
    return inside


def _remark(free: float) -> str:
    if free < -LEAST_ERROR:
        return "speed-up is above ideal, through caches or chance, so the fraction is set to 0"
    if free > 1 + LEAST_ERROR:
        return "more workers were slower than one, so the fraction is set to 1"
    return ""
