"""Incidents: failures that have one cause are one thing, with an identity over nights.

All of it follows from the history, read night by night in the order of time.  A night never
changes what an earlier one said: an incident keeps the id that its first night gave it, though
cases join it and leave it.  Who acknowledged it is kept beside the baselines.
"""

from __future__ import annotations

import enum
import hashlib
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench_lib.formats import many, on_one_line
from bench_lib.model import Acknowledged, Status
from bench_lib.verdict.nights import NIGHT, when

ID_DIGITS = 8
"""Hexadecimal digits of an incident's id."""
Place = tuple[str, str]
"""A case's id and the hardware key."""


class State(str, enum.Enum):
    """How an incident stands on a night."""

    NEW = "new"
    """It began, or came back, on this night."""
    ONGOING = "ongoing"
    ACKNOWLEDGED = "acknowledged"
    """It goes on, and somebody has said why that is known."""
    ENDED = "ended"
    """Its cases are fine again."""


@dataclass(frozen=True)
class IncidentCase:
    """A case on one hardware, as a part of an incident."""

    case_id: str
    key: str
    """The hardware's key."""
    since: str
    """When the first night began on which it failed: UTC, ISO 8601."""
    until: str | None = None
    """When the first night began on which it was fine again; None while it fails."""
    status: Status | None = None
    """The last status that failed; None for a slow-down that only several nights show."""
    metric: str = ""
    ratio: float | None = None
    """The last one that failed: this night's over the baseline's, above 1 is worse."""
    held: str = ""
    """The reason of the quarantine that takes its consequences; empty without one."""


@dataclass(frozen=True)
class Incident:
    """Failures with the same onset, the same changed kernels, or the same change around them."""

    id: str
    """Eight hexadecimal digits, the same on all nights and in every form of a report."""
    since: str
    """When its first night began: UTC, ISO 8601."""
    run: str
    """Id of the first run in which it failed."""
    state: State
    cases: list[IncidentCase]
    """Those that fail, the worst first; of one that has ended, those that failed."""
    over: list[IncidentCase] = field(default_factory=list)
    """Those that were in it and are fine again, while others fail."""
    kernels: list[str] = field(default_factory=list)
    """Changes in the steps, most cases first: ``GEMM MT128x128 → MT64x64``."""
    faults: list[str] = field(default_factory=list)
    """Errors that cases ended in, most cases first: ``out of memory in build: …``."""
    changes: list[str] = field(default_factory=list)
    """Changes in the environment with its first night, in words, without own commits."""
    commits: tuple[str, str] | None = None
    """The project's own commit on the last good night and on the first bad one."""
    last_ok: str | None = None
    """Id of the last run before it in which one of its first cases was fine."""
    ended: str | None = None
    """When the first night began on which all its cases were fine."""
    acknowledged: Acknowledged | None = None
    """Who has acknowledged it, when and why; also of one that has ended since."""
    is_news: bool = False
    """Whether this night opened it, brought it back or ended it."""
    nights: int = 1
    """On how many nights it was seen."""
    names: frozenset[str] = frozenset()
    """All ids that stand for it: one of each failure, as if that had begun it."""

    @property
    def is_open(self) -> bool:
        """Whether it goes on."""
        return self.state is not State.ENDED

    @property
    def worst(self) -> float | None:
        """The largest ratio of its cases; None if no case has one."""
        return max((c.ratio for c in self.cases if c.ratio is not None), default=None)

    @property
    def key(self) -> str:
        """The hardware of its first case, in whose baseline file it is acknowledged."""
        return min((*self.cases, *self.over), key=lambda c: (c.since, c.key)).key

    @property
    def cause(self) -> str:
        """The cause as far as it is known: ``GEMM A → B after torch 2.9 -> 2.10``; else empty."""
        # One changed kernel changes others; of two errors one does not explain the other.
        parts = [self.kernels[0] if self.kernels else _and_more(self.faults)]
        if self.changes:
            parts.append(f"after {_and_more(self.changes)}")
        elif self.commits:
            parts.append("after commit {} -> {}".format(*(c[:12] for c in self.commits)))
        return " ".join(filter(None, parts))

    @property
    def title(self) -> str:
        """The incident in one line: how many cases, the cause, since when, by how much."""
        whose = self.cases[0].case_id if len(self.cases) == 1 else many(len(self.cases), "case")
        words = f"{whose}: {self.cause}" if self.cause else whose
        words += f", since {self.since[:10]}"
        if self.worst is not None and self.worst > 1:
            words += f", {'up to ' if len(self.cases) > 1 else ''}{self.worst - 1:.1%} slower"
        if not self.is_open:
            words += f", ended {(self.ended or '')[:10]}"
        return on_one_line(words, MOST_TITLE)

    @property
    def says_more(self) -> bool:
        """Whether it says more than that one case began to fail tonight."""
        return len(self.cases) > 1 or self.state is not State.NEW

    @property
    def line(self) -> str:
        """The incident with its id, how it stands and who knows of it, in one line."""
        words = f"incident {self.id} ({self.state.value}): {self.title}"
        if self.acknowledged and self.is_open:
            words += f"; {on_one_line(self.acknowledged.reason, MOST_TITLE)}"
        return words

    @property
    def commands(self) -> list[str]:
        """Command lines that help: to show it, to find the change, to acknowledge it."""
        found = [f"bench-lib incident show {self.id}"]
        slower = [case.case_id for case in self.cases if case.status is Status.REGRESSED]
        if self.is_open and self.last_ok and slower:
            found.append(f"bench-lib bisect {shlex.quote(slower[0])} --good last-ok")
        if self.is_open and self.state is not State.ACKNOWLEDGED:
            found.append(f"bench-lib incident ack {self.id} --reason WHY")
        return found


