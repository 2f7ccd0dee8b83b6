"""Is bench-lib a good guest: beside a dozen plugins, in other suites, and when nothing is measured?

    python benchmarks/guest.py [--only plugins|suites|start] [--pairs 15]

Needs the plugins: ``pip install -e '.[dev,guest]'``.  Prints three tables in Markdown.

- Each plugin, alone beside pytest-xdist and pytest-benchmark, in a checkout of five cases with
  stand-in devices and workers: one that passes, one that got slower, one that is skipped, one whose
  worker dies, and one whose first samples are bad.  The verdicts of the history, the outcomes of
  JUnit's file and, where the plugin writes one, of its own report are held against a run without.
- Three suites of other packages, with our plugin and without, all other installed plugins off: each
  test's outcome, and the CPU time.
- CPU time of starting pytest on an empty test, with and without; and of collecting perf_tests.

The exit status is 1 where something differs.  Takes some ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
OURS = "bench_lib.plugin"
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
BESIDE = ("-p", "xdist", "-p", "benchmark")
HOW = {"serial": (), "xdist": ("-n", "2")}

CASES = {
    "pass": [[0.01] * 20],
    "fail": [[0.0105] * 20],
    "skip": ["no such arithmetic"],
    "fault": ["died"],
    "bad": [[0.009, 0.011] * 10, [0.01] * 20],
}
"""By case, what its worker answers: times in seconds, the reason of a skip, or a fault."""
CONFTEST = """
import signal, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r}]
import bench_lib.backends
import bench_lib.plugin.session as session
from bench_lib.engine import engine
from bench_lib.model import Fault
from scripted import gpus, held_class, nobody_shares

SCRIPT = {script!r}
SCRIPT["fault"] = [Fault("died", "SIGABRT", "measure", "HSA_STATUS_ERROR")]
DEVICES = gpus(2)
bench_lib.backends.detect = lambda *_: DEVICES
session.network_sizes = lambda: {{"resnet18": 224}}
engine.HeldDevice = held_class(SCRIPT, Path(__file__).parent / "locks")
engine.processes.share = nobody_shares
"""
TEST = """
import pytest

@pytest.mark.perf_cases("factory")
def test_step(case, perf):
    perf.measure(case)
"""

Outcomes = Mapping[str, Sequence[str]]
"""By case or test, what became of it, once for each time."""


def pytest_run(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run pytest in a folder; return what it said, and its CPU time in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={**os.environ, **ALONE, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def junit(path: Path) -> Outcomes:
    """Return each test's outcome in JUnit's file."""
    found: dict[str, list[str]] = {}
    for test in ET.parse(path).iter("testcase"):
        kinds = [child.tag for child in test if child.tag in ("failure", "error", "skipped")]
        name = f"{test.get('classname')}::{test.get('name')}"
        found.setdefault(name, []).append(" ".join(kinds) or "passed")
    return found


# ---- beside other plugins -----------------------------------------------------------------


def html_outcomes(folder: Path) -> Outcomes:
    """Return what pytest-html's page says."""
    blob = re.search('data-jsonblob="([^"]*)"', (folder / "r.html").read_text())
    assert blob is not None
    tests = json.loads(html.unescape(blob[1]))["tests"]
    return {name: [row["result"].lower() for row in rows] for name, rows in tests.items()}


def json_outcomes(folder: Path) -> Outcomes:
    """Return what pytest-json-report's file says."""
    tests = json.loads((folder / "r.json").read_text())["tests"]
    return {test["nodeid"]: [test["outcome"]] for test in tests}


def allure_outcomes(folder: Path) -> Outcomes:
    """Return what allure shows: the latest result of each test."""
    results = [json.loads(path.read_text()) for path in (folder / "allure").glob("*-result.json")]
    results.sort(key=lambda result: result["start"])
    return {result["name"]: [result["status"]] for result in results}


@dataclass(frozen=True)
class Plugin:
    """A plugin, and how it is used."""

    package: str
    words: tuple[str, ...] = ()
    outcomes: Callable[[Path], Outcomes] | None = None
    """Reads its own report."""
    times: int = 1
    """How often it runs each test."""
    parts: Sequence[tuple[str, ...]] = ((),)
    """Several runs that make up one."""


PLUGINS = (
    Plugin("pytest-html", ("--html=r.html", "--self-contained-html"), html_outcomes),
    Plugin("allure-pytest", ("--alluredir=allure",), allure_outcomes),
    Plugin("pytest-randomly"),
    Plugin("pytest-timeout", ("--timeout=60",)),
    Plugin("pytest-rerunfailures", ("--reruns=1",)),
    Plugin("pytest-cov", ("--cov=.", "--cov-report=xml")),
    Plugin("pytest-repeat", ("--count=2",), times=2),
    Plugin("pytest-split", ("--splits=2",), parts=(("--group=1",), ("--group=2",))),
    Plugin("pytest-order", ("--order-scope=module",)),
    Plugin("pytest-asyncio", ("--asyncio-mode=auto",)),
    Plugin("pytest-json-report", ("--json-report", "--json-report-file=r.json"), json_outcomes),
    Plugin("pytest-codspeed", ("--codspeed",)),
)
NEEDS = {"pytest-html": ("pytest-metadata",), "pytest-json-report": ("pytest-metadata",)}


