"""A case's history as SVG; the page's style sheet colours it."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from markupsafe import Markup

from bench_lib.formats import many, seconds, signed_percent
from bench_lib.model import Status
from bench_lib.report.night import NightCase
from bench_lib.verdict import metrics
from bench_lib.verdict.nights import when
from bench_lib.verdict.severity import FAILING, rank

if TYPE_CHECKING:
    from bench_lib.storage.archive import Point

LEFT, RIGHT, TOP, BOTTOM = 76, 690, 20, 196
"""The plot area in pixels, within a picture of 720 by 220; a narrow screen scrolls."""
DAY_S = 86400.0
LEGEND = (
    ("run", "latest run"),
    ("bad", "failed"),
    ("odd", "judged, but neither failed nor OK"),
    ("band", "baseline and its tolerance"),
    ("moved", "change point"),
)
"""CSS classes and their meanings."""


class _Drawing:
    """An SVG with coordinates from 0 to 1; the origin is the lower left corner of the plot."""

    def __init__(self) -> None:
        self.parts: list[Markup] = []

    def put(self, element: str, *arguments: object) -> None:
        """Add an element; its arguments are escaped."""
        self.parts.append(Markup(element).format(*arguments))  # noqa: S704 - the element is ours

    def path(self, kind: str, *lines: Sequence[tuple[float, float]], tooltip: str = "") -> None:
        """Draw lines through places; one place alone is a dot."""
        strokes = ""
        for line in lines:
            first, *others = pixels = [_pixels(*place) for place in line]
            steps = [(x - x0, y - y0) for (x0, y0), (x, y) in zip(pixels, others, strict=False)]
            strokes += "M{} {}".format(*first)
            strokes += f"l{' '.join('{} {}'.format(*step) for step in steps)}" if steps else "h0"
        title = Markup("<title>{}</title>").format(tooltip) if tooltip else ""
        # Steps in whole pixels are a third as long as coordinates.
        self.put('<path class="{}" d="{}">{}</path>', kind, strokes.replace(" -", "-"), title)

    def text(self, kind: str, place: tuple[float, float], label: str, dx: int, dy: int) -> None:
        """Write text at a place, shifted by ``dx`` and ``dy`` pixels."""
        x, y = _pixels(*place)
        self.put('<text class="{}" x="{}" y="{}">{}</text>', kind, x + dx, y + dy, label)


def _pixels(x: float, y: float) -> tuple[int, int]:
    return round(LEFT + x * (RIGHT - LEFT)), round(BOTTOM - y * (BOTTOM - TOP))


def _steps(low: float, high: float, most: int) -> list[float]:
    """Return round values between two bounds, about ``most`` of them."""
    rough = (high - low) / most
    ten = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * ten for factor in (1, 2, 5, 10) if factor * ten >= rough)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def history(entry: NightCase) -> Markup | None:
    """Draw an entry's history; None if it has fewer than two points."""
    finite = [point for point in entry.points if math.isfinite(point.log_median)]
    if len(finite) < 2:
        return None
    points = [*_by_day(finite[:-1]), finite[-1]]
    times = [when(point.time).timestamp() for point in points]
    values = [math.exp(point.log_median) for point in points]
    bounds = band(entry)
    low, high = min([*values, *bounds]), max([*values, *bounds])
    room = 0.14 * ((high - low) or high)
    low, high = low - room, high + room
    span = (times[-1] - times[0]) or DAY_S

    def at(time: float, value: float) -> tuple[float, float]:
        return (time - times[0]) / span, (value - low) / (high - low)

    drawing = _Drawing()
    levels = {value: at(0, value)[1] for value in _steps(low, high, 6)}
    drawing.path("grid", *([(0, level), (1, level)] for level in levels.values()))
    for value, level in levels.items():
        drawing.text("end", (0, level), seconds(value), -7, 4)
    for days in sorted({int(span * part / 4 / DAY_S) for part in range(5)}):
        day = when(points[0].time) + dt.timedelta(days)
        drawing.text("", (days * DAY_S / span, 0), f"{day.day} {day:%b}", 0, 17)
    if bounds:
        base, middle, top = (at(0, bound)[1] for bound in bounds)
        drawing.path("band", [(0, base), (0, top), (1, top), (1, base)])
        drawing.path("middle-of-band", [(0, middle), (1, middle)])
    for moved in entry.moved:
        kind = "bad" if moved.change.ratio > 1 else "good"
        place = at(when(moved.time).timestamp(), 0)[0]
        drawing.path(f"rule {kind}", [(place, 0), (place, 1)])
        drawing.text(kind, (place, 1), signed_percent(moved.change.ratio - 1), 0, -6)
    places = [at(*pair) for pair in zip(times, values, strict=True)]
    drawing.path("line", places)
    kinds = [_kind(point) for point in points]
    for kind in ("odd", "bad"):
        if kind in kinds[:-1]:
            dots = [[p] for p, other in zip(places[:-1], kinds, strict=False) if other == kind]
            drawing.path(f"dot {kind}", *dots)
    drawing.path(f"dot {kinds[-1]}", places[-1:], tooltip=_tooltip(points[-1]))
    label = f"History of {entry.record.case.id}, {many(len(finite), 'run')}"
    head = Markup('<svg viewBox="0 0 720 220" role="img" aria-label="{}">').format(label)
    return Markup().join([head, *drawing.parts, Markup("</svg>")])


def _by_day(points: Iterable[Point]) -> Iterator[Point]:
    """Yield each day's median point, with the worst status of the day."""
    for _, runs in itertools.groupby(points, lambda point: point.time[:10]):
        day = sorted(runs, key=lambda point: point.log_median)
        status = min((point.status for point in day), key=rank)
        yield replace(day[(len(day) - 1) // 2], status=status)


def _kind(point: Point) -> str:
    if point.status in (None, Status.OK, Status.NO_BASELINE):
        return "run"
    return "bad" if point.status in FAILING else "odd"


def _tooltip(point: Point) -> str:
    status = f", {point.status.value.lower()}" if point.status else ""
    time = point.time[:16].replace("T", " ")
    return f"{seconds(math.exp(point.log_median))}{status}\n{time}\nrun {point.run_id}"


def band(entry: NightCase) -> list[float]:
    """Return the baseline's lower bound, mean and upper bound in seconds; empty without one.

    The bounds are the tolerance of the verdict on the latency, else that of the case.
    """
    if entry.baseline is None or not entry.baseline.processes:
        return []
    middle = statistics.fmean(process.log_median for process in entry.baseline.processes)
    verdicts = (
        v for v in entry.record.verdicts if metrics.of(v.metric) is metrics.LEADING and v.tolerance
    )
    tolerated = next((v.tolerance for v in verdicts if v.against == "pinned"), None)
    bound = 1 + max(0.0, tolerated or entry.record.case.limits.tolerance)
    return [math.exp(middle) / bound, math.exp(middle), math.exp(middle) * bound]
