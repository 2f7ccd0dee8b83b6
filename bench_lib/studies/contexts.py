"""How far fresh device contexts differ on this machine, chosen or not, and what tells why.

On some GPUs a launch costs more in one stream than in another (docs/statistics.md).  Every
round measures the same cases in one fresh context taken as it comes, and in one that was
chosen, as the suite measures: its default stream is of the cheap kind.  Nothing is judged here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench_lib.engine.device import HeldDevice
from bench_lib.model import Case
from bench_lib.studies.selfcheck import ProcessSample, probe_ranges, sample_of
from bench_lib.verdict.statistics.comparison import growth
from bench_lib.verdict.statistics.covariates import LEAST_GAIN, SHOWN, ProcessGroup, gains

ANY, CHOSEN = "any", "chosen"
"""Kinds of contexts.  A CPU has no streams, and so only the first."""


@dataclass(frozen=True)
class Spread:
    """One case in fresh contexts of one kind."""

    contexts: Mapping[str, ProcessSample]
    """By number."""

    @property
    def step_s(self) -> float:
        """Median of the contexts' medians."""
        return growth(statistics.median(s.log_median for s in self.contexts.values()))

    @property
    def inside(self) -> float:
        """Median coefficient of variation inside a context."""
        return statistics.median(sample.spread for sample in self.contexts.values())

    @property
    def between(self) -> float:
        """Spread of the logarithms of the contexts' medians."""
        return statistics.stdev(sample.log_median for sample in self.contexts.values())

    @property
    def explained(self) -> dict[str, float]:
        """Share of that (squared) which each probe predicts, each context from the others."""
        values = {name: sample.log_median for name, sample in self.contexts.items()}
        probes = {name: sample.probe for name, sample in self.contexts.items()}
        return gains([ProcessGroup(values, probes)])


@dataclass(frozen=True)
class ContextsFound:
    """The spread between fresh contexts of this machine."""

    spreads: Mapping[str, Mapping[str, Spread]]
    """By case and kind of context, those that are taken as they come first."""

    @property
    def kinds(self) -> list[str]:
        """Kinds of contexts."""
        return list(next(iter(self.spreads.values())))

    def change(self, case_id: str) -> float | None:
        """Return the ratio of time in chosen contexts to that in any, less one, where both are."""
        spreads = self.spreads[case_id]
        if CHOSEN not in spreads:
            return None
        return spreads[CHOSEN].step_s / spreads[ANY].step_s - 1

    def probes(self, kind: str) -> dict[str, tuple[float, float]]:
        """Return each probe's least and most over all contexts of a kind, in the probe's unit."""
        return probe_ranges(
            sample
            for by_kind in self.spreads.values()
            for sample in by_kind[kind].contexts.values()
        )

    def between(self, kind: str) -> float:
        """Return the middle case's spread between contexts of a kind, of logarithms."""
        return statistics.median(by_kind[kind].between for by_kind in self.spreads.values())

    def explained(self, kind: str) -> dict[str, float]:
        """Return the share each probe explains in the middle case; in some cases none varies."""
        shares: dict[str, list[float]] = {}
        for by_kind in self.spreads.values():
            for name, share in by_kind[kind].explained.items():
                shares.setdefault(name, []).append(share)
        return {name: statistics.median(seen) for name, seen in sorted(shares.items())}

    @property
    def conclusion(self) -> str:
        """The result in plain words."""
        words = f"contexts differ by {self.between(ANY):.2%}"
        if CHOSEN in self.kinds:
            words += f" as they come and by {self.between(CHOSEN):.2%} where they are chosen"
        words += " (the middle one of the cases)" if len(self.spreads) > 1 else ""
        explained = {k: v for k, v in self.explained(ANY).items() if k not in SHOWN}
        name = max(explained, key=explained.__getitem__, default=None)
        if name is None:
            words += "; no probe varies, so none can tell why"
        else:
            words += f"; {name} explains {explained[name]:.0%} of "
            words += "the former" if CHOSEN in self.kinds else "it"
            words += "" if explained[name] >= LEAST_GAIN else ", too little to be used"
        if CHOSEN in self.kinds and "launch_us" not in self.probes(CHOSEN):
            words += "; what a launch costs could not be measured here, so none was chosen"
        return words


def compare(
    device: HeldDevice,
    kinds: Sequence[str],
    cases: Sequence[Case],
    *,
    contexts: int,
    say: Callable[[str], None] = lambda _line: None,
) -> ContextsFound:
    """Measure cases in so many fresh contexts of each kind, by turns.

    Raises SelfcheckError where a case cannot be measured.
    """
    seen: dict[str, dict[str, dict[str, ProcessSample]]] = {
        case.id: {kind: {} for kind in kinds} for case in cases
    }
    for number in range(1, contexts + 1):
        # Neither a kind nor a case always comes first: time must not look like a kind.
        order_of_kinds = kinds if number % 2 else kinds[::-1]
        turn = number % len(cases)
        order = [*cases[turn:], *cases[:turn]]
        for kind in order_of_kinds:
            outcomes = device.measure_again(order, number, sides=[kind])
            for case, outcome in zip(order, outcomes, strict=True):
                seen[case.id][kind][str(number)] = sample_of(outcome)
        times = (
            f"{kind} {growth(seen[cases[0].id][kind][str(number)].log_median) * 1e3:.4g} ms"
            for kind in kinds
        )
        say(f"context {number} of {contexts}: {cases[0].id}: {', '.join(times)}")
    return ContextsFound(
        {name: {kind: Spread(s) for kind, s in by_kind.items()} for name, by_kind in seen.items()}
    )


def as_lines(found: ContextsFound) -> Iterator[Mapping[str, object]]:
    """Return the raw times: a line for each case, kind and context."""
    for case_id, by_kind in found.spreads.items():
        for kind, spread in by_kind.items():
            for name, sample in spread.contexts.items():
                yield {"case": case_id, "context": int(name), "kind": kind, **sample.as_line()}