def entry_points(package: str) -> list[str]:
    """Return the words that load a package's plugin, by the names of its entry points."""
    words = []
    for name in (*NEEDS.get(package, ()), package):
        found = metadata.distribution(name).entry_points.select(group="pytest11")
        words += [word for each in found for word in ("-p", each.name)]
    return words


def lay_out(folder: Path) -> None:
    """Write a checkout of the five cases, each with a baseline."""
    sys.path[:0] = [str(TESTS)]
    from builders import (  # noqa: PLC0415 - of the tests
        make_baseline,
        make_environment,
        make_hardware,
        make_processes,
    )

    from bench_lib.storage import baselines  # noqa: PLC0415 - as this checkout has it

    (folder / "perf_tests").mkdir(parents=True)
    matrix = "".join(f'[[smoke.factory]]\nid = "{id_}"\ntarget = "a:b"\n' for id_ in CASES)
    (folder / "perf_tests" / "matrix.toml").write_text(matrix)
    (folder / "perf_tests" / "test_steps.py").write_text(TEST)
    (folder / "pytest.ini").write_text("[pytest]\nperf_paths = perf_tests\n")
    (folder / "conftest.py").write_text(
        CONFTEST.format(root=str(ROOT), tests=str(TESTS), script=CASES)
    )
    file = baselines.load(folder / "baselines", "mi300x")
    medians = [-4.6062, -4.6052, -4.6047, -4.6057, -4.6042]
    processes = make_processes(medians, environment="e0e0e0e0", device_uuid=None)
    changes = [
        baselines.BaselineChange(id_, None, make_baseline(case_id=id_, processes=processes))
        for id_ in CASES
    ]
    known = {"e0e0e0e0": make_environment()}
    baselines.write(file, changes, make_hardware(key="mi300x"), known)


def by_case(outcomes: Outcomes) -> dict[str, Counter[str]]:
    """Return the outcomes of each case, whatever a plugin put into its test's name."""
    found: dict[str, Counter[str]] = {id_: Counter() for id_ in CASES}
    for name, each in outcomes.items():
        case_id = re.split(r"[\[\]-]", name.partition("[")[2])[0]
        if case_id in found:
            found[case_id].update(_WORDS.get(word, word) for word in each)
    return found


_WORDS = {"failure": "failed", "error": "failed", "broken": "failed"}


def verdicts(folder: Path) -> Outcomes:
    """Return the status of each case in the history's runs."""
    from bench_lib.storage import history  # noqa: PLC0415 - as this checkout has it

    found: dict[str, list[str]] = {}
    for path in history.files(folder / "history"):
        for record in history.read(path).records.values():
            status = record.status.value if record.status else "none"
            found.setdefault(f"[{record.case.id}]", []).append(status)
    return found


@dataclass(frozen=True)
class Seen:
    """What runs of the checkout showed, by case."""

    statuses: dict[str, Counter[str]]
    tests: dict[str, Counter[str]]
    reported: dict[str, Counter[str]] | None
    exits: list[int]
    cpu_s: float


