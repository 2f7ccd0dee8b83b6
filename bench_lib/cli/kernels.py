"""How ``bench-lib profile`` shows the kernels of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench_lib.cli.output import picked
from bench_lib.formats import CHANGE_S, SHARE, amount
from bench_lib.model import Kernel, KernelTable
from bench_lib.profiling import store as stored
from bench_lib.profiling.kernels import Diff, KernelDifference
from bench_lib.profiling.names import REST, role, short
from bench_lib.profiling.profilers import CaseProfile, ProfiledWork
from bench_lib.profiling.store import ProfileComparison
from bench_lib.profiling.traces import HOST_SOURCE
from bench_lib.report.answer import Answer, Column, Table, columns

Rank = tuple[ProfiledWork, Kernel]
"""A kernel, and whose it is."""


def answer_of(look: CaseProfile, top: int) -> Answer:
    """Return what profiling a case found, ``top`` kernels of each rank."""
    titles, rows = [], []
    notes: list[str] = []
    for seen in look.seen:
        titles.append(_title(look, seen))
        named = [kernel for kernel in seen.kernels.kernels if kernel.name != REST][:top]
        rows += [(seen, kernel) for kernel in named]
        notes += _notes(seen, named, f"{seen.label}: " if seen.label else "")
    if look.peak_memory_bytes is not None:
        notes.append(f"peak memory: {amount(look.peak_memory_bytes, 'B')} in the profiled steps")
    notes += [f"note: {problem}" for problem in look.problems]
    traces = [seen.trace for seen in look.seen if seen.trace is not None]
    notes += [f"trace: {trace} (open in ui.perfetto.dev)" for trace in traces]
    notes += [f"{what}: {path}" for what, path in look.files.items()]
    notes.append(f"kernels: {look.folder / 'kernels.json'} (compare with --diff)")
    about = "case environment tool folder peak_memory_bytes files problems"
    return Answer(
        command="profile",
        tables={"kernels": Table(_columns(look), rows, cuts_names=True)},
        heading=titles,
        notes=notes,
        about={"hardware_key": look.hardware.key, "ranks": look.seen, **picked(look, about)},
    )


def _columns(look: CaseProfile) -> list[Column[Rank]]:
    is_host = any(_is_host(seen.kernels) for seen in look.seen)

    def share(row: Rank) -> float | None:
        whole = _total_s(row[0].kernels)
        return row[1].total_s / whole if whole else None

    return [
        Column(
            "kernel",
            lambda row: row[1].name if is_host else short(row[1].name),
            heading="operation" if is_host else "kernel",
        ),
        Column("share", share, SHARE),
        Column("calls", lambda row: row[1].calls),
        Column("total_s", lambda row: row[1].total_s, "s", "total"),
        Column(
            "average_s",
            lambda row: row[1].total_s / row[1].calls if row[1].calls else None,
            "s",
            "average",
        ),
        Column("role", lambda row: role(row[1].name)),
        Column("rank", lambda row: row[0].label),
    ]


def _title(look: CaseProfile, seen: ProfiledWork) -> str:
    label = f", {seen.label}" if seen.label else ""
    what = "operations on the CPU" if _is_host(seen.kernels) else "kernels"
    return (
        f"{look.case.id} on {look.hardware.key}{label}: {what} of one step, the mean of "
        f"{seen.kernels.steps} by {seen.kernels.source}"
    )


def _is_host(kernels: KernelTable) -> bool:
    return kernels.source == HOST_SOURCE


def _total_s(kernels: KernelTable) -> float:
    return sum(kernel.total_s for kernel in kernels.kernels)


def _notes(seen: ProfiledWork, named: list[Kernel], whose: str) -> Iterator[str]:
    whole = _total_s(seen.kernels)
    left = whole - sum(kernel.total_s for kernel in named)
    if left > 0 and whole:
        yield f"{whose}all others: {amount(left, 's')} ({left / whole:.1%})"
    for answer in seen.answers:
        reading = f" ({answer.reading})" if answer.reading else ""
        yield f"{whose}{answer.question}: {answer.words}{reading}"


# ---- two profiles -------------------------------------------------------------------------


def difference(sides: tuple[str, str], found: ProfileComparison, top: int) -> Answer:
    """Return what changed from one profile to another; people get ``top`` changes of it."""
    diff = found.diff
    changes = [change for change in diff.changes if change.delta_s]
    notes = [f"note: {remark}" for remark in found.remarks]
    total = f"{amount(diff.before_s, 's')} → {amount(diff.after_s, 's')} a step"
    notes[:0] = [f"all {diff.what}: {total}, {amount(diff.delta_s, CHANGE_S)}", found.reason]
    if rest := changes[top:]:
        left = sum(change.delta_s for change in rest)
        notes.insert(0, f"{len(rest)} more: {amount(left, CHANGE_S)}")
    return Answer(
        command="profile --diff",
        tables={"changes": Table(_changed(diff), changes, most=top, cuts_names=True)},
        notes=notes,
        about={
            "before": _side(sides[0], found.before, diff.before_s),
            "after": _side(sides[1], found.after, diff.after_s),
            "delta_s": diff.delta_s,
            **picked(found, "reason remarks"),
        },
    )


def _changed(diff: Diff) -> list[Column[KernelDifference]]:
    return [
        Column("name", lambda change: change.name, heading=diff.what.removesuffix("s")),
        Column("kind", lambda change: change.kind, heading="what"),
        Column("before_s", lambda change: _total(change.before), "s", "before"),
        Column("after_s", lambda change: _total(change.after), "s", "after"),
        Column("delta_s", lambda change: change.delta_s, CHANGE_S, "change"),
        Column("calls", _calls),
        Column("role", lambda change: change.role),
        *columns("", "before after"),
    ]


def _total(kernel: Kernel | None) -> float | None:
    return kernel.total_s if kernel else None


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
