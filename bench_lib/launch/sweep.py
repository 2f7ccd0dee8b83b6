"""Cases of several ranks, requested one by one and measured in as few launches as possible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench_lib.launch.ranks import Answer, measure_together
from bench_lib.model import Case, Measurement


@dataclass
class Sweep:
    """Measures cases when they are requested, together with those that will be.

    Stands in for ``run_ranks``.  A case that is requested once more is measured again with all that
    will need that too, as ``again`` concludes from the first look.
    """

    cases: Sequence[Case]
    again: Callable[[Measurement], bool] = lambda _measurement: False
    measure: Callable[[Sequence[Case]], Sequence[Answer]] = measure_together

    def __post_init__(self) -> None:
        """Nothing is measured before the first request."""
        self._cases = {case.id: case for case in self.cases}
        self._ready: defaultdict[str, list[Answer]] = defaultdict(list)
        self._looked: set[str] = set()
        """Cases that were measured or skipped, or had a fault."""

    def __call__(self, case: Case) -> Measurement:
        """Measure a case; raises CaseSkipped, CaseFault and LaunchError."""
        if not self._ready[case.id]:
            batch = [case, *self._beside(case)]
            for one, answer in zip(batch, self.measure(batch), strict=False):
                self._ready[one.id].append(answer)
                self._looked.add(one.id)
        answer = self._ready[case.id].pop(0)
        if isinstance(answer, Measurement):
            return answer
        raise answer

    def _beside(self, case: Case) -> list[Case]:
        """Return what may as well be measured in the same launch."""
        first = case.id not in self._looked
        return [
            other
            for other in self._cases.values()
            if other.id != case.id
            and other.launch.ranks == case.launch.ranks
            and (other.id not in self._looked if first else self._needs_another(other))
        ]

    def _needs_another(self, case: Case) -> bool:
        ready = self._ready[case.id]
        return len(ready) == 1 and isinstance(ready[0], Measurement) and self.again(ready[0])
