"""A night's news to a chat or a service: only when something changed, and never in the way.

A webhook's address is a secret: no message and no error here holds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from bench_lib.formats import on_one_line
from bench_lib.report.findings import hints, in_words, onset, reason
from bench_lib.report.night import (
    GOOD,
    Night,
    NightCase,
    NightSlowDown,
    Place,
    fails,
    is_red,
    newest,
)
from bench_lib.report.webhook import CLOCK, UndeliverableError, WaitingClock, host_of, post
from bench_lib.storage.history import HistoryError
from bench_lib.verdict.incidents import Incident, State
from bench_lib.verdict.severity import FAILING

if TYPE_CHECKING:
    from bench_lib.storage.archive import Archive, RunLine

JSON, SLACK, TEAMS = "json", "slack", "teams"
HOSTS = {
    "hooks.slack.com": SLACK,
    "hooks.slack-gov.com": SLACK,
    "logic.azure.com": TEAMS,
    "api.powerplatform.com": TEAMS,
    "api.powerautomate.com": TEAMS,
    "flow.microsoft.com": TEAMS,
    "webhook.office.com": TEAMS,
}
"""Services by host, which decide a message's shape; a host under one of these counts as it does."""
SCHEMA = 1
"""Version of the plain shape; docs/reports.md has it."""
MOST_FAILURES = 200
"""Failures, and cases that fail no more, in the plain shape."""
MOST_LINE = 590
"""Characters of a line; escaped for Slack, whose blocks hold 3,000, it is five times as long."""
SLACK_BLOCKS, SLACK_ALL = 50, 12_000
"""Blocks of a message (docs.slack.dev, Blocks; each holds 3,000 characters), and characters of
all: beyond about 13,200 Slack answers ``msg_blocks_too_long`` (slackapi/bolt-js#2509)."""
TEAMS_BYTES = 13_000
"""Microsoft's limit is about 28 KB (learn.microsoft.com, Connectors, Microsoft Teams); for bots'
messages it counts UTF-16, in which ours take twice as much."""

MOST_RUNS = 8
"""Most runs in the command that makes the report."""
TO_REPORT = "Open the report"
Message = dict[str, Any]
"""The posted message, before it is JSON."""
_LINK = re.compile(r"https?://[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]+")


@dataclass(frozen=True)
class Before:
    """How things stood before this night."""

    failing: frozenset[Place] = frozenset()
    """Failures in the last run before, on each hardware of this night."""
    keys: frozenset[str] = frozenset()
    """The hardware that the night before measured."""
    red: frozenset[str] = frozenset()
    """The hardware of this night whose last run before failed with no case that did."""


@dataclass(frozen=True)
class News:
    """Changes since the night before."""

    new: list[NightCase] = field(default_factory=list)
    """Failing, and not in the last run before on the same hardware."""
    alone: list[NightCase] = field(default_factory=list)
    """Those of them that are of no incident."""
    still: list[NightCase] = field(default_factory=list)
    """Failing, as before: no reason to post."""
    over: dict[Place, str] = field(default_factory=dict)
    """Cases that failed then and no longer do, and their status now."""
    unfinished: list[RunLine] = field(default_factory=list)
    """Runs of this night that did not come to their end."""
    missing: list[str] = field(default_factory=list)
    """Hardware that was measured in the night before and not in this one."""

    red: list[RunLine] = field(default_factory=list)
    """Runs that failed with no case that did, unlike the last before on the same hardware."""
    slowed: list[NightSlowDown] = field(default_factory=list)
    """Slow-downs that only several nights together show, reported for the first time."""
    incidents: list[Incident] = field(default_factory=list)
    """Those that this night opened, brought back or ended."""
    link: str = ""
    """Address of the report; empty if unknown."""
    late: bool = False
    """Whether a night must have been missed: then the last one's news are no news."""

    def __bool__(self) -> bool:
        """Whether anything changed; a case that joins or leaves what goes on is no change."""
        gone = self.unfinished or self.missing or self.red or self.late
        return bool(self.incidents or self.alone or self.slowed or self.over or gone)


def notify(
    night: Night,
    url: str,
    before: Before,
    *,
    say: Callable[[str], None] = lambda _line: None,
    link: str = "",
    shape: str | None = None,
    clock: WaitingClock = CLOCK,
) -> bool:
    """Post a night's news, if there are any; return whether they were delivered.

    It is news if a case fails that did not fail ``before``, or fails no more; if a run did not come
    to its end; and if hardware of the night before was not measured.

    ``link`` is where people find the report; it is left out if it is no address of the web.
    ``shape`` is one of SHAPES, else by the address's host.  An error is one line to ``say``, which
    never holds the address; nothing is raised.
    """
    try:
        news = replace(news_of(night, before), link=sound(link))
        if not news:
            say("nothing changed since the night before, so nothing was posted")
            return False
        url = url.strip()  # a secret that was pasted brings its line break along
        post(url, body(night, news, shape or shape_of(url)), clock=clock)
    except UndeliverableError as error:
        say(f"the news was not delivered: {error}")
        return False
    except Exception as error:  # noqa: BLE001 - a night is not lost for its announcement
        say(f"the news was not delivered: {type(error).__name__}")
        return False
    say(f"posted: {night.sentence}")
    return True


