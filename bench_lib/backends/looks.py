"""The type of a look at a device, and how often each way of looking may be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bench_lib.backends.tool import ToolError
from bench_lib.model import UserError

PERIOD_S = 0.05
"""Between two looks through a library or the kernel's files."""
COMMAND_PERIOD_S = 1.0
"""Between two calls of a command, which take 0.3 to 2 s of a CPU core each."""
COMMAND_TIMEOUT_S = 5.0
"""Past this a command hangs; so the first answer of two of them is there within 10 s."""

FIGURES = ("clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "utilization")

LOW_UTILIZATION, BELOW_LIMIT = "low utilization", "clock below limit"
SYMPTOMS = (LOW_UTILIZATION, BELOW_LIMIT)
"""Counted by devices, at rest as well: how a device is, and no reason why it is held back."""
BY_NATURE = frozenset(
    {
        "power cap",
        "current limit",
        "board limit",
        "sync boost",
        "display clocks",
        "reliability",
        "throttled",
    }
)
"""Reasons that hold in healthy runs too, or may (the last is one without a name); the clock shows
their cost.  Any other reason spoils the measurement in which it lasts."""


class Look(Protocol):
    """One look at the device: the fields of a sample, as JSON will carry them.

    ``clock_mhz``, ``memory_clock_mhz``, ``power_w``, ``temperature_c`` (the hottest spot),
    ``utilization`` and ``steal`` (both 0 to 1); ``throttle``, the reasons in force; ``counters``, a
    number by reason that only grows, and ``ticks``, the same counters' clock; ``pids``, ``names``
    by pid, and ``busy``, those that have run something since the last look for processes.  Unknown
    values are None or left out.
    """

    def __call__(self, *, with_pids: bool) -> dict[str, Any]:
        """Look now, and for processes and whatever else is dear as well if so asked."""


@dataclass(frozen=True)
class Source:
    """A way of looking at one device."""

    name: str
    look: Look
    is_command: bool = False
    """Whether each look starts a program."""

    @property
    def period_s(self) -> float:
        """Least time from one look to the next."""
        return COMMAND_PERIOD_S if self.is_command else PERIOD_S

    @property
    def pids_every(self) -> int:
        """How many looks there are for each that asks for processes and whatever else is dear.

        Those take milliseconds, and locks of the driver that launches need.
        """
        return 4 if self.is_command else 10

    @property
    def patience_s(self) -> float:
        """How late a look may be that is only slow."""
        return 2 * COMMAND_TIMEOUT_S if self.is_command else 0.0

    def pause_s(self, took_s: float) -> float:
        """How long to rest after a look that took so long."""
        return max(self.period_s - took_s, took_s * (3 if self.is_command else 1))


class NothingToldError(RuntimeError):
    """A way of looking that does not work here; says why."""


def tells(seen: Mapping[str, Any], *figures: str) -> bool:
    """Whether a look saw any figure, or any of those named."""
    return any(seen.get(figure) is not None for figure in figures or FIGURES)


def cause_of(error: Exception) -> str:
    """Say what went wrong; an error of ours or a tool's speaks for itself."""
    is_ours = isinstance(error, (ToolError, NothingToldError, UserError))
    return str(error) if is_ours else f"{type(error).__name__}: {error}"
