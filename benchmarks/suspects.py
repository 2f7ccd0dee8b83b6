"""How small a slow-down is visible in turns, by how many cases look different on one night?

    python benchmarks/suspects.py DIR [DIR ...] [--seed 1]

Each DIR is what ``held_out.py reference`` left: a suite of which every case was measured in turns
with a reference.  Usually few cases look different.  So the pairs of 1, 3 or 6 cases at a time are
judged as if no other case had any, in groups by lot, and at last those of all.

Prints a JSON object for each number of cases: of how many what was asked is visible, and the
figures of the others.  No device is needed.  Baselines and pairs are those of the runs, the rule
is today's.  Nights before the run and conditions of measuring are left out.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from held_out import SHARP, TIMES

from bench_lib.engine import pairing
from bench_lib.engine.reference import MOST
from bench_lib.model import Attempt, Record
from bench_lib.plugin.options import CONFIRM
from bench_lib.storage import acceptance, baselines, history
from bench_lib.verdict import families, judge
from bench_lib.verdict.evidence import REFERENCE, Evidence, Turns

AT_ONCE = (1, 3, 6)


def suite_of(folder: Path, accepted: Path) -> dict[str, Evidence]:
    """Return the evidence on each case of a run that was measured, with its pairs."""
    runs = [history.read(file) for file in history.files(folder)]
    run, theirs = sorted(runs, key=lambda run: any(map(_is_of_reference, run.records.values())))
    known = baselines.load(accepted, run.key)
    found = {}
    for case_id, record in run.records.items():
        other = theirs.records.get(case_id)
        sides = None if other is None else (_as_accepted(other), record)
        pairs, replays = (
            [(new, old) for old, new in of(*sides)] if sides else []
            for of in (pairing.pairs_of, pairing.replays_of)
        )
        processes = acceptance.processes_of(record, run.run_id)
        if not processes:
            continue
        found[case_id] = Evidence(
            processes,
            known.of(record.case),
            record.case.limits,
            planned=1 + CONFIRM,
            tried=len({each.process for each in record.attempts if not each.replays}),
            family=families.family_of(record.case, in_bursts=any(p.in_bursts for p in processes)),
            ranks=record.case.launch.ranks,
            turns=Turns("the reference", pairs, CONFIRM, most=MOST * CONFIRM, replays=replays),
            replays=acceptance.replays_of(record, run.run_id),
            unreplayed=acceptance.unreplayed(record),
        )
    return found


def _is_of_reference(record: Record) -> bool:
    return f"/{REFERENCE}::" in (record.nodeid or "")


def _as_accepted(record: Record) -> Record:
    """Return a reference's record with its attempts as they were judged."""

    def judged(attempt: Attempt) -> Attempt:
        was = "measured in turns with it" in (attempt.discarded or "")
        return replace(attempt, accepted=was, discarded=None if was else attempt.discarded)

    return replace(record, attempts=[judged(each) for each in record.attempts])


def groups(cases: Sequence[str], size: int, seed: int) -> Iterator[Sequence[str]]:
    """Part cases by lot."""
    mixed = random.Random(seed).sample(cases, len(cases))
    return (mixed[begin : begin + size] for begin in range(0, len(mixed), size))


def visible(suite: dict[str, Evidence], asked: Sequence[str]) -> dict[str, float | None]:
    """Return by case the smallest slow-down that its pairs would show, if no other had any."""
    alone = {
        case_id: evidence if case_id in asked else replace(evidence, turns=None)
        for case_id, evidence in suite.items()
    }
    found = judge.judge(alone)
    answers = {
        case_id: [v for v in found[case_id] if v.against == REFERENCE and v.metric in TIMES]
        for case_id in asked
    }
    return {
        case_id: each[0].detectable_effect if each else None for case_id, each in answers.items()
    }


def main() -> None:
    """Judge the runs again."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", metavar="DIR", type=Path, nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    suites = [
        suite_of(run, folder / "baselines")
        for folder in arguments.folders
        for run in sorted((folder / "runs").iterdir())
    ]
    for size in (*AT_ONCE, max(map(len, suites))):
        seen: list[tuple[str, float | None]] = []
        for suite in suites:
            for group in groups(sorted(suite), size, arguments.seed):
                seen += visible(suite, group).items()
        others = [(name, least) for name, least in sorted(seen) if least is None or least > SHARP]
        about = {"at_once": size, "cases": len(seen), "sharp": len(seen) - len(others)}
        print(json.dumps({**about, "others": others}), flush=True)


if __name__ == "__main__":
    main()
