"""One line of ``bench-lib env``: a question about this machine, its answer and the remedy."""

from __future__ import annotations

from dataclasses import dataclass

OTHER_PROCESSES = "other processes on the GPUs"


@dataclass(frozen=True)
class Check:
    """One line of ``bench-lib env``."""

    name: str
    ok: bool | None
    """None if unknown or not applicable."""
    detail: str
    remedy: str = ""
    """The remedy; empty unless `ok` is False."""
    fatal: bool = False
    """Whether the suite cannot run here, where `ok` is False; else its results are worse."""


def good(name: str, detail: str) -> Check:
    """Say that all is well."""
    return Check(name, ok=True, detail=detail)


def stops(name: str, detail: str, remedy: str) -> Check:
    """Say what keeps the suite from running, or makes whole groups of its cases errors."""
    return Check(name, ok=False, detail=detail, remedy=remedy, fatal=True)


def spoils(name: str, detail: str, remedy: str) -> Check:
    """Say what makes results less steady, fewer or doubtful."""
    return Check(name, ok=False, detail=detail, remedy=remedy)


def unknown(name: str, detail: str) -> Check:
    """Say what could not be found out, or does not apply."""
    return Check(name, ok=None, detail=detail)


def other_processes(pids: list[str]) -> Check:
    """Say which processes have the GPUs open before the suite opens them."""
    if not pids:
        return good(OTHER_PROCESSES, "none")
    remedy = "wait for them or end them; measurements beside them are discarded"
    return spoils(OTHER_PROCESSES, f"{len(pids)}: {', '.join(pids[:8])}", remedy)
