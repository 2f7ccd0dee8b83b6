"""The plots of a page: the history of each case, and one axis of the night's cases against another.

A history is small arrays of numbers that a browser draws when asked.  A comparison is a figure's
data and the same as a table, for readers who see no figure.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from bench_lib.environment.fingerprint import differences
from bench_lib.formats import quantity
from bench_lib.formulas import roofline
from bench_lib.model import COMPILE_MODES, PRECISIONS, Environment
from bench_lib.report.findings import OWN
from bench_lib.report.night import NightCase
from bench_lib.verdict import metrics

if TYPE_CHECKING:
    from bench_lib.storage.archive import Point

AnyKey = TypeVar("AnyKey", bound=Hashable)
DIGITS = 5
"""Digits of each figure in a plot: more than any eye sees."""
MOST_ROWS = 24
"""Most rows of a figure; the largest differences are shown and the rest is counted."""
MOST_LINES = 8
MOST_TABLE = 200
"""Rows of the roofline's table; the figure has all."""


def rounded(value: float) -> float:
    """Return a number of any unit with ``DIGITS`` digits."""
    return float(f"{value:.{DIGITS}g}")


# --- histories -----------------------------------------------------------------------------


class Series:
    """The histories of many cases, written small."""

    def __init__(self, environments: Mapping[str, Environment]) -> None:
        """Begin with nothing; ``environments`` is by reference what points were measured in."""
        self._environments = environments
        self._runs: dict[tuple[str, str], int] = {}
        self._walks: dict[tuple[int, ...], int] = {}
        self._words: dict[tuple[str, ...], int] = {}
        self._differences: dict[tuple[str, str], tuple[str, ...]] = {}

    def of(self, entry: NightCase) -> dict[str, Any]:
        """Return one entry's history; missing parts are left out.

        ``y`` is the first point in microseconds and ``d`` how far each is from it in
        ten-thousandths, ``w`` the run of each, ``s`` the nights that were not OK, ``e`` where the
        environment changed, ``m`` the change points, ``b`` the baseline, ``a`` the acceptances with
        their times, and the reason if known.
        """
        points = [point for point in entry.points if math.isfinite(point.log_median)]
        walk = tuple(_place(self._runs, (point.run_id, point.time)) for point in points)
        first = points[0].log_median if points else 0.0
        told = {
            "y": rounded(math.exp(first) * 1e6) if points else None,
            "d": [round(1e4 * math.expm1(point.log_median - first)) for point in points],
            "w": _place(self._walks, walk),
            "s": [
                [at, point.status.value]
                for at, point in enumerate(points)
                if point.status is not None and point.status.value != "OK"
            ],
            "e": self._changes(points),
            "m": [
                [moved.time, rounded(moved.step.ratio), *map(rounded, moved.step.interval)]
                for moved in entry.moved
            ],
            "b": band(entry),
            "a": _acceptances(entry),
        }
        return {name: value for name, value in told.items() if value or name == "w"}

    def _changes(self, points: Sequence[Point]) -> list[list[int]]:
        """Return where the environment changed, but for the project's own code, and how."""
        found = []
        for at, (before, after) in enumerate(itertools.pairwise(points), 1):
            if before.environment != after.environment and (words := self._said(before, after)):
                found.append([at, _place(self._words, words)])
        return found

    def _said(self, before: Point, after: Point) -> tuple[str, ...]:
        pair = before.environment, after.environment
        if pair not in self._differences:
            words = differences(self._environments, [pair])
            others = [word for word in words if not word.startswith(OWN)]
            self._differences[pair] = tuple(words) if others else ()
        return self._differences[pair]

    def shared(self) -> dict[str, Any]:
        """Return the parts that histories refer to; call it when all of them are written."""
        return {
            "runs": list(self._runs),
            "walks": list(self._walks),
            "words": list(self._words),
        }


def _acceptances(entry: NightCase) -> list[list[str]]:
    """Return when values of a case were accepted, the newest first, and why if that is known."""
    now = entry.baseline.accepted if entry.baseline else None
    dates = {now.date: now.reason} if now and now.date else {}
    dates |= {one.date: one.reason for one in (entry.baseline.earlier if entry.baseline else ())}
    dates |= {date: "" for date in entry.acceptances if date not in dates}
    return [[date, dates[date]] for date in sorted(dates, reverse=True)]


