"""Anybody's timings, one JSON object a line: checked, and condensed to a median a process.

A line is ``{"case": text, "role": "baseline" or "candidate", "process": number or text,
"iteration_s": [seconds, ...]}``.  It may have

- ``"run"`` and ``"device"``, number or text: the run of the process, and its device;
- ``"draw"``, number or text: the compiler's choices for it;
- ``"family"``, text: the cases that vary alike from run to run and from device to device;
- ``"probe": {name: number}``, which 0.2.0 took into account and nothing does now;
- ``"slow": share``, if a delay was planted.  Each such share is judged as a case of its own
  against the clean baseline processes.  A delay in a baseline process is read but not judged.

A case has each of the first four on all of its lines or on none, and a file its runs.  A faulty
line is reported with its number and keeps its case from being judged; nothing is left out in
silence.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, BinaryIO, Literal

import msgspec

from bench_lib.formats import shortened
from bench_lib.model import UserError
from bench_lib.verdict.metrics import LEADING, Metric
from bench_lib.verdict.statistics.iterations import spread

ABOUT = ("run", "device", "draw", "family")
"""Fields that a line may have on its process, in a word."""
LARGEST = sys.float_info.max
MOST_BYTES, MOST_LINE = 64_000_000, 1_000_000
"""Bytes of all lines together, and of one: a line of 50,000 iterations."""
MOST_PLANTED = 50
"""Delays of a case, each of which is judged against all its baseline processes."""
SHOWN = 40
"""Characters of a value that a message shows."""

Name = int | Annotated[str, msgspec.Meta(pattern=r"\S")]
"""A name, which may be a number."""
Positive = Annotated[float, msgspec.Meta(gt=0, le=LARGEST)]


class Sample(msgspec.Struct, kw_only=True):
    """A line, decoded and checked."""

    case: Annotated[str, msgspec.Meta(pattern=r"\S")]
    role: Literal["baseline", "candidate"]
    process: Name
    iteration_s: Annotated[list[Positive], msgspec.Meta(min_length=2)]
    """Of fewer the median means nothing."""
    run: Name = ""
    device: Name = ""
    draw: Name = ""
    family: Name = ""
    probe: dict[Annotated[str, msgspec.Meta(pattern=r"\S")], Positive] = {}
    """Costs by name, each in a unit of its own."""
    slow: Annotated[float, msgspec.Meta(ge=0, le=LARGEST)] = 0.0
    """The share of its time by which it was delayed."""


class _Named(msgspec.Struct):
    """The parts of a line that say which case it is of, even where others are wrong."""

    case: Annotated[str, msgspec.Meta(pattern=r"\S")]
    slow: Any = 0.0

    @property
    def shown(self) -> str:
        """The name under which it is judged: with a planted delay it is a case of its own."""
        if type(self.slow) not in (int, float) or not 0 < self.slow <= LARGEST:
            return self.case
        return f"{self.case}-plus-{100 * self.slow:g}pct"


@dataclass(frozen=True, slots=True)
class SampledProcess:
    """One process of a case, condensed while reading so that a million of them fit."""

    log_median: float
    """Natural logarithm of the median iteration time in seconds."""
    spread: float
    """Coefficient of variation with the slowest twentieth left out, as of our own runs."""
    n: int
    """How many iterations."""
    line: int
    run: str = ""
    """The run of the process; this and the following are empty if the line lacks them."""
    device: str = ""
    draw: str = ""
    """The compiler's choices, by a name that only equal choices share."""
    family: str = ""
    file: str = ""
    """The file that it is all of; empty where it is a line."""

    @property
    def place(self) -> str:
        """Its place in the input: ``line 3``, or a file."""
        return self.file or f"line {self.line}"


@dataclass(slots=True)
class CaseSamples:
    """The processes of one case, by name, and why it cannot be judged where it cannot."""

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

    @property
    def family(self) -> str:
        """The name of the cases that vary alike; empty if no line has one."""
        return next((process.family for process in self.processes), "")

    @property
    def new_draws(self) -> list[str]:
        """The candidate's draws of the compiler that no baseline process has."""
        known = {process.draw for process in self.baseline.values()}
        return sorted({process.draw for process in self.candidate.values()} - known)


