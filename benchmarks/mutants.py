"""Which small mistakes in the code that verdicts stand on would no test notice?

    python benchmarks/mutants.py [MODULE ...] [--children 1] [--json FILE] [--again]

A mutant is the program with one small mistake in it.  The tests are collected once, in this
process.  Each mutant is a fork of it in which one function has another code.  It runs the tests
that reach the changed lines until one fails: first those that killed other mutants of the function,
then the quickest.  ``mutants.toml`` beside this file names the modules, the tests, and the reason
of each known survivor.

Results are kept in ``build/mutants`` as they come, and a run goes on where another one ended: what
was killed stays so until its function changes, and survivors are tried again.  Ends with status 1
if a module has less than the share that ``mutants.toml`` asks for, if a survivor has no reason, or
if a reason has no survivor.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import importlib
import itertools
import json
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import libcst as cst
import pytest
from coverage.exceptions import CoverageWarning
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_match, operator_string

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
KILLED, SURVIVED, UNREACHED, TOO_SLOW = "killed", "survived", "no test", "too slow"
DIED = "not tried, since pytest itself failed"
DEAD = (KILLED, TOO_SLOW)
"""A mutant that never ends is noticed as well."""
STILLBORN = "not compiled"
CPU_LIMIT = 10.0
"""A mutant may use as much more CPU than its tests do without it, and a second."""
WALL_LIMIT_S = 300.0
"""Whatever sleeps is given up then."""
MOST_BYTES = 4 << 30
"""Of memory, for each."""
AROUND = 24
"""Characters that a change is shown with on either side."""
NOT_MUTATED = {"len", "isinstance"}
"""Calls of which every mutant fails at once."""


# ---- mutants ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One small mistake."""

    module: str
    """Path of the file, from the root of the project."""
    function: str
    """Its name with its class's."""
    change: str
    """What stands there, and what would."""
    lines: tuple[int, int]
    """First and last line of the statement."""
    span: tuple[int, int]
    """Begin and end in the text of the file."""
    text: str
    """What stands there instead."""
    body: str = field(repr=False)
    """A hash of the function as it is."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is called in the list of survivors."""
        return self.module, self.function, self.change


class _Finder(cst.CSTVisitor):
    """Collects the mutants of a module's functions: no annotation, decorator or default."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, module: str, source: str, tree: cst.Module) -> None:
        super().__init__()
        self.found: list[Mutant] = []
        self._module, self._source, self._tree = module, source, tree
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._path: list[cst.CSTNode] = []
        self._digests: dict[cst.FunctionDef, str] = {}
        self._seen: Counter[tuple[str, str]] = Counter()

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Collect the mutants of one node."""
        self._path.append(node)
        if isinstance(node, (cst.Annotation, cst.Decorator, cst.Parameters)):
            return False
        called = node.func if isinstance(node, cst.Call) else None
        if isinstance(called, cst.Name) and called.value in NOT_MUTATED:
            return False
        if isinstance(node, cst.Arg) and _is_strict(node):
            return False
        function = self._function
        if function is not None and node is not function:
            for kind, operator in mutation_operators:
                if isinstance(node, kind) and operator is not operator_match:
                    made = [m for m in operator(node) if _stays_strict(node, m)]
                    # The case of letters says nothing that other letters do not.
                    for mutated in made[:1] if operator is operator_string else made:
                        self._collect(node, mutated, function)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """Leave a node."""
        assert self._path.pop() is original_node

    @property
    def _function(self) -> cst.FunctionDef | None:
        """The outermost function that holds the node, which has a name to be found by."""
        return next((n for n in self._path if isinstance(n, cst.FunctionDef)), None)

    def _collect(self, node: cst.CSTNode, mutated: cst.CSTNode, function: cst.FunctionDef) -> None:
        unit, statement = self._unit()
        begin, end = self._span(unit)
        before = self._source[begin:end]
        whole = mutated if unit is node else unit.deep_replace(node, mutated)
        assert isinstance(whole, cst.CSTNode)
        if isinstance(unit, cst.Tuple) and not before.startswith("("):
            whole = whole.with_changes(lpar=[], rpar=[])  # whose place is without them
        after = self._tree.code_for_node(whole)
        classes = [n.name.value for n in self._path if isinstance(n, cst.ClassDef)]
        name = ".".join([*classes, function.name.value])
        change = _change(before, after)
        self._seen[name, change] += 1
        if (nth := self._seen[name, change]) > 1:
            change += f" ({nth})"
        place = self.get_metadata(PositionProvider, statement)
        last = place.end.line
        if isinstance(suite := getattr(statement, "body", None), cst.BaseSuite):
            last = self.get_metadata(PositionProvider, suite).start.line
        first = self.get_metadata(PositionProvider, unit).start.line
        if function not in self._digests:
            text = self._tree.code_for_node(function)
            self._digests[function] = hashlib.sha256(text.encode()).hexdigest()[:12]
        lines = (min(first, place.start.line), max(last, first))
        body = self._digests[function]
        self.found.append(Mutant(self._module, name, change, lines, (begin, end), after, body))

    def _unit(self) -> tuple[cst.CSTNode, cst.CSTNode]:
        """Return the small statement or the whole expression around the node, and its statement."""
        unit = self._path[-1]
        for node in reversed(self._path):
            if isinstance(node, cst.BaseSmallStatement):
                return node, node
            if isinstance(node, cst.BaseCompoundStatement):
                return unit, node
            if isinstance(node, cst.BaseExpression) or not isinstance(unit, cst.BaseExpression):
                unit = node
        raise AssertionError(unit)

    def _span(self, node: cst.CSTNode) -> tuple[int, int]:
        place = self.get_metadata(PositionProvider, node)
        return (
            self._starts[place.start.line - 1] + place.start.column,
            self._starts[place.end.line - 1] + place.end.column,
        )