def seen_with(plugin: Plugin | None, how: Sequence[str]) -> Seen:
    """Run the checkout, perhaps with a plugin."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(folder)
        words = [*BESIDE, "-p", OURS, "perf_tests", "--perf-tier=smoke", *how]
        words += [*entry_points(plugin.package), *plugin.words] if plugin else []
        tests: dict[str, list[str]] = {}
        exits, cpu_s = [], 0.0
        for part in plugin.parts if plugin else ((),):
            done, taken = pytest_run(folder, *words, "--junitxml=junit.xml", *part)
            exits.append(done.returncode)
            cpu_s += taken
            if done.returncode not in (0, 1):
                print(done.stdout[-3000:], done.stderr[-3000:], file=sys.stderr)
                continue
            for test, each in junit(folder / "junit.xml").items():
                tests.setdefault(test, []).extend(each)
        own = by_case(plugin.outcomes(folder)) if plugin and plugin.outcomes else None
        return Seen(by_case(verdicts(folder)), by_case(tests), own, exits, cpu_s)


def differences(case_id: str, plugin: Plugin, seen: Seen, without: Seen) -> Iterator[str]:
    """Yield in words what a plugin changes of one case."""
    pairs = (
        ("status", seen.statuses, without.statuses, 1),
        ("test", seen.tests, without.tests, plugin.times),
        ("report", seen.reported, without.tests, 1),
    )
    for what, now, before, times in pairs:
        if now is None:
            continue
        expected = Counter({word: n * times for word, n in before[case_id].items()})
        if now[case_id] != expected:
            yield f"{case_id}: {what} {dict(now[case_id])}, not {dict(expected)}"


def beside_plugins() -> bool:
    """Print a row for each plugin; return whether nothing differs."""
    without = {name: seen_with(None, how) for name, how in HOW.items()}
    for seen in without.values():
        shown = {id_: (*seen.statuses[id_], *seen.tests[id_]) for id_ in CASES}
        print(f"without any: {shown}, exit {seen.exits}", file=sys.stderr)
    print(f"| plugin | version | {' | '.join(HOW)} | differences |")
    print("|---|---|" + "---|" * len(HOW) + "---|")
    is_fine = True
    for plugin in PLUGINS:
        cells, notes = [], []
        for name, how in HOW.items():
            seen = seen_with(plugin, how)
            found = {id_: [*differences(id_, plugin, seen, without[name])] for id_ in CASES}
            cells.append(f"{sum(not each for each in found.values())} of {len(CASES)}")
            notes += [f"{name}: {words}" for each in found.values() for words in each]
        is_fine &= not notes
        version = metadata.version(plugin.package)
        words = "; ".join(notes) or "none"
        print(f"| {plugin.package} | {version} | {' | '.join(cells)} | {words} |")
    return is_fine


# ---- in other suites ----------------------------------------------------------------------

SUITES = {
    "networkx": "networkx.classes",
    "numpy": "numpy.linalg",
    "sympy": "sympy.sets",
}
"""Tests that come with packages which torch needs anyway."""


def in_other_suites(pairs: int) -> bool:
    """Print a row for each suite; return whether no outcome differs."""
    print("| suite | tests | differences | CPU without, s | with | more, ms |")
    print("|---|---|---|---|---|---|")
    is_fine = True
    for name, package in SUITES.items():
        found: dict[str, Outcomes] = {}
        taken: dict[str, list[float]] = {"": [], OURS: []}
        for _ in range(pairs):
            for with_ours, times in taken.items():
                with tempfile.TemporaryDirectory() as folder:
                    words = ["-p", with_ours] if with_ours else []
                    words += ["--pyargs", package, "-q", "--junitxml=junit.xml", "-W", "default"]
                    _, cpu_s = pytest_run(Path(folder), *words)
                    times.append(cpu_s)
                    found[with_ours] = junit(Path(folder) / "junit.xml")
        names = {*found[""], *found[OURS]}
        differ = [n for n in names if found[""].get(n) != found[OURS].get(n)]
        is_fine &= not differ
        without, ours = (statistics.median(times) for times in taken.values())
        more = statistics.median(b - a for a, b in zip(*taken.values(), strict=True))
        row = f"{name} {metadata.version(name)}, `{package}` | {len(names)} | {len(differ)}"
        print(f"| {row} | {without:.2f} | {ours:.2f} | {1000 * more:+.0f} |")
    return is_fine


# ---- starting -----------------------------------------------------------------------------


def starting(pairs: int) -> bool:
    """Print what a start costs, in CPU time; return whether it is within the limits."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
        shutil.copytree(ROOT / "perf_tests", folder / "perf_tests")
        nothing = ("-q", "test_nothing.py")
        ours = ("-p", OURS)
        kinds = {
            "bare": nothing,
            "with the plugin": (*ours, *nothing),
            "perf_tests --collect-only": (*ours, "-q", "perf_tests", "--collect-only"),
        }
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(pairs + 1):
            for kind, words in kinds.items():
                done, cpu_s = pytest_run(folder, *words)
                assert done.returncode == 0, done.stdout + done.stderr
                if number:  # the first compiles
                    taken[kind].append(cpu_s)
    bare = taken["bare"]
    print("| start | CPU, ms, median | of a bare start, median of pairs |")
    print("|---|---|---|")
    shares = {}
    for kind, times in taken.items():
        shares[kind] = statistics.median(a / b for a, b in zip(times, bare, strict=True))
        print(f"| {kind} | {1000 * statistics.median(times):.0f} | {shares[kind]:.3f} |")
    return shares["with the plugin"] <= 1.06


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("plugins", "suites", "start"))
    parser.add_argument("--pairs", type=int, default=15)
    arguments = parser.parse_args()
    parts = {
        "plugins": beside_plugins,
        "suites": lambda: in_other_suites(min(arguments.pairs, 3)),
        "start": lambda: starting(arguments.pairs),
    }
    chosen = [arguments.only] if arguments.only else list(parts)
    results = []
    for part in chosen:
        results.append(parts[part]())
        print(flush=True)
    raise SystemExit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