def shape_of(url: str) -> str:
    """Return the shape that an address's host asks for; raises UndeliverableError."""
    host = host_of(url)
    found = (shape for known, shape in HOSTS.items() if f".{host}".endswith(f".{known}"))
    return next(found, JSON)


# --- what changed ----------------------------------------------------------------------------


def before_of(archive: Archive, night: Night) -> Before:
    """Return how things stood before a night: in the last runs before it on the same hardware.

    A run that cannot be read tells nothing.
    """
    ours = {run.run_id for run in night.runs}
    earlier = [r for r in archive.runs() if r.run_id not in ours and r.started < night.started]
    failing: set[Place] = set()
    red: set[str] = set()
    for key in {run.key for run in night.runs}:
        last = newest(run for run in earlier if run.key == key)
        failing |= _failing(archive, last)
        red |= {run.key for run in last if is_red(run)}
    measured = (run.key for run in newest(earlier) if run.cases)
    return Before(frozenset(failing), frozenset(measured), frozenset(red))


def _failing(archive: Archive, runs: Iterable[RunLine]) -> set[Place]:
    """Return the failures of some runs; for a case the later run counts."""
    standing: dict[Place, bool] = {}
    for line in runs:
        try:
            run = archive.run(line.run_id)
        except (HistoryError, OSError):
            continue
        for record in run.records.values():
            key = record.attempts[-1].hardware_key or line.key
            standing[record.case.id, key] = fails(record)
    return {place for place, failed in standing.items() if failed}


def news_of(night: Night, before: Before) -> News:
    """Return what changed since ``before``."""
    if night.days_late:
        return News(still=night.failed, late=True)
    failed = {entry.place: entry for entry in night.failed}
    new = [entry for place, entry in failed.items() if place not in before.failing]
    # Of an incident that goes on no case is told that left it.
    left = {(c.case_id, c.key) for one in night.incidents if one.is_open for c in one.over}
    over = sorted(before.failing - failed.keys() - left)
    now = {entry.place: entry for entry in night.entries}
    return News(
        new,
        [entry for entry in new if not night.incidents_of(entry.place)],
        [entry for place, entry in failed.items() if place in before.failing],
        {place: _standing(now.get(place)) for place in over},
        night.unfinished,
        sorted(before.keys - {key for _case_id, key in now}),
        [run for run in night.red if run.key not in before.red],
        night.slowed,
        [one for one in night.incidents if one.is_news],
    )


def _standing(entry: NightCase | None) -> str:
    if entry is None:
        return "not measured"
    if entry.quarantined and entry.status in FAILING:
        return "in quarantine"
    return entry.status.value if entry.status else "not judged"


# --- in words --------------------------------------------------------------------------------


def _lines(night: Night, news: News) -> Iterator[str]:
    """Return a line for each piece of news, the gravest first."""
    several = [one for one in night.incidents if len(one.cases) > 1]
    together = {(case.case_id, case.key) for one in several for case in one.cases}
    for incident in night.incidents:
        if incident in several or incident.state is State.ACKNOWLEDGED:
            yield incident.line
    for entry in news.new:
        if entry.place not in together:
            yield f"new: {in_words(night, entry)}"
    for one in news.slowed:
        yield f"new: {one.words}"
    for run in news.unfinished:
        yield f"run {run.run_id} on {run.key} has not come to its end; cases may be missing"
    for run in news.red:
        words = f"ended with exit status {run.exit_status}, though no case of it failed"
        yield f"run {run.run_id} on {run.key} {words}"
    for key in news.missing:
        yield f"nothing was measured on {key}, unlike the night before"
    for (case_id, key), standing in news.over.items():
        if (case_id, key) in together:
            continue
        words = "fails no more" if standing in GOOD else "failed in the last run"
        yield f"{words}: {case_id} on {key}: {standing}"
    yield from hints(night)
    for entry in news.still:
        if entry.place not in together:
            yield f"still: {in_words(night, entry)}"


def sound(link: str) -> str:
    """Return a link that can stand in any shape; empty where it is none."""
    return link if _LINK.fullmatch(link) and len(link) <= MOST_LINE else ""


def _to_report(night: Night, news: News) -> str:
    """Say how to see more, where there is no link."""
    runs = " ".join(f"--run {run.run_id}" for run in night.runs[:MOST_RUNS])
    return "" if news.link or not runs else f"more: bench-lib report {runs} --html night.html"


# --- shapes ----------------------------------------------------------------------------------


def body(night: Night, news: News, shape: str) -> bytes:
    """Return the JSON of a shape; raises UndeliverableError for an unknown one."""
    if shape not in SHAPES:
        raise UndeliverableError(f"{shape!r} is no shape; there is {', '.join(SHAPES)}")
    return msgspec.json.encode(SHAPES[shape](night, news))


