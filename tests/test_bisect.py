"""Which change made it slower: steps, what is kept, what is left out, and the command."""

from __future__ import annotations

import math
import os
import random
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from builders import (
    CASE_ID,
    make_attempt,
    make_case,
    make_environment,
    make_hardware,
    make_measurement,
    make_record,
    make_verdict,
)
from documents import document_in
from processes import HERE, ON_THE_CPU, TORCH_ALONE
from standins.worker import Context, Contexts, Watch, gpus

from bench_lib.cli import main
from bench_lib.engine.device import HeldDevice
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.pace import Pace
from bench_lib.engine.settings import Settings, Side
from bench_lib.launch import catalogue
from bench_lib.launch.faults import LaunchError
from bench_lib.model import Fault, Hardware, Kernel, KernelTable, Status
from bench_lib.storage import history
from bench_lib.storage.history import Run
from bench_lib.storage.points import Points
from bench_lib.studies import bisect as study
from bench_lib.studies.bisect import BisectEnding, BisectError, Bisecting
from bench_lib.studies.candidates import Candidate, CandidateError
from bench_lib.verdict import metrics
from bench_lib.verdict.statistics.search import Bisection, PairNoise

DEVICE = gpus(1)[0]
LAST = 16
BROKEN = Fault("exception", "no kernel for this", "measure", "")
WHICH = "COMMIT"


class Made:
    """Commits 0 to ``LAST`` of a scripted repository; each side has its number in a variable."""

    def __init__(self) -> None:
        """Have made nothing."""
        self.made: list[int] = []
        self.unbuildable: set[int] = set()
        self.is_closed = False

    def between(self, good: str, bad: str) -> Sequence[Candidate]:
        """Return the commits by their numbers."""
        if not (good.lstrip("c").isdigit() and bad.lstrip("c").isdigit()):
            raise CandidateError(f"{good} is no commit; name one of c0 to c{LAST}")
        return [
            Candidate(
                f"c{k}", f"Change {k}", "Ada", "2026-11-01T00:00:00Z", f"https://example.org/c{k}"
            )
            for k in range(int(good.lstrip("c")), int(bad.lstrip("c")) + 1)
        ]

    def make(self, candidate: Candidate) -> Side:
        """Return a side, or fail to build."""
        number = int(candidate.name[1:])
        self.made.append(number)
        if number in self.unbuildable:
            raise LaunchError(f"{candidate.name} does not build: cc ended with status 1")
        return Side(environment={WHICH: str(number)})

    def close(self) -> None:
        """Be told to remove everything."""
        self.is_closed = True


class Noisy(Contexts):
    """The workers of one side, whose times follow what its commit has planted."""

    def __init__(self, bed: Bed, number: int) -> None:
        """Measure commit ``number``."""
        super().__init__({}, DEVICE)
        self.bed, self.number = bed, number

    def context(self, *, draws: int | None = None) -> Context:
        """Fork, unless the commit cannot open the device."""
        if self.number in self.bed.unstartable:
            raise LaunchError("libtorch.so is not there")
        context = super().context(draws=draws)
        slower = sum(size for at, size in self.bed.planted.items() if self.number >= at)
        second = 0.010 * (1 + slower) * math.exp(self.bed.draw.gauss(0, self.bed.sd))
        self.script = {"x": [self.bed.faults.get(self.number, [second] * 20)]}
        kernel = "gemm_slow" if slower else "gemm"
        self.kernels["x"] = KernelTable(
            "torch.profiler", 5, [Kernel(kernel, 1, 0.009 + slower / 100)]
        )
        self.bed.measured.append(self.number)
        if len(self.bed.measured) == self.bed.interrupts_at:
            raise KeyboardInterrupt
        return context


@dataclass
class Bed:
    """A scripted repository and machine."""

    folder: Path
    planted: dict[int, float] = field(default_factory=lambda: {11: 0.03})
    sd: float = 0.002
    faults: dict[int, Fault] = field(default_factory=dict)
    unstartable: set[int] = field(default_factory=set)
    interrupts_at: int = 0
    made: Made = field(default_factory=Made)
    measured: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    draw: random.Random = field(default_factory=lambda: random.Random(3))

    def hold(self, device: Hardware, settings: Settings, **options: Any) -> HeldDevice:
        """Hold the device with scripted workers."""
        return HeldDevice(
            device,
            settings,
            start=lambda side, _device: Noisy(self, int(side.environment[WHICH])),
            watch=lambda _device: Watch(),
            lock_of=lambda each: DeviceLock(each, self.folder / "locks"),
            **options,
        )

    def bisecting(self) -> Bisecting:
        """Return a search, with what earlier ones kept."""
        return Bisecting(
            make_case(id="x"),
            DEVICE,
            self.made.between("c0", f"c{LAST}"),
            candidates=self.made,
            search=Bisection(LAST, tolerance=0.01, noise=PairNoise(self.sd * math.sqrt(2), 20)),
            points=Points(self.folder, ["x"]),
            pace=Pace({"x": 3.0}),
            say=self.said.append,
        )