def _and_more(words: Sequence[str]) -> str:
    """Return the first, with the number of the others; empty if there is none."""
    more = f" and {len(words) - 1} more" if len(words) > 1 else ""
    return f"{words[0]}{more}" if words else ""


MOST_TITLE = 240
"""Characters of a title."""

# --- what is read --------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """A case that failed in a run, or that several nights show to be slower."""

    case_id: str
    key: str
    status: Status | None = None
    """None for a slow-down that only several nights show."""
    metric: str = ""
    ratio: float | None = None
    kernels: tuple[str, ...] = ()
    """The changes in its step, as ``profiling.kernels.blamed`` names them."""
    fault: str = ""
    """Why it has no measurement."""
    shared: str = ""
    """The name of a slow-down over nights: its cases are one thing."""
    held: str = ""
    """The reason of a quarantine that held on that day."""
    began: str = ""
    """When the first night of a slow-down over nights began: UTC, ISO 8601."""
    changes: tuple[str, ...] | None = None
    """Changes in the environment with that night; None if the runs around it have them."""

    @property
    def level(self) -> float:
        """By how much it is slower, a logarithm; 0 if it is not, or was not measured."""
        is_measured = self.status is not Status.ERROR
        return math.log(max(1.0, self.ratio or 1.0)) if is_measured else 0.0

    @property
    def is_slower(self) -> bool:
        """Whether it was measured, and is worse by a ratio."""
        return self.level > 0

    @property
    def place(self) -> Place:
        """The case and its hardware, which name it among the night's failures."""
        return self.case_id, self.key

    @property
    def signs(self) -> frozenset[str]:
        """Signs that failures with another cause lack; empty if unknown."""
        named = (sign for sign in (*self.kernels, self.fault, self.shared) if ": " in sign)
        return frozenset(named)

    @property
    def kinds(self) -> frozenset[str]:
        """The same without names that differ from case to case: ``GEMM``, ``out of memory``."""
        kinds = {kernel.partition(":")[0] for kernel in self.kernels}
        if self.fault:
            kinds.add(self.fault.partition(":")[0])
        return frozenset(kinds)


