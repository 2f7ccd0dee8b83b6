"""The largest batch that fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench_lib.cases.axes import LARGEST
from bench_lib.engine.settings import Outcome
from bench_lib.formats import SHARE, TIMES, amount
from bench_lib.model import Case, Sampling
from bench_lib.report.answer import Column, Table, columns
from bench_lib.studies.figures import PROBLEM, Figures, columns_of, trouble

FARTHEST = 16
"""A line through small batches is not trusted beyond so many times the largest of them."""
WHOLE_FROM = 64
"""From here on multiples of UNIT are tried: kernels prefer them."""
UNIT = 8
LEAST = Sampling(
    warmup_s=0.0,
    warmup_max_s=0.0,
    iterations=1,
    max_iterations=1,
    measure_s=0.0,
    checks=False,
)
"""Enough to see whether a batch fits."""


@dataclass(frozen=True)
class Try:
    """One batch that was tried."""

    batch_size: int
    fitted: bool
    memory_bytes: int | None = None


class Search:
    """Looks for the largest batch that fits.

    From ``start`` on it doubles; as soon as two tries tell what an image takes, it goes where
    ``capacity`` bytes would be full.  Between one that fits and one that does not it goes on
    there too, but never less than a quarter into the gap, so that a bad guess costs little.
    """

    def __init__(
        self,
        *,
        start: int,
        capacity: int | None = None,
        at_most: int | None = None,
        resolution: float = 0.01,
    ) -> None:
        """Stop once the answer is known to ``resolution``, a share of it; 0 is to the image."""
        self._at_most = min(at_most or LARGEST, LARGEST)
        self._start = min(start, self._at_most)
        self._capacity = capacity
        self._resolution = resolution
        self._fitted: dict[int, int | None] = {}
        self.too_large: int | None = None
        """The smallest batch that surely does not fit."""
        self.tries: list[Try] = []
        self.stopped = ""
        """Why it ended before memory did; empty where memory ended it."""
        self.outcome: Outcome | None = None
        """The largest batch, measured properly."""
        self.missed: Outcome | None = None
        """A larger batch that has a baseline, and could not be measured now."""

    @property
    def largest(self) -> int | None:
        """The largest batch that fitted."""
        return max(self._fitted, default=None)

    def fitted(self, batch: int, memory_bytes: int | None) -> None:
        """Take in that a batch fitted, whatever was seen of smaller ones, and its memory."""
        self._fitted[batch] = memory_bytes
        if self.too_large is not None and self.too_large <= batch:
            self.too_large = None

    def does_not_fit(self, batch: int) -> None:
        """Take in that a batch did not fit, whatever was seen of it and larger ones before."""
        self._fitted = {n: memory for n, memory in self._fitted.items() if n < batch}
        self.too_large = batch

    @property
    def next_batch(self) -> int | None:
        """The batch to try; None if the search is over."""
        low, high = self.largest, self.too_large
        if low is None:
            return self._start if high is None else high // 2 or None
        if high is None:
            return None if low == self._at_most else min(self._at_most, self._beyond(low))
        unit = self._unit(high)
        if high - low <= max(unit, int(self._resolution * high)):
            return None
        return self._between(low, high, unit)

    def run(
        self,
        case_of: Callable[[int], Case],
        *,
        glance: Callable[[Case], Outcome],
        measure: Callable[[Case], Outcome],
        say: Callable[[str], None],
    ) -> None:
        """Search by a ``glance`` at each batch, then ``measure`` the largest as any case.

        The search goes on if that one does not fit after all.  Anything but memory ends it.
        """
        while True:
            while not self.stopped and (batch := self.next_batch) is not None:
                self._try(glance(replace(case_of(batch), sampling=LEAST)), batch)
                say(self.stopped or _in_words(self.tries[-1]))
            if self.largest is None:
                return
            self.outcome = measure(case_of(self.largest))
            if not _is_out_of_memory(self.outcome):
                if self.too_large is None and not self.stopped:
                    self.stopped = f"batch {self.largest} is the most that was to be tried"
                return
            say(f"batch {self.largest} did not fit a second time")
            self.outcome = None
            self.does_not_fit(self.largest)

    def _try(self, outcome: Outcome, batch: int) -> None:
        seen = next((a.measurement for a in outcome.attempts if a.measurement), None)
        if seen is not None:
            self.fitted(batch, seen.peak_memory_bytes)
        elif _is_out_of_memory(outcome):
            self.does_not_fit(batch)
        else:
            self.stopped = f"batch {batch}: {': '.join(trouble(outcome.attempts))}"
            return
        memory = None if seen is None else seen.peak_memory_bytes
        self.tries.append(Try(batch, seen is not None, memory))

    def hold_against(
        self,
        accepted: int | None,
        case_of: Callable[[int], Case],
        measure: Callable[[Case], Outcome],
    ) -> None:
        """Measure the largest batch with a baseline if the answer is below the resolution of it.

        It is the answer if it fits after all; otherwise it is ``missed``, a case that fails.
        """
        if accepted is None or accepted > self._at_most:
            return
        if accepted - (self.largest or 0) <= self._resolution * accepted:
            return
        outcome = measure(case_of(accepted))
        if outcome.fault is None and outcome.skipped is None:
            self.fitted(accepted, None)
            self.outcome = outcome
        else:
            self.missed = outcome

    def _unit(self, batch: int) -> int:
        return UNIT if self._resolution > 0 and batch > WHOLE_FROM else 1

    def _beyond(self, low: int) -> int:
        guess, unit = self._guess(), self._unit(low + 1)
        if guess is None:
            far = 2 * low
        elif guess < low + unit:  # the line says that nothing more fits, and it may be wrong
            far = low + max(unit, low // 8)
        else:
            far = min(guess, FARTHEST * low)
        return _down_to(far, self._unit(far))

    def _between(self, low: int, high: int, unit: int) -> int:
        guess, margin = self._guess(), max(1, (high - low) // 4)
        middle = (low + high) // 2
        guess = middle if guess is None else min(max(guess, low + margin), high - margin)
        return max(_down_to(guess, unit), _down_to(low, unit) + unit)

    def _guess(self) -> int | None:
        """Return which batch fills the memory, by a line through two that fitted."""
        known = {n: memory for n, memory in self._fitted.items() if memory is not None}
        if self._capacity is None or len(known) < 2:
            return None
        small, large = min(known), max(known)
        an_image = (known[large] - known[small]) / (large - small)
        if an_image <= 0:
            return None
        return int(min(LARGEST, large + (self._capacity - known[large]) / an_image))


def _down_to(value: int, unit: int) -> int:
    return value // unit * unit


def _in_words(tried: Try) -> str:
    memory = "" if tried.memory_bytes is None else f", {amount(tried.memory_bytes, 'B')}"
    return f"batch {tried.batch_size} {'fits' if tried.fitted else 'is too large'}{memory}"


def largest_accepted(case_of: Callable[[int], Case], accepted: Collection[str]) -> int | None:
    """Return the largest batch whose case is among the ids of those that have a baseline."""
    parts = (re.search(r"-b([1-9][0-9]{0,8})-", name) for name in accepted)
    sizes = {int(part[1]) for part in parts if part}
    return max((size for size in sizes if case_of(size).id in accepted), default=None)


def _is_out_of_memory(outcome: Outcome) -> bool:
    return outcome.fault is not None and outcome.fault.kind == "out of memory"


@dataclass(frozen=True)
class LargestRow:
    """The largest batch of one precision."""

    precision: str
    largest: int | None
    ratio: float | None
    """Ratio to the first precision's; None if one of them was not ended by memory."""
    tries: list[Try]
    stopped: str
    figures: Figures | None
    too_large: int | None = None
    """The smallest batch that was seen not to fit."""
    missed: int | None = None
    """A larger batch that has a baseline, and could not be measured now."""


