"""Verdicts with their sentences, as a run writes them."""

from __future__ import annotations

from collections.abc import Mapping

from bench_lib import reasons
from bench_lib.model import Verdict
from bench_lib.verdict import judge
from bench_lib.verdict.evidence import Evidence


def verdicts_of(suite: Mapping[str, Evidence]) -> dict[str, list[Verdict]]:
    found = judge.judge(suite)
    return {case_id: list(map(reasons.in_words, of_case)) for case_id, of_case in found.items()}