@pytest.fixture
def bed(tmp_path, monkeypatch):
    """Return a scripted machine whose commits are slower from the eleventh on."""
    made = Bed(tmp_path)
    monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", made.hold)
    return made


# ---- the study --------------------------------------------------------------------------


def test_the_change_is_found_by_pairs_with_the_good_end(bed):
    hunt = bed.bisecting()
    assert hunt.run(0.03) is BisectEnding.FOUND
    found = hunt.search.found
    assert (found.before, found.after) == (10, 11)
    assert found.size.interval[0] < 1.03 < found.size.interval[1]
    assert hunt.steps[0].candidate == f"c{LAST}"
    assert hunt.good_s() == pytest.approx(0.010, rel=0.005)
    runs = [history.read(path) for path in history.files(bed.folder / "bisections")]
    assert len(runs) == 2 * len(hunt.steps)
    assert all(run.finished for run in runs)
    assert {run.run_id for run in runs} == {id_ for step in hunt.steps for id_ in step.runs}
    assert sum(len(run.records["x"].attempts) for run in runs) == 2 * hunt.search.pairs
    assert runs[0].records["x"].nodeid == "bench-lib/bisect::x"


def test_a_commit_that_does_not_build_or_run_is_left_out_with_its_reason(bed):
    bed.made.unbuildable = {10}
    bed.faults = {9: BROKEN}
    bed.unstartable = {8}
    hunt = bed.bisecting()
    assert hunt.run(0.03) is BisectEnding.FOUND
    assert (hunt.search.found.before, hunt.search.found.after) == (7, 11)
    assert hunt.skipped == {
        "c8": "B: libtorch.so is not there",
        "c9": "fault on B only: exception in measure: no kernel for this",
        "c10": "c10 does not build: cc ended with status 1",
    }
    assert f"c10 Change 10 is left out: {hunt.skipped['c10']}" in bed.said


def test_a_search_goes_on_where_an_interrupted_one_ended(bed):
    bed.made.unbuildable = {8}
    bed.interrupts_at = 8
    first = bed.bisecting()
    with pytest.raises(KeyboardInterrupt):
        first.run(0.03)
    kept = first.search.pairs
    assert kept == 3
    with first.points.path.open("ab") as file:
        file.write(b'{"candidate":"c1')
    second = bed.bisecting()
    assert (second.search.pairs, second.skipped) == (kept, first.skipped)
    before = len(bed.measured)
    assert second.run(0.03) is BisectEnding.FOUND
    assert second.search.found.after == 11
    assert len(bed.measured) - before == 2 * (second.search.pairs - kept)
    assert len(second.points.path.read_text().splitlines()) == second.search.pairs + 1
    interrupted = [history.read(path) for path in history.files(bed.folder / "bisections")]
    assert [run.exit_status for run in interrupted].count(130) == 1


def test_forgetting_an_earlier_call_begins_anew(bed):
    bed.bisecting().run(0.03)
    assert Points(bed.folder, ["x"]).kept
    assert Points(bed.folder, ["x"], fresh=True).kept == []


def test_ends_that_do_not_differ_end_the_search(bed):
    bed.planted = {}
    hunt = bed.bisecting()
    assert hunt.run(0.03) is BisectEnding.NONE
    assert set(bed.made.made) == {0, LAST}


def test_pairs_that_do_not_suffice_leave_the_search_undecided(bed):
    hunt = bed.bisecting()
    assert hunt.run(0.03, 5) is BisectEnding.UNDECIDED
    low, high = hunt.search.between
    assert low < 11 <= high
    assert hunt.search.pairs == 5


