"""The figures of a page: each case's history as SVG, and tables of one axis against another.

Colours are the page's, by class.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from bench_lib.environment.fingerprint import differences
from bench_lib.formats import many, quantity, seconds, signed_percent
from bench_lib.formulas import roofline
from bench_lib.model import COMPILE_MODES, PRECISIONS, Environment, Status
from bench_lib.report.findings import OWN
from bench_lib.report.night import NightCase
from bench_lib.verdict import metrics
from bench_lib.verdict.nights import when
from bench_lib.verdict.severity import FAILING

if TYPE_CHECKING:
    from bench_lib.storage.archive import Point

MOST_ROWS = 24
"""Most rows of a comparison; the rest is counted."""
MOST_SPARKS = 45
"""Last points of the small line in the table."""
LEFT, RIGHT, TOP, BOTTOM = 76, 690, 20, 196
"""Pixels of a history's box, in a picture of 720 by 220; a narrow screen scrolls."""

# --- histories -----------------------------------------------------------------------------


class _Drawing:
    """A picture of things at places between 0 and 1, from the lower left corner of a box."""

    def __init__(self) -> None:
        self.parts: list[Markup] = []

    def put(self, element: str, *words: object) -> None:
        """Add an element; whatever is put into it is escaped."""
        self.parts.append(Markup(element).format(*words))  # noqa: S704 - the element is ours

    def path(self, kind: str, places: Iterable[tuple[float, float]]) -> None:
        """Draw a line through some places."""
        steps = "L".join("{:.1f} {:.1f}".format(*_pixels(*place)) for place in places)
        self.put('<path class="{}" d="M{}"/>', kind, steps)

    def dot(self, kind: str, place: tuple[float, float], words: str) -> None:
        """Draw a point that says something under the pointer."""
        dot = '<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="4"><title>{}</title></circle>'
        self.put(dot, kind, *_pixels(*place), words)

    def text(self, kind: str, place: tuple[float, float], words: str, dx: int, dy: int) -> None:
        """Write at a place, so many pixels to the right and below."""
        across, down = _pixels(*place)
        text = '<text class="tick {}" x="{:.1f}" y="{:.1f}">{}</text>'
        self.put(text, kind, across + dx, down + dy, words)


def _pixels(x: float, y: float) -> tuple[float, float]:
    return LEFT + x * (RIGHT - LEFT), BOTTOM - y * (BOTTOM - TOP)


def _steps(low: float, high: float, most: int) -> list[float]:
    """Return round values between two, ``most`` or a few less."""
    rough = (high - low) / most
    ten = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * ten for factor in (1, 2, 5, 10) if factor * ten >= rough)
    return [at * step for at in range(math.ceil(low / step), math.floor(high / step) + 1)]


@dataclass(frozen=True)
class DrawnHistory:
    """A case's nights, drawn."""

    picture: Markup
    legend: list[tuple[str, str]]
    """A class and what it stands for."""