@dataclass(frozen=True)
class RunSeen:
    """One run's results of the cases that ever fail."""

    run_id: str
    time: str
    """When it began: UTC, ISO 8601."""
    environment: str
    """Reference."""
    failures: Sequence[Failure]
    fine: Collection[Place]
    """Cases that were OK or better."""


@dataclass(frozen=True)
class AroundChange:
    """The changes around the cases from one environment to another."""

    words: tuple[str, ...] = ()
    """Without the project's own commit and without caches, which differ from night to night."""
    commits: tuple[str, str] | None = None


Between = Callable[[str, str], AroundChange]
"""Changes from an environment to another, by their references."""

# --- the evidence --------------------------------------------------------------------------
# In natural logarithms of odds, chosen on seeds 1 to 8 of benchmarks/incidents.py.

SAME_NIGHT = 2.0
"""A case fails first on the night on which the incident began."""
NOT_SEEN = 1.0
"""It does so later, and was not seen since before the incident began."""
LATER = (1.0, 0.5)
"""It was still fine on one night of the incident, on two: it is hardly beyond its tolerance."""
TOO_LATE = -2.0
"""It was fine on more of them, or too many like it begin to fail tonight for all to be late."""
FEW, FEW_SHARE = 2, 0.3
"""Cases that may be late together, also as a share of the incident's."""
SAME_SIGN = 4.0
"""A changed kernel, a fault or a slow-down over nights is the same."""
SAME_KIND = 1.0
"""It is of the same kind: another kernel of a GEMM, another message of an exception."""
FAULT_BESIDE = -3.0
"""One ended in an error, and the other was measured: only the same change makes them one."""
OTHER_SIGN = -5.0
"""Both are known, and not even of one kind."""
SAME_CHANGE = 4.0
"""The environment changed in the same way before both."""
OTHER_CHANGE = -3.0
"""It changed in another way, or before one of them alone."""
OTHER_HARDWARE = -1.0
"""All its cases are on other hardware, and no change in the environment is common to both."""
RETURN = (7, 4.0)
"""A case that was in the incident and was fine for so few nights, and what that is worth."""
RETURN_AFTER_END = (2, 2.0)
"""The same where all its cases were fine."""
STEP = math.log1p(0.02)
"""A case that fails already and becomes slower by so much has a second cause."""
STEP_SHARE = 0.25
"""Share of its slow-down so far: a step is not less."""
UNSEEN = 30
"""Nights without a case's failure and without a good one, after which it is left out."""


@dataclass
class _Spell:
    """A case's part in an incident."""

    place: Place
    since: str
    last: Failure
    seen: int
    """Number of the last night on which it failed."""
    names: set[str] = field(default_factory=set)
    """The ids that an incident has which a night of it began."""
    until: str | None = None
    until_night: int = 0


@dataclass(eq=False)
class _Growing:
    """An incident, as far as the nights until now tell."""

    id: str
    night: int
    """Number of its first night."""
    since: str
    run_id: str
    last_ok: str | None
    around: AroundChange
    spells: dict[Place, _Spell] = field(default_factory=dict)
    signs: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    ended: str | None = None
    turned: int = 0
    """Number of the night that opened it, brought it back or ended it last."""
    seen: set[int] = field(default_factory=set)

    @property
    def keys(self) -> set[str]:
        return {key for _case, key in self.spells}

    @property
    def is_fault(self) -> bool:
        return any(spell.last.fault for spell in self.spells.values())

    def failing(self) -> list[_Spell]:
        return [spell for spell in self.spells.values() if spell.until is None]


