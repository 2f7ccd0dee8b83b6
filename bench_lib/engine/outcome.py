"""The outcome of a case: its attempts."""

from __future__ import annotations

from dataclasses import dataclass

from bench_lib.model import Attempt, Case, Environment, Fault, Hardware


@dataclass(frozen=True)
class Outcome:
    """Attempts at one case, and their environment."""

    case: Case
    attempts: list[Attempt]
    environment: Environment
    hardware: Hardware
    tuned: str = ""
    """The result of filling MIOpen's database before the case, if that was asked for."""
    side: str = ""

    @property
    def fault(self) -> Fault | None:
        """The fault that ended the case, if one did."""
        return next((a.fault for a in self.attempts if a.fault is not None), None)

    @property
    def skipped(self) -> str | None:
        """Why the case was skipped, if it was."""
        return next((a.skipped for a in self.attempts if a.skipped is not None), None)

    @property
    def spoilt(self) -> str | None:
        """How the hardware disturbed the last attempt, if that is why it was discarded."""
        return self.attempts[-1].discarded if self.attempts[-1].invalid else None
