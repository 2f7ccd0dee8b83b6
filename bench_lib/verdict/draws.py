"""Whether a changed time comes from the compiler's draw: its choices are compared kernel by kernel.

If they differ from the baseline's, the case is measured with the baseline's own choices and judged
by that.  If only its own choices change the time, it is a redraw.  A draw is compared with the same
draw alone; an unknown draw excuses nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from bench_lib.model import Baseline, Draw, ProcessSummary, Status, Verdict
from bench_lib.verdict.evidence import PINNED, REFERENCE, Evidence, Turns, drawn_alike, known_draw
from bench_lib.verdict.metrics import LEADING, of
from bench_lib.verdict.metrics.metric import Metric
from bench_lib.verdict.statistics.comparison import AGREEING

SLOWER = (Status.REGRESSED, Status.SUSPECT)
"""Reasons for these statuses say how the compiler's choices compare."""
_ALIKE = "the compiler chose as in the baseline"
MOST_NAMED = 3
"""Kernels that a reason names."""


def differences(old: Draw, new: Draw) -> list[str]:
    """Name the kernels whose configuration differs, and what differs."""
    chosen = old.by_source
    words = []
    for name, choice in new.kernels.items():
        before = chosen.get(choice.source)
        if before is None or before.config == choice.config:
            continue
        names = sorted({*before.config, *choice.config})
        changed = [n for n in names if before.config.get(n) != choice.config.get(n)]
        told = (f"{n} {before.config.get(n)} -> {choice.config.get(n)}" for n in changed)
        words.append(f"{name} {', '.join(told)}")
    return words


def to_replay(evidence: Evidence, *, in_turns: bool = False) -> Draw | None:
    """Return the choices to measure a case with, slower or not: a faster draw may hide a loss.

    None if the baseline's choices are unknown or cannot be made again.  None, too, if it chose as
    the baseline did, but ``in_turns`` the reference might choose otherwise.
    """
    obstacle = _obstacle(evidence)
    if obstacle is None or (in_turns and obstacle == _ALIKE):
        return _accepted(evidence)
    return None


def as_replayed(evidence: Evidence) -> Evidence | None:
    """Return the case's evidence with the baseline's own choices; None if there is none."""
    wanted, baseline = _accepted(evidence), evidence.baseline
    if wanted is None or baseline is None:
        return None
    replays = drawn_alike(evidence.replays, wanted)
    if not replays:
        return None
    return replace(
        evidence,
        candidate=replays,
        baseline=replace(baseline, processes=drawn_alike(baseline.processes, wanted)),
        rolling=(),
        turns=_of_draw(evidence.turns, wanted),
        replays=(),
        planned=max(1, evidence.planned - 1),
    )


def by_replays(verdicts: Sequence[Verdict], replayed: Evidence) -> list[Verdict]:
    """Return the verdicts that replays answer, each with the ratio of the replays."""
    return [
        replace(verdict, ratio=_ratio(of(verdict.metric), replayed) or verdict.ratio)
        if verdict.against != REFERENCE
        else verdict
        for verdict in verdicts
        if decide(verdict)
    ]


def _ratio(metric: Metric, evidence: Evidence) -> float | None:
    """Return how much more the candidate has than the pinned baseline, by geometric means."""
    sides = (evidence.candidate, evidence.references()[PINNED])
    new, old = (list(metric.values(side).values()) for side in sides)
    if not new or not old:
        return None
    return statistics.geometric_mean(new) / statistics.geometric_mean(old)


def _of_draw(turns: Turns | None, wanted: Draw) -> Turns | None:
    """Take the pairs of replays for the pairs; in the others each side drew for itself."""
    if turns is None:
        return None
    for _, old in turns.replays:
        if not drawn_alike([old], wanted):
            words = f"the reference did not choose as in the baseline: {_otherwise(wanted, old)}"
            return replace(turns, without=words)
    pairs = [pair for pair in turns.replays if drawn_alike(pair[:1], wanted)]
    return replace(turns, pairs=pairs)


def _otherwise(wanted: Draw, process: ProcessSummary) -> str:
    """Name kernels for which a process has another configuration."""
    words = differences(wanted, process.draw) if process.draw else []
    return "; ".join(words[:MOST_NAMED]) or "other kernels"


def settled(
    evidence: Evidence, drawn: Sequence[Verdict], replayed: Sequence[Verdict]
) -> list[Verdict]:
    """Judge what a draw can change by the baseline's own choices.

    The answer of pairs of replays stands before what it replaces.
    """
    answers = {v.metric: v for v in reversed(replayed) if v.against != REFERENCE}
    pairs = {v.metric: _with_its_choices(v) for v in replayed if v.against == REFERENCE}
    found: list[Verdict] = []
    for verdict in drawn:
        if not decide(verdict) or verdict.metric not in answers:
            found.append(verdict)
            continue
        pair = pairs.get(verdict.metric)
        if pair is not None and pair not in found:
            found.append(pair)
        if pair is None or verdict.against != REFERENCE:
            found.append(_settled(evidence, verdict, answers[verdict.metric]))
    return found


def _with_its_choices(verdict: Verdict) -> Verdict:
    words = f"with the compiler's choices of the baseline: {verdict.reason}"
    return replace(verdict, reason=words)


