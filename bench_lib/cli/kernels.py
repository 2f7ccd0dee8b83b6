"""A step's kernels as ``bench-lib profile`` tells of them: tables, sentences, documents."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from bench_lib.cli.output import picked, print_json, print_tables
from bench_lib.formats import seconds, signed_percent
from bench_lib.model import Kernel, KernelTable
from bench_lib.profiling import store as stored
from bench_lib.profiling.kernels import Diff, KernelDifference
from bench_lib.profiling.names import REST, role, short
from bench_lib.profiling.profilers import CaseProfile, ProfiledWork
from bench_lib.profiling.store import ProfileComparison
from bench_lib.profiling.traces import HOST_SOURCE

LEAST_NAME = 24
"""Characters of a kernel's name that are shown however narrow the terminal."""
WIDTH = 100
"""Width of a table if the output is no terminal."""


def tell(look: CaseProfile, top: int, *, json: bool) -> None:
    """Print what a look into a case saw, ``top`` kernels of each rank."""
    if json:
        about = picked(
            look, "case environment tool folder peak_memory_bytes counters files problems"
        )
        print_json("profile", hardware_key=look.hardware.key, ranks=look.seen, **about)
        return
    for number, seen in enumerate(look.seen):
        print("\n" * (number > 0) + _title(look, seen))
        print()
        _print_kernels(seen.kernels, top)
        print()
        for answer in seen.answers:
            reading = f" ({answer.reading})" if answer.reading else ""
            print(f"{answer.question}: {answer.words}{reading}")
    if look.peak_memory_bytes is not None:
        print(f"peak memory: {look.peak_memory_bytes / 2**20:.0f} MiB in the profiled steps")
    _print_counters(look)
    print()
    for problem in look.problems:
        print(f"note: {problem}")
    for seen in look.seen:
        if seen.trace is not None:
            print(f"trace: {seen.trace} (open in ui.perfetto.dev)")
    for what, path in look.files.items():
        print(f"{what}: {path}")
    if look.seen:
        print(f"kernels: {look.folder / 'kernels.json'} (compare with --diff)")


def _title(look: CaseProfile, seen: ProfiledWork) -> str:
    label = f", {seen.label}" if seen.label else ""
    what = "operations on the CPU" if _is_host(seen.kernels) else "kernels"
    return (
        f"{look.case.id} on {look.hardware.key}{label}: {what} of one step, the mean of "
        f"{seen.kernels.steps} by {seen.kernels.source}"
    )


def _is_host(kernels: KernelTable) -> bool:
    return kernels.source == HOST_SOURCE


def _print_kernels(kernels: KernelTable, top: int) -> None:
    whole = sum(kernel.total_s for kernel in kernels.kernels)
    named = [kernel for kernel in kernels.kernels if kernel.name != REST]
    first = "operation" if _is_host(kernels) else "kernel"
    rows = [
        (
            kernel.name if _is_host(kernels) else short(kernel.name),
            f"{kernel.total_s / whole:.1%}" if whole else "",
            f"{kernel.calls:.4g}",
            seconds(kernel.total_s),
            seconds(kernel.total_s / kernel.calls) if kernel.calls else "",
            role(kernel.name),
        )
        for kernel in named[:top]
    ]
    headings = (first, "share", "calls", "total", "average", "role")
    print_tables(headings, _fitted(headings, rows))
    left = sum(kernel.total_s for kernel in kernels.kernels) - sum(
        kernel.total_s for kernel in named[:top]
    )
    if left > 0 and whole:
        print(f"all others: {seconds(left)} ({left / whole:.1%})")


def _fitted(headings: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Shorten the first column so that all the others are beside it."""
    across = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    others = sum(max(len(row[i]) for row in [headings, *rows]) + 2 for i in range(1, len(headings)))
    width = max(LEAST_NAME, across - others)
    return [(_cut(row[0], width), *row[1:]) for row in rows]


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def _print_counters(look: CaseProfile) -> None:
    for kernel in look.counters:
        for metric in kernel.metrics:
            name = f"{short(kernel.name)}: " if kernel.name else ""
            reading = f" ({metric.reading})" if metric.reading else ""
            print(f"{name}{metric.name}: {metric.value:.4g} {metric.unit}{reading}")


# ---- two profiles -------------------------------------------------------------------------


def tell_changes(sides: tuple[str, str], found: ProfileComparison, top: int, *, json: bool) -> None:
    """Print what changed from one profile to another, ``top`` changes of it."""
    if json:
        diff = found.diff
        names = "name kind role before after before_kernels after_kernels delta_s"
        print_json(
            "profile --diff",
            before=_side(sides[0], found.before, diff.before_s),
            after=_side(sides[1], found.after, diff.after_s),
            delta_s=diff.delta_s,
            **picked(found, "reason remarks"),
            changes=[{**picked(c, names), "share": diff.share(c)} for c in diff.changes],
        )
        return
    print_changes(found.diff, top)
    print()
    print(found.reason)
    for remark in found.remarks:
        print(f"note: {remark}")


def print_changes(diff: Diff, top: int) -> None:
    """Print the kernels that changed most, ``top`` of them, and all together."""
    changes = [change for change in diff.changes if change.delta_s]
    rows = [row for change in changes[:top] for row in _rows(change, diff)]
    what = diff.what
    headings = (
        *(what.removesuffix("s"), "what", "before", "after"),
        *("change", "calls", "share", "role"),
    )
    print_tables(headings, _fitted(headings, rows))
    if rest := changes[top:]:
        print(f"{len(rest)} more: {_difference(sum(change.delta_s for change in rest))}")
    print(
        f"all {what}: {seconds(diff.before_s)} → {seconds(diff.after_s)} a step, "
        f"{_difference(diff.delta_s)}"
    )


def _rows(change: KernelDifference, diff: Diff) -> Iterator[tuple[str, ...]]:
    """Yield a change's line, and below it the new name where that is another."""
    share = diff.share(change)
    *names, last = change.names
    old, *new = [*names, last + change.more]
    yield (
        old,
        change.kind,
        _time(change.before),
        _time(change.after),
        _difference(change.delta_s),
        _calls(change),
        "" if share is None else signed_percent(share if change.delta_s > 0 else -share, 0),
        change.role,
    )
    for name in new:
        yield f"  → {name}", *[""] * 7


def _time(kernel: Kernel | None) -> str:
    return "-" if kernel is None else seconds(kernel.total_s)


def _difference(delta_s: float) -> str:
    return f"{'-' if delta_s < 0 else '+'}{seconds(abs(delta_s))}"


def _calls(change: KernelDifference) -> str:
    each = [f"{k.calls:.4g}" if k else "0" for k in (change.before, change.after)]
    return " → ".join(dict.fromkeys(each))


def _side(source: str, profile: stored.Profile, total_s: float) -> dict[str, Any]:
    return {
        "source": source,
        "case_id": profile.case.id if profile.case else None,
        "hardware_key": profile.hardware,
        "tool": profile.kernels.source,
        "steps": profile.kernels.steps,
        "time": profile.time,
        "total_s": total_s,
    }