def plain(night: Night, news: News) -> Message:
    """Return the news as docs/reports.md has them."""
    failures = [*((entry, True) for entry in news.new), *((entry, False) for entry in news.still)]
    return {
        "schema": SCHEMA,
        "sentence": night.sentence,
        "started": night.started,
        "ended": night.ended,
        "runs": [run.run_id for run in night.runs],
        "counts": night.counts,
        "failures": [_failure(night, entry, new=new) for entry, new in failures[:MOST_FAILURES]],
        "failures_left_out": max(0, len(failures) - MOST_FAILURES),
        "incidents": [_incident(one) for one in night.incidents[:MOST_FAILURES]],
        "slower_over_nights": [
            {**asdict(one.found), "hardware_key": one.key, "told_by": one.run_id}
            for one in news.slowed[:MOST_FAILURES]
        ],
        "over": [
            {"case_id": case_id, "hardware_key": key, "status": standing}
            for (case_id, key), standing in list(news.over.items())[:MOST_FAILURES]
        ],
        "over_left_out": max(0, len(news.over) - MOST_FAILURES),
        "unfinished": [run.run_id for run in news.unfinished],
        "missing": news.missing,
        "red": [run.run_id for run in news.red],
        "late_days": night.days_late,
        "hints": hints(night)[:MOST_FAILURES],
        "report": news.link or None,
    }


def _incident(one: Incident) -> dict[str, Any]:
    return {
        "id": one.id,
        "state": one.state.value,
        "news": one.is_news,
        "title": one.title,
        "since": one.since,
        "cause": one.cause or None,
        "cases": [[case.case_id, case.key] for case in one.cases[:MOST_FAILURES]],
        "acknowledged": asdict(one.acknowledged) if one.acknowledged else None,
        "commands": one.commands,
    }


def _failure(night: Night, entry: NightCase, *, new: bool) -> dict[str, Any]:
    verdict, began = entry.verdict, onset(night, entry)
    return {
        "case_id": entry.record.case.id,
        "hardware_key": entry.hardware.key,
        "status": entry.status,
        "new": new,
        "metric": verdict.metric if verdict else None,
        "ratio": verdict.ratio if verdict else None,
        "interval": verdict.interval if verdict else None,
        "since": began.since or None,
        "changed": began.changes,
        "reason": reason(entry),
    }


def _fitted(
    lines: Sequence[str], made: Callable[[list[str]], Message], fits: Callable[[Message], bool]
) -> Message:
    """Return the message made of as many lines as fit, with a line on the others."""
    shown = len(lines)
    while True:
        left = len(lines) - shown
        more = [f"and {left} more, which the report has"] if left else []
        message = made([*lines[:shown], *more])
        if fits(message) or not shown:
            return message
        shown -= max(1, shown // 20)


def as_slack(night: Night, news: News) -> Message:
    """Return the news for Slack's incoming webhooks, within what a message may hold."""
    heading = _for_slack(night.sentence)
    last = f"<{_escaped(news.link)}|{TO_REPORT}>" if news.link else _to_report(night, news)

    def made(lines: list[str]) -> Message:
        texts = filter(None, [f"*{heading}*", *lines, last])
        return {
            "text": heading,
            "blocks": [
                {"type": "section", "text": {"type": "mrkdwn", "text": words, "verbatim": True}}
                for words in texts
            ],
        }

    def fits(message: Message) -> bool:
        texts = [block["text"]["text"] for block in message["blocks"]]
        return len(texts) <= SLACK_BLOCKS and sum(map(len, texts)) <= SLACK_ALL

    return _fitted([_for_slack(line) for line in _lines(night, news)], made, fits)


def _for_slack(words: str) -> str:
    """Escape the three characters that Slack's markup begins with: no link, nobody mentioned."""
    return _escaped(on_one_line(words, MOST_LINE))


def _escaped(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def as_teams(night: Night, news: News) -> Message:
    """Return the news for a webhook of Teams' Workflows: one card, within a message's size.

    Runs of text are shown as they are, without markup.
    """
    report = {"type": "Action.OpenUrl", "title": TO_REPORT, "url": news.link}

    def made(lines: list[str]) -> Message:
        runs = [
            {"type": "TextRun", "text": on_one_line(words, MOST_LINE)}
            for words in filter(None, [night.sentence, *lines, _to_report(night, news)])
        ]
        runs[0] |= {"size": "large", "weight": "bolder"}
        card = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "msteams": {"width": "Full"},
            "body": [{"type": "RichTextBlock", "inlines": [run]} for run in runs],
            **({"actions": [report]} if news.link else {}),
        }
        attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
        return {"type": "message", "attachments": [attachment]}

    return _fitted(
        list(_lines(night, news)),
        made,
        lambda message: len(msgspec.json.encode(message)) <= TEAMS_BYTES,
    )


SHAPES: Mapping[str, Callable[[Night, News], Message]] = {
    JSON: plain,
    SLACK: as_slack,
    TEAMS: as_teams,
}
