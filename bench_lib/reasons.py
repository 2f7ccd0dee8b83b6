"""A verdict in words: one sentence of its findings."""

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
    InTurns,
    NotInTurns,
    OtherChoices,
    OtherState,
    Overruled,
    ResourceChange,
    SlowerThanBaseline,
    Told,
    Unaccepted,
)
from bench_lib.formats import many, percent, quantity, seconds, signed_percent
from bench_lib.model import Finding, Published, Verdict
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
    """Return a verdict with its sentence."""
    return replace(verdict, reason=of(verdict))


def of(verdict: Verdict) -> str:
    """Return the sentence: what was said of it already, then each finding, in their order."""
    told = [words for finding in verdict.findings for words in _words(verdict, finding)]
    return "; ".join(filter(None, [verdict.reason, *told]))


def explained(verdict: Verdict, *found: Finding) -> Verdict:
    """Return a verdict that has its sentence, with further findings and their words."""
    more = [words for finding in found for words in _words(verdict, finding)]
    return replace(verdict.finding(*found), reason="; ".join([verdict.reason, *more]))


def _words(verdict: Verdict, finding: Finding) -> Iterator[str]:
    match finding:
        case Difference():
            yield from _compared(verdict, finding)
        case InTurns():
            if finding.ended:
                yield f"no more pairs: {finding.ended}"
        case NotInTurns(why):
            yield f"not measured in turns: {why}"
        case SlowerThanBaseline():
            pairs = "pair" if finding.pairs == 1 else f"{finding.pairs} pairs"
            equal = signed_percent((verdict.ratio or 1.0) - 1)
            words = f"slower than the baseline by {finding.ratio - 1:.1%}"
            if finding.shared:
                words += f" together with {', '.join(finding.shared)}"
            yield f"not the software under test ({pairs}: {equal}); {words}"
        case Overruled(status=None):
            yield "the other baseline decides"
        case Overruled(status=status):
            yield f"in turns with the reference it is {status and status.value}"
        case ClockChange():
            yield from _clock(finding)
        case HostBound():
            yield from _host_bound(finding)
        case OtherChoices():
            yield _choices(finding)
        case CountChange(metric, before, here):
            yield f"{before:g} -> {here:g} {metric_of(metric).label}"
        case ResourceChange(kernel, resource, before, here):
            yield f"{resource} {before} -> {here} in {kernel}"
        case Bounded():
            yield from _bounded(verdict, finding)
        case Differs(conditions):
            yield f"conditions differ from {_whose(verdict)}: {'; '.join(conditions)}"
        case OtherState():
            yield _other_state(verdict, finding)
        case Unaccepted():
            yield from _unaccepted(verdict, finding)
        case Told(words):
            yield words.replace("the baseline", _baseline(verdict))


def _choices(found: OtherChoices) -> str:
    words = f"other autotuning choices: {found.differences}; {many(found.tunings, 'tuning')}"
    if found.tunings < found.needed:
        words += f", and {found.needed} are needed"
    return words


def _baseline(verdict: Verdict) -> str:
    """Name what a verdict is held against."""
    turns = verdict.found(InTurns)
    return turns.reference if turns is not None and turns.alone else "the baseline"


def _whose(verdict: Verdict) -> str:
    name = _baseline(verdict)
    return f"{name}'s" if name == "the baseline" else f"those of {name}"


# --- processes, or pairs ---------------------------------------------------------------------


def _compared(verdict: Verdict, found: Difference) -> Iterator[str]:
    if verdict.ratio is None:
        return
    n, what = found.candidate, "fresh processes" if found.baseline else "pairs"
    words = f"{_change(verdict, verdict.ratio)} than {_whom(verdict, found)}"
    if found.is_certain is None:
        yield words
        remedy = ": accept a baseline of five" if found.baseline else ""
        yield f"one alone cannot tell software from chance{remedy}"
    else:
        if verdict.interval is not None:
            low, high = (_percent(bound - 1, signed=True) for bound in verdict.interval)
            words += f" (95% interval {low} to {high})"
        yield words
        if found.agreeing:
            one = "process" if found.baseline else "pair"
            yield f"{found.agreeing} of {n} {what} agree" if n > 1 else f"one {one} so far"
            if not found.is_certain and found.detects is None and verdict.ratio > 1:
                beyond = f"beyond the tolerance of {percent(verdict.tolerance or 0.0)}, "
                is_enough = n >= (AGREEING if found.baseline else LEAST_PAIRS)
                few = f"one {one} decides" if n == 1 else f"{many(n, one)} decide"
                yield beyond + ("but not beyond chance" if is_enough else f"but {few} nothing")
    yield from _limits(verdict, found)


def _limits(verdict: Verdict, found: Difference) -> Iterator[str]:
    who = f"{found.limit}es" if found.limit == "process" else f"{found.limit}s"
    if found.detects is not None and found.limit == DEVICE and found.limit_sd >= UNKNOWN_APART:
        yield (
            "the baseline lacks this device, and how far such devices are apart nobody has "
            "measured: measure in turns with a reference, or accept a baseline on this device"
        )
    elif found.detects is not None:
        least = percent(min(found.detects, 10.0))
        yield f"{who} vary by {percent(found.limit_sd)}, so nothing below {least} could be seen"
    if found.family is not None:
        moved = _change(verdict, found.family)
        yield f"without what its family shares on this device, which is {moved}"
    if found.set_aside:
        yield f"{many(found.set_aside, 'disturbed process')} set aside"
    if found.is_certain is not None and 0 < found.baseline < LEAST_PROCESSES:
        yield f"with fewer than {LEAST_PROCESSES} baseline processes their spread is a guess"
    if found.moved is not None:
        some, cases = found.moved
        yield f"{some} of {cases} cases moved this way: look for a common cause"


