"""Files of other people's benchmarks: each is one process, on the side that its reader gets.

A file that bench-lib exported holds several processes.  A file of another program or version is a
problem of the samples, in one sentence with its name and the remedy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_lib import files
from bench_lib.formats import printable
from bench_lib.storage.foreign import documents, tables
from bench_lib.storage.foreign.figures import Format, FormatError, OtherProgramError, Reported
from bench_lib.storage.samples import CaseSamples, SampledProcess, Samples
from bench_lib.verdict.metrics import LEADING

FORMATS: Mapping[str, Format] = {form.name: form for form in (*documents.FORMATS, *tables.FORMATS)}
"""By the name in ``--format``."""
MOST_BYTES = 64 * 2**20
"""A thousand requests of a thousand tokens each, with every token's time, take about 25 MB."""
WHOLE = "name files that the benchmark wrote, without each request's details"
ALIKE = 1.01
"""Work that differs by more is other work."""


def read(form: Format, sides: Mapping[str, Sequence[Path]]) -> Samples:
    """Read files, each a process, by role: ``baseline`` and ``candidate``."""
    samples = Samples()
    contents: dict[bytes, str] = {}
    work: dict[str, list[tuple[str, Reported]]] = {}
    for role, paths in sides.items():
        for path in paths:
            name = printable(str(path))
            try:
                data = files.content(path, MOST_BYTES)
                figures = _figures(form, data)
            except OSError as error:
                samples.problems.append(f"{name}: cannot be read: {error.strerror}; {WHOLE}")
                continue
            except FormatError as error:
                samples.problems.append(f"{name}: {error}")
                continue
            first = contents.setdefault(hashlib.sha256(data).digest(), name)
            if first != name:
                samples.notes.append(f"{name}: the same as {first}; was it copied?")
            for figure in figures:
                _add(samples, role, name, figure)
                work.setdefault(_key(figure), []).append((name, figure))
    for key, done in work.items():
        samples.cases[key].problems += _other_work(done, "inputs")
        samples.notes += _other_work(done, "outputs")
    samples.notes = list(dict.fromkeys(samples.notes))
    return samples


def _figures(form: Format, data: bytes) -> list[Reported]:
    """Return what a file tells; raises FormatError, naming the format that knows it."""
    try:
        figures = list(form.figures(data))
    except OtherProgramError as error:
        known = [
            other.name for other in FORMATS.values() if other is not form and _knows(other, data)
        ]
        remedy = f"read it with --format {known[0]}" if known else f"name a file of {form.program}"
        raise FormatError(f"{error}; {remedy}") from error
    if not figures:
        raise FormatError(f"it holds no figures; run {form.program} to the end")
    return figures


def _knows(form: Format, data: bytes) -> bool:
    try:
        return any(True for _ in form.figures(data))
    except FormatError as error:
        return not isinstance(error, OtherProgramError)


def _key(figure: Reported) -> str:
    """Return how a figure is shown: its case, and its metric where a case has several."""
    case = printable(figure.case)
    return case if figure.metric is LEADING else f"{case}: {figure.metric.label}"


def _add(samples: Samples, role: str, name: str, figure: Reported) -> None:
    key = _key(figure)
    if figure.process:
        name = f"{name}, process {figure.process}"
    case = samples.cases.setdefault(key, CaseSamples(printable(figure.case), metric=figure.metric))
    side, other = case.baseline, case.candidate
    if role == "candidate":
        side, other = other, side
    problem = figure.problem
    if not problem and not (math.isfinite(figure.value) and figure.value > 0):
        problem = f"{figure.metric.label} is {figure.value:g}; it has to be finite and above zero"
    elif not problem and name in other:
        problem = "it is named on both sides; name other files for one of them"
    elif not problem and name in side:
        problem = "it tells of this case twice; give every start of the program its file"
    if problem:
        case.problems.append(f"{name}: {problem}")
    else:
        side[name] = SampledProcess(math.log(figure.value), 0.0, 1, 0, file=name)


def _other_work(done: Sequence[tuple[str, Reported]], which: str) -> list[str]:
    """Say of each kind of work by how much processes differ in it, where they do."""
    found = []
    for name in getattr(done[0][1], which):
        amounts = [(getattr(figure, which).get(name, 0), file) for file, figure in done]
        (least, fewer), (most, more) = min(amounts), max(amounts)
        if most > ALIKE * least:
            found.append(
                f"{more}: {most:g} {name}, where {fewer} has {least:g}; "
                "measure both with one data set, seed and length"
            )
    return found
