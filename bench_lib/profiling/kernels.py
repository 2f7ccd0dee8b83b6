"""Tables of kernels: clean them up, compare them, and explain what changed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench_lib.formats import many, seconds, signed_percent
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
"""Share of the total change; a sentence does not name smaller parts."""
MOST = 3
"""Maximum number of causes that a sentence names."""
ONE = 0.8
"""Share of a role's change above which a kernel is named alone."""
OFFSET = 1.2
"""If the named parts exceed this multiple of the change, the largest opposite one is named too."""
NEGLIGIBLE = 0.1
"""Share of a step's extra time, or of the noise; smaller changes are not named."""
ALIKE = 0.8
"""If this share of the time changed by about the same factor, no single kernel is the cause."""
LEAST_ALIKE = 8
"""Minimum number of kernels for that conclusion."""
NOISE = 0.015
"""Usual difference of single kernels between two profiles, as a fraction."""
AS_OFTEN = 0.02
"""Numbers of calls that differ by less than this fraction are considered equal."""
MOST_KERNELS = 200
ENOUGH = 0.999
"""Share of the time in the kernels that a table lists one by one."""
OTHERS = "others"
"""What a sentence calls kernels of unknown purpose."""
KERNELS, OPERATIONS = "kernels", "operations"
"""What a table contains: torch's operations if the host is the device."""


@dataclass(frozen=True)
class KernelDifference:
    """A kernel, or its replacement, in two profiles; times and calls are per step."""

    role: str
    before: Kernel | None
    """None for a new kernel."""
    after: Kernel | None
    """None for a kernel that is gone."""

    @property
    def delta_s(self) -> float:
        """Extra seconds a step."""
        return _total(self.after) - _total(self.before)

    @property
    def kind(self) -> str:
        """``slower``, ``faster``, ``new``, ``gone``, or ``replaced`` if the name changed."""
        if self.before is None:
            return "new"
        if self.after is None:
            return "gone"
        if self.before.name != self.after.name:
            return "replaced"
        return "slower" if self.delta_s > 0 else "faster"

    @property
    def name(self) -> str:
        """Its short name, or ``old → new`` if the names differ."""
        named = [short(k.name) for k in (self.before, self.after) if k is not None]
        return " → ".join(dict.fromkeys(named))


@dataclass(frozen=True)
class Diff:
    """Two profiles of one case, in seconds a step."""

    changes: list[KernelDifference]
    """Largest first, regardless of direction."""
    before_s: float
    after_s: float
    what: str = KERNELS
    """``kernels``, or ``operations`` if the host is the device."""

    @property
    def delta_s(self) -> float:
        """Extra seconds a step over all kernels."""
        return self.after_s - self.before_s


def diff(before: KernelTable, after: KernelTable) -> Diff:
    """Match the kernels of two profiles and return what changed.

    A family with the same names on both sides is matched by name, any other as a whole, because
    other tiles move calls between names, and compilers renumber kernels.  The remaining kernels
    are matched by name and purpose, then by the work that they do.
    """
    old, new = _by_name(before.kernels), _by_name(after.kernels)
    changes = list[KernelDifference]()
    for pair in _matched(old, new, lambda name: name if name == REST else family(name)):
        changes += _family_changes(*pair)
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


def _family_changes(before: Sequence[Kernel], after: Sequence[Kernel]) -> list[KernelDifference]:
    """Compare a family by name, or as a whole if its names do not correspond."""
    if not _names_correspond(before, after):
        return [_change(before, after)]
    later = {kernel.name: kernel for kernel in after}
    return [KernelDifference(role(k.name), k, later[k.name]) for k in before]


def _names_correspond(before: Sequence[Kernel], after: Sequence[Kernel]) -> bool:
    """Whether a family's names mean the same kernels on both sides."""
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
    """Remove kernels with equal keys from both sides and return them; an empty key matches none."""
    groups = [_grouped(side, key) for side in (old, new)]
    return [
        ([old.pop(n) for n in groups[0][name]], [new.pop(n) for n in groups[1][name]])
        for name in groups[0]
        if name and name in groups[1]
    ]