@dataclass
class _Failing:
    """A case that fails, as long as it does."""

    level: float
    """Logarithm of its ratio, in the mean of the nights since it changed last."""
    seen: int
    """Number of the last night on which it failed."""
    run: RunSeen
    """The run of that night."""
    nights: int = 1
    parts: dict[_Growing, float] = field(default_factory=dict)
    """The incidents that it is in, with what each adds to the level: 0 of an error."""


@dataclass(frozen=True)
class _Onset:
    """A case that begins to fail, or fails for one more cause."""

    failure: Failure
    run: RunSeen
    good: tuple[int, RunSeen] | None
    """The last night on which it was fine, with its run."""
    around: AroundChange | None = None
    """None if no good night is known."""
    after: int | None = None
    """The last night before it, if the case failed already, for another cause."""
    step: float = 0.0
    """By how much a case that failed already became slower, of logarithms."""


def incidents(
    runs: Iterable[RunSeen],
    between: Between,
    acknowledged: Mapping[str, Acknowledged] | None = None,
) -> list[Incident]:
    """Return all incidents of a history, as they stand on its last night; oldest first.

    ``acknowledged`` has by id who knows of one.  The id of any of its failures stands for it.
    """
    history = IncidentHistory(between)
    for night in nights_of(runs):
        history.take(night)
    return history.told(acknowledged or {})


def nights_of(runs: Iterable[RunSeen]) -> Iterator[list[RunSeen]]:
    """Put runs into nights, from the first one on: a later run never regroups earlier ones."""
    night: list[RunSeen] = []
    for run in sorted(runs, key=lambda run: (run.time, run.run_id)):
        if night and when(run.time) - when(night[0].time) > NIGHT:
            yield night
            night = []
        night.append(run)
    if night:
        yield night