class Histories:
    """Draws the histories of a night's cases."""

    def __init__(self, environments: Mapping[str, Environment]) -> None:
        """``environments`` has by reference what points were measured in."""
        self._environments = environments
        self._words: dict[tuple[str, str], list[str]] = {}

    def of(self, entry: NightCase) -> DrawnHistory | None:
        """Draw an entry's history; None if that is no more than tonight."""
        points = [point for point in entry.points if math.isfinite(point.log_median)]
        if len(points) < 2:
            return None
        times = [when(point.time).timestamp() for point in points]
        values = [math.exp(point.log_median) for point in points]
        bounds = band(entry)
        low, high = min([*values, *bounds]), max([*values, *bounds])
        room = 0.14 * ((high - low) or high)
        low, high = low - room, high + room
        span = (times[-1] - times[0]) or 86400.0

        def at(time: float, value: float) -> tuple[float, float]:
            return (time - times[0]) / span, (value - low) / (high - low)

        drawing = _Drawing()
        for value in _steps(low, high, 6):
            level = at(0, value)[1]
            drawing.path("grid", [(0, level), (1, level)])
            drawing.text("end", (0, level), seconds(value), -7, 4)
        for part in range(5):
            drawing.text("middle", (part / 4, 0), _day(times[0] + span * part / 4), 0, 17)
        if bounds:
            base, middle, top = (at(0, bound)[1] for bound in bounds)
            drawing.path("band", [(0, base), (0, top), (1, top), (1, base)])
            drawing.path("middle-of-band", [(0, middle), (1, middle)])
        accepted = acceptances(entry)
        rules = [(date, "accepted", "accepted") for date in accepted]
        for moved in entry.moved:
            kind = "bad" if moved.change.ratio > 1 else "good"
            rules.append((moved.time, kind, signed_percent(moved.change.ratio - 1)))
        for date, kind, words in rules:
            if times[0] <= (stamp := when(date).timestamp()) <= times[-1]:
                place = at(stamp, 0)[0]
                drawing.path(f"rule {kind}", [(place, 0), (place, 1)])
                drawing.text(f"middle {kind}", (place, 1), words, 0, -6)
        changed = self._changes(points)
        _draw_points(drawing, points, [at(*each) for each in zip(times, values, strict=True)])
        for number, changes in changed:
            drawing.dot("changed", at(times[number], low), "\n".join(changes))
        label = f"History of {entry.record.case.id}, {many(len(points), 'run')}"
        head = Markup('<svg viewBox="0 0 720 220" role="img" aria-label="{}">').format(label)
        picture = Markup().join([head, *drawing.parts, Markup("</svg>")])
        return DrawnHistory(picture, _keys(entry, points, changed, accepted))

    def _changes(self, points: Sequence[Point]) -> list[tuple[int, list[str]]]:
        """Return where the environment changed, but for the project's own code, and how."""
        found = []
        for number, (before, after) in enumerate(itertools.pairwise(points), 1):
            pair = before.environment, after.environment
            if pair[0] != pair[1] and pair not in self._words:
                words = differences(self._environments, [pair])
                is_own = all(word.startswith(OWN) for word in words)
                self._words[pair] = [] if is_own else words
            if words := self._words.get(pair, []):
                found.append((number, words))
        return found


def _draw_points(
    drawing: _Drawing, points: Sequence[Point], places: Sequence[tuple[float, float]]
) -> None:
    """Draw a line through the nights; those that were not OK, and the last, say what they are."""
    drawing.path("line run", places)
    for point, place in zip(points, places, strict=True):
        is_plain = point.status in (None, Status.OK)
        if not is_plain or point is points[-1]:
            kind = "run" if is_plain else "bad" if point.status in FAILING else "odd"
            drawing.dot(kind, place, _on_point(point))


def _day(stamp: float) -> str:
    day = dt.datetime.fromtimestamp(stamp, dt.timezone.utc)
    return f"{day.day} {day:%b}"


def _on_point(point: Point) -> str:
    status = f", {point.status.value.lower()}" if point.status else ""
    time = point.time[:16].replace("T", " ")
    return f"{seconds(math.exp(point.log_median))}{status}\n{time}\nrun {point.run_id}"


def _keys(
    entry: NightCase,
    points: Sequence[Point],
    changed: Sequence[object],
    accepted: Mapping[str, str],
) -> list[tuple[str, str]]:
    """Return the legend of what a history shows."""
    statuses = [point.status for point in points if point.status not in (None, Status.OK)]
    bad, odd = (
        ", ".join(
            dict.fromkeys(s.value.lower() for s in statuses if s and (s in FAILING) is is_bad)
        )
        for is_bad in (True, False)
    )
    why = next((f" {date[:10]}: {why}" for date, why in accepted.items() if why), "")
    keys = [
        ("run", "run"),
        ("bad", bad),
        ("odd", odd),
        ("band", "baseline, and what is tolerated" if band(entry) else ""),
        ("accepted", f"accepted{why}" if accepted else ""),
        ("changed", "environment changed" if changed else ""),
        ("moved", "change point" if entry.moved else ""),
    ]
    return [(kind, words) for kind, words in keys if words]


def acceptances(entry: NightCase) -> dict[str, str]:
    """Return when values of a case were accepted, the newest first, and why."""
    now = entry.baseline.accepted if entry.baseline else None
    dates = {now.date: now.reason} if now and now.date else {}
    dates |= {one.date: one.reason for one in (entry.baseline.earlier if entry.baseline else ())}
    return dict(sorted(dates.items(), reverse=True))


