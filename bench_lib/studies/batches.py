"""Searches for the largest batch that fits: doubled until one does not, then by bisection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bench_lib.cases.axes import LARGEST
from bench_lib.engine.settings import Outcome
from bench_lib.formats import TIMES
from bench_lib.model import Case, Sampling
from bench_lib.report.answer import Column
from bench_lib.studies.figures import PROBLEM, trouble
from bench_lib.studies.registry import Study, StudyRow, axis

RESOLUTION = 0.01
"""The search ends within this share of the answer."""
WHOLE_FROM, UNIT = 64, 8
"""From here on multiples of UNIT are tried: kernels prefer them."""
LEAST = Sampling(
    warmup_s=0.0,
    warmup_max_s=0.0,
    iterations=1,
    max_iterations=1,
    measure_s=0.0,
    checks=False,
)
"""Enough to see whether a batch fits."""


@dataclass
class Search:
    """Searches for the largest batch that fits, from ``start``, and never above ``at_most``."""

    start: int
    at_most: int = LARGEST
    fitting: list[int] = field(default_factory=list)
    """Batches that fitted, in order of size."""
    too_large: int | None = None
    """The smallest batch that did not fit."""
    ended: str = ""
    """Why it ended before memory did; empty where memory ended it."""
    outcome: Outcome | None = None
    """The largest batch, measured properly."""

    @property
    def next_batch(self) -> int | None:
        """The batch to try; None if the search is over."""
        high = self.too_large
        if not self.fitting:
            return min(self.start, self.at_most) if high is None else high // 2 or None
        low = self.fitting[-1]
        if high is None:
            return None if low >= self.at_most else min(2 * low, self.at_most)
        unit = UNIT if high > WHOLE_FROM else 1
        if high - low <= max(unit, int(RESOLUTION * high)):
            return None
        return max((low + high) // 2 // unit, low // unit + 1) * unit

    def take(self, batch: int, *, fits: bool) -> None:
        """Note whether a batch fits, which overrides what was noted before."""
        if fits:
            self.fitting.append(batch)
        else:
            self.fitting = [other for other in self.fitting if other < batch]
            self.too_large = batch

    def run(
        self,
        case_of: Callable[[int], Case],
        *,
        glance: Callable[[Case], Outcome],
        measure: Callable[[Case], Outcome],
        say: Callable[[str], None],
    ) -> None:
        """Search by a ``glance`` at each batch, then ``measure`` the largest like any case.

        The search goes on if that one does not fit after all.  Any other problem ends it.
        """
        while self.outcome is None:
            while not self.ended and (batch := self.next_batch) is not None:
                self._try(glance(replace(case_of(batch), sampling=LEAST)), batch)
                fits = self.fitting[-1:] == [batch]
                say(self.ended or f"batch {batch} {'fits' if fits else 'is too large'}")
            if not self.fitting:
                self.ended = self.ended or "not even a batch of one fits"
                return
            largest = self.fitting[-1]
            outcome = measure(case_of(largest))
            if _is_out_of_memory(outcome):
                say(f"batch {largest} did not fit a second time")
                self.take(largest, fits=False)
            else:
                self.outcome = outcome
        if self.too_large is None and not self.ended:
            self.ended = f"batch {largest} fits, and no larger one was to be tried"

    def _try(self, outcome: Outcome, batch: int) -> None:
        is_too_large = _is_out_of_memory(outcome)
        if is_too_large or any(attempt.measurement for attempt in outcome.attempts):
            self.take(batch, fits=not is_too_large)
        else:
            self.ended = f"batch {batch}: {': '.join(trouble(outcome.attempts))}"


def _is_out_of_memory(outcome: Outcome) -> bool:
    return outcome.fault is not None and outcome.fault.kind == "out of memory"


def _ratio(row: StudyRow) -> float:
    return int(row.case.params["batch_size"]) / int(row.rows[0].case.params["batch_size"])


LARGEST_BATCH = Study(
    name="largest-batch",
    axes=("precision", "batch_size"),
    columns=(
        axis("precision"),
        axis("batch_size", "largest"),
        Column("ratio", _ratio, TIMES),
        *(PROBLEM, "items_per_s", "memory_bytes"),
    ),
)