def _place(places: dict[AnyKey, int], thing: AnyKey) -> int:
    """Return the place of a thing in the order in which things were first asked for."""
    return places.setdefault(thing, len(places))


def band(entry: NightCase) -> list[float] | None:
    """Return the baseline's lower bound, middle and upper bound in microseconds.

    The bounds are what the verdict on the latency tolerated, else what the case does.
    """
    if entry.baseline is None or not entry.baseline.processes:
        return None
    middle = statistics.fmean(process.log_median for process in entry.baseline.processes)
    verdicts = (
        v for v in entry.record.verdicts if metrics.of(v.metric) is metrics.LEADING and v.tolerance
    )
    told = next((v.tolerance for v in verdicts if v.against == "pinned"), None)
    bound = 1 + max(0.0, told or entry.record.case.limits.tolerance)
    middle_us = math.exp(middle) * 1e6
    return [rounded(middle_us / bound), rounded(middle_us), rounded(middle_us * bound)]


# --- comparisons ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Chart:
    """One figure: its subject, its marks, and the same as a table."""

    kind: str
    """``dots`` (rows with a mark for each series), ``lines`` or ``roofline``."""
    title: str
    note: str
    group: str
    """The figure's key among several of one title: a hardware key; empty if there is one."""
    figure: dict[str, Any]
    headings: list[str]
    rows: list[list[str]]
    left_out: int = 0
    """Rows that are in neither."""


@dataclass(frozen=True)
class _Shown:
    """An entry that was measured, and its axes."""

    entry: NightCase
    rate: float
    axes: dict[str, Any] = field(default_factory=dict)

    def but(self, *axes: str) -> tuple[Hashable, ...]:
        """Return everything but some axes: entries with equal rests are compared."""
        return tuple((name, value) for name, value in self.axes.items() if name not in axes)

    def label(self, *axes: str) -> str:
        """Name it without some axes."""
        words = [str(self.axes.get("network") or self.axes["workload"])]
        if "batch_size" in self.axes and "batch_size" not in axes:
            words.append(f"b{self.axes['batch_size']}")
        for name, value in self.axes.items():
            if name not in {*axes, *_SAID} and (name, value) not in _USUAL:
                words.append(value if isinstance(value, str) else f"{name} {value}")
        return " ".join(words)


def comparisons(entries: Iterable[NightCase]) -> list[Chart]:
    """Return what can be compared in a night, in the order of a reader's questions."""
    shown = [one for one in map(_shown, entries) if one is not None]
    keys = list(dict.fromkeys(one.axes["hardware"] for one in shown))
    found: list[Chart] = []
    for make in (_precisions, _modes, _batches, _scaling, _roofline):
        for key in keys:
            here = [one for one in shown if one.axes["hardware"] == key]
            made = make(here, key if len(keys) > 1 else "")
            found += [made] if made else []
    across = _hardware(shown)
    return [*found, across] if across else found


def _shown(entry: NightCase) -> _Shown | None:
    case, figures = entry.record.case, entry.figures
    if figures is None or not (0 < figures.rate < math.inf and 0 < figures.median_s < math.inf):
        return None
    axes: dict[str, Any] = {
        "workload": case.workload,
        **case.params,
        "ranks": case.launch.ranks,
        "strong": case.launch.strong,
        "cold": case.launch.cold,
        "artifacts": case.launch.artifacts,
        "threads": case.launch.threads,
        "hardware": entry.hardware.key,
    }
    return _Shown(entry, figures.rate, axes)


_SAID = {"workload", "network", "batch_size", "hardware"}
_USUAL = {
    ("memory_format", "nchw"),
    ("compile_mode", "eager"),
    ("task", "infer"),
    ("ranks", 1),
    ("strong", False),
    ("cold", False),
    ("artifacts", False),
    ("threads", 0),
}


def _families(shown: Iterable[_Shown], *axes: str) -> list[list[_Shown]]:
    """Return the groups of cases that differ in these axes and in nothing else."""
    families: dict[tuple[Hashable, ...], list[_Shown]] = {}
    for one in shown:
        if axes[0] in one.axes:
            families.setdefault(one.but(*axes), []).append(one)
    return [
        members
        for members in families.values()
        if len({tuple(one.axes.get(axis) for axis in axes) for one in members}) > 1
    ]