@pytest.mark.parametrize("at", [0, LAST])
@pytest.mark.parametrize("kind", ["faults", "unstartable", "unbuildable"])
def test_an_end_that_cannot_be_measured_ends_the_search_with_its_reason(bed, at, kind):
    bed.faults = {at: BROKEN} if kind == "faults" else {}
    bed.unstartable = {at} if kind == "unstartable" else set()
    bed.made.unbuildable = {at} if kind == "unbuildable" else set()
    words = {"faults": "no kernel", "unstartable": "libtorch", "unbuildable": "does not build"}
    with pytest.raises((BisectError, LaunchError), match=words[kind]):
        bed.bisecting().run(0.03)
    assert set(bed.made.made) <= {0, LAST}


def test_pairs_that_the_hardware_spoils_do_not_go_on_for_ever(bed, monkeypatch):
    spoilt = replace(
        make_attempt(), measurement=None, accepted=False, discarded="too hot", invalid=True
    )
    monkeypatch.setattr(HeldDevice, "_attempt", lambda *_: spoilt)
    with pytest.raises(BisectError, match=r"10 pairs in a row cannot be used: .*too hot"):
        bed.bisecting().run(0.03)


def test_the_kernels_before_and_after_say_why(bed):
    hunt = bed.bisecting()
    hunt.run(0.03)
    changed = hunt.kernels(hunt.search.found)
    assert [table.kernels[0].name for table in (changed.before, changed.after)] == [
        "gemm",
        "gemm_slow",
    ]
    assert "gemm_slow" in changed.reason


def test_kernels_that_cannot_be_looked_into_are_no_reason_to_fail(bed):
    hunt = bed.bisecting()
    hunt.run(0.03)
    bed.unstartable = {10}
    assert hunt.kernels(hunt.search.found) == "libtorch.so is not there"


# ---- what the history tells ---------------------------------------------------------------


def test_a_candidate_that_is_not_built_again_for_its_kernels_is_no_reason_to_fail(bed):
    bed.bisecting().run(0.03)
    bed.made.unbuildable = {11}
    hunt = bed.bisecting()
    assert hunt.run(0.03) is BisectEnding.FOUND
    assert hunt.search.found is not None
    assert "c11 does not build" in str(hunt.kernels(hunt.search.found))


def run_of(status: Status, times: Sequence[float] = (0.01,), **fields: Any) -> Run:
    """Return a run of one case, whose environment has these fields."""
    environment = make_environment(**fields)
    name = history.reference(environment)
    attempts = [
        make_attempt(
            process=k, environment=name, measurement=make_measurement(iteration_s=[seconds] * 20)
        )
        for k, seconds in enumerate(times)
    ]
    verdict = make_verdict(status=status, ratio=1.04)
    record = make_record(attempts=attempts, status=status, verdicts=[verdict])
    run = Run(Path("x.jsonl"), "12345678")
    run.records = {CASE_ID: record}
    run.environments = {name: environment}
    return run


def test_the_nights_between_which_a_case_got_slower_are_read_from_the_history():
    compared = run_of(Status.OK, commit="e")
    verdicts = [make_verdict(against="a")]
    compared.records = {
        CASE_ID: replace(compared.records[CASE_ID], verdicts=verdicts),
    }
    newest_first = [
        run_of(Status.REGRESSED, commit="d"),
        compared,
        run_of(Status.INVALID, commit="c2"),
        run_of(Status.REGRESSED, commit="c"),
        run_of(Status.OK, commit="b"),
        run_of(Status.OK, commit="a"),
    ]
    nights = study.failing_since(newest_first, CASE_ID)
    assert (nights.ok.commit, nights.failing.commit) == ("b", "c")


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        ([], "was judged in no run here"),
        ([Status.OK], "is OK in its newest run, 12345678"),
        ([Status.REGRESSED], "is OK in no run before it fails"),
    ],
)
def test_a_history_without_such_nights_says_which_is_missing(statuses, words):
    with pytest.raises(BisectError, match=words):
        study.failing_since([run_of(status) for status in statuses], CASE_ID)


def test_a_host_bound_case_fails_in_its_device_time_and_is_searched():
    failed = run_of(Status.REGRESSED, commit="c")
    verdict = make_verdict(status=Status.REGRESSED, metric=metrics.DEVICE.name, ratio=1.03)
    failed.records = {CASE_ID: replace(failed.records[CASE_ID], verdicts=[verdict])}
    nights = study.failing_since([failed, run_of(Status.OK, commit="b")], CASE_ID)
    assert (nights.ok.commit, nights.failing.commit) == ("b", "c")
    assert study.last_ratio([failed], CASE_ID) == 1.03


