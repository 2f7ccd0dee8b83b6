"""Tables of kernels: made tidy, compared, and what changed in words."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench_lib.formats import seconds, signed_percent
from bench_lib.model import Kernel, KernelTable
from bench_lib.profiling.names import (
    OTHER,
    REST,
    called,
    family,
    library,
    readable,
    role,
    short,
    work,
)

WORTH = 0.1
"""Share of the whole change: a part that is smaller is not named in a sentence."""
MOST = 3
"""Causes that a sentence names."""
ONE = 0.8
"""Share of a role's change: a kernel that is so much of it is named alone."""
OFFSET = 1.2
"""If the named parts come to more than so many times the change, the opposite ones are named
too."""
NEGLIGIBLE = 0.1
"""Share of a step's extra time, or of the noise: kernels that changed by less are not named."""
ALIKE = 0.8
"""If so much of the kernels' time changed by about the same factor, no kernel is the cause."""
LEAST_ALIKE = 8
"""Kernels that have to be there for that."""
NOISE = 0.015
"""The usual difference of single kernels from one profile to the next."""
AS_OFTEN = 0.02
"""Calls that differ by less, as a fraction, are equally many."""
MOST_KERNELS = 200
"""Most kernels that a table names."""
ENOUGH = 0.999
"""The share of the time in the kernels that a table names one by one."""
OTHERS = "others"
"""A sentence's word for kernels of unknown purpose."""
KERNELS, OPERATIONS = "kernels", "operations"
"""The content of a table: torch's operations if the host is the device."""


@dataclass(frozen=True)
class KernelDifference:
    """One kernel, or what took its place, in two profiles; times and calls are of one step."""

    role: str
    before: Kernel | None
    """None for a new kernel."""
    after: Kernel | None
    """None for a kernel that is gone."""

    @property
    def delta_s(self) -> float:
        """Seconds more a step."""
        return _total(self.after) - _total(self.before)

    @property
    def kind(self) -> str:
        """``slower``, ``faster``, ``new``, ``gone``, or ``replaced`` where the name is another."""
        if self.before is None:
            return "new"
        if self.after is None:
            return "gone"
        if self.before.name != self.after.name:
            return "replaced"
        return "slower" if self.delta_s > 0 else "faster"

    @property
    def name(self) -> str:
        """Its short name: the new name after the old if they differ."""
        named = [short(k.name) for k in (self.before, self.after) if k is not None]
        return " → ".join(dict.fromkeys(named))


@dataclass(frozen=True)
class Diff:
    """Two profiles of one case, in seconds a step."""

    changes: list[KernelDifference]
    """The largest first, whichever way they go."""
    before_s: float
    after_s: float
    what: str = KERNELS
    """``kernels``, or ``operations`` where the host is the device."""

    @property
    def delta_s(self) -> float:
        """Extra time of all kernels together."""
        return self.after_s - self.before_s


def diff(before: KernelTable, after: KernelTable) -> Diff:
    """Match the kernels of two profiles and return what changed.

    By name if a family has the same names on both sides, else the family as a whole: tiles move
    calls from one name to another, and compilers number anew.  Then by their names and purposes,
    and the rest by its work.
    """
    old, new = _by_name(before.kernels), _by_name(after.kernels)
    changes = list[KernelDifference]()
    for one, other in _matched(old, new, lambda name: name if name == REST else family(name)):
        changes += _of_family(one, other)
    for key in (called, work):
        changes += [_change(*pair) for pair in _matched(old, new, key)]
    changes += [KernelDifference(role(kernel.name), kernel, None) for kernel in old.values()]
    changes += [KernelDifference(role(kernel.name), None, kernel) for kernel in new.values()]
    hosts = before.source.endswith("CPU") and after.source.endswith("CPU")
    return Diff(
        sorted(changes, key=lambda change: -abs(change.delta_s)),
        sum(kernel.total_s for kernel in before.kernels),
        sum(kernel.total_s for kernel in after.kernels),
        OPERATIONS if hosts else KERNELS,
    )