class IncidentHistory:
    """The incidents, from night to night."""

    def __init__(self, between: Between) -> None:
        """Begin with no night; ``between`` tells what changed in the environment."""
        self._known: list[_Growing] = []
        self.night = -1
        """Number of the last night."""
        self._between = between
        self._good: dict[Place, list[tuple[int, RunSeen]]] = {}
        """By case, the nights on which it was fine."""
        self._failing: dict[Place, _Failing] = {}
        self._tonight: Sequence[_Onset]
        """The cases that begin to fail on the last night."""
        self._open: list[_Growing] = []
        """Those that go on, and those that ended a short while ago."""

    def take(self, night: Sequence[RunSeen]) -> None:
        """Take in the next night."""
        self.night += 1
        failing: dict[Place, tuple[Failure, RunSeen]] = {}
        fine: dict[Place, RunSeen] = {}
        for run in night:  # of a case the later run counts
            for place in run.fine:
                failing.pop(place, None)
                fine[place] = run
            for failure in run.failures:
                fine.pop(failure.place, None)
                failing[failure.place] = failure, run
        for place, run in fine.items():
            self._mend(place, night[0].time)
            self._good.setdefault(place, []).append((self.night, run))
        drops: dict[Place, float] = {}
        onsets = [
            onset
            for failure, run in failing.values()
            if (onset := self._follow(failure, run, drops)) is not None
        ]
        for place in self._lessen(drops, night[0].time):
            failure, run = failing[place]
            onsets.append(_Onset(failure, run, self._last_good(place)))
        for place, (failure, run) in failing.items():
            for incident, size in self._failing[place].parts.items():
                if bool(size) == failure.is_slower:
                    self._note(incident, failure, run)
        self._sort_in(onsets)
        self._end(night[0].time)

    def told(self, acknowledged: Mapping[str, Acknowledged]) -> list[Incident]:
        """Return all incidents until now as they stand, oldest first."""
        ids = {one.id for one in self._known}
        return [_told(one, self.night, acknowledged, ids) for one in self._known]

    def _mend(self, place: Place, time: str) -> None:
        known = self._failing.pop(place, None)
        for incident in known.parts if known else ():
            _close(incident.spells[place], time, self.night)

    def _follow(self, failure: Failure, run: RunSeen, drops: dict[Place, float]) -> _Onset | None:
        """Follow a case that fails; return where something new begins with it.

        By how much it became faster, where it did, goes into ``drops``.
        """
        last = self._last_good(failure.place)
        known = self._failing.get(failure.place)
        if known is None:
            around = None if last is None else self._between(last[1].environment, run.environment)
            if failure.changes is not None:
                around = AroundChange(failure.changes)
            self._failing[failure.place] = _Failing(failure.level, self.night, run)
            return _Onset(failure, run, last, around)
        seen, before = known.seen, known.run
        known.seen, known.run = self.night, run
        around = self._between(before.environment, run.environment)
        if not failure.is_slower:
            # What made it slower is not to be seen as long as it ends in an error.
            is_new = all(known.parts.values())
            return _Onset(failure, run, last, around, seen) if is_new else None
        for incident in [one for one, size in known.parts.items() if not size]:
            _close(incident.spells[failure.place], run.time, self.night)
            del known.parts[incident]
        if not known.parts:
            known.level, known.nights = failure.level, 1
            return _Onset(failure, run, last)
        rise = failure.level - known.level
        if abs(rise) < max(STEP, STEP_SHARE * known.level):
            known.nights += 1
            known.level += rise / known.nights
            return None
        known.level, known.nights = known.level + rise, 1
        if rise < 0:
            drops[failure.place] = -rise
            return None
        return _Onset(failure, run, last, around, seen, rise)

    def _last_good(self, place: Place) -> tuple[int, RunSeen] | None:
        good = self._good.get(place)
        return good[-1] if good else None

    def _lessen(self, drops: Mapping[Place, float], time: str) -> list[Place]:
        """Take cases out of the incident whose end most likely made them faster.

        Returns those that were in no other: what remains has another cause, which it had before.
        """
        misfits: dict[_Growing, list[float]] = {}
        for place, drop in drops.items():
            for incident, size in self._failing[place].parts.items():
                misfits.setdefault(incident, []).append(abs(size - drop))
        ends = {one for one in misfits if _mended(one, self.night, drops) > 1 / 2}
        alone = []
        for place in drops:
            parts = self._failing[place].parts
            one = max(parts, key=lambda one: (one in ends, -statistics.median(misfits[one])))
            if len(parts) > 1 or one in ends:
                _close(one.spells[place], time, self.night)
                del parts[one]
                alone += [] if parts else [place]
        return alone

    def _note(self, incident: _Growing, failure: Failure, run: RunSeen) -> None:
        spell = incident.spells[failure.place]
        spell.last, spell.seen = failure, self.night
        spell.names.add(_id(failure.place, run.run_id))
        incident.seen.add(self.night)

    def _sort_in(self, onsets: Sequence[_Onset]) -> None:
        """Put each onset into the incident that it most likely is of, or begin one with it."""
        self._tonight = onsets
        common = Counter(sign for onset in onsets for sign in onset.failure.signs)

        def first(onset: _Onset) -> tuple[bool, float, int, Place]:
            # Who was fine a short while ago knows best what changed since then.
            most = max((common[sign] for sign in onset.failure.signs), default=0)
            unseen = math.inf if onset.good is None else self.night - onset.good[0]
            return onset.after is not None, unseen, -most, onset.failure.place

        for onset in sorted(onsets, key=first):
            own = self._failing[onset.failure.place].parts
            others = (one for one in self._open if one not in own)
            weighed = [(self._evidence(onset, one), len(one.failing()), one) for one in others]
            likely = [each for each in weighed if each[0] > 0]
            best = max(likely, key=lambda each: each[:2])[-1] if likely else self._begun(onset)
            self._join(best, onset)

    def _begun(self, onset: _Onset) -> _Growing:
        run = onset.run
        incident = _Growing(
            _id(onset.failure.place, run.run_id),
            self.night,
            onset.failure.began or run.time,
            run.run_id,
            onset.good[1].run_id if onset.good else None,
            onset.around or AroundChange(),
            turned=self.night,
        )
        self._known.append(incident)
        self._open.append(incident)
        return incident

    def _join(self, incident: _Growing, onset: _Onset) -> None:
        failure, place = onset.failure, onset.failure.place
        if incident.ended is not None:
            incident.ended, incident.turned = None, self.night
        known = self._failing[place]
        known.parts[incident] = (onset.step or known.level) if failure.is_slower else 0.0
        if (old := incident.spells.get(place)) is not None:
            old.until = None
        else:
            began = failure.began or onset.run.time
            incident.spells[place] = _Spell(place, began, failure, self.night)
        if not onset.step:  # else the signs may be of what it failed for already
            incident.signs.update(failure.signs)
            incident.kinds.update(failure.kinds)
        self._note(incident, failure, onset.run)

    def _evidence(self, onset: _Onset, incident: _Growing) -> float:
        """Return the logarithm of the odds that an onset is of an incident."""
        change = self._by_change(onset, incident)
        is_reached = onset.failure.key in incident.keys or change == SAME_CHANGE
        return (
            self._by_time(onset, incident)
            + self._by_signs(onset, incident)
            + change
            + (0.0 if is_reached else OTHER_HARDWARE)
        )

    def _by_time(self, onset: _Onset, incident: _Growing) -> float:
        """Return what the nights say, of the logarithm of the odds."""
        place = onset.failure.place
        spell = incident.spells.get(place)
        if spell is not None and spell.until is not None:
            nights, worth = RETURN if incident.ended is None else RETURN_AFTER_END
            return worth if self.night - spell.until_night <= nights else TOO_LATE
        late = self._late(onset, incident)
        if not late:
            return SAME_NIGHT if incident.night == self.night else NOT_SEEN
        if late > len(LATER):
            return TOO_LATE
        # Of those that begin tonight, others less like the incident need not be late for it.
        like = self._by_signs(onset, incident)
        alike = sum(self._by_signs(other, incident) >= like for other in self._tonight)
        is_crowd = alike > max(FEW, FEW_SHARE * len(incident.spells))
        return TOO_LATE if is_crowd else LATER[late - 1]

    def _late(self, onset: _Onset, incident: _Growing) -> int:
        """Return on how many nights of an incident a case was still as before."""
        if onset.after is not None:
            return self.night - incident.night if incident.night <= onset.after else 0
        good = self._good.get(onset.failure.place, ())
        return sum(night >= incident.night for night, _ in good)

    def _by_signs(self, onset: _Onset, incident: _Growing) -> float:
        """Return what kernels and faults say, of the logarithm of the odds."""
        signs, kinds = onset.failure.signs, onset.failure.kinds
        if onset.after is not None:
            own = self._failing[onset.failure.place].parts
            signs = signs.difference(*(one.signs for one in own))
            kinds = kinds.difference(*(one.kinds for one in own))
        if signs & incident.signs.keys():
            return SAME_SIGN
        if not kinds or not incident.kinds:
            return 0.0 if bool(onset.failure.fault) == incident.is_fault else FAULT_BESIDE
        return SAME_KIND if kinds & incident.kinds.keys() else OTHER_SIGN

    def _by_change(self, onset: _Onset, incident: _Growing) -> float:
        """Return what changes in the environment say, of the logarithm of the odds."""
        if onset.around is None:
            return 0.0
        ours, theirs = set(onset.around.words), set(incident.around.words)
        if self._late(onset, incident):  # if it is of the incident, it began before that change
            other = ours - theirs
            return OTHER_CHANGE if other and not self._does_else(other, onset) else 0.0
        if ours & theirs:
            return SAME_CHANGE
        # Who was not seen for longer saw more changes, which need not be the reason.
        return OTHER_CHANGE if theirs else 0.0

    def _does_else(self, words: set[str], onset: _Onset) -> bool:
        """Whether these changes began incidents already, all of them with other signs."""
        begun = [one for one in self._open if set(one.around.words) & words]
        return bool(begun) and all(self._by_signs(onset, one) == OTHER_SIGN for one in begun)

    def _end(self, time: str) -> None:
        """End what does not fail any more, and forget what ended long ago."""
        for incident in self._open:
            failing = incident.failing()
            others = len(incident.spells) > len(failing)
            # Where all its own cases are fine, the rest fails for what it fails for besides.
            is_over = others and all(len(self._failing[s.place].parts) > 1 for s in failing)
            for spell in failing:
                if is_over or self.night - spell.seen > UNSEEN:
                    _close(spell, time, self.night)
                    parts = self._failing[spell.place].parts
                    del parts[incident]
                    if not parts:
                        del self._failing[spell.place]
            if incident.ended is None and not incident.failing():
                incident.ended, incident.turned = time, self.night
        self._open = [
            one for one in self._open if one.ended is None or self.night - one.turned <= RETURN[0]
        ]


