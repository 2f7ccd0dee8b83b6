"""Finds a new environment's packages that make a case slower, by exchanging them in turns."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench_lib.engine.pairing import PairRow
from bench_lib.formats import some
from bench_lib.launch import exchanging
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.inquiry import Installed
from bench_lib.model import Case, Status
from bench_lib.verdict.statistics import culprits
from bench_lib.verdict.statistics.culprits import Guilty, PartsQuestion

Part = frozenset[str]
"""Packages that are exchanged together: most often one."""
GUESSED_SD, GUESSED_DEGREES = 0.01, 1.0
"""Noise of a pair's logarithm, if there are too few pairs."""
MOST_NAMED = 4
"""Packages that a line names; it counts the rest."""


@dataclass(frozen=True)
class ExchangeAnswer:
    """The effect of exchanging some packages on a case."""

    case_id: str
    packages: list[str]
    ratio: float | None
    """With them over without; None if it could not be measured."""
    pairs: int
    slower: bool | None
    """None if it could not be measured."""
    known: bool
    """Whether the pairs sufficed for the stated error."""


@dataclass(frozen=True)
class Culprit:
    """Packages that make a case slower, and can only do so together."""

    case_id: str
    packages: list[str]
    changes: list[str]
    """The exchanges in words: ``torch 2.9.0 -> 2.10.0``."""
    ratio: float | None
    """The case's ratio with them exchanged alone; None if that was not measured."""
    alone: dict[str, float]
    """The ratio of each by itself, if it was measured."""
    told_apart: bool
    """Whether each of them is surely needed."""
    known: bool
    """Whether the pairs sufficed for the stated error."""


@dataclass(frozen=True)
class Tied:
    """Packages that cannot be exchanged one by one, and why."""

    packages: list[str]
    why: str


@dataclass
class CulpritsFound:
    """The result of the search."""

    culprits: list[Culprit] = field(default_factory=list)
    tied: list[Tied] = field(default_factory=list)
    answers: list[ExchangeAnswer] = field(default_factory=list)
    unexplained: dict[str, str] = field(default_factory=dict)
    """By case, why nothing is named."""


Exchange = Callable[
    [Collection[str], Sequence[Case], Mapping[str, PartsQuestion]], Mapping[str, bool]
]
"""Measures cases with packages exchanged until their questions are over: whether each could be
measured.  Raises LaunchError where there is no such environment."""


