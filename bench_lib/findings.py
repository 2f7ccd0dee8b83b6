"""The facts that decide or explain a verdict; ``reasons`` puts them into words.

History files store each with its ``kind``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench_lib.model import Finding, Published, Status


@dataclass(frozen=True)
class Difference(Finding):
    """Fresh processes were compared with the baseline's, or pairs with no change."""

    candidate: int
    """Processes, or pairs."""
    baseline: int = 0
    """Processes; 0 for pairs."""
    agreeing: int = 0
    """How many exceed the tolerance on their own, in the direction of the change."""
    is_certain: bool | None = None
    """Whether the change exceeds chance; None if a single process cannot show that."""
    limit: str = ""
    """The largest source of variation: ``run``, ``device``, or ``process``."""
    limit_sd: float = 0.0
    """Standard deviation of that source, as a fraction."""
    detects: float | None = None
    """Minimum detectable slowdown, as a fraction, if it is far above the tolerance."""
    family: float | None = None
    """Change of the case's family on this device, as a ratio above 1 if worse; divided out."""
    set_aside: int = 0
    """How many disturbed processes, or pairs, were left out."""
    moved: tuple[int, int] | None = None
    """How many cases moved in this direction and how many there are, if most did."""
    kind: str = "difference"


@dataclass(frozen=True)
class Interleaved(Finding):
    """Both sides were interleaved."""

    reference: str
    """The other side's description."""
    alone: bool = False
    """Whether the reference alone judges."""
    ended: str = ""
    """Why no more pairs are measured; empty if more could be."""
    kind: str = "in turns"


@dataclass(frozen=True)
class NotInterleaved(Finding):
    """There is a reference, but no pair was measured with it."""

    why: str
    kind: str = "not in turns"


@dataclass(frozen=True)
class SlowerThanBaseline(Finding):
    """The pairs are equal but the case is slower than its baseline: not the software under test.

    ``ratio`` is that of the verdict against the baseline.
    """

    ratio: float
    pairs: int
    shared: list[str]
    """Descriptions of the changes since the baseline that both sides have in common."""
    kind: str = "slower than baseline"


@dataclass(frozen=True)
class Overruled(Finding):
    """Another verdict on the same metric takes precedence."""

    by: str
    """``reference``, or ``baseline`` for the other one of two baselines."""
    status: Status | None = None
    """The status against the reference."""
    kind: str = "overruled"


@dataclass(frozen=True)
class ClockChange(Finding):
    """The device's clock compared with the baseline's."""

    here_mhz: float
    baseline_mhz: float
    change: float
    """Fraction; 0 if it is within the clock's steps and chance."""
    power_w: tuple[float, float] | None = None
    """Here and in the baseline."""
    cycles: float | None = None
    """The ratio of time × clock, if the clock explains the change or leaves it in doubt."""
    leaves_doubt: bool = False
    """Whether the change in cycles exceeds the tolerance but not chance."""
    kind: str = "clock"


@dataclass(frozen=True)
class HostBound(Finding):
    """The device waited for its host."""

    before: bool
    """Whether it also did in the baseline."""
    allowed: float = 0.0
    """Extra tolerance granted for it, as a fraction."""
    issuing_s: float | None = None
    issuing_before_s: float | None = None
    """Host time to issue a step, now and in the baseline; None if unknown or not told."""
    device_s: float | None = None
    """Device time of a step without the host."""
    device_judges: bool = False
    """Whether the device's own time is judged instead of this metric."""
    elsewhere: bool = False
    """Whether the baseline is of other hosts, which may be faster."""
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
    """A count that neither chance nor the clock affects has changed."""

    metric: str
    before: float
    """Per step, on the other side."""
    here: float
    """Per step, in this run."""
    kind: str = "count"


@dataclass(frozen=True)
class ResourceChange(Finding):
    """A compiled kernel of the same source and configuration uses more of a resource, or less."""

    kernel: str
    resource: str
    """``registers``, ``spills``, or ``shared`` memory (LDS)."""
    before: int
    here: int
    """A count of registers or spills, or bytes of memory."""
    kind: str = "resource"


@dataclass(frozen=True)
class Bounded(Finding):
    """A value was compared with a bound far above the variation between processes."""

    metric: str
    """The metric's name, since several may be reported as one."""
    allowed: float
    """In the metric's unit."""
    state: str = ""
    """State of the caches, such as ``cold``."""
    is_beyond: bool = False
    """Whether the value is worse than allowed."""
    is_confirmed: bool = True
    kind: str = "bounded"


@dataclass(frozen=True)
class Differs(Finding):
    """Conditions differ in a way that rules out a comparison; each is described."""

    conditions: list[str]
    kind: str = "differs"


@dataclass(frozen=True)
class OtherState(Finding):
    """The metric was measured in another state than in the baseline."""

    of: str
    """``caches``, ``clock`` or ``device time``."""
    here: str
    baseline: str = ""
    kind: str = "other state"


@dataclass(frozen=True)
class Unaccepted(Finding):
    """No baseline was accepted for the case."""

    spread: float | None = None
    """Coefficient of variation within a process, if it is too large to trust the timing."""
    is_finite: bool = True
    """Whether the answer has neither infinities nor NaN."""
    published: Published | None = None
    rate: float | None = None
    """The case's rate, in the unit of the published one."""
    kind: str = "unaccepted"


@dataclass(frozen=True)
class Note(Finding):
    """A sentence that a metric or a kernel comparison wrote."""

    words: str
    kind: str = "told"


KINDS: Mapping[str, type[Finding]] = {finding.kind: finding for finding in Finding.__subclasses__()}
"""The kinds of findings above, by their names in files."""


@dataclass(frozen=True)
class LaterFinding(Finding):
    """A kind that a later version added."""

    kind: str