def _of_family(before: Sequence[Kernel], after: Sequence[Kernel]) -> list[KernelDifference]:
    """Compare a family name by name, or as a whole where its names do not mean the same."""
    if not _is_told_apart(before, after):
        return [_change(before, after)]
    later = {kernel.name: kernel for kernel in after}
    return [KernelDifference(role(k.name), k, later[k.name]) for k in before]


def _is_told_apart(before: Sequence[Kernel], after: Sequence[Kernel]) -> bool:
    """Whether a family's names mean the same on both sides."""
    if {kernel.name for kernel in before} != {kernel.name for kernel in after}:
        return False
    if not before[0].name.startswith("triton_") or len(before) == 1:
        return True
    calls = ({kernel.name: round(kernel.calls) for kernel in side} for side in (before, after))
    return next(calls) == next(calls)


def _change(before: Sequence[Kernel], after: Sequence[Kernel]) -> KernelDifference:
    merged = _merged(before), _merged(after)
    return KernelDifference(role(merged[0].name), *merged)


def _matched(
    old: dict[str, Kernel], new: dict[str, Kernel], key: Callable[[str], str]
) -> list[tuple[list[Kernel], list[Kernel]]]:
    """Take kernels of equal keys out of both sides; those with an empty key stay."""
    groups = [_grouped(side, key) for side in (old, new)]
    return [
        ([old.pop(n) for n in groups[0][name]], [new.pop(n) for n in groups[1][name]])
        for name in groups[0]
        if name and name in groups[1]
    ]