def largest_rows(found: Mapping[str, Search], figures: Mapping[str, Figures]) -> list[LargestRow]:
    """Hold every precision's largest batch against the first one's; figures are by case."""
    first = next(iter(found.values()))
    rows = []
    for precision, each in found.items():
        ratio = None
        if each.largest and first.largest and not each.stopped and not first.stopped:
            ratio = each.largest / first.largest
        row = LargestRow(
            precision,
            each.largest,
            ratio,
            each.tries,
            each.stopped,
            figures[each.outcome.case.id] if each.outcome else None,
            each.too_large,
            int(each.missed.case.params["batch_size"]) if each.missed else None,
        )
        rows.append(row)
    return rows


def largest_table(rows: Sequence[LargestRow], capacity: int | None) -> Table[LargestRow]:
    """Return the table of largest batches; ``capacity`` is the device's memory in bytes."""

    def share(row: LargestRow) -> float | None:
        memory = row.figures.memory_bytes if row.figures else None
        return memory / capacity if memory is not None and capacity else None

    shown: list[str | Column[Any]] = [
        Column("precision", lambda row: row.precision),
        Column("largest", lambda row: row.largest),
        Column("too_large", lambda row: row.too_large, heading="does not fit"),
        Column("ratio", lambda row: row.ratio, TIMES),
        *(PROBLEM, "items_per_s", "memory_bytes"),
        Column("share_of_memory", share, SHARE, "of it"),
        Column("tried", lambda row: len(row.tries), heading="tries"),
        *columns("", "tries stopped missed"),
    ]
    return Table(columns_of(shown), rows)


def remarks(row: LargestRow) -> Iterator[str]:
    """Say why a search ended before memory did, and which accepted batch no longer fits."""
    if row.stopped:
        yield row.stopped
    elif row.largest is None:
        yield "not even a batch of one fits"
    if row.missed is not None:
        now = f"and now no more than {row.largest or 0} fits"
        yield f"the largest batch with a baseline is {row.missed}, {now}"
