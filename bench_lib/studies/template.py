"""What the cases of one exercise have in common, and about how long they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench_lib.cases.axes import case_of, network_axes
from bench_lib.model import Case, Param, Sampling
from bench_lib.studies import selfcheck

TIME_LIMIT_S = 300.0
TUNING_LIMIT_S = 1200.0
"""Of what tries many kernels before it takes one."""


@dataclass(frozen=True)
class Template:
    """What the cases of an exercise have in common."""

    sizes: Mapping[str, int]
    """Of images in pixels, by network."""
    values: Mapping[str, Param]
    sampling: Sampling = field(default_factory=Sampling)
    time_limit_s: float | None = None
    """None takes what the mode needs."""

    def case(self, **values: Param) -> Case:
        """Return the case with these values; raises UserError where they cannot be meant."""
        chosen = {**self.values, **values}
        own_size = self.sizes.get(str(chosen.get("network")))
        if chosen.get("image_size") == own_size:  # the same case by another name
            chosen.pop("image_size", None)
        tuning = str(chosen.get("compile_mode", "")).startswith("max-autotune")
        limit = self.time_limit_s or (TUNING_LIMIT_S if tuning else TIME_LIMIT_S)
        base = Case("", "", sampling=self.sampling, time_limit_s=limit)
        return case_of(network_axes(self.sizes), chosen, base)


def least_s(cases: Sequence[Case]) -> float:
    """Return about how long cases take at least: those whose steps are short, none compiled."""
    return selfcheck.CONTEXT_S + sum(map(selfcheck.once_s, cases))
