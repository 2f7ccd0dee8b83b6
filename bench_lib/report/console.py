"""Records as text, as at the end of a run, in at most 100 columns."""

from __future__ import annotations

import datetime as dt
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from bench_lib.findings import NotInterleaved
from bench_lib.formats import SHARE, printable, shortened, some
from bench_lib.model import Measurement, Record, Status, Verdict
from bench_lib.report.answer import Column, Table, judged
from bench_lib.storage.baselines import in_force
from bench_lib.storage.history import utc_today
from bench_lib.verdict import judge, pairing
from bench_lib.verdict.evidence import PINNED, REFERENCE, ROLLING
from bench_lib.verdict.metrics import find
from bench_lib.verdict.metrics.metric import Rule
from bench_lib.verdict.severity import rank
from bench_lib.verdict.statistics import iterations

NAMED = 3
"""Maximum number of cases that a line names; the others are counted."""


def rate_of(measurement: Measurement) -> float:
    """Items per second of wall-clock time while measuring."""
    return measurement.items_per_step * len(measurement.iteration_s) / measurement.wall_s


def _median(of: Callable[[Measurement], float]) -> Callable[[Record], float | None]:
    """Return what computes the median over a record's accepted measurements; None without any."""

    def median(record: Record) -> float | None:
        values = list(map(of, record.measurements))
        return statistics.median(values) if values else None

    return median


def _peak_bytes(record: Record) -> int | None:
    peaks = [m.peak_memory_bytes for m in record.measurements if m.peak_memory_bytes is not None]
    return max(peaks, default=None)


def _item(record: Record) -> str:
    return f"{record.measurements[0].item}/s" if record.measurements else ""


def _timing(record: Record) -> Verdict | None:
    """Return the timing to show; None for a case without figures."""
    return timing_of(record) if record.measurements else None


def timing_of(record: Record) -> Verdict | None:
    """Return the timing that decides the status, else the latency; None without timings."""
    known = ((verdict, find(verdict.metric)) for verdict in record.verdicts)
    timings = [verdict for verdict, metric in known if metric and metric.rule is Rule.CHANCE]
    decisive = [v for v in timings if v.status is record.status]
    return next(iter(decisive or timings), None)


def day_of(record: Record) -> dt.date:
    """Return the day (UTC) of a case's first attempt, which decides about a quarantine."""
    try:
        return dt.date.fromisoformat(record.attempts[0].time[:10])
    except (IndexError, ValueError):  # nothing was measured, or the file was edited
        return utc_today()


def excused(record: Record) -> bool:
    """Return whether a quarantine was in force, so that the record does not fail the run."""
    return in_force(record.quarantine, day_of(record))


def shown_status(record: Record) -> str:
    """Return a record's status, in brackets while the case is quarantined."""
    if record.status is None:
        return "not judged"
    return f"({record.status.value})" if excused(record) else record.status.value


COLUMNS: list[Column[Record]] = [
    Column("case_id", lambda record: record.case.id, heading="case"),
    Column("shown_status", shown_status, heading="status"),
    Column("median_s", _median(lambda m: statistics.median(m.iteration_s)), "s", "median"),
    *(column for column in judged(_timing) if column.name != "interval"),
    Column("items_per_s", _median(rate_of), _item, "rate"),
    Column("spread", _median(lambda m: iterations.spread(m.iteration_s)), SHARE),
    Column("memory_bytes", _peak_bytes, "B", "memory"),
]
"""The columns of a case in the terminal, in Markdown and on the page."""


def summary(records: Iterable[Record]) -> Table[Record]:
    """Return a table of records, worst first and otherwise in the order measured."""
    return Table(COLUMNS, sorted(records, key=lambda record: rank(record.status)))


_CHANGE = re.compile(r"^.*?%\); (?:[^;]* agree; )?")
"""The begin of a reason, up to what limits it."""
_QUIET = (Status.OK, Status.NO_BASELINE, Status.SKIPPED)