def _change(verdict: Verdict, ratio: float) -> str:
    return f"{_percent(abs(ratio - 1))} {metric_of(verdict.metric).worsening(ratio)}"


def _percent(share: float, *, signed: bool = False) -> str:
    """Return a percentage with one decimal; a huge one with three digits in all."""
    if abs(share) >= 10:
        return f"{100 * share:{'+' if signed else ''}.3g}%"
    return signed_percent(share) if signed else percent(share)


def _whom(verdict: Verdict, found: Difference) -> str:
    if not found.baseline:
        turns = verdict.found(InTurns)
        name = turns.reference if turns is not None and turns.alone else "the reference"
        return f"{name} in {many(found.candidate, 'pair')}"
    if verdict.against == "rolling":
        return f"{many(found.baseline, 'process')} of accepted nights"
    return many(found.baseline, "baseline process")


# --- the device and its host -----------------------------------------------------------------


def _clock(found: ClockChange) -> Iterator[str]:
    if found.cycles is None:
        lower = "lower" if found.change < 0 else "higher"
        yield f"the clock was {abs(found.change):.1%} {lower}" if found.change else "clocks equal"
        return
    words = f"{found.here_mhz:.0f} MHz against {found.baseline_mhz:.0f} MHz in the baseline"
    if found.power_w is not None:
        words += f"; power {found.power_w[0]:.0f} W against {found.power_w[1]:.0f} W"
    by = f"{abs(found.cycles - 1):.1%} {'slower' if found.cycles > 1 else 'faster'}"
    if found.leaves_doubt:
        yield f"in time × clock {by}, which is not beyond chance: {words}"
    else:
        yield f"the clock's: {words}; in time × clock {by}"


def _host_bound(found: HostBound) -> Iterator[str]:
    spent = ", ".join(_spent(found))
    if not found.before:
        words = "the device waited for the host, which it did not in the baseline"
        yield f"{words}: {spent}" if spent else words
        return
    if spent:
        yield spent
    words = "host-bound: the device waits for Python"
    yield words + (f", so {found.allowed:.0%} more is allowed" if found.allowed else "")
    if found.device_judges:
        yield "the device's own time is judged instead"


def _spent(found: HostBound) -> Iterator[str]:
    if found.issuing_s is not None:
        then = found.issuing_before_s
        beside = "" if then is None else f" ({seconds(then)} in the baseline)"
        yield f"issuing a step takes {seconds(found.issuing_s)}{beside}"
    if found.device_s is not None:
        yield f"the device alone needs {seconds(found.device_s)}"


# --- other rules -----------------------------------------------------------------------------


def _bounded(verdict: Verdict, found: Bounded) -> Iterator[str]:
    metric = metric_of(found.metric)
    if verdict.value is None or verdict.baseline is None:
        return
    caches = f" with {found.state} caches" if found.state else ""
    was = f"({metric.in_words(verdict.baseline)} in {_baseline(verdict)})"
    yield f"{metric.label} {metric.in_words(verdict.value)}{caches} {was}"
    if found.is_beyond:
        yield f"{metric.in_words(found.allowed)} allowed"
    if not found.is_confirmed:
        yield "not confirmed by fresh processes"


def _other_state(verdict: Verdict, found: OtherState) -> str:
    if found.of == "caches":
        return f"not compared: caches were {found.here} here and otherwise in {_baseline(verdict)}"
    if found.of == "device time":
        ways = f"{found.here} here, {found.baseline} in {_baseline(verdict)}"
        return f"no device time to compare ({ways}), and wall time alone is the host's"
    ways = f"{found.here} here and {found.baseline} in the baseline"
    return f"measured {ways}; accept a run anew"


def _unaccepted(verdict: Verdict, found: Unaccepted) -> Iterator[str]:
    if verdict.value is not None:
        value = verdict.value
        yield f"{value * 1e3:.3f} ms" if value < 1 else f"{value:.3f} s"
    if found.published is None:
        yield "nothing accepted yet to hold it against"
    if found.spread is not None:
        words = f"iterations of a process spread by {found.spread:.1%}, above {TRUST:.0%}"
        yield f"{words}, where trust in the timing ends"
    if not found.is_finite:
        yield "the answer holds infinities or NaN"
    if found.published is not None:
        yield from _beside(found.published, found.rate)


def _beside(published: Published, rate: float | None) -> Iterator[str]:
    """Compare the rate with a published one, figures first: a terminal cuts the rest off."""
    unit = f"{published.item}/s"
    if rate is not None:
        yield f"{quantity(rate)} {unit}"
    words = f"published: {quantity(published.rate)} {unit}"
    if published.low is not None and published.high is not None:
        words += f" ({quantity(published.low)} to {quantity(published.high)})"
    yield words + ("" if rate is None else f", {rate / published.rate:.3g} times that")
    yield "not judged by"
    yield published.caveat
    yield f"source: {published.source}"