def _is_strict(argument: cst.Arg) -> bool:
    return argument.keyword is not None and argument.keyword.value == "strict"


def _stays_strict(node: cst.CSTNode, mutated: cst.CSTNode) -> bool:
    """Whether a call keeps ``strict=True``, which states an invariant that nothing breaks."""
    if not isinstance(node, cst.Call) or not isinstance(mutated, cst.Call):
        return True
    return all(any(a is b for b in mutated.args) for a in node.args if _is_strict(a))


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return all mutants of a module's functions."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    finder = _Finder(module, source, wrapper.module)
    wrapper.visit(finder)
    return finder.found


def _change(before: str, after: str) -> str:
    """Show what changes with a few words on either side, on one line."""
    old, new = (" ".join(text.split()) for text in (before, after))
    begin = _alike(old, new)
    end = _alike(old[begin:][::-1], new[begin:][::-1])
    first, last = max(0, begin - AROUND), max(0, end - AROUND)
    return f"{old[first : len(old) - last]} -> {new[first : len(new) - last]}"


def _alike(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    both = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in both)


# ---- becoming one -------------------------------------------------------------------------


def become(mutant: Mutant, source: str) -> None:
    """Give the function in this process the mutant's code; raises where it has none."""
    begin, end = mutant.span
    text = source[:begin] + mutant.text + source[end:]
    code = compile(text, str(ROOT / mutant.module), "exec", dont_inherit=True)
    name = mutant.module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    owner: Any = sys.modules[name]
    for name in mutant.function.split("."):
        code = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name][-1]
        owner = vars(owner)[name]
    _plain(owner).__code__ = code


def _plain(value: Any) -> FunctionType:
    """Return the function within a method, a property or what a decorator made."""
    while not isinstance(value, FunctionType):
        inner = ("fget", "func", "__func__", "__wrapped__")
        value = next(getattr(value, name) for name in inner if hasattr(value, name))
    wrapped = getattr(value, "__wrapped__", None)
    return value if wrapped is None else _plain(wrapped)


# ---- tests --------------------------------------------------------------------------------


