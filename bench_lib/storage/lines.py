"""The kinds of lines in a run's file, decoded and checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench_lib.findings import KINDS, LaterFinding
from bench_lib.model import (
    SCHEMA,
    Attempt,
    Case,
    Environment,
    Finding,
    Hardware,
    KernelTable,
    Measurement,
    Quarantine,
    SlowDown,
    Status,
    UserError,
    Verdict,
)

LARGEST = 2**63
"""The maximum of any count; a float can hold it."""
MOST = 1e21
"""Upper bound of an iteration's seconds, and of their reciprocal: sums and rates are finite."""


class HistoryError(UserError):
    """The history cannot be written or read; says where, why, and what to do."""


class Line(
    msgspec.Struct,
    kw_only=True,
    tag_field="kind",
    tag=lambda name: name.removesuffix("Line").lower(),
):
    """The fields of every line, among them the name of its kind: ``"kind": "attempt"``."""

    schema: int
    run: str
    """The run's id."""
    time: str
    """UTC, ISO 8601."""


class EnvironmentLine(Line, kw_only=True):
    """The environment of the attempts that name ``ref``; precedes them."""

    ref: str
    environment: Environment
    hardware: Hardware


class AttemptLine(Line, kw_only=True):
    """One attempt at a case."""

    case: Case
    attempt: Attempt
    nodeid: str | None = None


class KernelsLine(Line, kw_only=True):
    """The kernels of a case's step, from a profile."""

    case_id: str
    kernels: KernelTable


class VerdictLine(Line, kw_only=True):
    """How a case was judged."""

    case_id: str
    status: Status
    verdicts: list[Verdict]
    nodeid: str | None = None
    changes: list[str] = []
    """What differs from the environment of the reference or baseline, in words."""
    quarantine: Quarantine | None = None
    baseline_accepted: str | None = None
    """When the baseline that it was judged by was accepted."""
    blamed: list[str] = []
    """The kernels that made it slower: ``GEMM: MT128x128 → MT64x64``."""


class SlowDownLine(Line, kw_only=True):
    """A slowdown that several nights show together; after the verdicts."""

    slow_down: SlowDown


class EndLine(Line, kw_only=True):
    """The end of a run; one without it was interrupted."""

    counts: dict[str, int] = {}
    """How many cases have each status."""
    exit_status: int | None = None
    caches: dict[str, str] = {}
    """Their state at the end of the run."""


def decoded(path: Path, data: bytes) -> Iterator[Line | str]:
    """Yield each line of a file, or the reason why it is left out.

    Raises HistoryError for a line of a newer schema.
    """
    *complete, torn = data.split(b"\n")
    tried: set[str] = set()
    for number, raw in enumerate(complete, 1):
        if not raw.strip():
            continue
        try:
            if (line := _decode(raw)) is not None:
                _check(line, tried)
                yield line
        except HistoryError as error:
            raise HistoryError(f"{path}, line {number}: {error}") from error
        except (ValueError, RecursionError) as error:
            yield f"line {number} cannot be read: {error}"
    if torn:
        yield f"line {len(complete) + 1} is incomplete: the run was killed while writing it"


class _Head(msgspec.Struct):
    schema: int
    kind: str | None = None


def finding(_type: type[Any], fields: Any) -> Finding:
    """Read a finding of a verdict; a later version may know other kinds and fields."""
    kind = str(fields.get("kind", "")) if isinstance(fields, dict) else ""
    with contextlib.suppress(KeyError, msgspec.ValidationError):
        converted: Finding = msgspec.convert(fields, KINDS[kind])
        return converted
    return LaterFinding(kind)


_KINDS = EnvironmentLine | AttemptLine | KernelsLine | VerdictLine | SlowDownLine | EndLine
_line = msgspec.json.Decoder(_KINDS, dec_hook=finding)
_head = msgspec.json.Decoder(_Head)


def _decode(raw: bytes) -> Line | None:
    """Decode one line; None if only a later version knows its kind.

    Raises ValueError if the line does not fit its kind, HistoryError if its schema is newer.
    """
    try:
        line: Line = _line.decode(raw)
    except ValueError:
        _refuse_newer(head := _head.decode(raw))
        if head.kind in {kind.__struct_config__.tag for kind in Line.__subclasses__()}:
            raise
        return None
    _refuse_newer(line)
    return line


def _refuse_newer(line: Line | _Head) -> None:
    if line.schema > SCHEMA:
        raise HistoryError(
            f"schema {line.schema} is newer than {SCHEMA}, the newest that this version "
            "of bench-lib reads; upgrade bench-lib"
        )


def _check_measurement(measurement: Measurement) -> None:
    """Raise ValueError for a measurement that cannot be judged."""
    if not measurement.iteration_s:
        raise ValueError("a measurement without iterations")
    times = (min(measurement.iteration_s), max(measurement.iteration_s), measurement.wall_s)
    if not all(1 / MOST < time < MOST for time in times):
        raise ValueError("a measurement whose times are not all above zero, or not of any clock")
    for name, value in vars(measurement).items():
        if type(value) is int and value > LARGEST:
            raise ValueError(f"a measurement whose {name} is above {LARGEST:.0e}")


def _check(line: Line, tried: set[str]) -> None:
    """Raise ValueError for a line that cannot follow the attempts before it."""
    match line:
        case AttemptLine():
            if (measurement := line.attempt.measurement) is not None:
                _check_measurement(measurement)
            tried.add(line.case.id)
        case KernelsLine() | VerdictLine() if line.case_id not in tried:
            raise ValueError(f"{line.case_id} was not tried before it")