def _settled(evidence: Evidence, drawn: Verdict, replayed: Verdict) -> Verdict:
    if drawn.against == REFERENCE:
        words = f"{drawn.reason}; turns do not cancel what the compiler chose, so replays decide"
        return replace(drawn, status=Status.SKIPPED, reason=words)
    if _chose_alike(evidence):  # and was replayed for the reference's sake
        return replace(_with_its_choices(replayed), against=drawn.against)
    is_excused = replayed.status is Status.SKIPPED and _costs(drawn, replayed)
    if _has_moved(replayed) or (_has_moved(drawn) and replayed.status is not Status.OK):
        if not is_excused:
            return replace(_with_its_choices(replayed), against=drawn.against)
    elif not _has_moved(drawn):
        return drawn
    metric = of(drawn.metric)
    here, there = (
        "" if v.ratio is None else f" {abs(v.ratio - 1):.1%} {metric.worsening(v.ratio)}"
        for v in (drawn, replayed)
    )
    words = f"drawn anew:{here} as the compiler chose now,{there} with its choices of the baseline"
    words = "; ".join(filter(None, (words, _compared(evidence))))
    return replace(drawn, status=Status.REDRAWN, reason=words)


def _chose_alike(evidence: Evidence) -> bool:
    """Whether the compiler chose by itself as in the baseline."""
    drawn, wanted = _drawn(evidence.candidate), _accepted(evidence)
    return drawn is not None and wanted is not None and drawn.chooses_as(wanted)


def _costs(drawn: Verdict, replayed: Verdict) -> bool:
    """Whether the compiler's own choices are slower than the baseline's by more than allowed."""
    if drawn.ratio is None or replayed.ratio is None:
        return False
    return drawn.ratio > replayed.ratio * (1 + (drawn.tolerance or 0.0))


def _has_moved(verdict: Verdict) -> bool:
    """Whether a time looks slower or faster, called so or not."""
    if verdict.status in (*SLOWER, Status.IMPROVED):
        return True
    bound = 1 + (verdict.tolerance or 0.0)
    return verdict.ratio is not None and verdict.ratio * bound < 1


def remarked(evidence: Evidence, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Add to slower verdicts how the compiler's choices compare, or why that is unknown."""
    words = _remark(evidence)
    return [
        replace(verdict, reason=f"{verdict.reason}; {words}")
        if words and verdict.status in SLOWER and of(verdict.metric) is LEADING
        else verdict
        for verdict in verdicts
    ]


def decide(verdict: Verdict) -> bool:
    """Whether choices of kernels decide what a verdict is about: the device's times."""
    return of(verdict.metric).clock_excuses


def _accepted(evidence: Evidence) -> Draw | None:
    """Return the draw that most of the baseline's processes had; None if no draw was had twice.

    A process without another like it shows nothing of chance.
    """
    baseline: Baseline | None = evidence.baseline
    processes = [] if baseline is None else baseline.processes
    known = [draw for draw in map(known_draw, processes) if draw is not None]
    alike = {i: len(drawn_alike(processes, draw)) for i, draw in enumerate(known)}
    most = max(alike, key=lambda i: alike[i], default=None)
    return known[most] if most is not None and alike[most] >= AGREEING else None


def _remark(evidence: Evidence) -> str:
    draws = [process.draw for process in evidence.candidate if process.draw is not None]
    if not draws:
        return ""
    obstacle = _obstacle(evidence)
    return _compared(evidence) if obstacle is None else obstacle


def _obstacle(evidence: Evidence) -> str | None:
    """Say why the baseline's choices cannot be measured; None if they can."""
    drawn, wanted = _drawn(evidence.candidate), _accepted(evidence)
    if drawn is None:
        reasons = [p.draw.unknown for p in evidence.candidate if p.draw and p.draw.unknown]
        return f"the compiler's draw is unknown: {reasons[0] if reasons else 'several draws'}"
    if wanted is None:
        return "the compiler's draw is not known of the baseline; accept a run to keep it"
    if drawn.chooses_as(wanted):
        return _replays_obstacle(evidence, wanted) or _ALIKE
    old, new = wanted.by_source, drawn.by_source
    unlike = len(new.keys() - old.keys()) or len(old.keys() - new.keys())
    if unlike:
        words = f"the sources of {unlike} of {len(new)} kernels are not the baseline's, so its "
        return f"{words}choices cannot be replayed and another draw is not excluded"
    if any(old[source].template and old[source] != new[source] for source in old):
        return f"tiles of a template cannot be replayed; {_compared(evidence)}"
    return _replays_obstacle(evidence, wanted)


def _replays_obstacle(evidence: Evidence, wanted: Draw) -> str | None:
    """Say why replays that were tried do not count; None if none failed."""
    if evidence.unreplayed:
        return f"the baseline's choices could not be replayed: {evidence.unreplayed}"
    for process in evidence.replays:
        if process.draw and not process.draw.chooses_as(wanted):
            words = _otherwise(wanted, process)
            return f"the baseline's choices could not be replayed: {words}"
    return None


def _drawn(candidate: Sequence[ProcessSummary]) -> Draw | None:
    """Return the draw that all processes of the case had; None if it is unknown or they differ."""
    draws = [known_draw(process) for process in candidate]
    first = draws[0]
    if first is None or any(draw is None or not draw.chooses_as(first) for draw in draws):
        return None
    return first


def _compared(evidence: Evidence) -> str:
    drawn, wanted = _drawn(evidence.candidate), _accepted(evidence)
    if drawn is None or wanted is None:
        return ""
    words = differences(wanted, drawn)
    named = "; ".join(words[:MOST_NAMED])
    more = f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
    count = f"{len(words)} of {len(drawn.kernels)}"
    return f"the compiler chose otherwise for {count} kernels: {named}{more}"