@dataclass
class Tests:
    """The collected tests, each in a fork of this process."""

    items: Sequence[pytest.Item]
    failed: bool = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test failed."""
        self.failed |= report.failed

    def passes(self, item: pytest.Item, following: pytest.Item) -> bool:
        """Run a test; what the following one shares with it stays set up."""
        self.failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return not self.failed

    def begin(self) -> None:
        """Set up what belongs to the session, which all forks share."""
        first, *others = self.items
        elsewhere = [item for item in others if item.path != first.path] or others
        if elsewhere:
            self.passes(first, elsewhere[0])

    def killer(self, names: Sequence[str]) -> str | None:
        """Return the first of some tests that fails; None where all pass."""
        items = [self.by_name[name] for name in names]
        for item, following in zip(items, [*items[1:], items[-1]], strict=True):
            if not self.passes(item, following):
                return item.nodeid
        return None

    @cached_property
    def by_name(self) -> Mapping[str, pytest.Item]:
        """Return each test by its node id."""
        return {item.nodeid: item for item in self.items}


def forked(work: Callable[[], Any], cpu_s: float) -> tuple[int, Callable[[], Any]]:
    """Start work in a fork that may use so much CPU; returns its pid, and what awaits its answer.

    The answer is None where the fork died.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)

        def answer() -> Any:
            with os.fdopen(read, "rb") as stream:
                text = stream.read()
            return json.loads(text) if text else None

        return pid, answer
    try:
        os.close(read)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        for timer, sign, limit_s in (
            (signal.ITIMER_PROF, signal.SIGPROF, cpu_s),
            (signal.ITIMER_REAL, signal.SIGALRM, WALL_LIMIT_S),
        ):
            signal.signal(sign, signal.SIG_DFL)
            signal.setitimer(timer, limit_s)
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        os.write(write, json.dumps(work()).encode())
    finally:
        os._exit(0)


def finished(pid: int, answer: Callable[[], Any]) -> Any:
    """Wait for a fork, and return its answer."""
    found = answer()
    os.waitpid(pid, 0)
    return found


@dataclass(frozen=True)
class Reach:
    """Which lines a test runs, and what it takes."""

    cpu_s: float
    lines: Mapping[str, Sequence[int]]


def reached(
    tests: Tests, item: pytest.Item, modules: Sequence[str], slowest_s: float
) -> Reach | None:
    """Return what a test reaches by itself; None where it fails, or takes far too long."""

    def work() -> Any:
        warnings.simplefilter("ignore", CoverageWarning)  # some tests reach none of these
        seen = coverage.Coverage(
            data_file=None, include=[str(ROOT / module) for module in modules], config_file=False
        )
        seen.start()
        begin = time.process_time()
        passes = tests.passes(item, item)
        cpu_s = time.process_time() - begin
        seen.stop()
        found = {m: seen.get_data().lines(str(ROOT / m)) or [] for m in modules}
        return [cpu_s, found] if passes else None

    answer = finished(*forked(work, 1 + 10 * slowest_s))
    return None if answer is None else Reach(*answer)


class Memory:
    """What tests reach, for as long as neither they nor what they may run has changed."""

    def __init__(self, path: Path) -> None:
        """Read what is known."""
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._known = {(row["test"], row["of"]): row["reach"] for row in map(json.loads, lines)}
        program = [*ROOT.glob("bench_lib/**/*.py"), *ROOT.glob("tests/*.py")]
        self._program = digest(*(p for p in program if not p.name.startswith("test_")))
        self._files: dict[Path, str] = {}

    def of(self, item: pytest.Item, look: Callable[[], Reach | None]) -> Reach | None:
        """Return what a test reaches; None where it does not pass."""
        if item.path not in self._files:
            self._files[item.path] = self._program + digest(item.path)
        key = item.nodeid, self._files[item.path]
        if key not in self._known:
            found = look()
            self._known[key] = found and [found.cpu_s, found.lines]
            row = {"test": key[0], "of": key[1], "reach": self._known[key]}
            write(self._path, row)
        known = self._known[key]
        return None if known is None else Reach(*known)


def digest(*paths: Path) -> str:
    """Return a hash of files."""
    text = b"\0".join(path.read_bytes() for path in sorted(paths))
    return hashlib.sha256(text).hexdigest()[:12]


