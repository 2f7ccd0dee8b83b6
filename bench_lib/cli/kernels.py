"""How ``bench-lib profile`` shows the kernels of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench_lib.cli.output import picked
from bench_lib.formats import CHANGE_S, NUMBER, SHARE, amount
from bench_lib.model import Kernel, KernelTable
from bench_lib.profiling import store as stored
from bench_lib.profiling.kernels import Diff, KernelDifference
from bench_lib.profiling.names import REST, role, short
from bench_lib.profiling.profilers import CaseProfile, ProfiledWork
from bench_lib.profiling.store import ProfileComparison
from bench_lib.profiling.traces import HOST_SOURCE
from bench_lib.report.answer import Answer, Column, Table, columns

Rank = tuple[ProfiledWork, Kernel]
"""A kernel, and the rank that ran it."""


def answer_of(look: CaseProfile, top: int) -> Answer:
    """Return a profile of a case, with ``top`` kernels of each rank."""
    titles, rows = [], []
    notes: list[str] = []
    for work in look.seen:
        titles.append(_title(look, work))
        shown = [kernel for kernel in work.kernels.kernels if kernel.name != REST][:top]
        rows += [(work, kernel) for kernel in shown]
        notes += _notes(work, shown, f"{work.label}: " if work.label else "")
    if look.peak_memory_bytes is not None:
        notes.append(f"peak memory: {amount(look.peak_memory_bytes, 'B')} in the profiled steps")
    notes += [f"note: {problem}" for problem in look.problems]
    traces = [work.trace for work in look.seen if work.trace is not None]
    notes += [f"trace: {trace} (open in ui.perfetto.dev)" for trace in traces]
    notes += [f"{name}: {path}" for name, path in look.files.items()]
    notes.append(f"kernels: {look.folder / 'kernels.json'} (compare with --diff)")
    about = "case environment tool folder peak_memory_bytes files problems"
    return Answer(
        command="profile",
        tables={"kernels": Table(_columns(look), rows)},
        heading=titles,
        notes=notes,
        about={"hardware_key": look.hardware.key, "ranks": look.seen, **picked(look, about)},
    )


def _columns(look: CaseProfile) -> list[Column[Rank]]:
    is_host = any(_is_host(work.kernels) for work in look.seen)

    def share(row: Rank) -> float | None:
        total_s = _total_s(row[0].kernels)
        return row[1].total_s / total_s if total_s else None

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


def _title(look: CaseProfile, work: ProfiledWork) -> str:
    label = f", {work.label}" if work.label else ""
    what = "operations on the CPU" if _is_host(work.kernels) else "kernels"
    return (
        f"{look.case.id} on {look.hardware.key}{label}: {what} of one step, the mean of "
        f"{work.kernels.steps} by {work.kernels.source}"
    )


def _is_host(kernels: KernelTable) -> bool:
    return kernels.source == HOST_SOURCE


def _total_s(kernels: KernelTable) -> float:
    return sum(kernel.total_s for kernel in kernels.kernels)


def _notes(work: ProfiledWork, shown: list[Kernel], label: str) -> Iterator[str]:
    total_s = _total_s(work.kernels)
    rest_s = total_s - sum(kernel.total_s for kernel in shown)
    if rest_s > 0 and total_s:
        yield f"{label}all others: {amount(rest_s, 's')} ({amount(rest_s / total_s, SHARE)})"
    for answer in work.answers:
        reading = f" ({answer.reading})" if answer.reading else ""
        yield f"{label}{answer.question}: {answer.words}{reading}"


# ---- two profiles -------------------------------------------------------------------------


def difference(sides: tuple[str, str], comparison: ProfileComparison, top: int) -> Answer:
    """Return the changes from one profile to another; only JSON has more than ``top``."""
    diff = comparison.diff
    changes = [change for change in diff.changes if change.delta_s]
    notes = [f"note: {remark}" for remark in comparison.remarks]
    total = f"{amount(diff.before_s, 's')} → {amount(diff.after_s, 's')} a step"
    notes[:0] = [f"all {diff.what}: {total}, {amount(diff.delta_s, CHANGE_S)}", comparison.reason]
    if rest := changes[top:]:
        rest_s = sum(change.delta_s for change in rest)
        notes.insert(0, f"{len(rest)} more: {amount(rest_s, CHANGE_S)}")
    return Answer(
        command="profile --diff",
        tables={"changes": Table(_changed(diff), changes, most=top)},
        notes=notes,
        about={
            "before": _side(sides[0], comparison.before, diff.before_s),
            "after": _side(sides[1], comparison.after, diff.after_s),
            "delta_s": diff.delta_s,
            **picked(comparison, "reason remarks"),
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
    counts = [amount(k.calls if k else 0, NUMBER) for k in (change.before, change.after)]
    return " → ".join(dict.fromkeys(counts))


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
