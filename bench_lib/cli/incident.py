"""``bench-lib incident``: failures that have one cause, and who knows of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bench_lib.cli.group import branch
from bench_lib.cli.output import (
    DEFAULT_BASELINES,
    DEFAULT_HISTORY,
    BaselinesDir,
    Document,
    HistoryPlace,
    Json,
    filled,
    print_json,
    print_table,
)
from bench_lib.cli.reading import ToldIncident, parts_of, told
from bench_lib.model import Acknowledged, UserError

if TYPE_CHECKING:
    from bench_lib.verdict.incidents import Incident, IncidentCase

app = branch("incident")
IncidentName = Annotated[str, typer.Argument(metavar="ID", help="An incident's id or its start.")]
HERE = str(DEFAULT_HISTORY)


@dataclass(frozen=True, kw_only=True)
class IncidentList(Document):
    """The incidents of a history, oldest first."""

    command: Literal["incident list"] = "incident list"
    incidents: list[ToldIncident]


@dataclass(frozen=True, kw_only=True)
class IncidentShow(ToldIncident, Document):
    """One incident."""

    command: Literal["incident show"] = "incident show"


@dataclass(frozen=True, kw_only=True)
class IncidentAck(Document):
    """An incident that somebody has acknowledged."""

    command: Literal["incident ack"] = "incident ack"
    incident: str
    """Its id."""
    path: str
    """The baseline file that says so."""
    acknowledged: Acknowledged


@app.command("list")
def list_incidents(
    *,
    history: HistoryPlace = HERE,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    ended: Annotated[bool, typer.Option("--ended", help="Also list those that are over.")] = False,
    json: Json = False,
) -> None:
    """List open incidents, oldest first."""
    found = [one for one in _known(history, baselines) if ended or one.is_open]
    if json:
        print_json(IncidentList(incidents=[told(one) for one in found]))
    elif not found:
        print("no incident goes on" if not ended else "there was no incident")
    else:
        rows = [(one.id, one.state.value, one.since[:10], one.title) for one in found]
        print_table(("incident", "state", "since", "what"), rows)


@app.command()
def show(
    incident: IncidentName,
    *,
    history: HistoryPlace = HERE,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    json: Json = False,
) -> None:
    """Show an incident: its cases, its cause if it is known, and who acknowledged it."""
    one = _chosen(incident, _known(history, baselines))
    if json:
        print_json(filled(IncidentShow, one, **parts_of(one)))
        return
    print(f"incident {one.id}, {one.state.value}: {one.title}")
    print(f"first run {one.run}" + (f", last good run {one.last_ok}" if one.last_ok else ""))
    for heading, lines in (
        ("kernels", one.kernels),
        ("errors", one.faults),
        ("changed with its first night", one.changes),
    ):
        for line in lines:
            print(f"{heading}: {line}")
    if one.commits:
        print("commits: {} -> {}".format(*one.commits))
    if (known := one.acknowledged) is not None:
        by = f" by {known.by}" if known.by else ""
        print(f"acknowledged on {known.date[:10]}{by}: {known.reason}")
    print()
    rows = [_row(case) for case in (*one.cases, *one.over)]
    print_table(("case", "hardware", "status", "ratio", "since", "until"), rows)
    for line in one.commands[1:]:
        print(f"next: {line}")


def _row(case: IncidentCase) -> tuple[str, ...]:
    return (
        case.case_id,
        case.key,
        case.status.value if case.status else "slower over nights",
        "" if case.ratio is None else f"{case.ratio:.3f}",
        case.since[:10],
        (case.until or "")[:10],
    )


@app.command()
def ack(
    incident: IncidentName,
    *,
    reason: Annotated[str, typer.Option(help="What is known of it.")],
    history: HistoryPlace = HERE,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    json: Json = False,
) -> None:
    """Acknowledge an incident: reports then say who knows of it, and why.

    Its cases still fail.  The baseline file of its first case's hardware holds the
    acknowledgement; commit and review it like an acceptance.
    """
    from bench_lib.cli.proposals import who
    from bench_lib.storage import baselines as files
    from bench_lib.storage.history import utc_now

    one = _chosen(incident, _known(history, baselines))
    if not one.is_open:
        raise UserError(f"incident {one.id} ended on {(one.ended or '')[:10]}; nothing is to do")
    known = Acknowledged(reason.strip(), utc_now(), who())
    path = files.acknowledge(files.load(baselines, one.key), one.id, known)
    if json:
        print_json(IncidentAck(incident=one.id, path=str(path), acknowledged=known))
    else:
        print(f"incident {one.id} is acknowledged, by {path}: {one.title}")


def _known(history: str, baselines: Path) -> list[Incident]:
    from bench_lib.storage.archive import Archive
    from bench_lib.storage.incidents import incidents_of

    with Archive(history) as archive:
        return incidents_of(archive, baselines)


def _chosen(name: str, known: list[Incident]) -> Incident:
    """Return the incident of an id, or of an id's start, or of an older id; raises UserError."""
    found = [one for one in known if one.id.startswith(name) or name in one.names]
    if len(found) == 1 and name:
        return found[0]
    what = "is the start of several incidents" if found else "is no incident here"
    ids = ", ".join(one.id for one in (found or [one for one in known if one.is_open])[-5:])
    raise UserError(f"{name!r} {what}; there is {ids or 'none'}: bench-lib incident list --ended")