@dataclass
class Samples:
    """All that a file of timings holds, or several files."""

    cases: dict[str, CaseSamples] = field(default_factory=dict)
    """By the name that each is shown by, in order of first appearance."""
    problems: list[str] = field(default_factory=list)
    """Lines and files that belong to no case."""
    notes: list[str] = field(default_factory=list)
    """Worth a word, but no reason not to judge."""


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file's lines with their ends; of one that is too long the beginning.

    Raises UserError where there are too many bytes.
    """
    left, goes_on = MOST_BYTES, False
    while piece := file.readline(MOST_LINE + 1):
        left -= len(piece)
        if left < 0:
            raise UserError(f"more than {MOST_BYTES / 1e6:.0f} MB of timings; judge fewer cases")
        if not goes_on:
            yield piece
        goes_on = not piece.endswith(b"\n")


def read(lines: Iterable[bytes]) -> Samples:
    """Read lines as ``lines_of`` yields them."""
    samples = Samples()
    notes: list[tuple[int, str]] = []
    unknown: dict[str, list[int]] = {}
    known_times: dict[int, int] = {}
    planted: dict[str, str] = {}
    delays: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(codecs.BOM_UTF8).strip()
        if not text:
            continue
        if len(line) > MOST_LINE:
            samples.problems.append(f"line {number}: longer than {MOST_LINE / 1e6:.0f} MB")
            continue
        line_fields: Any = None
        try:
            line_fields = decoded(text)
            named = msgspec.convert(line_fields, _Named)
        except ValueError as error:
            cut = "" if line.endswith(b"\n") else "; the file ends here and may be cut off"
            words = _in_words(error, line_fields)
            samples.problems.append(f"line {number}: {words}{cut}")
            continue
        for extra in line_fields.keys() - set(Sample.__struct_fields__):
            unknown.setdefault(extra, []).append(number)
        name = named.shown
        case = samples.cases.get(name)
        if case is None:
            if name != named.case:
                delays[named.case] += 1
                if delays[named.case] > MOST_PLANTED:
                    words = f"more than {MOST_PLANTED} delays are planted in {named.case}"
                    samples.problems.append(f"line {number}: {words}")
                    continue
                planted[name] = named.case
            case = samples.cases[name] = CaseSamples(name)
        try:
            sample = msgspec.convert(line_fields, Sample)
            _add(case, sample, number)
        except ValueError as error:
            case.problems.append(f"line {number}: {_in_words(error, line_fields)}")
            continue
        # By hash alone: in a million lines two share one by chance once in ten million files.
        times = sample.iteration_s
        first = known_times.setdefault(hash((name, *times)), number)
        if first != number and min(times) < max(times):
            notes.append(
                (number, f"line {number}: the same times as line {first}; were they copied?")
            )
    for name, clean in planted.items():
        _hold_against_clean(samples.cases[name], samples.cases.get(clean))
    _note_what_some_lines_lack(list(samples.cases.values()))
    if not samples.cases and not samples.problems:
        samples.problems.append("no samples in it")
    notes += [_note_of_unknown(extra, numbers) for extra, numbers in unknown.items()]
    samples.notes = [note for _, note in sorted(set(notes))]
    return samples


def _note_of_unknown(field: str, lines: Sequence[int]) -> tuple[int, str]:
    first, others = lines[0], len(lines) - 1
    more = f" (and on {others} more line{'s' * (others > 1)})" if others else ""
    return first, f"line {first}: unknown field {field!r} ignored{more}"


def _in_words(error: ValueError, fields: Any) -> str:
    """Return what is wrong with a line, with the value where one is."""
    said, _, path = str(error).partition(" - at `$.")
    place = re.match(r"(\w+)(?:\[(\d+)\])?", path)
    if place is None:
        return said
    value = fields[place[1]]
    if place[2]:
        value = value[int(place[2])]
    return f"{place[0]} is {shortened(repr(value), SHOWN)}: {said[0].lower()}{said[1:]}"


def decoded(text: bytes) -> Any:
    """Decode JSON; Python's own parser knows the NaN and Infinity that it also writes.

    Raises ValueError where it is no JSON.
    """
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):  # said more clearly below
        pass
    try:
        found = json.loads(text.decode())
        json.dumps(found, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}, column {error.colno}") from error
    except (UnicodeDecodeError, UnicodeEncodeError) as error:  # which half a pair is, too
        raise ValueError(f"not UTF-8: {error.reason}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return found


def _hold_against_clean(planted: CaseSamples, clean: CaseSamples | None) -> None:
    """Give a case of planted delays the baseline that it is judged against."""
    lines = [process.line for process in planted.processes]
    planted.baseline = {} if clean is None else clean.baseline
    planted.problems += [] if clean is None else clean.problems[:1]  # each may have thousands
    if lines and not planted.baseline:
        words = "planted, and there is no baseline process without a delay to hold it against"
        planted.problems.append(f"line {min(lines)}: {words}")


def _note_what_some_lines_lack(cases: Sequence[CaseSamples]) -> None:
    """Refuse cases that have a field for some processes and not for others.

    The error that a run adds has to be known for all cases, so a file has it for all or for none.
    """
    runs = [process.line for case in cases for process in case.processes if process.run]
    for case in cases:
        for name in ABOUT:
            told = {process.line: getattr(process, name) for process in case.processes}
            telling = runs if name == "run" else [line for line, value in told.items() if value]
            lacking = [line for line, value in told.items() if not value]
            if lacking and telling:
                case.problems.append(
                    f"line {min(lacking)}: no {name}, which line {min(telling)} has; say it on all "
                    "lines or on none"
                )
        case.problems += _families_beside_the_first(case)


def _families_beside_the_first(case: CaseSamples) -> Iterator[str]:
    families = sorted((process.line, process.family) for process in case.processes)
    for line, family in families:
        first, other = families[0]
        if family and other and family != other:
            yield f"line {line}: family is {family!r}, on line {first} it is {other!r}"


def _add(case: CaseSamples, sample: Sample, line: int) -> None:
    """Add a line's process to its case; raises ValueError where another line has its name."""
    about = {name: sys.intern(str(getattr(sample, name))) for name in ABOUT}
    side = case.baseline if sample.role == "baseline" else case.candidate
    # A run may number its processes as another one does.
    name = sys.intern(f"{sample.run}/{sample.process}" if about["run"] else str(sample.process))
    if name in side:
        raise ValueError(
            f"process {name!r} of the {sample.role} is on line {side[name].line} already; "
            "give every process a name of its own"
        )
    ordered = sorted(sample.iteration_s)
    side[name] = SampledProcess(
        math.log(_median(ordered)), _spread(ordered), len(ordered), line, **about
    )


def _median(ordered: list[float]) -> float:
    """Return the median of sorted times, however large or small they are."""
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low + (high - low) / 2


def _spread(ordered: list[float]) -> float:
    """Return the spread of sorted times, however large or small they are."""
    scale = ordered[-1 - len(ordered) // 20]  # the slowest that counts
    return spread([time / scale for time in ordered])