def write(path: Path, row: Mapping[str, Any]) -> None:
    """Add a line to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row, ensure_ascii=False) + "\n")


# ---- results ------------------------------------------------------------------------------


@dataclass
class Results:
    """What became of each mutant, on the disk as it happens."""

    path: Path
    known: dict[tuple[str, str, str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what earlier runs found."""
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                key = row["module"], row["function"], row["change"], row["body"]
                self.known[key] = row["status"]

    def of(self, mutant: Mutant) -> str | None:
        """Return what is known of a mutant."""
        return self.known.get((*mutant.key, mutant.body))

    def note(self, mutant: Mutant, status: str, by: str | None) -> None:
        """Write down what became of a mutant."""
        self.known[(*mutant.key, mutant.body)] = status
        module, function, change = mutant.key
        row = {"module": module, "function": function, "change": change, "body": mutant.body}
        write(self.path, {**row, "status": status, "by": by})


@dataclass
class Run:
    """All mutants of some modules, tried on the tests that reach them."""

    plan: Mapping[str, Any]
    modules: Sequence[str]
    children: int
    results: Results
    again: bool
    only: str = "*"
    complete: list[str] = field(default_factory=list)
    mutants: dict[str, list[Mutant]] = field(default_factory=dict)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try mutants in place of running the tests."""
        tests = Tests(session.items)
        for name in self.plan["preload"]:
            importlib.import_module(name)
        session.config.pluginmanager.register(tests)
        tests.begin()
        begin = time.monotonic()
        reaches, slowest_s = {}, self.plan["slowest_s"]
        modules = self.plan["modules"]
        memory = Memory(self.results.path.with_name("reach.jsonl"))
        for item in session.items:
            look = partial(reached, tests, item, modules, slowest_s)
            if (reach := memory.of(item, look)) is None:
                say(f"{item.nodeid} fails by itself or is very slow, and is left out")
            elif reach.cpu_s <= slowest_s:
                reaches[item.nodeid] = reach
        took_s = time.monotonic() - begin
        say(f"{len(reaches)} of {len(session.items)} tests, looked at in {took_s:.0f} s")
        for module in self.modules:
            self._try_all(module, tests, reaches)
            self.complete.append(module)
        return True

    def _try_all(self, module: str, tests: Tests, reaches: Mapping[str, Reach]) -> None:
        source = (ROOT / module).read_text(encoding="utf-8")
        made = mutants_of(module, source)
        found = [mutant for mutant in made if fnmatch.fnmatchcase(mutant.function, self.only)]
        self.mutants[module] = found
        lost = {STILLBORN, *DEAD}
        to_try = [m for m in found if self.again or self.results.of(m) not in lost]
        say(f"{module}: {len(to_try)} of {len(found)} mutants")
        killers: dict[str, Counter[str]] = {}
        running: dict[int, tuple[Mutant, Callable[[], Any]]] = {}
        begin = time.monotonic()

        def end_one() -> None:
            pid, ending = os.waitpid(-1, 0)
            mutant, answer = running.pop(pid)
            status, by = answer() or (TOO_SLOW if _was_stopped(ending) else DIED, None)
            if by is not None:
                killers.setdefault(mutant.function, Counter())[by] += 1
            self.results.note(mutant, status, by)
            if status not in lost:
                say(f"  {status}: {mutant.function}: {mutant.change}")

        for mutant in to_try:
            chosen = _chosen(mutant, reaches, killers.get(mutant.function, {}))
            if not chosen:
                self.results.note(mutant, UNREACHED, None)
                say(f"  {UNREACHED}: {mutant.function}: {mutant.change}")
                continue
            while len(running) >= self.children:
                end_one()
            cpu_s = 1 + CPU_LIMIT * sum(reaches[name].cpu_s for name in chosen)
            work = partial(_try, mutant, source, tests, chosen)
            pid, answer = forked(work, cpu_s)
            running[pid] = mutant, answer
        while running:
            end_one()
        say(f"{module}: {_share(self.statuses(module))} in {time.monotonic() - begin:.0f} s")

    def statuses(self, module: str) -> Counter[str]:
        """Count what became of a module's mutants."""
        return Counter(self.results.of(mutant) or "not tried" for mutant in self.mutants[module])