def test_a_case_that_failed_in_its_memory_is_not_searched_by_its_time():
    failed = run_of(Status.REGRESSED, commit="c")
    verdict = make_verdict(status=Status.REGRESSED, metric="memory", ratio=1.2)
    failed.records = {CASE_ID: replace(failed.records[CASE_ID], verdicts=[verdict])}
    with pytest.raises(BisectError, match="failed in memory, and a search compares times"):
        study.failing_since([failed, run_of(Status.OK, commit="b")], CASE_ID)


def test_the_noise_of_a_pair_is_that_of_two_processes_within_a_run():
    runs = [
        run_of(Status.OK, [0.0100, 0.0102]),
        run_of(Status.OK, [0.0200, 0.0204]),
        run_of(Status.OK, [0.01]),
        run_of(Status.ERROR, [0.01, 0.05]),
    ]
    noise = study.pair_noise(runs, CASE_ID)
    assert noise.sd == pytest.approx(math.log(1.02))
    assert noise.degrees == 2
    assert study.pair_noise(runs[2:], CASE_ID) is None


def test_what_a_search_takes_follows_from_the_noise_and_the_size(bed):
    plans = []
    for bed.sd in (0.04, 0.08):
        plans.append(bed.bisecting().expected(0.02))
    little, much = plans
    assert 3.5 < much.pairs / little.pairs < 4.1
    assert little.takes_s == pytest.approx(little.steps * 10 + little.pairs * 2 * 3.0)


def test_after_the_first_step_the_search_says_anew_what_it_takes(bed):
    bed.bisecting().run(0.01)
    (said,) = (line for line in bed.said if line.startswith("slower by "))
    assert said == "slower by 2.9%, pairs differ by 0.3%: about 5 steps and 10 pairs in all"


def test_the_size_of_a_slow_down_is_that_of_the_last_failure():
    assert study.last_ratio([run_of(Status.OK), run_of(Status.REGRESSED)], CASE_ID) == 1.04
    assert study.last_ratio([run_of(Status.OK)], CASE_ID) is None


@pytest.mark.parametrize("about", [{"metric": "memory"}, {"against": "a"}])
def test_a_failure_of_something_else_tells_no_size(about):
    other = run_of(Status.REGRESSED)
    verdicts = [make_verdict(status=Status.REGRESSED, ratio=1.5, **about)]
    other.records = {CASE_ID: replace(other.records[CASE_ID], verdicts=verdicts)}
    assert study.last_ratio([other], CASE_ID) is None
    assert study.last_ratio([other, run_of(Status.REGRESSED)], CASE_ID) == 1.04


# ---- the command --------------------------------------------------------------------------

MATRIX = """
[smoke.sampling]
iterations = 5
warmup_s = 0.001
warmup_max_s = 0.01
[[smoke.factory]]
id = "x"
target = "faulty:well"
"""


@pytest.fixture
def command(bed, tmp_path, monkeypatch, capsys):
    """Return a function that runs ``bench-lib bisect`` on the scripted machine."""
    from bench_lib import backends
    from bench_lib.studies.candidates import kinds

    (tmp_path / "matrix.toml").write_text(MATRIX)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "network_sizes", dict)
    monkeypatch.setattr(backends, "detect", lambda: [DEVICE])
    asked = []

    def of(ends: kinds.Ends) -> Made:
        asked.append(ends)
        return bed.made

    monkeypatch.setattr(kinds, "of", of)

    def run(*words: str):
        program = ["bench-lib", "bisect", "--matrix", "matrix.toml", *words]
        monkeypatch.setattr("sys.argv", program)
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    run.asked = asked
    return run


ENDS = ("--good", "c0", "--bad", f"c{LAST}")


def test_the_command_says_first_what_it_takes_and_last_what_it_was(command, bed):
    status, out, err = command("x", *ENDS, "--build", "make -j 'all of it'")
    assert status == 0
    said, lines = err.splitlines(), out.splitlines()
    assert said[0] == "x on mi300x: 16 candidates from c0 Change 0 to c16 Change 16"
    assert said[1].startswith("about 6 steps, 52 pairs and ")
    assert "1.0% slower (a slow-down of the tolerance)" in said[1]
    assert said[2] == "step 1: c16 Change 16"
    assert lines[0] == "c11 Change 11"
    assert lines[1].strip() == "Ada, 2026-11-01T00:00:00Z"
    assert lines[2].strip() == "https://example.org/c11"
    assert lines[3].startswith("made x slower by 3.")
    assert " of the belief, after " in lines[4]
    assert lines[5].split()[:4] == ["kernel", "what", "before", "after"]
    assert any(line.startswith("all kernels: 9 ms → 9.3 ms a step") for line in lines)
    assert lines[-1] == (
        "shown again by: bench-lib bisect x --good c10 --bad c11 "
        "--build 'make -j '\"'\"'all of it'\"'\"'' --matrix matrix.toml"
    )
    assert command.asked[0].build == ("make", "-j", "all of it")
    assert bed.made.is_closed