def _grouped(names: Iterable[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
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
    """The change of all kernels with one role."""

    role: str
    changes: list[KernelDifference]
    """Those that contribute most to the role's change first."""

    @property
    def delta_s(self) -> float:
        """Extra seconds a step."""
        return _sum(self.changes)

    @property
    def words(self) -> str:
        """The kernel that changed most, with the role's sums unless it is nearly all of them."""
        first = self.changes[0]
        named = _described(first)
        if abs(first.delta_s) >= ONE * abs(self.delta_s):
            return f"{self._kind} {named}".strip()
        before = sum(_total(change.before) for change in self.changes)
        after = sum(_total(change.after) for change in self.changes)
        others = sum(change.delta_s * self.delta_s > 0 for change in self.changes) - 1
        more = f"; {others} more" if others else ""
        total = f"{self._kind or OTHERS} {_span(before, after)}"
        return f"{total} (most: {named}{more})"

    @property
    def _kind(self) -> str:
        return "" if self.role == OTHER else self.role


def _described(change: KernelDifference) -> str:
    before, after = change.before, change.after
    if before is None or after is None:
        kernel = after or before
        assert kernel is not None
        calls = many(kernel.calls, "call")
        return f"{change.kind} {short(kernel.name)} {seconds(kernel.total_s)}, {calls}"
    calls = f", {many(after.calls, 'call')}"
    if round(before.calls) != round(after.calls):
        calls = f", {before.calls:.4g} → {after.calls:.4g} calls"
    return f"{change.name} {_span(before.total_s, after.total_s)}{calls}{_resources(before, after)}"


def _resources(before: Kernel, after: Kernel) -> str:
    """Name the resources whose use changed: ``, scratch 0 → 24``."""
    changes = [
        f", {name} {before.resources[name]} → {now}"
        for name, now in after.resources.items()
        if before.resources.get(name, now) != now
    ]
    return "".join(changes)


def _span(before: float, after: float) -> str:
    return f"{seconds(before)} → {seconds(after)}"


def causes(difference: Diff) -> list[RoleChange]:
    """Return the change by role; those that contribute most to the total change come first."""
    sign = -1 if difference.delta_s < 0 else 1
    by_role: dict[str, list[KernelDifference]] = {}
    for change in difference.changes:
        by_role.setdefault(change.role, []).append(change)
    parts = [_cause(name, changes) for name, changes in by_role.items()]
    return sorted(parts, key=lambda cause: -sign * cause.delta_s)


def _cause(name: str, changes: list[KernelDifference]) -> RoleChange:
    sign = -1 if sum(change.delta_s for change in changes) < 0 else 1
    return RoleChange(name, sorted(changes, key=lambda change: -sign * change.delta_s))


def reason(difference: Diff, step_delta_s: float | None = None) -> str:
    """Explain in a sentence why a step is slower or faster.

    ``step_delta_s`` is the whole step's extra time in seconds.  If the kernels explain less than
    half of it, the sentence says so, unless new or additional calls explain it.
    """
    if step_delta_s is not None and _explains_little(difference, step_delta_s):
        if added := _added_calls(difference, step_delta_s):
            calls = "; ".join(_described(change) for change in added[:MOST])
            extra = f"+{seconds(_sum(added))} in {difference.what}"
            return f"{extra} that are new or called more often: {calls}"
        rest = seconds(step_delta_s - max(0.0, difference.delta_s))
        where = "outside torch's operations"
        if difference.what == KERNELS:
            where = "between the kernels (launches, waiting)"
        sentence = f"{rest} of the extra {seconds(step_delta_s)} lie {where}"
        more = reason(difference) if difference.delta_s > NEGLIGIBLE * step_delta_s else ""
        return f"{sentence}; {more}" if more else sentence
    if not difference.changes or abs(difference.delta_s) < 1e-9:
        return f"the {difference.what} take as long as before, {seconds(difference.after_s)} a step"
    if (alike := _alike(difference)) is not None:
        return alike
    parts, total_s = causes(difference), abs(difference.delta_s)
    same_way = [c for c in parts if c.delta_s * difference.delta_s > 0]
    named = [c for c in same_way if abs(c.delta_s) >= WORTH * total_s][:MOST]
    sign = "+" if difference.delta_s > 0 else "-"
    changes = "; ".join(change.words for change in named)
    sentence = f"{sign}{seconds(total_s)} in {difference.what}: {changes}"
    opposite = [c for c in parts[::-1] if c.delta_s * difference.delta_s < 0]
    if opposite and sum(abs(c.delta_s) for c in named) > OFFSET * total_s:
        sentence += f"; partly offset by {opposite[0].words}"
    return sentence


def blamed(difference: Diff, step_delta_s: float | None = None) -> list[str]:
    """Return the causes of a slower step, largest first, worded so that cases can be grouped.

    ``step_delta_s`` is as for ``reason``.

    Each is a role, a colon and the kernel: ``GEMM: MT128x128 → MT64x64``.  If all kernels changed
    alike, or they explain less than half, the only entry is a phrase without a colon.
    """
    is_noise = difference.delta_s <= NEGLIGIBLE * NOISE * difference.before_s
    if is_noise or (step_delta_s is not None and _explains_little(difference, step_delta_s)):
        added = [] if step_delta_s is None else _added_calls(difference, step_delta_s)
        named = [f"{change.role}: {change.name}" for change in added[:MOST]]
        return named or [f"time outside the {difference.what}"]
    if _alike(difference) is not None:
        return [f"all {difference.what} alike"]
    return [f"{change.role}: {change.name}" for change in _worst(difference)]


def libraries(difference: Diff, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Name the libraries of the kernels that made a step slower, with both versions of each.

    ``old`` and ``new`` map software to versions.  Empty if no kernel's library is known.
    """
    slower = [change.after or change.before for change in _worst(difference)]
    named = dict(filter(None, (library(kernel.name) for kernel in slower if kernel)))
    phrases = []
    for label, keys in named.items():
        versions = []
        for key in (key for key in keys if key in old and key in new):
            same, changed = f"{key} is still {new[key]}", f"{key} {old[key]} -> {new[key]}"
            versions.append(same if old[key] == new[key] else changed)
        phrases.append(f"{label} ({', '.join(versions)})" if versions else label)
    return f"these kernels are from {' and '.join(phrases)}" if phrases else ""


def _worst(difference: Diff) -> list[KernelDifference]:
    return [c for c in difference.changes if c.delta_s >= WORTH * difference.delta_s > 0][:MOST]


def _explains_little(difference: Diff, step_delta_s: float) -> bool:
    """Whether the kernels explain less than half of a step's extra seconds."""
    return difference.delta_s < step_delta_s / 2


def _added_calls(difference: Diff, step_delta_s: float) -> list[KernelDifference]:
    """Return the main kernels that are new or called more often, if all explain half of the time.

    Other differences between two profiles may be noise; numbers of calls have none.
    """
    added = [c for c in difference.changes if c.delta_s > 0 and _calls_more(c) > 0]
    fewer = [c for c in difference.changes if c.delta_s < 0 and _calls_more(c) < 0]
    if not _sum(added) + _sum(fewer) >= step_delta_s / 2 > 0:
        return []
    return [change for change in added if change.delta_s >= WORTH * added[0].delta_s]


def _calls_more(change: KernelDifference) -> float:
    """Return how many more calls a step there are; 0 if the numbers are considered equal."""
    before, after = (0.0 if k is None else k.calls for k in (change.before, change.after))
    return after - before if abs(after - before) > AS_OFTEN * max(before, after) else 0.0


def _sum(changes: Iterable[KernelDifference]) -> float:
    return sum(change.delta_s for change in changes)


def _alike(difference: Diff) -> str | None:
    """Return a sentence if nearly all kernels changed alike, else None."""
    pairs = [
        (c.before, c.after)
        for c in difference.changes
        if c.before and c.after and c.before.total_s and c.before.calls and c.after.calls
    ]
    if len(pairs) < LEAST_ALIKE or not difference.before_s:
        return None
    factor = difference.after_s / difference.before_s
    deviation = abs(factor - 1)
    tolerance = max(deviation / 4, min(NOISE, 0.75 * deviation))
    ratios = [(b.total_s, a.total_s / b.total_s, a.calls / b.calls) for b, a in pairs]
    often = [s for s, _, calls in ratios if abs(calls - factor) <= tolerance]
    if sum(often) >= ALIKE * difference.before_s:
        return f"all {difference.what} run {factor:.3g} times as often"
    alike = [s for s, t, n in ratios if abs(t - factor) <= tolerance and abs(n - 1) <= AS_OFTEN]
    if sum(alike) >= ALIKE * difference.before_s:
        direction = "slower" if factor > 1 else "faster"
        cause = "the device, not a single kernel" if difference.what == KERNELS else "the CPU"
        change = f"uniformly {direction}, {signed_percent(factor - 1)}"
        return f"all {difference.what} are {change}: {cause}"
    return None


def table(
    kernels: Iterable[Kernel], steps: int, source: str, *, busy_s: float | None = None
) -> KernelTable:
    """Return a tidy table of one step from times in seconds summed over ``steps``."""
    per_step = [replace(k, calls=k.calls / steps, total_s=k.total_s / steps) for k in kernels]
    return tidy(KernelTable(source, steps, per_step, None if busy_s is None else busy_s / steps))


def tidy(raw: KernelTable) -> KernelTable:
    """Return a table with readable names, one entry a name, longest first.

    Once it has ``MOST_KERNELS`` entries or ``ENOUGH`` of the time, one entry combines the rest.
    """
    named = _by_name(replace(kernel, name=readable(kernel.name)) for kernel in raw.kernels)
    ordered = sorted(named.values(), key=lambda kernel: (-kernel.total_s, kernel.name))
    total_s, covered_s, kept = sum(kernel.total_s for kernel in ordered), 0.0, 0
    while kept < min(len(ordered), MOST_KERNELS) and covered_s < ENOUGH * total_s:
        covered_s += ordered[kept].total_s
        kept += 1
    rest = ordered[kept:]
    shown = [*ordered[:kept], *([replace(_merged(rest), name=REST)] if rest else [])]
    return replace(
        raw,
        kernels=[replace(k, calls=round(k.calls, 4), total_s=round(k.total_s, 10)) for k in shown],
        busy_s=None if raw.busy_s is None else round(raw.busy_s, 10),
    )
