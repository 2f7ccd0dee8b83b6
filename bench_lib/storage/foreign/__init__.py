"""Result files of other benchmarks: each is one process of one side.

A file that bench-lib exported holds several processes.  A file of another program or version is a
problem of the samples, in one sentence with its name and the remedy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_lib import files
from bench_lib.formats import printable
from bench_lib.storage.foreign import documents, tables
from bench_lib.storage.foreign.figures import Format, FormatError, Reported
from bench_lib.storage.samples import CaseSamples, SampledProcess, Samples
from bench_lib.verdict.metrics import LEADING

FORMATS: Mapping[str, Format] = {form.name: form for form in (*documents.FORMATS, *tables.FORMATS)}
"""By the name in ``--format``."""
MOST_BYTES = 64 * 2**20
"""Maximum size; a thousand requests of a thousand tokens, with each token's time, take 25 MB."""
ALIKE = 1.01
"""Amounts of work that differ by more than this factor are not comparable."""


def read(form: Format, sides: Mapping[str, Sequence[Path]]) -> Samples:
    """Read files, each a process, by role: ``baseline`` and ``candidate``."""
    samples = Samples()
    work: dict[str, list[tuple[str, Reported]]] = {}
    for role, paths in sides.items():
        for path in paths:
            name = printable(str(path))
            reason: object = "it contains no results, perhaps because its run did not end"
            figures = []
            try:
                figures = list(form.figures(files.content(path, MOST_BYTES)))
            except (OSError, FormatError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
            if not figures:
                samples.problems.append(f"{name}: {reason}; name a file of {form.program}")
            for figure in figures:
                key = _add(samples, role, name, figure)
                work.setdefault(key, []).append((name, figure))
    for key, reported in work.items():
        samples.cases[key].problems += _other_work(reported)
    return samples


def _add(samples: Samples, role: str, name: str, figure: Reported) -> str:
    """Add a figure to its case; return that case's displayed name, which may name the metric."""
    case_id = printable(figure.case)
    key = case_id if figure.metric is LEADING else f"{case_id}: {figure.metric.label}"
    if figure.process:
        name = f"{name}, process {figure.process}"
    case = samples.cases.setdefault(key, CaseSamples(case_id, metric=figure.metric))
    side, other = case.baseline, case.candidate
    if role == "candidate":
        side, other = other, side
    problem = figure.problem
    if not problem and not (math.isfinite(figure.value) and figure.value > 0):
        problem = f"{figure.metric.label} is {figure.value:g}; it must be finite and above zero"
    elif not problem and name in other:
        problem = "it is given on both sides; give other files for one of them"
    elif not problem and name in side:
        problem = "it has this case twice; write each run of the program to a file of its own"
    if problem:
        case.problems.append(f"{name}: {problem}")
    else:
        side[name] = SampledProcess(math.log(figure.value), name)
    return key


def _other_work(reported: Sequence[tuple[str, Reported]]) -> list[str]:
    """Describe each kind of work in which processes differ too much to be compared."""
    problems = []
    for name in reported[0][1].inputs:
        amounts = [(figure.inputs.get(name, 0), file) for file, figure in reported]
        (least, least_file), (most, most_file) = min(amounts), max(amounts)
        if most > ALIKE * least:
            problems.append(
                f"{most_file}: {most:g} {name}, but {least_file} has {least:g}; "
                "measure both with the same data set, seed and length"
            )
    return problems
