"""The text of an issue for the makers of a package: the slow-down, and how to reproduce it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench_lib.formats import printable, seconds
from bench_lib.model import Hardware


@dataclass(frozen=True)
class SlowedCase:
    """One case that a package makes slower."""

    case_id: str
    before_s: float | None
    after_s: float | None
    ratio: float | None
    """With the whole new environment."""
    interval: tuple[float, float] | None
    """95% interval of the ratio."""
    alone: float | None
    """With nothing but the culprit exchanged, as a ratio."""
    kernels: str
    """The kernels' extra work, in words."""


@dataclass(frozen=True)
class UpstreamIssue:
    """The effect of one culprit."""

    changes: Sequence[str]
    """The exchanged packages: ``torch 2.9.0 -> 2.10.0``."""
    told_apart: bool
    """Whether each of them is surely needed."""
    cases: Sequence[SlowedCase]
    minimal: str
    """The command of an operator that shows it; empty if none is known."""
    device: Hardware
    around: Sequence[str]
    """Other differences between the environments, and remarks on them."""
    commands: Sequence[str] = field(default_factory=tuple)
    """Commands that reproduce it."""
    error: float = 0.05
    """Chance that the culprit is a wrong one, as a share."""


def as_issue(issue: UpstreamIssue) -> str:
    """Return the text in Markdown; its first line is the title."""
    return "\n".join(_lines(issue)) + "\n"


def _lines(issue: UpstreamIssue) -> Iterator[str]:
    worst = max(issue.cases, key=lambda case: case.ratio or 0.0)
    more = f" and {len(issue.cases) - 1} more" if len(issue.cases) > 1 else ""
    size = f"{worst.ratio - 1:.1%} slower" if worst.ratio else "slower"
    yield f"# {_flat('; '.join(issue.changes))}: {size} on {_flat(issue.device.name)}"
    yield ""
    yield f"`{_code(worst.case_id)}`{more} got slower."
    together = "They are needed together. " if len(issue.changes) > 1 else ""
    if not issue.told_apart:
        together = "Which of them does it could not be told apart. "
    yield (
        "Only the packages named here were exchanged in the old environment, and each case was "
        f"measured in turns with the old one on the same device. {together}"
        f"The culprit is a wrong one at most once in {1 / issue.error:.0f}."
    )
    yield ""
    yield "| case | before | after | new / old | 95% interval | these packages alone |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for case in issue.cases:
        interval = " to ".join(f"{bound:.4f}" for bound in case.interval or ())
        times = (seconds(value) if value else "" for value in (case.before_s, case.after_s))
        ratios = (f"{value:.4f}" if value else "" for value in (case.ratio, case.alone))
        ratio, alone = ratios
        cells = (f"`{_code(case.case_id)}`", *times, ratio, interval, alone)
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "## Kernels"
    yield ""
    for case in issue.cases:
        yield f"- `{_code(case.case_id)}`: {_flat(case.kernels or 'not looked into')}"
    yield ""
    yield "## A minimal operator"
    yield ""
    if issue.minimal:
        yield from ("```", _one_line(issue.minimal), "```")
    else:
        yield "None is known: no operator that was measured shows the slow-down by itself."
    yield ""
    yield "## To see it"
    yield ""
    yield from ("```", *(_one_line(command) for command in issue.commands), "```")
    yield ""
    yield "## Environment"
    yield ""
    yield from (f"- {_flat(line)}" for line in (*_device(issue.device), *issue.around))


def _device(device: Hardware) -> Iterator[str]:
    yield ", ".join(filter(None, (device.name, device.arch)))
    partition = "/".join(filter(None, (device.compute_partition, device.memory_partition)))
    if partition:
        yield f"partition {partition}"
    if device.power_cap_w is not None:
        yield f"power cap {device.power_cap_w:g} W"


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())


def _flat(text: str) -> str:
    """Return a text on one line, without what would begin a tag, end a cell or call somebody."""
    return _one_line(text).replace("|", "\\|").replace("<", "&lt;").replace("@", "&#64;")


def _code(text: str) -> str:
    return _one_line(text).replace("`", "'").replace("|", "\\|")