def _precisions(shown: Sequence[_Shown], group: str) -> Chart | None:
    bases = ("fp32", "tf32-conv", "tf32")
    rows = _speed_ups(shown, "precision", bases)
    note = "Throughput as a multiple of FP32's, or of TF32's; further right is faster."
    return _dots(rows, "Precision", group, note, PRECISIONS)


def _modes(shown: Sequence[_Shown], group: str) -> Chart | None:
    rows = _speed_ups(shown, "compile_mode", ("eager",))
    note = "Throughput as a multiple of the eager step's; further right is faster."
    return _dots(rows, "Compile mode", group, note, COMPILE_MODES)


_Rows = list[tuple[str, dict[str, float]]]


def _speed_ups(shown: Sequence[_Shown], axis: str, bases: Sequence[str]) -> _Rows:
    """Hold the rates of an axis's values against that of a base, family by family."""
    rows = []
    for members in _families(shown, axis):
        by_value = {str(one.axes[axis]): one for one in members}
        base = next((value for value in bases if value in by_value), None)
        if base is None:
            continue
        against = by_value[base].rate
        ratios = {v: one.rate / against for v, one in by_value.items() if v != base}
        rows.append(
            (members[0].label(axis) + (f", over {base}" if base != bases[0] else ""), ratios)
        )
    return rows


def _ordered(order: Sequence[str]) -> Callable[[str], tuple[int, str]]:
    return lambda value: (order.index(value) if value in order else len(order), value)


def _hardware(shown: Sequence[_Shown]) -> Chart | None:
    """Hold every kind of hardware against the one that shares most cases with others."""
    members = [one for family in _families(shown, "hardware") for one in family]
    counts = Counter(str(one.axes["hardware"]) for one in members)
    if not counts:
        return None
    base = max(counts, key=lambda key: (counts[key], key))
    note = f"Throughput as a multiple of that on {base}; further right is faster."
    rows = _speed_ups(shown, "hardware", (base,))
    return _dots(rows, "Hardware against hardware", "", note, sorted(counts))


def _dots(rows: _Rows, title: str, group: str, note: str, order: Sequence[str]) -> Chart | None:
    if not rows:
        return None
    ranked = sorted(rows, key=lambda row: -max(map(abs, map(math.log, row[1].values()))))
    kept = sorted(ranked[:MOST_ROWS], key=lambda row: max(row[1].values()))
    values = sorted({value for _, ratios in kept for value in ratios}, key=_ordered(order))
    figure = {
        "rows": [label for label, _ in kept],
        "x": "times as fast",
        "series": [
            {
                "name": value,
                "at": [i for i, (_, ratios) in enumerate(kept) if value in ratios],
                "x": [rounded(ratios[value]) for _, ratios in kept if value in ratios],
            }
            for value in values
        ],
    }
    table = [
        [label, *(f"{ratios[v]:.3g}" if v in ratios else "" for v in values)]
        for label, ratios in reversed(kept)
    ]
    left_out = len(rows) - len(kept)
    return Chart("dots", title, note, group, figure, ["case", *values], table, left_out)


def _batches(shown: Sequence[_Shown], group: str) -> Chart | None:
    sized = [one for one in shown if _is_size(one.axes.get("batch_size"))]
    families = _families([one for one in sized if not one.axes["strong"]], "batch_size")
    lines = {
        members[0].label("batch_size"): [(one.axes["batch_size"], one.rate) for one in members]
        for members in families
    }
    note = "Throughput by batch size; where it no longer rises the device is full."
    return _lines(lines, group, "Batch sweep", note, ("batch size", "items a second"))


