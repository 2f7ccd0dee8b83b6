"""What a verdict rests on, and what explains it: facts, which ``reasons`` puts into words.

Histories keep them with their ``kind``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench_lib.model import Finding, Published, Status


@dataclass(frozen=True)
class Difference(Finding):
    """Fresh processes were held against others, or the differences of pairs against nothing."""

    candidate: int
    """Processes, or pairs."""
    baseline: int = 0
    """Processes; 0 for pairs."""
    agreeing: int = 0
    """How many are beyond the tolerance by themselves, in the direction of the change."""
    is_certain: bool | None = None
    """Whether the change is beyond chance; None where one process cannot tell it from chance."""
    limit: str = ""
    """What limits the comparison most: ``run``, ``device``, or ``process``."""
    limit_sd: float = 0.0
    """Standard deviation of that, as a fraction."""
    detects: float | None = None
    """The fraction below which nothing could be seen, where that is far above the tolerance."""
    family: float | None = None
    """Ratio by which the case's family moved on this device, which is taken off; above 1 is worse.
    """
    set_aside: int = 0
    """Disturbed processes that do not count."""
    moved: tuple[int, int] | None = None
    """How many cases of the suite moved in this direction, where most did; and the suite's size."""
    kind: str = "difference"


@dataclass(frozen=True)
class InTurns(Finding):
    """Both sides were measured in turns."""

    reference: str
    """The other side, in words."""
    alone: bool = False
    """Whether nothing but the reference judges."""
    ended: str = ""
    """Why no further pairs are measured; empty where they could be."""
    kind: str = "in turns"


@dataclass(frozen=True)
class NotInTurns(Finding):
    """There is a reference, and no pair with it."""

    why: str
    kind: str = "not in turns"


@dataclass(frozen=True)
class SlowerThanBaseline(Finding):
    """The pairs are equal, and the case is slower than its baseline: not the software under test.

    ``ratio`` is of the baseline's verdict.
    """

    ratio: float
    pairs: int
    shared: list[str]
    """Changes since the baseline that both sides share, in words."""
    kind: str = "slower than baseline"


@dataclass(frozen=True)
class Overruled(Finding):
    """Another verdict on the same metric tells more."""

    by: str
    """``reference``, or ``baseline`` for the other of two."""
    status: Status | None = None
    """What the reference says."""
    kind: str = "overruled"


@dataclass(frozen=True)
class ClockChange(Finding):
    """The device's clock beside the baseline's."""

    here_mhz: float
    baseline_mhz: float
    change: float
    """Fraction; 0 where it is within steps and chance."""
    power_w: tuple[float, float] | None = None
    """Here and in the baseline."""
    cycles: float | None = None
    """The ratio in time × clock, where the clock explains the change or leaves it in doubt."""
    leaves_doubt: bool = False
    """Whether the change in cycles is beyond the tolerance, and not beyond chance."""
    kind: str = "clock"


@dataclass(frozen=True)
class HostBound(Finding):
    """The device waited for its host."""

    before: bool
    """Whether it did in the baseline, too."""
    allowed: float = 0.0
    """Fraction that is tolerated on top for it."""
    issuing_s: float | None = None
    issuing_before_s: float | None = None
    """What the host takes to issue a step, and took in the baseline, where that is told."""
    device_s: float | None = None
    """What the device alone needs for a step."""
    device_judges: bool = False
    """Whether the device's own time is judged in place of this metric."""
    kind: str = "host-bound"


@dataclass(frozen=True)
class OtherChoices(Finding):
    """The autotuner chose other kernels than on the other side."""

    differences: str
    tunings: int
    needed: int
    kind: str = "other choices"


@dataclass(frozen=True)
class CountChange(Finding):
    """A count that neither chance nor the clock moves is another than on the other side."""

    metric: str
    before: float
    """How many there were of one step."""
    here: float
    """How many there are."""
    kind: str = "count"


@dataclass(frozen=True)
class ResourceChange(Finding):
    """A compiled kernel of the same source and configuration takes more of the device, or less."""

    kernel: str
    resource: str
    """``registers``, ``spills``, or ``shared`` memory (LDS)."""
    before: int
    here: int
    """Of registers and spills the number, of memory bytes."""
    kind: str = "resource"


@dataclass(frozen=True)
class Bounded(Finding):
    """A value was held against a bound far beyond what processes differ by."""

    metric: str
    """The name of the metric, as several are told of as one."""
    allowed: float
    """In the metric's unit."""
    state: str = ""
    """Of the caches."""
    is_beyond: bool = False
    """Whether the value is worse than that."""
    is_confirmed: bool = True
    kind: str = "bounded"


@dataclass(frozen=True)
class Differs(Finding):
    """Something differs so that nothing can be compared, each in words."""

    conditions: list[str]
    kind: str = "differs"


@dataclass(frozen=True)
class OtherState(Finding):
    """The metric was measured in one state here and in another there."""

    of: str
    """``caches``, ``clock`` or ``device time``."""
    here: str
    baseline: str = ""
    kind: str = "other state"


@dataclass(frozen=True)
class Unaccepted(Finding):
    """Nothing was accepted for the case."""

    spread: float | None = None
    """Of a process's iterations, where it is beyond the trust in the timing."""
    is_finite: bool = True
    """Whether the answer is."""
    published: Published | None = None
    rate: float | None = None
    """The case's own, in the unit of the published one."""
    kind: str = "unaccepted"


@dataclass(frozen=True)
class Told(Finding):
    """Words of others: of a metric, of a look into kernels."""

    words: str
    kind: str = "told"


@dataclass(frozen=True)
class LaterFinding(Finding):
    """A kind that only a later version knows."""

    kind: str


KINDS: Mapping[str, type[Finding]] = {
    each.kind: each
    for each in (
        Difference,
        InTurns,
        NotInTurns,
        SlowerThanBaseline,
        Overruled,
        ClockChange,
        HostBound,
        OtherChoices,
        CountChange,
        ResourceChange,
        Bounded,
        Differs,
        OtherState,
        Unaccepted,
        Told,
    )
}
"""Each kind of finding by its name in files."""
