"""Speed-up curves as a picture: points with their intervals, the fitted law, the ideal line."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench_lib import files
from bench_lib.model import UserError
from bench_lib.studies.scaling import STRONG, Curve, in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by colour-blind readers too (Okabe and Ito, 2008)."""
MARKS = "osD^vP"
INK, FAINT = "#333333", "#8a8a8a"
BESIDE = 0.04
"""Distance of points of one number of workers, in powers of two."""


def draw(curves: Sequence[Curve], path: Path, title: str) -> None:
    """Draw curves into a PNG file, strong and weak scaling beside each other.

    Raises UserError where it cannot be written, and ValueError where there is no curve.
    """
    # Without pyplot: it keeps figures, and looks for a screen.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - 0.5 s
    from matplotlib.figure import Figure  # noqa: PLC0415

    kinds = list(dict.fromkeys(curve.fitted.scaling for curve in curves))
    if not kinds:
        raise ValueError("no curve to draw")
    size = 6.4 * len(kinds), 6.4 + 0.2 * len(curves) / len(kinds)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, color=INK, fontsize=12)
    panels = figure.subplots(2, len(kinds), squeeze=False, sharex="col", height_ratios=(5, 3))
    names = list(dict.fromkeys(map(_name, curves)))  # of one colour in both kinds
    for column, kind in enumerate(kinds):
        own = {names.index(_name(c)): c for c in curves if c.fitted.scaling == kind}
        _speed_ups(panels[0][column], own)
        _efficiencies(panels[1][column], own)
        panels[1][column].legend(
            *panels[0][column].get_legend_handles_labels(),
            frameon=False,
            fontsize=8,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.25),
        )
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", facecolor="white")
    try:
        files.replace(path, drawn.getvalue())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def _name(curve: Curve) -> str:
    return curve.fitted.curve.removesuffix(f" {curve.fitted.scaling}")


def _speed_ups(axes: Axes, curves: Mapping[int, Curve]) -> None:
    most = max(2, *(curve.most for curve in curves.values()))
    axes.plot([1, most], [1, most], color=FAINT, lw=1, ls=":", label="ideal")
    _curves(axes, curves, lambda _n: 1.0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    low, high = _reach(list(curves.values()))
    low, high = min(1.0, low) / 1.2, 1.2 * max(most, high)
    levels = [2.0**i for i in range(-20, 40) if low <= 2.0**i <= high]
    axes.set_yticks(levels, [f"{level:g}" for level in levels])
    axes.minorticks_off()
    axes.set_ylim(low, high)
    kind = next(iter(curves.values())).fitted.scaling
    what = "speed-up" if kind == STRONG else "scaled speed-up"
    axes.set_ylabel(f"{what} (times one worker)", color=INK)
    shared = "one batch, divided" if kind == STRONG else "a batch for each"
    axes.set_title(f"{kind} scaling ({shared}), with 95% intervals", color=INK, fontsize=10)
    _plain(axes)


def _efficiencies(axes: Axes, curves: Mapping[int, Curve]) -> None:
    axes.axhline(100, color=FAINT, lw=1, ls=":")
    _curves(axes, curves, lambda n: n / 100)
    ticks = sorted({1, 2, *(row.workers for curve in curves.values() for row in curve.rows)})
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    axes.set_ylabel("efficiency (%)", color=INK)
    overs = dict.fromkeys(in_words(curve.fitted.over) for curve in curves.values())
    axes.set_xlabel(f"number of {', '.join(overs)}", color=INK)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.grid(visible=True, color="#e6e6e6", lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _reach(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return the least and the most that a point or its interval shows."""
    shares = [row.speed_up for curve in curves for row in curve.rows if row.speed_up]
    ends = [end for share in shares for end in (share.value, *(share.interval or ()))]
    return max(2.0**-20, min(ends)), max(ends)


def _curves(axes: Axes, curves: Mapping[int, Curve], unit: Callable[[float], float]) -> None:
    """Draw points with their intervals, and the fitted law; ``unit`` divides the speed-up of n."""
    for place, (i, curve) in enumerate(curves.items()):
        colour = COLOURS[i % len(COLOURS)]
        # Points of one number of workers stand beside each other, so that no interval is covered.
        offset = 2 ** (BESIDE * (place - (len(curves) - 1) / 2))
        ups = [(row.workers, row.speed_up) for row in curve.rows if row.speed_up]
        shares = [(n, speed_up.over(unit(n))) for n, speed_up in ups]
        ends = [share.interval or (share.value, share.value) for _, share in shares]
        axes.errorbar(
            [n * offset if n > 1 else n for n, _ in shares],
            [share.value for _, share in shares],
            yerr=[
                [max(0.0, s.value - low) for (_, s), (low, _) in zip(shares, ends, strict=True)],
                [max(0.0, high - s.value) for (_, s), (_, high) in zip(shares, ends, strict=True)],
            ],
            color=colour,
            marker=MARKS[i % len(MARKS)],
            ms=5,
            ls="none",
            capsize=3,
            label=_legend(curve),
        )
        if (law := curve.fitted.law) is not None:
            steps = [float(curve.most ** (step / 64)) for step in range(65)]
            axes.plot(steps, [law.throughput(n) / unit(n) for n in steps], color=colour, lw=1.2)


def _legend(curve: Curve) -> str:
    law, label = curve.fitted.law, curve.fitted.curve
    return f"{label} (line: {law.name}, {law.serial:.1%} serial)" if law else label