def _is_size(value: object) -> bool:
    """Whether a parameter of whatever case is a number that a batch may have."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _scaling(shown: Sequence[_Shown], group: str) -> Chart | None:
    lines = {}
    for members in _families(shown, "ranks", "strong"):
        for strong in (False, True):
            kind = [o for o in members if o.axes["ranks"] == 1 or o.axes["strong"] is strong]
            ordered = sorted(kind, key=lambda one: one.axes["ranks"])
            if len({one.axes["ranks"] for one in ordered}) < 2:
                continue
            each = ordered[0].rate / ordered[0].axes["ranks"]
            name = ordered[0].label("ranks", "strong") + (", strong" if strong else "")
            lines[name] = [(one.axes["ranks"], one.rate / each) for one in ordered]
    note = "Throughput as a multiple of one rank's; the dotted line is as many times as ranks."
    return _lines(lines, group, "Scaling", note, ("ranks", "speed-up"), ideal=True)


def _lines(
    lines: dict[str, list[tuple[float, float]]],
    group: str,
    title: str,
    note: str,
    axes: tuple[str, str],
    *,
    ideal: bool = False,
) -> Chart | None:
    if not lines:
        return None
    longest = sorted(lines.items(), key=lambda line: -len(line[1]))
    kept = {name: sorted(points) for name, points in longest[:MOST_LINES]}
    figure = {
        "x": axes[0],
        "y": axes[1],
        "ideal": ideal,
        "series": [
            {"name": name, "x": [x for x, _ in points], "y": [rounded(y) for _, y in points]}
            for name, points in kept.items()
        ],
    }
    steps = sorted({x for points in kept.values() for x, _ in points})
    form = (lambda value: f"{value:.3g}") if ideal else quantity
    table = [
        [name, *(form(dict(points)[x]) if x in dict(points) else "" for x in steps)]
        for name, points in kept.items()
    ]
    headings = ["case", *(f"{axes[0]} {step:g}" for step in steps)]
    left_out = len(lines) - len(kept)
    return Chart("lines", title, note, group, figure, headings, table, left_out)


def placed(entry: NightCase) -> roofline.Roofline | None:
    """Place a case under the ceilings of its hardware; None if nothing was measured."""
    if not entry.accepted:
        return None
    params = entry.record.case.params
    precision, mode = (str(params.get(axis, "")) for axis in ("precision", "compile_mode"))
    return roofline.place(entry.accepted[-1], entry.hardware, precision, mode)


def _roofline(shown: Sequence[_Shown], group: str) -> Chart | None:
    """Place a measurement under its hardware's ceilings."""
    places = []
    for one in shown:
        at = placed(one.entry)
        if at and at.flops_per_s and at.intensity and at.peak_bytes_per_s:
            places.append((one, at))
    if not places:
        return None
    peaks = {at.precision: at.peak_flops_per_s for _, at in places if at.peak_flops_per_s}
    by_precision: dict[str, list[tuple[_Shown, roofline.Roofline]]] = {}
    for one, at in places:
        by_precision.setdefault(at.precision, []).append((one, at))
    precisions = sorted(by_precision, key=_ordered(PRECISIONS))
    figure = {
        "bandwidth": places[0][1].peak_bytes_per_s,
        "peaks": [[name, peaks[name]] for name in precisions if name in peaks],
        "series": [
            {
                "name": name,
                "x": [rounded(at.intensity or 0) for _, at in by_precision[name]],
                "y": [rounded(at.flops_per_s or 0) for _, at in by_precision[name]],
                "text": [one.entry.record.case.id for one, _ in by_precision[name]],
                "share": [_share_in_words(at) for _, at in by_precision[name]],
                "failing": [
                    place for place, (one, _) in enumerate(by_precision[name]) if one.entry.failing
                ],
            }
            for name in precisions
        ],
    }
    table = [
        [
            one.entry.record.case.id,
            f"{at.intensity:.4g}",
            f"{(at.flops_per_s or 0) / 1e12:.4g} TFLOP/s",
            f"{at.flops_share:.0%}" if at.flops_share else "",
            at.sentence,
        ]
        for one, at in sorted(places, key=lambda place: -(place[1].flops_share or 0))
    ]
    note = "Each case by the work it does for each byte that its eager operations move; "
    note += "lines are the peaks of the memory and of each precision."
    headings = ["case", "FLOP/byte", "reached", "of the peak", "bound"]
    rows = table[:MOST_TABLE]
    return Chart(
        "roofline", "Roofline", note, group, figure, headings, rows, len(table) - len(rows)
    )


def _share_in_words(at: roofline.Roofline) -> str:
    reached = at.reached
    if reached is None:
        return at.bound or ""
    least = " or more" if reached.at_least else ""
    return f"{reached.share:.0%}{least} of its peak in {reached.of}"
