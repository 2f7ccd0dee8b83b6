"""What a run's cases were judged by, and what to know about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench_lib.engine.settings import PLANNED
from bench_lib.engine.suite import Suite
from bench_lib.environment import fingerprint
from bench_lib.formats import many, some
from bench_lib.verdict import pairing
from bench_lib.verdict.evidence import PINNED


def judged_by(suite: Suite) -> list[str]:
    """Say what the cases were judged by, and what to know about it."""
    pairings = [case.pairing for case in suite.evidence.values()]
    if any(pairing.pairs for pairing in pairings):
        notes = [_other_than_accepted(suite, case_id) for case_id in suite.evidence]
        notes.append(_shared_code(suite))
        line = f"against {pairings[0].reference}, interleaved"
        return [line, *dict.fromkeys(filter(None, notes))]
    judged = [case for case in suite.evidence.values() if not case.is_unjudged]
    if not judged:
        return []
    accepted = [case.references[PINNED] for case in judged]
    line = f"against {many(max(map(len, accepted)), 'process')}"
    if devices := {process.device_uuid for case in accepted for process in case} - {None}:
        line += f" on {many(len(devices), 'device')}"
    if any(case.is_new_to(PINNED) for case in judged):
        detects = pairing.would_detect(judged, PLANNED)
        gain = "cancels device variation" if detects is None else f"would detect {detects:.1%}"
        line += f"; this device is new: --perf-reference {gain}"
    return [line]


def _other_than_accepted(suite: Suite, case_id: str) -> str:
    """Say how the reference differs from what a case's baseline was accepted in."""
    assert suite.reference is not None
    theirs = suite.reference.began.get(case_id)
    accepted = suite.accepted_in(suite.records[case_id])
    if theirs is None or accepted is None:
        return ""
    changes = fingerprint.difference(*map(fingerprint.versions, (accepted, theirs)))
    note = "note: the reference is not the environment in which the baseline was accepted"
    return f"{note}: {'; '.join(changes)}" if changes else ""


def _shared_code(suite: Suite) -> str:
    """Say which code of this checkout both sides run, if their software does not differ either.

    With another torch that is intended, and the tests' own code is always shared.
    """
    assert suite.reference is not None
    cwd, shared = Path.cwd(), dict[str, None]()
    here = next((p for p in (cwd, *cwd.parents) if (p / ".git").exists()), cwd)
    for case_id in suite.evidence:
        theirs = suite.reference.records.get(case_id)
        if theirs is None:
            continue
        sides = (suite.reference.began[case_id], suite.began[case_id])
        changes = fingerprint.difference(*(replace(side, caches={}) for side in sides))
        if not all(change.startswith("PYTHONPATH ") for change in changes):
            continue
        tests = Path((suite.records[case_id].nodeid or "").partition("::")[0]).parent.name
        files = {n: Path(file) for m in theirs.measurements for n, file in m.code.items()}
        for name, file in files.items():
            if not file.is_relative_to(here) or tests in file.relative_to(here).parts:
                continue
            # The target branch's worktree may be a folder of this checkout.
            if not any((p / ".git").exists() for p in file.parents if here in p.parents):
                shared[name] = None
    if not shared:
        return ""
    return (
        f"note: both sides import {some(list(shared), 3)} from {here}, so no change there "
        "shows; install the target branch in the reference, or name it in its PYTHONPATH"
    )