def band(entry: NightCase) -> list[float]:
    """Return the baseline's lower bound, middle and upper bound in seconds; empty without one.

    The bounds are what the verdict on the latency tolerated, else what the case does.
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


def spark(entry: NightCase) -> Markup:
    """Draw a case's last nights as a small line."""
    logs = [p.log_median for p in entry.points[-MOST_SPARKS:] if math.isfinite(p.log_median)]
    if len(logs) < 2:
        return Markup()
    low, span = min(logs), (max(logs) - min(logs)) or 1.0
    steps = [
        f"{108 * n / (len(logs) - 1):.0f} {20 - 18 * (log - low) / span:.0f}"
        for n, log in enumerate(logs)
    ]
    across, down = steps[-1].split(" ")
    kind = "bad" if entry.status in FAILING else "run"
    line = Markup('<svg viewBox="0 0 112 22" aria-hidden="true"><path d="M{}"/>')
    dot = Markup('<circle class="{}" cx="{}" cy="{}" r="2.2"/></svg>')
    return line.format("L".join(steps)) + dot.format(kind, across, down)


# --- comparisons ---------------------------------------------------------------------------

AXES = {
    "precision": "Precision",
    "compile_mode": "Compile mode",
    "batch_size": "Batch size",
    "ranks": "Ranks",
    "hardware": "Hardware",
}
_USUAL = {"memory_format": "nchw", "compile_mode": "eager", "task": "infer", "ranks": "1"}
"""What a name leaves out."""


@dataclass(frozen=True)
class AxisTable:
    """Items a second of cases that differ in one axis and in nothing else."""

    title: str
    headings: list[str]
    rows: list[tuple[str, list[tuple[str, int]]]]
    """Each family's name, and its cells with their part of the row's largest in percent."""
    left_out: int
    """Families without a row."""


def comparisons(entries: Iterable[NightCase]) -> list[AxisTable]:
    """Return a table for each axis in which some of a night's cases differ alone."""
    shown = [
        (_axes(entry), entry.figures.rate)
        for entry in entries
        if entry.figures is not None and 0 < entry.figures.rate < math.inf
    ]
    several = len({axes["hardware"] for axes, _ in shown}) > 1
    found = []
    for axis, title in AXES.items():
        families: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
        for axes, rate in shown:
            if axis in axes:
                rest = tuple((name, value) for name, value in axes.items() if name != axis)
                families.setdefault(rest, {})[axes[axis]] = rate
        rows = [
            (_name(dict(rest), several=several), f) for rest, f in families.items() if len(f) > 1
        ]
        if rows:
            found.append(_table(title, rows))
    return found


def _axes(entry: NightCase) -> dict[str, str]:
    case = entry.record.case
    launch = {name: value for name, value in asdict(case.launch).items() if value}
    axes = {"workload": case.workload, **case.params, **launch, "hardware": entry.hardware.key}
    return {name: str(value) for name, value in axes.items()}


def _name(axes: dict[str, str], *, several: bool) -> str:
    """Name cases by what they have in common, without what most have."""
    words = [axes.get("network") or axes["workload"]]
    hardware = axes.get("hardware", "") if several else ""
    for name, value in axes.items():
        if name == "batch_size":
            words.append(f"b{value}")
        elif name not in ("workload", "network", "hardware") and _USUAL.get(name) != value:
            words.append(value if name in AXES or name in _USUAL else f"{name} {value}")
    return " ".join([*words, hardware]).strip()


def _table(title: str, rows: Sequence[tuple[str, dict[str, float]]]) -> AxisTable:
    order = [*PRECISIONS, *COMPILE_MODES]
    columns = sorted(
        {column for _, cells in rows for column in cells},
        key=lambda one: (order.index(one) if one in order else len(order), len(one), one),
    )
    table = [
        (
            name,
            [
                (quantity(cells[one]), round(100 * cells[one] / max(cells.values())))
                if one in cells
                else ("", 0)
                for one in columns
            ],
        )
        for name, cells in rows[:MOST_ROWS]
    ]
    return AxisTable(title, ["case", *columns], table, len(rows) - len(table))


def placed(entry: NightCase) -> roofline.Roofline | None:
    """Place a case under the ceilings of its hardware; None if nothing was measured."""
    if not entry.accepted:
        return None
    params = entry.record.case.params
    precision, mode = (str(params.get(axis, "")) for axis in ("precision", "compile_mode"))
    return roofline.place(entry.accepted[-1], entry.hardware, precision, mode)
