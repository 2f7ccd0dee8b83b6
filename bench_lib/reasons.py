"""Puts into one sentence why a verdict is what it is, and what nights show together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bench_lib.findings import (
    Bounded,
    ClockChange,
    CountChange,
    Difference,
    Differs,
    HostBound,
    Interleaved,
    Note,
    NotInterleaved,
    OtherChoices,
    OtherState,
    Overruled,
    ResourceChange,
    SlowerThanBaseline,
    Unaccepted,
)
from bench_lib.formats import (
    amount,
    many,
    percent,
    quantity,
    seconds,
    shortened,
    signed_percent,
    some,
)
from bench_lib.model import Finding, Published, SlowDown, Status, Verdict
from bench_lib.verdict.metrics import of as metric_of
from bench_lib.verdict.statistics.change import (
    AGREEING,
    DEVICE,
    LEAST_PAIRS,
    LEAST_PROCESSES,
    UNKNOWN_APART,
)
from bench_lib.verdict.statistics.iterations import TRUST


def in_words(verdict: Verdict) -> Verdict:
    """Return the verdict with its reason filled in."""
    return replace(verdict, reason=of(verdict))


def of(verdict: Verdict) -> str:
    """Return the reason: what the verdict says already, then its findings in order."""
    clauses = [clause for finding in verdict.findings for clause in _clauses(verdict, finding)]
    return "; ".join(filter(None, [verdict.reason, *clauses]))


def explained(verdict: Verdict, *findings: Finding) -> Verdict:
    """Add findings to a verdict that has its reason already, and extend the reason with them."""
    clauses = [clause for finding in findings for clause in _clauses(verdict, finding)]
    return replace(verdict.finding(*findings), reason="; ".join([verdict.reason, *clauses]))


def of_nights(slow_down: SlowDown, run_id: str) -> str:
    """Return a slowdown that nights show together in one line; ``run_id`` is the run shown."""
    low, high = (percent(bound - 1, 2) for bound in slow_down.interval)
    line = f"SLOWER since {slow_down.since[:10]}: {many(len(slow_down.cases), 'case')} by "
    line += f"{slow_down.ratio - 1:.2%} ({low} to {high}), detected over "
    line += f"{many(slow_down.nights, 'night')}: {some(slow_down.cases, 3)}"
    if slow_down.changes:
        line += f"; with {'; '.join(slow_down.changes)}"
    if slow_down.told_by != run_id:
        line += f"; first reported by run {slow_down.told_by}"
    return shortened(line)


def _clauses(verdict: Verdict, finding: Finding) -> Iterator[str]:
    match finding:
        case Difference():
            yield from _compared(verdict, finding)
        case Interleaved():
            if finding.ended:
                yield f"no more pairs: {finding.ended}"
        case NotInterleaved(why):
            yield f"not compared with the reference: {why}"
        case SlowerThanBaseline():
            pairs = "pair" if finding.pairs == 1 else f"{finding.pairs} pairs"
            equal = signed_percent((verdict.ratio or 1.0) - 1)
            slower = f"slower than the baseline by {finding.ratio - 1:.1%}"
            if finding.shared:
                slower += f" together with {', '.join(finding.shared)}"
            yield f"not the software under test ({pairs}: {equal}); {slower}"
        case Overruled(status=None):
            yield "the other baseline is more precise, and decides"
        case Overruled(status=status):
            yield f"interleaved with the reference, it is {status and status.value}"
        case ClockChange():
            yield from _clock(verdict, finding)
        case HostBound():
            yield from _host_bound(verdict, finding)
        case OtherChoices():
            yield _choices(finding)
        case CountChange(metric, before, here):
            yield f"{before:g} -> {here:g} {metric_of(metric).label}"
        case ResourceChange(kernel, resource, before, here):
            yield f"{resource} {before} -> {here} in {kernel}"
        case Bounded():
            yield from _bounded(verdict, finding)
        case Differs(conditions):
            name = _baseline(verdict)
            whose = f"{name}'s" if name == "the baseline" else f"those of {name}"
            yield f"conditions differ from {whose}: {'; '.join(conditions)}"
        case OtherState():
            yield _other_state(verdict, finding)
        case Unaccepted():
            yield from _unaccepted(verdict, finding)
        case Note(text):
            yield text.replace("the baseline", _baseline(verdict))


def _choices(finding: OtherChoices) -> str:
    clause = f"other autotuning choices: {finding.differences}; {many(finding.tunings, 'tuning')}"
    if finding.tunings < finding.needed:
        clause += f", and {finding.needed} are needed"
    return clause


def _baseline(verdict: Verdict) -> str:
    """Name what the verdict compares with."""
    pairing = verdict.found(Interleaved)
    if pairing is not None and pairing.alone:
        return pairing.reference
    return "recent runs" if verdict.against == "rolling" else "the baseline"


# --- processes, or pairs ---------------------------------------------------------------------


def _compared(verdict: Verdict, finding: Difference) -> Iterator[str]:
    if verdict.ratio is None:
        return
    n, samples = finding.candidate, "fresh processes" if finding.baseline else "pairs"
    one = "process" if finding.baseline else "pair"
    change = f"{_change(verdict, verdict.ratio)} than {_whom(verdict, finding)}"
    if finding.is_certain is None:
        yield change
        remedy = ": accept a baseline of five processes" if finding.baseline else ""
        yield f"a single {one} cannot tell a change from noise{remedy}"
    else:
        if verdict.interval is not None:
            low, high = (_percent(bound - 1, signed=True) for bound in verdict.interval)
            change += f" (95% interval {low} to {high})"
        yield change
        if finding.agreeing:
            yield f"{finding.agreeing} of {n} {samples} agree" if n > 1 else f"one {one} so far"
            if not finding.is_certain and finding.detects is None and verdict.ratio > 1:
                beyond = f"beyond the tolerance of {percent(verdict.tolerance or 0.0)}, "
                is_enough = n >= (AGREEING if finding.baseline else LEAST_PAIRS)
                few = (
                    f"one {one} is too few to decide"
                    if n == 1
                    else f"{many(n, one)} are too few to decide"
                )
                yield beyond + ("but chance may explain it" if is_enough else f"but {few}")
    yield from _limits(verdict, finding)


def _limits(verdict: Verdict, finding: Difference) -> Iterator[str]:
    units = f"{finding.limit}es" if finding.limit == "process" else f"{finding.limit}s"
    is_unknown = finding.limit == DEVICE and finding.limit_sd >= UNKNOWN_APART
    if finding.detects is not None and is_unknown:
        yield (
            "the baseline has no values of this device, and the variation between such devices "
            "is unknown: compare with a reference, or accept a baseline on this device"
        )
    elif finding.detects is not None:
        least = percent(min(finding.detects, 10.0))
        variation = f"{units} vary by {percent(finding.limit_sd)}"
        yield f"{variation}, so a slowdown below {least} may go unnoticed"
    if finding.family is not None:
        moved = _change(verdict, finding.family)
        yield f"after removing its family's shift on this device ({moved})"
    if finding.set_aside:
        one = "process" if finding.baseline else "pair"
        yield f"{many(finding.set_aside, f'disturbed {one}')} ignored"
    if finding.is_certain is not None and 0 < finding.baseline < LEAST_PROCESSES:
        yield f"with fewer than {LEAST_PROCESSES} baseline processes the spread is a guess"
    if finding.moved is not None:
        some, cases = finding.moved
        yield f"{some} of {cases} cases moved this way: look for a common cause"


def _change(verdict: Verdict, ratio: float) -> str:
    return f"{_percent(abs(ratio - 1))} {metric_of(verdict.metric).worsening(ratio)}"


def _percent(share: float, *, signed: bool = False) -> str:
    """Return a percentage with one decimal; a huge one with three digits in all."""
    if abs(share) >= 10:
        return f"{100 * share:{'+' if signed else ''}.3g}%"
    return signed_percent(share) if signed else percent(share)


def _whom(verdict: Verdict, finding: Difference) -> str:
    if not finding.baseline:
        pairing = verdict.found(Interleaved)
        name = pairing.reference if pairing is not None and pairing.alone else "the reference"
        return f"{name} in {many(finding.candidate, 'pair')}"
    if verdict.against == "rolling":
        return f"{many(finding.baseline, 'process')} of {_baseline(verdict)}"
    return many(finding.baseline, "baseline process")


# --- the device and its host -----------------------------------------------------------------


def _clock(verdict: Verdict, finding: ClockChange) -> Iterator[str]:
    if finding.cycles is None:
        way = f"{abs(finding.change):.1%} {'lower' if finding.change < 0 else 'higher'}"
        yield f"the clock was {way if finding.change else 'the same'}"
        return
    before = f"{finding.baseline_mhz:.0f} MHz in {_baseline(verdict)}"
    clocks = f"{finding.here_mhz:.0f} MHz against {before}"
    if finding.power_w is not None:
        clocks += f"; power {finding.power_w[0]:.0f} W against {finding.power_w[1]:.0f} W"
    by = f"{abs(finding.cycles - 1):.1%} {'slower' if finding.cycles > 1 else 'faster'}"
    if finding.leaves_doubt:
        yield f"{by} in time × clock, which chance may explain: {clocks}"
    else:
        yield f"explained by the clock: {clocks}; {by} in time × clock"


def _host_bound(verdict: Verdict, finding: HostBound) -> Iterator[str]:
    spent = ", ".join(_spent(verdict, finding))
    if finding.before:
        if spent:
            yield spent
        allowed = f", so {finding.allowed:.0%} more is allowed" if finding.allowed else ""
        yield f"host-bound: the device waits for Python{allowed}"
    else:
        change = "the device waited for the host, which it did not in the baseline"
        yield f"{change}: {spent}" if spent else change
    if finding.device_judges:
        yield "the device's own time is judged instead"
    elif finding.elsewhere and verdict.status is Status.SUSPECT:
        yield "the baseline is another host's; a reference on this one would tell"


def _spent(verdict: Verdict, finding: HostBound) -> Iterator[str]:
    if finding.issuing_s is not None:
        before_s = finding.issuing_before_s
        before = "" if before_s is None else f" ({seconds(before_s)} in {_baseline(verdict)})"
        yield f"issuing a step takes {seconds(finding.issuing_s)}{before}"
    if finding.device_s is not None:
        yield f"the device alone needs {seconds(finding.device_s)}"


# --- other rules -----------------------------------------------------------------------------


def _bounded(verdict: Verdict, finding: Bounded) -> Iterator[str]:
    metric = metric_of(finding.metric)
    if verdict.value is None or verdict.baseline is None:
        return
    caches = f" with {finding.state} caches" if finding.state else ""
    before = f"({amount(verdict.baseline, metric.unit)} in {_baseline(verdict)})"
    yield f"{metric.label} {amount(verdict.value, metric.unit)}{caches} {before}"
    if finding.is_beyond:
        yield f"{amount(finding.allowed, metric.unit)} allowed"
    if not finding.is_confirmed:
        yield "not confirmed by fresh processes"


def _other_state(verdict: Verdict, finding: OtherState) -> str:
    if finding.of == "caches":
        return f"not compared: caches were {finding.here} here and not in {_baseline(verdict)}"
    if finding.of == "device time":
        sources = f"{finding.here} here, {finding.baseline} in {_baseline(verdict)}"
        return f"no device time to compare ({sources}), and the wall time alone measures the host"
    return f"measured {finding.here} here and {finding.baseline} in the baseline; accept a new run"


def _unaccepted(verdict: Verdict, finding: Unaccepted) -> Iterator[str]:
    if verdict.value is not None:
        yield seconds(verdict.value)
    if finding.published is None:
        yield "no accepted baseline yet to compare it with"
    if finding.spread is not None:
        spread = f"iterations within a process vary by {finding.spread:.1%}, above {TRUST:.0%}"
        yield f"{spread}, where timings are no longer trusted"
    if not finding.is_finite:
        yield "the output contains infinities or NaN"
    if finding.published is not None:
        yield from _beside(finding.published, finding.rate)


def _beside(published: Published, rate: float | None) -> Iterator[str]:
    """Compare the rate with a published one; figures come first, as a terminal cuts the rest."""
    unit = f"{published.item}/s"
    if rate is not None:
        yield f"{quantity(rate)} {unit}"
    figure = f"published: {quantity(published.rate)} {unit}"
    if published.low is not None and published.high is not None:
        figure += f" ({quantity(published.low)} to {quantity(published.high)})"
    yield figure + ("" if rate is None else f", {rate / published.rate:.3g} times that")
    yield "for information only"
    yield published.caveat
    yield f"source: {published.source}"