def _chosen(mutant: Mutant, reaches: Mapping[str, Reach], killers: Mapping[str, int]) -> list[str]:
    """Return the tests that reach a mutant: those that killed others, then the quickest."""
    first, last = mutant.lines
    near = [
        name
        for name, reach in reaches.items()
        if any(first <= line <= last for line in reach.lines[mutant.module])
    ]
    return sorted(near, key=lambda name: (-killers.get(name, 0), reaches[name].cpu_s))


def _try(mutant: Mutant, source: str, tests: Tests, names: Sequence[str]) -> tuple[str, str | None]:
    try:
        become(mutant, source)
    except (SyntaxError, ValueError):
        return STILLBORN, None
    killer = tests.killer(names)
    return (SURVIVED if killer is None else KILLED), killer


def _was_stopped(ending: int) -> bool:
    """Whether a fork was stopped by a limit; otherwise an exception ended it."""
    return os.WIFSIGNALED(ending) and os.WTERMSIG(ending) in (signal.SIGPROF, signal.SIGALRM)


def _share(statuses: Counter[str]) -> str:
    made = statuses.total() - statuses[STILLBORN]
    dead = sum(statuses[status] for status in DEAD)
    rest = ", ".join(f"{n} {status}" for status, n in statuses.items() if status not in DEAD)
    return f"{dead} of {made} killed, {percent(statuses):.1f}%{f' ({rest})' if rest else ''}"


def percent(statuses: Counter[str]) -> float:
    """Return the share of mutants that tests notice, in percent."""
    made = statuses.total() - statuses[STILLBORN]
    return 100 * sum(statuses[status] for status in DEAD) / made if made else 100.0


def say(words: str) -> None:
    """Say something whatever pytest captures."""
    print(words, file=sys.__stderr__, flush=True)


def main() -> int:
    """Try the mutants; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="files (all of mutants.toml)")
    parser.add_argument("--children", type=int, default=1, help="forks at a time (1)")
    parser.add_argument("--only", default="*", metavar="FUNCTION", help="a pattern of names (*)")
    parser.add_argument("--again", action="store_true", help="try what was killed before, too")
    parser.add_argument(
        "--tests", nargs="+", metavar="FILE", help="only these (all of mutants.toml)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "build" / "mutants" / "results.jsonl"
    )
    arguments = parser.parse_args()
    plan = tomllib.loads((HERE / "mutants.toml").read_text(encoding="utf-8"))
    modules = arguments.modules or plan["modules"]
    os.chdir(ROOT)
    results = Results(arguments.results)
    run = Run(plan, modules, arguments.children, results, arguments.again, arguments.only)
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            "-q",
            "-n0",
            "--capture=sys",
            f"--basetemp={folder}/tests",
            "-p",
            "no:cacheprovider",
        ]
        flags += ["-o", "tmp_path_retention_policy=none"]
        status = pytest.main([*flags, *(arguments.tests or plan["tests"])], plugins=[run])
    return int(status) or _told(run, plan, arguments.json)


def _told(run: Run, plan: Mapping[str, Any], path: Path | None) -> int:
    """Print the figures, and what they lack; returns the exit status."""
    reasons = {(s["module"], s["function"], s["change"]): s["reason"] for s in plan["survivor"]}
    alive = (SURVIVED, UNREACHED, DIED)
    left = [m for made in run.mutants.values() for m in made if run.results.of(m) in alive]
    unexplained = [mutant for mutant in left if mutant.key not in reasons]
    here = {mutant.key for mutant in left}
    obsolete = [key for key in reasons if key[0] in run.mutants and key not in here]
    too_few = [m for m in run.complete if percent(run.statuses(m)) < plan["least"]]
    for module in run.complete:
        print(f"{module}: {_share(run.statuses(module))}")
    for mutant in unexplained:
        print(f"no reason: {': '.join(mutant.key)}")
    for key in obsolete:
        print(f"no survivor any more: {': '.join(key)}")
    for module in too_few:
        print(f"fewer than {plan['least']}%: {module}")
    if path is not None:
        statuses = {module: run.statuses(module) for module in run.complete}
        figures = {m: {**found, "percent": percent(found)} for m, found in statuses.items()}
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return int(bool(unexplained or obsolete or too_few))


if __name__ == "__main__":
    sys.exit(main())