def _grouped(side: Iterable[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in side:
        groups.setdefault(key(name), []).append(name)
    return groups


def _merged(kernels: Sequence[Kernel]) -> Kernel:
    longest = max(kernels, key=lambda kernel: kernel.total_s)
    return Kernel(
        longest.name,
        sum(kernel.calls for kernel in kernels),
        sum(kernel.total_s for kernel in kernels),
        longest.resources,
    )


def _by_name(kernels: Iterable[Kernel]) -> dict[str, Kernel]:
    ordered = sorted(kernels, key=lambda kernel: kernel.name)
    return {
        name: _merged(list(group))
        for name, group in itertools.groupby(ordered, key=lambda kernel: kernel.name)
    }


def _total(kernel: Kernel | None) -> float:
    return 0.0 if kernel is None else kernel.total_s


@dataclass(frozen=True)
class RoleChange:
    """The change of all kernels of one role together."""

    role: str
    changes: list[KernelDifference]
    """Those that went most the cause's way first."""

    @property
    def delta_s(self) -> float:
        """Seconds more a step."""
        return _sum(self.changes)

    @property
    def words(self) -> str:
        """Name the kernel that is most of it, and the role's sums where it is not nearly all."""
        first = self.changes[0]
        named = _in_words(first)
        if abs(first.delta_s) >= ONE * abs(self.delta_s):
            return f"{self._kind} {named}".strip()
        before = sum(_total(change.before) for change in self.changes)
        after = sum(_total(change.after) for change in self.changes)
        along = sum(change.delta_s * self.delta_s > 0 for change in self.changes) - 1
        more = f"; {along} more" if along else ""
        whole = f"{self._kind or OTHERS} {_span(before, after)}"
        return f"{whole} (most: {named}{more})"

    @property
    def _kind(self) -> str:
        return "" if self.role == OTHER else self.role


def _in_words(change: KernelDifference) -> str:
    before, after = change.before, change.after
    if before is None or after is None:
        kernel = after or before
        assert kernel is not None
        return f"{change.kind} {short(kernel.name)} {seconds(kernel.total_s)}{_calls(kernel)}"
    calls = _calls(after)
    if round(before.calls) != round(after.calls):
        calls = f", {before.calls:.4g} → {after.calls:.4g} calls"
    return f"{change.name} {_span(before.total_s, after.total_s)}{calls}{_taken(before, after)}"


def _taken(before: Kernel, after: Kernel) -> str:
    """Name the resources of which a kernel takes more or less than before: `, scratch 0 → 24`."""
    told = [
        f", {name} {before.resources[name]} → {now}"
        for name, now in after.resources.items()
        if before.resources.get(name, now) != now
    ]
    return "".join(told)


def _span(before: float, after: float) -> str:
    return f"{seconds(before)} → {seconds(after)}"


def causes(found: Diff) -> list[RoleChange]:
    """Return what the change comes from by role, what went most the whole's way first."""
    way = -1 if found.delta_s < 0 else 1
    by_role: dict[str, list[KernelDifference]] = {}
    for change in found.changes:
        by_role.setdefault(change.role, []).append(change)
    parts = [_cause(name, changes) for name, changes in by_role.items()]
    return sorted(parts, key=lambda cause: -way * cause.delta_s)


def _cause(name: str, changes: list[KernelDifference]) -> RoleChange:
    way = -1 if sum(change.delta_s for change in changes) < 0 else 1
    return RoleChange(name, sorted(changes, key=lambda change: -way * change.delta_s))


def reason(found: Diff, step_delta_s: float | None = None) -> str:
    """Explain in a sentence why a step is slower, or faster.

    ``step_delta_s`` is the extra time of the whole step, in seconds.  If kernels explain less than
    half of it, the sentence says so, unless those that are called anew or more often do.
    """
    if step_delta_s is not None and _explains_little(found, step_delta_s):
        if anew := _called_anew(found, step_delta_s):
            words = f"+{seconds(_sum(anew))} in {found.what} called anew or more often: "
            return words + "; ".join(_in_words(change) for change in anew[:MOST])
        rest = seconds(step_delta_s - max(0.0, found.delta_s))
        where = "outside torch's operations"
        if found.what == KERNELS:
            where = "between the kernels (launches, waiting)"
        words = f"{rest} of the {seconds(step_delta_s)} more lie {where}"
        more = reason(found) if found.delta_s > NEGLIGIBLE * step_delta_s else ""
        return f"{words}; {more}" if more else words
    if not found.changes or abs(found.delta_s) < 1e-9:
        return f"the {found.what} take as long as before, {seconds(found.after_s)} a step"
    if (alike := _alike(found)) is not None:
        return alike
    parts, whole = causes(found), abs(found.delta_s)
    worth = [c for c in parts if c.delta_s * found.delta_s > 0 and abs(c.delta_s) >= WORTH * whole]
    named = worth[:MOST]
    sign = "+" if found.delta_s > 0 else "-"
    words = f"{sign}{seconds(whole)} in {found.what}: " + "; ".join(c.words for c in named)
    against = [c for c in parts[::-1] if c.delta_s * found.delta_s < 0]
    if against and sum(abs(c.delta_s) for c in named) > OFFSET * whole:
        words += f"; against that {against[0].words}"
    return words


def blamed(found: Diff, step_delta_s: float | None = None) -> list[str]:
    """Return the causes of a slower step, the largest first, in words that cases have in common.

    ``step_delta_s`` is as for ``reason``.

    Each is a role, and after a colon the kernel: ``GEMM: MT128x128 → MT64x64``.  If all kernels
    changed alike, or they explain less than half, it is one word without a colon.
    """
    is_noise = found.delta_s <= NEGLIGIBLE * NOISE * found.before_s
    if is_noise or (step_delta_s is not None and _explains_little(found, step_delta_s)):
        anew = [] if step_delta_s is None else _called_anew(found, step_delta_s)
        named = [f"{change.role}: {change.name}" for change in anew[:MOST]]
        return named or [f"outside the {found.what}"]
    if _alike(found) is not None:
        return [f"all {found.what} alike"]
    return [f"{change.role}: {change.name}" for change in _worst(found)]


def libraries(found: Diff, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Name the libraries of the kernels that a slower step comes from, with both versions of each.

    ``old`` and ``new`` are versions by the software's name; empty if no kernel's library is known.
    """
    named = {}
    for change in _worst(found):
        kernel = change.after or change.before
        if kernel is not None and (known := library(kernel.name)):
            named[known[0]] = known[1]
    words = []
    for label, keys in named.items():
        versions = []
        for key in (key for key in keys if key in old and key in new):
            same, other = f"{key} is still {new[key]}", f"{key} {old[key]} -> {new[key]}"
            versions.append(same if old[key] == new[key] else other)
        words.append(f"{label} ({', '.join(versions)})" if versions else label)
    return f"these kernels are from {' and '.join(words)}" if words else ""


def _worst(found: Diff) -> list[KernelDifference]:
    return [c for c in found.changes if c.delta_s >= WORTH * found.delta_s > 0][:MOST]


def _explains_little(found: Diff, step_delta_s: float) -> bool:
    """Whether most of a step's extra time, in seconds, lies elsewhere."""
    return found.delta_s < step_delta_s / 2


def _called_anew(found: Diff, step_delta_s: float) -> list[KernelDifference]:
    """Return what is new or called more often, if it explains half of a step's extra time.

    What else differs between two profiles may be their noise, which calls do not have.
    """
    anew = [c for c in found.changes if c.delta_s > 0 and _calls_more(c) > 0]
    fewer = [c for c in found.changes if c.delta_s < 0 and _calls_more(c) < 0]
    return anew if _sum(anew) + _sum(fewer) >= step_delta_s / 2 > 0 else []


def _calls_more(change: KernelDifference) -> float:
    """Return how many calls a step there are more; 0 if as many as before."""
    before, after = (0.0 if k is None else k.calls for k in (change.before, change.after))
    return after - before if abs(after - before) > AS_OFTEN * max(before, after) else 0.0


def _sum(changes: Iterable[KernelDifference]) -> float:
    return sum(change.delta_s for change in changes)


def _alike(found: Diff) -> str | None:
    """Say that nearly all kernels changed alike; None if they did not."""
    pairs = [
        (c.before, c.after)
        for c in found.changes
        if c.before and c.after and c.before.total_s and c.before.calls and c.after.calls
    ]
    if len(pairs) < LEAST_ALIKE or not found.before_s:
        return None
    factor = found.after_s / found.before_s
    away = abs(factor - 1)
    within = max(away / 4, min(NOISE, 0.75 * away))
    each = [(b.total_s, a.total_s / b.total_s, a.calls / b.calls) for b, a in pairs]
    often = [s for s, _, calls in each if abs(calls - factor) <= within]
    if sum(often) >= ALIKE * found.before_s:
        return f"all {found.what} run {factor:.3g} times as often"
    alike = [s for s, t, calls in each if abs(t - factor) <= within and abs(calls - 1) <= AS_OFTEN]
    if sum(alike) >= ALIKE * found.before_s:
        way = "slower" if factor > 1 else "faster"
        whose = "the device, and no kernel of it" if found.what == KERNELS else "the CPU"
        return f"all {found.what} alike are {way}, {signed_percent(factor - 1)}: {whose}"
    return None


def _calls(kernel: Kernel) -> str:
    return f", {kernel.calls:.4g} call{'' if kernel.calls == 1 else 's'}"


def table(
    kernels: Iterable[Kernel], steps: int, source: str, *, busy_s: float | None = None
) -> KernelTable:
    """Return a tidy table of one step from what kernels, and the device, did in ``steps``."""
    each = [replace(k, calls=k.calls / steps, total_s=k.total_s / steps) for k in kernels]
    return tidy(KernelTable(source, steps, each, None if busy_s is None else busy_s / steps))


def tidy(found: KernelTable) -> KernelTable:
    """Return a table with readable names, a line for each, the longest first.

    Kernels beyond ``MOST_KERNELS`` are one line, and so is the rest once ``ENOUGH`` of the time is
    in the table.
    """
    named = _by_name(replace(kernel, name=readable(kernel.name)) for kernel in found.kernels)
    ordered = sorted(named.values(), key=lambda kernel: (-kernel.total_s, kernel.name))
    whole, seen, kept = sum(kernel.total_s for kernel in ordered), 0.0, 0
    while kept < min(len(ordered), MOST_KERNELS) and seen < ENOUGH * whole:
        seen += ordered[kept].total_s
        kept += 1
    rest = ordered[kept:]
    shown = [*ordered[:kept], *([replace(_merged(rest), name=REST)] if rest else [])]
    return replace(
        found,
        kernels=[replace(k, calls=round(k.calls, 4), total_s=round(k.total_s, 10)) for k in shown],
        busy_s=None if found.busy_s is None else round(found.busy_s, 10),
    )