class CulpritSearch:
    """A search for each case, all of which share the environments that are made."""

    def __init__(
        self,
        old: Installed,
        new: Installed,
        measure: Exchange,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Exchange nothing yet; packages are those that differ between the two environments."""
        self._old, self._new = old, new
        self._measure = measure
        self._say = say
        self.differing = exchanging.differing(old, new)
        self._parts: list[Part] = [frozenset([name]) for name in self.differing]
        self._answers: dict[tuple[str, Part], ExchangeAnswer] = {}
        self._refused: dict[Part, str] = {}
        self._tied: dict[Part, str] = {}
        self._asked = 0

    def find(self, cases: Sequence[Case], rows: Mapping[str, PairRow]) -> CulpritsFound:
        """Search for what makes each case slower that a row calls so."""
        while True:
            parts = list(self._parts)
            found = self._find(cases, rows)
            if parts == self._parts:
                return found

    def _find(self, cases: Sequence[Case], rows: Mapping[str, PairRow]) -> CulpritsFound:
        """Search with the parts as they are; stops where some have to be tied together."""
        found, by_id = CulpritsFound(), {case.id: case for case in cases}
        if not self.differing:
            why = "no package differs between the two environments"
            found.unexplained = dict.fromkeys(by_id, why)
            return found
        searches = {case.id: culprits.search(self._parts) for case in cases}
        asked = {case_id: next(search) for case_id, search in searches.items()}
        while asked:
            chosen = _most_wanted(asked.values())
            packages = frozenset().union(*chosen)
            those = [by_id[case_id] for case_id, wanted in asked.items() if wanted == chosen]
            if not self._ask(packages, those, rows):
                return found  # some parts are tied now: begin again, with all answers known
            for case in those:
                answer = self._answers[case.id, packages]
                try:
                    asked[case.id] = searches[case.id].send(answer.slower if answer.known else None)
                except StopIteration as done:
                    del asked[case.id]
                    self._conclude(case.id, done.value, found)
        found.tied = [Tied(sorted(part), why) for part, why in self._tied.items()]
        found.answers = list(self._answers.values())
        found.culprits.sort(key=lambda each: list(by_id).index(each.case_id))
        return found

    def _ask(self, packages: Part, cases: Sequence[Case], rows: Mapping[str, PairRow]) -> bool:
        """Have the answers of cases; False where parts had to be tied together instead."""
        left = [case for case in cases if (case.id, packages) not in self._answers]
        if not left:
            return True
        questions = {case.id: question_of(rows[case.id], case, len(self._parts)) for case in left}
        self._asked += 1
        self._say(f"question {self._asked}: {_named(packages)} exchanged, {len(left)} cases")
        try:
            measured = self._measure(packages, left, questions)
            why = "" if all(measured.values()) else "a case has no measurement with it"
        except LaunchError as error:
            measured, why = {}, str(error).partition("\n")[0]
        for case in left:
            if measured.get(case.id, False):
                question = questions[case.id]
                self._answers[case.id, packages] = ExchangeAnswer(
                    case.id,
                    sorted(packages),
                    question.ratio,
                    len(question.pairs),
                    question.is_slower,
                    question.is_known,
                )
                self._say(f"  {case.id}: {_in_words(self._answers[case.id, packages])}")
        if why and self._tie(packages, why):
            return False
        for case in left:
            nothing = ExchangeAnswer(case.id, sorted(packages), None, 0, None, known=False)
            self._answers.setdefault((case.id, packages), nothing)
        if why:
            self._refused[packages] = why
            self._say(f"{_named(packages)}: {why}")
        return True

    def _tie(self, packages: Part, why: str) -> bool:
        """Tie packages to others that they need, or that need them; False if none are left.

        A package built for another comes first, because it breaks.  A required version is often
        more than the package needs.
        """
        for need in (_built_for, _asked_for):
            beyond = {
                name: need(name, self._old, self._new) & self.differing.keys() - packages
                for name in sorted(packages)
            }
            if any(beyond.values()):
                for name, others in beyond.items():
                    for other in sorted(others):
                        self._join(name, other, why)
                return True
        return False

    def _join(self, one: str, other: str, why: str) -> None:
        those = [part for part in self._parts if part & {one, other}]
        joined = frozenset().union(*those)
        first = self._parts.index(those[0])
        self._parts = [part for part in self._parts if part not in those]
        self._parts.insert(first, joined)
        self._tied = {part: told for part, told in self._tied.items() if not part < joined}
        self._tied.setdefault(joined, why)
        self._say(f"{_named(joined)} are exchanged together: {why}")

    def _conclude(self, case_id: str, guilty: Sequence[Guilty[Part]], found: CulpritsFound) -> None:
        if not guilty:
            packages = frozenset(self.differing)
            everything = self._answers[case_id, packages]
            exchanged = "with all packages exchanged"
            if everything.slower is None:
                why = f"it could not be measured {exchanged}: {self._refused[packages]}"
            elif not everything.known:
                why = f"{everything.pairs} pairs {exchanged} do not show whether it is slower"
            else:
                why = (
                    f"{exchanged} it is not slower: the cause lies outside them, "
                    "in Python, variables, or libraries of the system"
                )
            found.unexplained[case_id] = why
        for each in guilty:
            packages = frozenset().union(*each.parts)
            singles = {
                _named(part): answer.ratio
                for part in each.parts
                if (answer := self._answers.get((case_id, part))) is not None
                and answer.ratio is not None
            }
            whole = self._answers.get((case_id, packages))
            found.culprits.append(
                Culprit(
                    case_id,
                    sorted(packages),
                    [_change(name, *self.differing[name]) for name in sorted(packages)],
                    whole.ratio if whole else None,
                    singles if len(each.parts) > 1 else {},
                    each.told_apart,
                    whole.known if whole else False,
                )
            )


def slower_in_time(rows: Iterable[PairRow]) -> list[PairRow]:
    """Return the rows whose time is REGRESSED; memory and numerics have causes of their own."""
    return [row for row in rows if row.pairs and row.verdicts[0].status is Status.REGRESSED]


def question_of(row: PairRow, case: Case, parts: int) -> PartsQuestion:
    """Return the question about each set of parts, given the effect of all of them."""
    logs = [math.log(b / a) for a, b in row.pairs]
    whole = statistics.fmean(logs)
    sd, degrees = GUESSED_SD, GUESSED_DEGREES
    if len(logs) > 2:
        sd, degrees = statistics.stdev(logs), float(len(logs) - 1)
    # Smaller parts of a large slow-down are looked for only where pairs tell them from noise.
    tolerance = max(math.log1p(case.limits.tolerance), min(sd, whole / 4))
    least = min(tolerance, whole / 2)
    return PartsQuestion(least, whole, sd, degrees, culprits.error_of_one(parts))


def pairs_of(rows: Iterable[PairRow], questions: Mapping[str, PartsQuestion]) -> dict[str, bool]:
    """Put measured pairs into their questions; returns by case whether it has any."""
    measured = {}
    for row in rows:
        questions[row.case_id].pairs[:] = [math.log(b / a) for a, b in row.pairs]
        measured[row.case_id] = bool(row.pairs)
    return measured


def _most_wanted(sets: Iterable[frozenset[Part]]) -> frozenset[Part]:
    """Return the set that most cases ask about, the largest of those."""
    wanted = Counter(sets)
    return max(wanted, key=lambda each: (wanted[each], len(each), sorted(map(sorted, each))))


def _built_for(name: str, old: Installed, new: Installed) -> set[str]:
    """Return the packages that are of one version of ``name`` alone, on either side."""
    found = set()
    for side in (old, new):
        other = _with(name, side, new if side is old else old)
        before = exchanging.unmet(side)
        for dependent, needs in exchanging.unmet(other).items():
            if needs != before.get(dependent) and dependent != name:
                found.add(dependent)
    return found


def _asked_for(name: str, old: Installed, new: Installed) -> set[str]:
    """Return the packages that the new ``name`` requires in another version than the old one."""
    words = exchanging.unmet(_with(name, old, new)).get(name, ())
    found = {str(canonicalize_name(Requirement(each).name)) for each in words}
    return found | _built_for(name, old, new)


def _with(name: str, side: Installed, other: Installed) -> Installed:
    """Return an environment's packages with one of another's among them."""
    versions, needs = exchanging.versions(side), exchanging.needs(side)
    theirs, their_needs = exchanging.versions(other), exchanging.needs(other)
    versions.pop(name, None)
    needs.pop(name, None)
    if name in theirs:
        versions[name] = theirs[name]
        needs[name] = their_needs.get(name, [])
    installed = [f"{each} {version}" for each, version in versions.items()]
    return msgspec.structs.replace(side, installed=installed, requires=needs)


def _in_words(answer: ExchangeAnswer) -> str:
    words = "slower" if answer.slower else "not slower"
    ratio = f"{answer.ratio:.4f} times" if answer.ratio else "unknown"
    sure = "" if answer.known else ", not known for sure"
    return f"{words}{sure}: {ratio} in {answer.pairs} pairs"


def changes(old: Installed, new: Installed) -> list[str]:
    """Return in words the packages that differ: ``torch 2.9.0 -> 2.10.0``."""
    return [_change(name, *of) for name, of in exchanging.differing(old, new).items()]


def _change(name: str, before: str, after: str) -> str:
    return f"{name} {before or 'not there'} -> {after or 'not there'}"


def _named(packages: Collection[str]) -> str:
    return some(sorted(packages), MOST_NAMED)