def _close(spell: _Spell, time: str, night: int) -> None:
    spell.until, spell.until_night = time, night


def _mended(incident: _Growing, night: int, drops: Collection[Place]) -> float:
    """Return the share of an incident's cases, 0 to 1, that became fine or faster on a night."""
    until_now = [s for s in incident.spells.values() if s.until is None or s.until_night == night]
    better = sum(s.until is not None or s.place in drops for s in until_now)
    return better / len(until_now)


def _id(place: Place, run_id: str) -> str:
    case_id, key = place
    return hashlib.sha256(f"{key} {case_id} {run_id}".encode()).hexdigest()[:ID_DIGITS]


def _told(
    one: _Growing, night: int, acknowledged: Mapping[str, Acknowledged], ids: Collection[str]
) -> Incident:
    """Return an incident as it stands; its names have no other incident's id, of all ``ids``."""
    spells = sorted(one.spells.values(), key=lambda s: (-(s.last.ratio or 0.0), s.place))
    failures = (name for spell in spells for name in spell.names)
    names = frozenset(name for name in failures if name == one.id or name not in ids)
    who = [known for name, known in sorted(acknowledged.items()) if name in names]
    failing = [spell for spell in spells if spell.until is None]
    is_news = one.turned == night
    state = State.ONGOING
    if one.ended is not None:
        state = State.ENDED
    elif who or (failing and all(spell.last.held for spell in failing)):
        state = State.ACKNOWLEDGED
    elif is_news:
        state = State.NEW
    gone = [spell for spell in spells if spell.until is not None]
    named = [k for spell in spells for k in spell.last.kernels]
    kernels = dict(reversed([(kernel, place) for place, kernel in enumerate(named)]))
    # Equally common signs stand as the cases name them, so that every command tells the same.
    common = sorted(one.signs, key=lambda s: (-one.signs[s], kernels.get(s, len(named)), s))
    faults = {spell.last.fault for spell in spells}
    return Incident(
        one.id,
        one.since,
        one.run_id,
        state,
        [_case(spell) for spell in failing or gone],
        [_case(spell) for spell in gone if failing],
        [_named(sign) for sign in common if sign in kernels],
        [sign for sign in common if sign in faults],
        list(one.around.words),
        one.around.commits,
        one.last_ok,
        one.ended,
        max(who, key=lambda each: each.date, default=None),
        is_news,
        len(one.seen),
        names,
    )


def _named(sign: str) -> str:
    """Return a kernel's sign as people read it; the role of one that nobody knows says nothing."""
    return sign.replace(": ", " ", 1).removeprefix("other ")


def _case(spell: _Spell) -> IncidentCase:
    last = spell.last
    return IncidentCase(
        last.case_id,
        last.key,
        spell.since,
        spell.until,
        last.status,
        last.metric,
        last.ratio,
        last.held,
    )
