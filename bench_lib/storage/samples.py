"""Timings of any program, one JSON object a line, condensed to a median per process.

A line is ``{"case": text, "role": "baseline" or "candidate", "process": number or text,
"iteration_s": [seconds, ...]}``.  It may have ``"run"`` and ``"device"``, number or text, of the
process.  A case has its devices on all of its lines or on none, and a file its runs.  Other fields
are ignored.  A faulty line is reported with its number and keeps its case from being judged.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from bench_lib.model import UserError
from bench_lib.verdict.metrics import LEADING, Metric

ABOUT = ("run", "device")
"""Optional fields of a line, about its process."""
LARGEST = 1e100
"""The maximum of any figure; sums of many are still finite."""
MOST_BYTES = 64_000_000
"""Maximum size of all lines together."""

Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
Name = int | Text
"""A name, which may be a number."""


class Sample(msgspec.Struct, kw_only=True):
    """A line, decoded and checked."""

    case: Text
    role: Literal["baseline", "candidate"]
    process: Name
    iteration_s: Annotated[
        list[Annotated[float, msgspec.Meta(gt=0, le=LARGEST)]], msgspec.Meta(min_length=2)
    ]
    """A median of fewer means nothing."""
    run: Name = ""
    device: Name = ""


@dataclass(frozen=True, slots=True)
class SampledProcess:
    """One process of a case, condensed while reading so that a million of them fit."""

    log_median: float
    """Natural logarithm of the median iteration time in seconds."""
    place: str
    """Its place in the input: ``line 3``, or a file."""
    run: str = ""
    """The run of the process; this and the device are empty if the line lacks them."""
    device: str = ""


@dataclass(slots=True)
class CaseSamples:
    """The processes of one case, by name, and why it cannot be judged, if it cannot."""

    case: str
    baseline: dict[str, SampledProcess] = field(default_factory=dict)
    candidate: dict[str, SampledProcess] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Each begins with ``line N: `` or a file."""
    metric: Metric = LEADING

    @property
    def processes(self) -> list[SampledProcess]:
        """The processes of both sides."""
        return [*self.baseline.values(), *self.candidate.values()]


@dataclass
class Samples:
    """The content of one or several files of timings."""

    cases: dict[str, CaseSamples] = field(default_factory=dict)
    """By displayed name, in order of first appearance."""
    problems: list[str] = field(default_factory=list)
    """Lines and files that belong to no case."""


def read(data: bytes) -> Samples:
    """Read a file's lines; raises UserError if there are too many bytes."""
    if len(data) > MOST_BYTES:
        raise UserError(f"more than {MOST_BYTES / 1e6:.0f} MB of timings; judge fewer cases")
    samples = Samples()
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            document = decoded(line)
        except (ValueError, RecursionError) as error:
            samples.problems.append(f"line {number}: it is not JSON: {error}")
            continue
        fields = document if isinstance(document, dict) else {}
        problems = samples.problems
        if isinstance(name := fields.get("case"), str) and name.strip():
            problems = samples.cases.setdefault(name, CaseSamples(name)).problems
        try:
            sample = msgspec.convert(fields, Sample)
            _add(samples.cases[sample.case], sample, f"line {number}")
        except msgspec.ValidationError as error:
            problems.append(f"line {number}: {error}; see bench-lib judge --help")
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    has_runs = any(process.run for case in samples.cases.values() for process in case.processes)
    for case in samples.cases.values():
        case.problems += _partly_given(case, has_runs=has_runs)
    if not samples.cases and not samples.problems:
        samples.problems.append("it contains no samples")
    return samples


def decoded(text: bytes) -> Any:
    """Decode JSON, including the NaN and Infinity that Python writes.

    Raises ValueError or RecursionError if it is not JSON.
    """
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        document = json.loads(text)
        json.dumps(document, ensure_ascii=False).encode()  # fails for half a surrogate pair
        return document


def _partly_given(case: CaseSamples, *, has_runs: bool) -> Iterator[str]:
    """Name the fields that only some lines of a case have.

    The error that a run adds has to be known for all cases, so a run is given on all lines of a
    file or on none.
    """
    for name in ABOUT:
        values = {getattr(process, name) for process in case.processes}
        is_needed = has_runs if name == "run" else values != {""}
        lacking = [process.place for process in case.processes if not getattr(process, name)]
        if lacking and is_needed:
            yield f"{lacking[0]}: it has no {name}, but others do; give it on all lines or on none"


def _add(case: CaseSamples, sample: Sample, place: str) -> None:
    """Add a line's process to its case; raises ValueError if another line has its name."""
    side = case.baseline if sample.role == "baseline" else case.candidate
    # Two runs may number their processes alike.
    name = f"{sample.run}/{sample.process}" if sample.run != "" else str(sample.process)
    if name in side:
        raise ValueError(
            f"process {name!r} of the {sample.role} is already on {side[name].place}; "
            "give every process a name of its own"
        )
    details = {key: str(getattr(sample, key)) for key in ABOUT}
    side[name] = SampledProcess(math.log(statistics.median(sample.iteration_s)), place, **details)