def test_json_holds_the_answer_and_every_pair(command, bed):
    bed.made.unbuildable = {10}
    status, out, _ = command("x", *ENDS, "--json", "--keep-candidates")
    answer = document_in(out)
    assert (status, answer["ending"]) == (0, "found")
    assert [change["name"] for change in answer["changes"]] == ["c10", "c11"]
    assert answer["belief"] >= 0.97
    assert answer["change_size"]["interval"][0] < 1.03 < answer["change_size"]["interval"][1]
    assert set(answer["skipped"]) == {"c10"}
    assert answer["expected"]["steps"] == 6
    assert answer["kernels"]["after"]["kernels"][0]["name"] == "gemm_slow"
    pairs = sum(len(step["pairs"]) for step in answer["steps"])
    assert pairs == len(Path(answer["points"]).read_text().splitlines()) - 1
    assert answer["again"].startswith("bench-lib bisect x --good c9 --bad c11")
    assert not bed.made.is_closed


def test_ends_that_do_not_differ_are_a_no(command, bed):
    bed.planted = {}
    status, out, _ = command("x", *ENDS)
    assert status == 1
    assert out.startswith("c16 Change 16 is not slower than c0 Change 0 by the tolerance of 1.0%: ")
    assert "shown again" not in out


def test_too_few_pairs_are_no_answer(command):
    status, out, _ = command("x", *ENDS, "--most-pairs", "4")
    assert status == 2
    assert out.startswith("undecided after 2 steps and 4 pairs: ")
    assert out.splitlines()[-1].endswith("--matrix matrix.toml --most-pairs 16")
    status, _, err = command("x", *ENDS)
    assert status == 0
    assert "goes on from 4 pairs of an earlier call; --fresh forgets" in err


def test_what_it_advises_is_the_same_search(command):
    _, out, _ = command("x", *ENDS, "--error", "1%", "--most-pairs", "4")
    advised = out.splitlines()[-1].removeprefix("next: bench-lib bisect ").split()
    _, _, err = command(*advised)
    assert "goes on from 4 pairs of an earlier call" in err
    assert "wrong at most once in 100" in err


@pytest.mark.parametrize("other", [("--env", "X=2"), ("--build", "make all"), ("--python", "py")])
def test_pairs_of_candidates_made_otherwise_are_another_search(command, other):
    command("x", *ENDS, "--most-pairs", "4")
    _, _, err = command("x", *ENDS, *other, "--most-pairs", "4")
    assert "goes on from" not in err


def test_of_two_changes_the_second_call_is_at_hand(command, bed):
    bed.planted = {5: 0.03, 12: 0.03}
    status, out, _ = command("x", *ENDS)
    assert status == 0
    first = out.splitlines()[0].split()[0]
    following = out.splitlines()[-1]
    assert following.startswith("next: bench-lib bisect x --good ")
    words = following.removeprefix("next: bench-lib bisect ").split()
    status, out, _ = command(*words)
    assert status == 0
    assert {first, out.splitlines()[0].split()[0]} == {"c5", "c12"}


def test_an_interrupted_command_says_what_is_kept(command, bed):
    bed.interrupts_at = 4
    status, _, err = command("x", *ENDS)
    assert status == 130
    assert err.splitlines()[-1] == (
        "bench-lib: interrupted; kept: 1 pair; the same command goes on from there"
    )
    assert not bed.made.is_closed


def write_nights(*nights: tuple[str, Status]) -> None:
    """Write runs of the case x, the oldest first."""
    for day, (commit, status) in enumerate(nights):
        writer = history.Writer(Path("history"), DEVICE.key, now=f"2026-11-{day + 1:02}T01:00:00Z")
        name = writer.environment(make_environment(commit=commit, torch=f"2.{day}.0"), DEVICE)
        attempt = make_attempt(case_id="x", environment=name)
        writer.attempt(make_case(id="x"), None, attempt)
        verdict = make_verdict(status=status, ratio=1.04)
        record = make_record(case=make_case(id="x"), status=status, verdicts=[verdict])
        writer.verdict(record)
        writer.end({}, 0)
        writer.close()


