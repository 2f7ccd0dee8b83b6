"""The text of an issue for the makers of a package: the slow-down, and how to reproduce it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bench_lib.formats import printable, seconds
from bench_lib.model import Hardware
from bench_lib.studies.ab import Compared
from bench_lib.studies.culprits import Culprit
from bench_lib.verdict.statistics.culprits import ERROR


def issue_lines(
    culprits: Sequence[Culprit],
    compared: Compared,
    *,
    kernels: Mapping[str, str],
    minimal: Mapping[str, str],
    device: Hardware,
    command: str,
) -> Iterator[str]:
    """Yield the text in Markdown on one set of packages; its first line is the title.

    ``culprits`` has the set for each case that it makes slower.  By case, ``kernels`` says what the
    kernels do more, and ``minimal`` has the command of an operator that shows it.  ``command``
    reproduces the comparison.
    """
    rows = {row.case_id: row for row in compared.rows}
    timings = {each.case_id: rows[each.case_id].verdicts[0] for each in culprits}
    worst = max(timings, key=lambda case_id: timings[case_id].ratio or 0.0)
    ratio, changes = timings[worst].ratio, culprits[0].changes
    size = f"{ratio - 1:.1%} slower" if ratio else "slower"
    yield f"# {_flat('; '.join(changes))}: {size} on {_flat(device.name)}"
    yield ""
    more = f" and {len(culprits) - 1} more" if len(culprits) > 1 else ""
    yield f"`{_code(worst)}`{more} got slower."
    together = "They are needed together. " if len(changes) > 1 else ""
    if not all(each.told_apart for each in culprits):
        together = "Which of them does it could not be told apart. "
    yield (
        "Only the packages named here were exchanged in the old environment, and each case was "
        f"measured in turns with the old one on the same device. {together}"
        f"The culprit is a wrong one at most once in {1 / ERROR:.0f}."
    )
    yield ""
    yield "| case | before | after | new / old | 95% interval | these packages alone |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for each in culprits:
        row, timing = rows[each.case_id], timings[each.case_id]
        times = (seconds(value) if value else "" for value in (row.a_s, row.b_s))
        whole, alone = (f"{value:.4f}" if value else "" for value in (timing.ratio, each.ratio))
        interval = " to ".join(f"{bound:.4f}" for bound in timing.interval or ())
        cells = (f"`{_code(each.case_id)}`", *times, whole, interval, alone)
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "## Kernels"
    yield ""
    for case_id in timings:
        yield f"- `{_code(case_id)}`: {_flat(kernels.get(case_id) or 'not looked into')}"
    yield ""
    yield "## A minimal operator"
    yield ""
    if operator := next(filter(None, map(minimal.get, timings)), None):
        yield from ("```", _one_line(operator), "```")
    else:
        yield "None is known: no operator that was measured shows the slow-down by itself."
    yield ""
    yield "## To see it"
    yield ""
    yield from ("```", _one_line(command), "```")
    yield ""
    yield "## Environment"
    yield ""
    yield from (f"- {_flat(line)}" for line in (*_device(device), *compared.differences))


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
