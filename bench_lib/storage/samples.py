"""Anybody's timings, one JSON object a line: checked, and condensed to a median a process.

A line is ``{"case": text, "role": "baseline" or "candidate", "process": number or text,
"iteration_s": [seconds, ...]}``.  It may have

- ``"run"`` and ``"device"``, number or text: the run of the process, and its device;
- ``"draw"``, number or text: the compiler's choices for it;
- ``"family"``, text: the cases that vary alike from run to run and from device to device;
- ``"probe": {name: number}``, costs that the case has no part in (``covariates``);
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
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bench_lib.verdict.metrics import LEADING, Metric
from bench_lib.verdict.statistics.iterations import spread

ABOUT = ("run", "device", "draw", "family")
"""Fields that a line may have on its process, in a word."""
FIELDS = frozenset({"case", "role", "process", "iteration_s", "probe", "slow", *ABOUT})
ROLES = ("baseline", "candidate")
LARGEST = sys.float_info.max
NO_PROBE: Mapping[str, float] = {}
"""The probes of most lines, so that they share it."""


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
    probe: Mapping[str, float] = field(default_factory=dict)
    """Costs that the case has no part in, by name; each in a unit of its own."""
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


def read(lines: Iterable[bytes]) -> Samples:
    """Read lines as a binary file yields them, with their ends."""
    samples = Samples()
    notes: list[tuple[int, str]] = []
    unknown: dict[str, list[int]] = {}
    known_times: dict[int, int] = {}
    planted: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(codecs.BOM_UTF8).strip()
        if not text:
            continue
        try:
            sample = decoded(text)
            clean = _case_of(sample)
            name = _with_delay(clean, sample.get("slow", 0))
        except ValueError as error:
            cut = "" if line.endswith(b"\n") else "; the file ends here and may be cut off"
            samples.problems.append(f"line {number}: {error}{cut}")
            continue
        for extra in sample.keys() - FIELDS:
            unknown.setdefault(extra, []).append(number)
        case = samples.cases.get(name)
        if case is None:
            case = samples.cases[name] = CaseSamples(name)
            if name != clean:
                planted[name] = clean
        try:
            _add(case, sample, number)
        except ValueError as error:
            case.problems.append(f"line {number}: {error}")
            continue
        # By hash alone: in a million lines two share one by chance once in ten million files.
        times = sample["iteration_s"]
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
    notes += [note for case in samples.cases.values() for note in _unequal_counts(case)]
    samples.notes = [note for _, note in sorted(set(notes))]
    return samples


def _note_of_unknown(field: str, lines: Sequence[int]) -> tuple[int, str]:
    first, others = lines[0], len(lines) - 1
    more = f" (and on {others} more line{'s' * (others > 1)})" if others else ""
    return first, f"line {first}: unknown field {field!r} ignored{more}"


def decoded(text: bytes) -> Any:
    """Decode JSON; Python's own parser knows the NaN and Infinity that it also writes.

    Raises ValueError where it is no JSON.
    """
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):  # said more clearly below
        pass
    try:
        return json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason}, byte {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}, column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _case_of(sample: Any) -> str:
    """Return the name of the case that a line is of; raises ValueError where it has none."""
    if not isinstance(sample, dict):
        raise ValueError(f"{_shown(sample)} is not an object")  # noqa: TRY004 - of a file
    if "case" not in sample:
        raise ValueError("no case; it has to be text")
    case = sample["case"]
    if not _is_text(case):
        raise ValueError(f"case is {_shown(case)}; it has to be text")
    return str(case)


def _with_delay(case: str, slow: Any) -> str:
    """Return the name under which a planted delay is judged; the case's own where there is none."""
    return f"{case}-plus-{100 * slow:g}pct" if _is_number(slow) and 0 < slow <= LARGEST else case


def _hold_against_clean(planted: CaseSamples, clean: CaseSamples | None) -> None:
    """Give a case of planted delays the baseline that it is judged against."""
    lines = [process.line for process in planted.processes]
    planted.baseline = {} if clean is None else clean.baseline
    planted.problems += [] if clean is None else clean.problems
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
            yield f"line {line}: family is {_shown(family)}, on line {first} it is {_shown(other)}"