def test_the_ends_come_from_the_history(command):
    write_nights(("c0", Status.OK), ("c2", Status.OK), ("c14", Status.REGRESSED))
    status, _, err = command("x", "--good", "last-ok")
    assert status == 0
    assert err.splitlines()[0] == "from c2, of the last night in which x was OK, to c14"
    assert "4.0% slower (by the history)" in err
    _, _, err = command("x", "--good", "last-ok", "--package", "torch")
    assert "2.1.0 is no commit" in err
    assert (command.asked[-1].good, command.asked[-1].bad) == ("2.1.0", "2.2.0")


def test_nights_of_one_commit_say_what_changed_instead(command):
    write_nights(("c2", Status.OK), ("c2", Status.REGRESSED))
    status, out, err = command("x", "--good", "last-ok")
    assert (status, out) == (2, "")
    assert "both nights have the same commit, c2; what changed is torch 2.0.0 -> 2.1.0" in err
    assert "--package NAME" in err


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("y", *ENDS), ("no case 'y'", "--matrix FILE")),
        (("x", "--good", "c0"), ("--bad", "is needed")),
        (("x", "--good", "x1", "--bad", "c4"), ("x1 is no commit",)),
        (("x", *ENDS, "--error", "50%"), ("--error", "at most 20%")),
        (("x", *ENDS, "--env", "X"), ("--env", "'X' is not KEY=VALUE")),
        (("x", *ENDS, "--build", "make 'x"), ("--build", "No closing quotation")),
        (("x", "--good", "last-ok"), ("x was judged in no run here",)),
        (("x", "--good", "last-ok", "--image", "a:1"), ("does not know images",)),
    ],
)
def test_a_wrong_question_is_one_line_with_the_value_and_the_remedy(command, words, names):
    status, out, err = command(*words)
    assert (status, out) == (2, "")
    for name in names:
        assert name in err


# ---- for real -----------------------------------------------------------------------------

STEP = """
import time

def make(setting):
    return lambda: time.sleep({seconds})
"""


def git(*words: str) -> str:
    """Run git here as Ada, and return what it prints."""
    names = {f"GIT_{who}_NAME": "Ada" for who in ("AUTHOR", "COMMITTER")}
    names |= {f"GIT_{who}_EMAIL": "ada@example.org" for who in ("AUTHOR", "COMMITTER")}
    done = subprocess.run(
        ["git", *words],
        env={**os.environ, **names, "GIT_CONFIG_GLOBAL": os.devnull},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_commit_of_a_repository_is_found_by_real_workers(tmp_path, monkeypatch, capsys):
    from bench_lib import backends

    cpu = make_hardware(
        vendor="cpu", name="cpu", key="cpu-here", arch=None, uuid=None, bdf=None, memory_bytes=None
    )
    (tmp_path / "repository").mkdir()
    monkeypatch.chdir(tmp_path / "repository")
    git("init", "--quiet", "--initial-branch=main")
    for subject, seconds in (("A step", 0.001), ("Wait for the others", 0.02)):
        Path("steps.py").write_text(STEP.format(seconds=seconds))
        git("add", "steps.py")
        git("commit", "--quiet", "-m", subject)
    Path("matrix.toml").write_text(MATRIX.replace("faulty:well", "steps:make"))
    for name, value in {**ON_THE_CPU, **TORCH_ALONE}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(backends, "detect", lambda: [cpu])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Bisecting, "kernels", lambda *_: "nobody looked")
    words = ["bisect", "x", "--good", "main~1", "--bad", "main", "--matrix", "matrix.toml"]
    monkeypatch.setattr("sys.argv", ["bench-lib", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    assert ended.value.code == 0, captured.err
    lines = captured.out.splitlines()
    assert lines[0] == f"{git('rev-parse', 'HEAD')} Wait for the others"
    assert lines[1].startswith("  Ada, 20")
    assert "kernels are not known: nobody looked" in lines
    runs = [history.read(path) for path in history.files(Path("history", "bisections"))]
    assert [(run.finished, run.problems) for run in runs] == [(True, [])] * 2
    assert len(git("worktree", "list").splitlines()) == 1
