"""The workshop guide's questions about kernels, answered in words.

Questions and thresholds are those of its exercise 7 (9.5 and 9.8).  Any profiler's kernels will
do: they come as totals by kernel and, where it tells them, as single calls.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench_lib.formats import seconds
from bench_lib.model import Kernel, KernelCall
from bench_lib.profiling.names import REST, role, short

TOP = 5
MANY_COPIES = 0.10
FEW_COPIES = 0.05
GAP_S = 10e-6
"""Between the end of a kernel and the begin of the next: more is worth a look."""
SPREAD = 0.2
"""Of a kernel's calls, their standard deviation over their mean: more is varied.  The guide
names no figure; a kernel with one shape stays well below."""
FEWEST_CALLS = 5
"""Of a kernel, before their spread says anything."""
MOVES = re.compile(r"memcpy|copybuffer", re.IGNORECASE)
"""Kernels with which a runtime copies, the second HIP's; torch's own copies are computations."""


@dataclass(frozen=True)
class Answer:
    """The answer to one question."""

    question: str
    words: str
    """The answer, with figures, as a sentence."""
    reading: str = ""
    """What it means; empty where it means nothing in particular."""


def answers(
    kernels: Sequence[Kernel],
    *,
    copies: Sequence[Kernel] = (),
    calls: Iterable[KernelCall] = (),
    total_s: float | None = None,
) -> list[Answer]:
    """Answer what can be answered of one device's kernels.

    ``copies`` are those that the profiler lists apart, by direction; those that it lists among
    the kernels are found by their names.  ``calls`` are single ones, of one device.  ``total_s``
    is the device's time of which shares are told, without it that of all kernels and copies.
    """
    copies = [copy for copy in copies if copy.calls]
    whole = total_s or sum(each.total_s for each in (*kernels, *copies))
    ordered = sorted(calls, key=lambda call: call.begin_s)
    if not kernels and not copies:
        return [Answer("kernels", "no kernel ran on the device", "nothing there can be told")]
    return [
        *_slowest(kernels, whole),
        *_launches(kernels),
        *_top(kernels, whole),
        _copied(kernels, copies, whole),
        *_varied(ordered),
        *_gaps(ordered),
    ]


def _slowest(kernels: Sequence[Kernel], whole: float) -> Iterator[Answer]:
    found = _longest(kernels)[:1]
    for kernel in found:
        words = (
            f"{short(kernel.name)}: {seconds(kernel.total_s)}, "
            f"{_share(kernel.total_s, whole)} of the device's time, in {_calls(kernel.calls)}"
        )
        yield Answer("slowest kernel", words, f"what it does: {role(kernel.name)}")


def _launches(kernels: Sequence[Kernel]) -> Iterator[Answer]:
    if kernels:
        calls = sum(kernel.calls for kernel in kernels)
        mean = sum(kernel.total_s for kernel in kernels) / calls if calls else 0.0
        names = len([kernel for kernel in kernels if kernel.name != REST])
        more = " and others" if names < len(kernels) else ""
        words = f"{calls:.10g} launches of {names} kernels{more}, {seconds(mean)} each on average"
        brief = f"short ones, below {seconds(GAP_S)}: fusing them may help"
        yield Answer("launches", words, brief if 0 < mean < GAP_S else "")


def _top(kernels: Sequence[Kernel], whole: float) -> Iterator[Answer]:
    top = _longest(kernels)[:TOP]
    if top:
        each = "; ".join(f"{short(k.name)} {_share(k.total_s, whole)}" for k in top)
        together = _share(sum(kernel.total_s for kernel in top), whole)
        yield Answer(f"top {len(top)} kernels", f"together {together}: {each}")


def _copied(kernels: Sequence[Kernel], copies: Sequence[Kernel], whole: float) -> Answer:
    question = "memory copies"
    moves = [kernel for kernel in kernels if MOVES.search(kernel.name)]
    found = [*copies, *(Kernel(short(k.name), k.calls, k.total_s) for k in moves)]
    if not found:
        return Answer(question, "none", "nothing is moved between host and device meanwhile")
    total = sum(copy.total_s for copy in found)
    calls = sum(copy.calls for copy in found)
    ways = ", ".join(f"{copy.name} {seconds(copy.total_s)}" for copy in _longest(found))
    share = total / whole if whole else 0.0
    if share > MANY_COPIES:
        reading = "a bottleneck: pinned memory, and copies beside kernels, would help"
    elif share < FEW_COPIES:
        reading = "efficient: kernels take the time"
    else:
        reading = "worth a look, and no bottleneck yet"
    words = f"{calls:.10g}, {seconds(total)}, {_share(total, whole)}: {ways}"
    return Answer(question, words, reading)


def _varied(calls: Sequence[KernelCall]) -> Iterator[Answer]:
    """Answer how much the durations of one kernel's calls differ."""
    times: dict[str, list[float]] = {}
    for call in calls:
        times.setdefault(call.name, []).append(call.end_s - call.begin_s)
    often = {name: each for name, each in times.items() if len(each) >= FEWEST_CALLS and any(each)}
    if not often:
        return
    spread = {
        name: statistics.pstdev(each) / statistics.fmean(each) for name, each in often.items()
    }
    # What a spread costs, so that a tiny kernel that varies is not the answer.
    worst = max(often, key=lambda name: spread[name] * sum(often[name]))
    each = often[worst]
    words = (
        f"{short(worst)} varies most in all: {seconds(min(each))} to {seconds(max(each))}, "
        f"standard deviation {spread[worst]:.0%} of its mean over {_calls(len(each))}"
    )
    if spread[worst] > SPREAD:
        reading = "varied: other shapes, other work beside it, autotuning or a clock that moves"
    else:
        reading = "consistent"
    yield Answer("kernel durations", words, reading)


def _gaps(calls: Sequence[KernelCall]) -> Iterator[Answer]:
    """Answer how long the device had nothing to do between kernels."""
    if len(calls) < 2:
        return
    gaps: list[tuple[float, str, str]] = []
    last = calls[0]
    for call in calls[1:]:
        if call.begin_s - last.end_s > GAP_S:
            gaps.append((call.begin_s - last.end_s, last.name, call.name))
        if call.end_s > last.end_s:
            last = call
    span = last.end_s - calls[0].begin_s
    if not gaps:
        yield Answer("gaps between kernels", f"none above {seconds(GAP_S)}", "the device is fed")
        return
    total = sum(gap for gap, _, _ in gaps)
    longest, before, after = max(gaps)
    words = (
        f"{len(gaps)} above {seconds(GAP_S)}, {seconds(total)} in all, {_share(total, span)} of "
        f"the time from first kernel to last; the longest, {seconds(longest)}, is between "
        f"{short(before)} and {short(after)}"
    )
    reading = "the device waits for the CPU: a data loader, synchronization or Python; fusion, a "
    yield Answer("gaps between kernels", words, reading + "graph or a larger batch would help")


def _longest(kernels: Iterable[Kernel]) -> list[Kernel]:
    named = [kernel for kernel in kernels if kernel.name != REST]
    return sorted(named, key=lambda kernel: -kernel.total_s)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "0.0%"


def _calls(number: float) -> str:
    return f"{number:.10g} call{'' if number == 1 else 's'}"