def _add(case: CaseSamples, sample: dict[str, Any], line: int) -> None:
    """Add a line's process to its case; raises ValueError on the first thing wrong with it."""
    for name in ("role", "process", "iteration_s"):
        if name not in sample:
            raise ValueError(f"no {name}; a line needs case, role, process and iteration_s")
    role, times = sample["role"], sample["iteration_s"]
    if role not in ROLES:
        raise ValueError(f"role is {_shown(role)}; it has to be baseline or candidate")
    name = _name(sample["process"], "process")
    about = {name: _name(sample[name], name) for name in ABOUT if name in sample}
    _check_times(times)
    probe = sample.get("probe", NO_PROBE)
    _check_probe(probe)
    slow = sample.get("slow", 0)
    if slow != 0 or not _is_number(slow):
        _check_positive(slow, "slow", "planted shares")
    side = case.baseline if role == "baseline" else case.candidate
    if "run" in about:  # which may number its processes as another one does
        name = sys.intern(f"{about['run']}/{name}")
    if name in side:
        raise ValueError(
            f"process {name!r} of the {role} is on line {side[name].line} already; "
            "give every process a name of its own"
        )
    ordered = sorted(times)
    side[name] = SampledProcess(
        math.log(_median(ordered)), _spread(ordered), len(ordered), line, probe, **about
    )


def _name(value: Any, field: str) -> str:
    if not _is_text(value) and type(value) is not int:  # true is an int as well
        raise ValueError(f"{field} is {_shown(value)}; it has to be a whole number or text")
    return sys.intern(str(value))


def _check_times(times: Any) -> None:
    if not isinstance(times, list):
        raise ValueError(  # noqa: TRY004 - a mistake in a file
            f"iteration_s is {_shown(times)}; it has to be a list of seconds"
        )
    if len(times) < 2:
        held = "one time" if times else "no time"
        raise ValueError(
            f"iteration_s holds {held}; a process needs at least two, "
            "so that its median means something"
        )
    for index, time in enumerate(times):
        if not (type(time) is float and 0 < time <= LARGEST):  # nearly always is; this is quick
            _check_positive(time, f"iteration_s[{index}]", "times")


def _check_probe(probe: Any) -> None:
    if not isinstance(probe, Mapping):
        raise ValueError(  # noqa: TRY004 - a mistake in a file
            f"probe is {_shown(probe)}; it has to be an object of numbers by name"
        )
    for name, value in probe.items():
        if not _is_text(name):
            raise ValueError(f"probe has the name {_shown(name)}; names have to be text")
        _check_positive(value, f"probe[{_shown(name)}]", "probes")


def _check_positive(value: Any, name: str, what: str) -> None:
    if not _is_number(value):
        raise ValueError(f"{name} is {_shown(value)}, which is no number")
    # Also false of NaN, and of a whole number too large for a float.
    if not 0 < value <= LARGEST:
        raise ValueError(f"{name} is {_shown(value)}; {what} have to be finite and above zero")


def _is_number(value: object) -> bool:
    """Whether a value is a number as JSON has them; true is an int as well."""
    return type(value) is float or type(value) is int


def _median(ordered: list[float]) -> float:
    """Return the median of sorted times, however large or small they are."""
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low + (high - low) / 2


def _spread(ordered: list[float]) -> float:
    """Return the spread of sorted times, however large or small they are."""
    scale = ordered[-1 - len(ordered) // 20]  # the slowest that counts
    return spread([time / scale for time in ordered])


def _unequal_counts(case: CaseSamples) -> list[tuple[int, str]]:
    processes = case.processes
    if not processes:
        return []
    fewest = min(processes, key=lambda process: process.n)
    most = max(processes, key=lambda process: process.n)
    if 2 * fewest.n >= most.n:
        return []
    words = f"line {fewest.line}: {fewest.n} iterations, where line {most.line} of the same case "
    return [(fewest.line, f"{words}has {most.n}; a median of few is less certain")]


def _is_text(value: object) -> bool:
    """Whether a value is text that says something and can be written down again."""
    if not isinstance(value, str) or not value.strip():
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _shown(value: object) -> str:
    """Return a value nearly as it stands in the file, and not too much of it."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    text = repr(value) if isinstance(value, float) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