def explanations(records: Iterable[Record], *, above: Sequence[Record] = ()) -> list[str]:
    """Return a line, which begins with the case's id, for each thing that a reader should know.

    Verdicts of the records ``above`` have been shown already.
    """
    lines: list[str] = []
    reasons: list[tuple[str, str]] = []
    hints: list[tuple[str, str]] = []
    for record in records:
        lines += _quarantine_lines(record)
        if record.status is Status.SKIPPED and record.verdicts:
            reason = shortened(judge.leading(record.verdicts).reason)
            reasons.append((record.case.id, f"SKIPPED: {reason}"))
        elsewhere = {verdict.metric for verdict in pairing.elsewhere(record.verdicts)}
        pinned = {(v.metric, v.status) for v in record.verdicts if v.against == PINNED}
        for verdict in record.verdicts if record not in above else ():
            if verdict.against == ROLLING and (verdict.metric, verdict.status) in pinned:
                continue
            if verdict.status is Status.NO_BASELINE and (lack := verdict.found(NotInterleaved)):
                reasons.append((record.case.id, f"not compared with the reference: {lack.why}"))
            is_finding = verdict.against == REFERENCE and verdict.metric in elsewhere
            if verdict.status not in _QUIET or verdict.against == "published" or is_finding:
                # A busy machine makes most cases NOISY; the table has their changes.
                is_noisy = verdict.status is Status.NOISY
                reason = _CHANGE.sub("", verdict.reason) if is_noisy else verdict.reason
                text = f"{verdict.status.value} {verdict.metric}: {shortened(reason)}"
                (hints if is_noisy else reasons).append((record.case.id, text))
        for attempt in record.attempts:
            if attempt.invalid and record.status is not Status.INVALID:
                reason, again, _ = (attempt.discarded or "").partition("; measured again")
                what = "measured again" if again else "discarded"
                hints.append((record.case.id, f"{what}: {reason}"))
        for attempt in [a for a in record.attempts if a.accepted] or record.attempts:
            warnings = attempt.measurement.warnings if attempt.measurement else []
            known = {_figureless(verdict.reason) for verdict in record.verdicts}
            new = [text for text in warnings if _figureless(text) not in known]
            hints += ((record.case.id, f"warning: {text}") for text in new)
    lines += grouped(reasons) + grouped(hints, _figureless)
    return list(map(printable, lines))


def _figureless(text: str) -> str:
    return re.sub(r"\d+(?:\.\d+)?", "", text)


def changes(records: Iterable[Record]) -> Iterator[str]:
    """Yield a line for each set of changes; one of several names its cases."""
    sets: dict[tuple[bool, str], list[Record]] = {}
    for record in records:
        if record.changes and record.status not in (Status.NO_BASELINE, Status.SKIPPED, None):
            text = shortened("; ".join(record.changes))
            sets.setdefault((_has_reference(record), text), []).append(record)
    for (_, text), cases in sets.items():
        line = f"{_changed(cases)}: {text}"
        names = f"{some([record.case.id for record in cases], NAMED)}: "
        yield names + line if len(sets) > 1 else line


def _changed(cases: Sequence[Record]) -> str:
    """Say what the changes of these cases compare with."""
    if _has_reference(cases[0]):
        return "against the reference"
    dates = {(record.baseline_accepted or "")[:10] for record in cases} - {""}
    return f"since the baseline{f' of {min(dates)}' if dates else ''}"


def _has_reference(record: Record) -> bool:
    return any(verdict.against == REFERENCE for verdict in record.verdicts)


def grouped(remarks: Iterable[tuple[str, str]], key: Callable[[str], str] = str) -> list[str]:
    """Return a line for each text of a case, or for all with one key, with its cases."""
    groups: dict[str, dict[str, str]] = {}
    for case_id, text in remarks:
        groups.setdefault(key(text), {}).setdefault(case_id, text)
    return [f"{some(list(g), NAMED)}: {next(iter(g.values()))}" for g in groups.values()]


def _quarantine_lines(record: Record) -> list[str]:
    if record.quarantine is None:
        return []
    case_id, until, reason = record.case.id, record.quarantine.until, record.quarantine.reason
    if excused(record):
        return [f"{case_id}: in quarantine until {until}: {reason}"]
    lift = f"end it with bench-lib baseline quarantine {case_id} --lift, or set a new --until"
    return [f"{case_id}: its QUARANTINE ENDED on {until} ({reason}); {lift}"]


def counted(counts: Mapping[str, int]) -> str:
    """Return the number of cases by status on one line."""
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "not judged"


def brief(record: Record) -> str:
    """Return which metric fails, by how much, and the kernels to blame; or the error."""
    verdict = judge.leading(record.verdicts)
    first = printable(verdict.reason).partition("\n")[0]
    if verdict.status is Status.ERROR:
        return f"{verdict.status.value}: {first}"
    without_details = re.split(r"; | \(| than ", first)[0]
    text = f"{verdict.metric}: {without_details}"
    return text + (f" ({'; '.join(record.blamed)})" if record.blamed else "")


def in_words(record: Record, *, brief: bool = False) -> str:
    """Return a case's result in a few lines: the leading verdict, then the other metrics.

    ``brief`` omits metrics that pass, and changes, which ``changes`` has once for all cases.
    """
    verdict = judge.leading(record.verdicts)
    lines = [f"{verdict.status.value} {record.case.id}: {verdict.metric}: {verdict.reason}"]
    lines += [
        f"  {other.metric}: {other.status.value}: {other.reason}"
        for other in record.verdicts
        if other is not verdict and not (brief and other.status in _QUIET)
    ]
    if record.changes and not brief:
        lines.append(f"  {_changed([record])}: {'; '.join(record.changes)}")
    lines += [f"  {line}" for line in _quarantine_lines(record)]
    last_output = [a.fault.last_output for a in record.attempts if a.fault and a.fault.last_output]
    if last_output:
        lines += ["", "last output of the worker:", last_output[-1]]
    return printable("\n".join(lines))
