"""Which change made it slower: steps, what is kept, what is left out, and the command."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from builders import (
    CASE_ID,
    make_attempt,
    make_case,
    make_environment,
    make_hardware_cpu,
    make_measurement,
    make_record,
    make_verdict,
)
from command import ran
from processes import HERE, ON_THE_CPU, TORCH_ALONE
from repositories import Repository
from standins.worker import Context, Contexts, Watch, gpus

from bench_lib.engine.device import HeldDevice
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.settings import Settings, Side
from bench_lib.launch import catalogue
from bench_lib.launch.faults import LaunchError
from bench_lib.model import Fault, Hardware, Status, UserError
from bench_lib.storage import history
from bench_lib.storage.history import Run
from bench_lib.studies import bisect as study
from bench_lib.studies.bisect import Bisecting, Candidate
from bench_lib.studies.search import GUESSED_SD, ChangeSearch

DEVICE = gpus(1)[0]
LAST = 16
BROKEN = Fault("exception", "no kernel for this", "measure", "")
WHICH = "COMMIT"


@dataclass(frozen=True)
class Scripted(Candidate):
    """A commit of a scripted repository; its side has its number in a variable."""

    bed: Bed | None = None

    def side(self, made: Path) -> Side:
        """Return a side, or fail to build."""
        number = int(self.name[1:])
        self.bed.made.append(number)
        if number in self.bed.unbuildable:
            raise LaunchError(f"{self.name} does not build: cc ended with status 1")
        made.mkdir(parents=True, exist_ok=True)
        return Side(environment={WHICH: str(number)})


class Noisy(Contexts):
    """The workers of one side, whose times follow what its commit has planted."""

    def __init__(self, bed: Bed, number: int) -> None:
        super().__init__({}, DEVICE)
        self.bed, self.number = bed, number

    def fork(self, *, tries: int | None = None) -> Context:
        if self.number in self.bed.unstartable:
            raise LaunchError("libtorch.so is not there")
        context = super().fork(tries=tries)
        if tries is not None:  # it calibrates, and measures nothing
            return context
        slower = sum(size for at, size in self.bed.planted.items() if self.number >= at)
        second = 0.010 * (1 + slower) * math.exp(self.bed.draw.gauss(0, self.bed.sd))
        self.script = {"x": [self.bed.faults.get(self.number, [second] * 20)]}
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
    unbuildable: set[int] = field(default_factory=set)
    interrupts_at: int = 0
    made: list[int] = field(default_factory=list)
    measured: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    draw: random.Random = field(default_factory=lambda: random.Random(3))

    def hold(self, device: Hardware, settings: Settings, **options: Any) -> HeldDevice:
        return HeldDevice(
            device,
            settings,
            start=lambda side, _device: Noisy(self, int(side.environment[WHICH])),
            watch=lambda _device: Watch(),
            lock_of=lambda each: DeviceLock(each, self.folder / "locks"),
            **options,
        )

    def between(self, good: str, bad: str, *_about: Any) -> list[Candidate]:
        if not (good.lstrip("c").isdigit() and bad.lstrip("c").isdigit()):
            raise UserError(f"{good} is no commit; name one of c0 to c{LAST}")
        first, last = (int(each.lstrip("c")) for each in (good, bad))
        return [Scripted(f"c{k}", f"Change {k}", bed=self) for k in range(first, last + 1)]

    def bisecting(self) -> Bisecting:
        return Bisecting(
            make_case(id="x"),
            DEVICE,
            self.between("c0", f"c{LAST}"),
            ChangeSearch(LAST, 0.01, 0.05, self.sd * math.sqrt(2)),
            self.folder / "search",
            self.folder / "made",
            self.said.append,
        )


@pytest.fixture
def bed(tmp_path, monkeypatch):
    """Return a scripted machine whose commits are slower from the eleventh on."""
    made = Bed(tmp_path)
    monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", made.hold)
    return made


# ---- the study --------------------------------------------------------------------------


def searched(bed: Bed, most_pairs: int = 100) -> Bisecting:
    hunt = bed.bisecting()
    hunt.run(most_pairs)
    return hunt


def test_the_change_is_found_by_pairs_with_the_good_end(bed):
    hunt = searched(bed)
    look = hunt.search.look()
    assert (look.next, look.low, look.high) == (None, 10, 11)
    _, low, high = hunt.search.slower_by(11)
    assert low < 0.03 < high
    assert not hunt.made.exists()
    runs = [history.read(path) for path in history.files(hunt.folder / "runs")]
    assert all(run.finished for run in runs)
    assert sum(len(run.records["x"].attempts) for run in runs) == 2 * hunt.pairs
    assert runs[0].records["x"].nodeid == "bench-lib/bisect::x"


def test_a_commit_that_does_not_build_or_run_is_left_out_with_its_reason(bed):
    bed.unbuildable = {10}
    bed.faults = {9: BROKEN}
    bed.unstartable = {8}
    search = searched(bed).search
    assert (search.look().low, search.look().high) == (7, 11)
    assert search.skipped == {
        8: "B: libtorch.so is not there",
        9: "B: exception in measure: no kernel for this",
        10: "c10 does not build: cc ended with status 1",
    }
    assert "c10 Change 10 is skipped: c10 does not build: cc ended with status 1" in bed.said


def test_a_search_goes_on_where_an_interrupted_one_ended(bed):
    bed.unbuildable = {8}
    bed.interrupts_at = 8
    first = bed.bisecting()
    with pytest.raises(KeyboardInterrupt):
        first.run(100)
    assert first.pairs == 3
    assert first.made.exists()
    second = bed.bisecting()
    assert (second.search.pairs, second.search.skipped) == (first.search.pairs, {8: ANY})
    before = len(bed.measured)
    second.run(100)
    assert second.search.look().high == 11
    assert len(bed.measured) - before == 2 * (second.pairs - 3)
    assert bed.bisecting().search == second.search


def test_pairs_whose_file_is_damaged_are_measured_again(bed):
    (bed.folder / "search").mkdir()
    (bed.folder / "search" / "pairs.json").write_text('[{"1": [0.01')
    assert searched(bed).search.look().high == 11


@pytest.mark.parametrize("at", [0, LAST])
@pytest.mark.parametrize("kind", ["faults", "unstartable", "unbuildable"])
def test_an_end_that_cannot_be_measured_ends_the_search_with_its_reason(bed, at, kind):
    bed.faults = {at: BROKEN} if kind == "faults" else {}
    bed.unstartable = {at} if kind == "unstartable" else set()
    bed.unbuildable = {at} if kind == "unbuildable" else set()
    words = {"faults": "no kernel", "unstartable": "libtorch", "unbuildable": "does not build"}
    with pytest.raises(LaunchError, match=f"an end cannot be measured: .*{words[kind]}"):
        searched(bed)
    assert set(bed.made) <= {0, LAST}


def test_pairs_that_are_all_invalid_do_not_go_on_for_ever(bed, monkeypatch):
    invalid = replace(
        make_attempt(), measurement=None, accepted=False, discarded="too hot", invalid=True
    )
    monkeypatch.setattr(HeldDevice, "_attempt", lambda *_: invalid)
    with pytest.raises(UserError, match=r"no pair was valid; the runs in .*search say why"):
        searched(bed, 5)


# ---- what the history tells ---------------------------------------------------------------


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


def test_the_ends_are_the_last_ok_run_and_the_first_failing_one():
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
    assert study.ends_of(newest_first, CASE_ID, "") == ("b", "c", [])


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        ([], "has no run on this hardware; search on the kind of GPU that it ran on"),
        ([Status.OK, Status.REGRESSED], "has not failed since it was OK; name both ends"),
        ([Status.REGRESSED], "was never OK before it failed; name both ends"),
    ],
)
def test_a_history_without_such_runs_says_which_is_missing(statuses, words):
    with pytest.raises(UserError, match=f"{words}, or name another --history"):
        study.ends_of([run_of(status) for status in statuses], CASE_ID, "")


def test_the_noise_of_a_pair_is_that_of_two_processes_within_a_run():
    runs = [
        run_of(Status.OK, [0.0100, 0.0102]),
        run_of(Status.OK, [0.0200, 0.0204]),
        run_of(Status.OK, [0.01]),
    ]
    assert study.pair_noise(runs, CASE_ID) == pytest.approx(math.log(1.02))
    assert study.pair_noise(runs[2:], CASE_ID) == GUESSED_SD


def test_a_host_bound_case_is_followed_by_one_clock_however_its_wall_time_falls(bed, monkeypatch):
    noise, measure = random.Random(5), Context.measure

    def waiting(self, case, *_):
        device_s = 0.004 * math.exp(noise.gauss(0, 0.0003))
        fields = {"host_bound": True, "device_s": device_s, "device_source": "graph"}
        return replace(measure(self, case), **fields)

    monkeypatch.setattr(Context, "measure", waiting)
    bed.sd, bed.planted = 0.03, {}
    search = bed.bisecting()
    assert all(abs(search._measured(LAST)[0]) < 0.005 for _ in range(8))


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
    (tmp_path / "matrix.toml").write_text(MATRIX)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "network_sizes", dict)
    monkeypatch.setattr("bench_lib.backends.detect", lambda **_: [DEVICE])
    asked: list[tuple[Any, ...]] = []

    def candidates(*about):
        asked.append(about)
        return bed.between(*about)

    monkeypatch.setattr("bench_lib.studies.bisect.commits", candidates)
    monkeypatch.setattr("bench_lib.studies.bisect.versions", candidates)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*words: str):
        return ran(["bisect", "--matrix", "matrix.toml", *words], monkeypatch, capsys)

    run.asked = asked
    return run


ENDS = ("--good", "c0", "--bad", f"c{LAST}")


def test_the_command_says_first_what_it_takes_and_last_what_it_was(command):
    status, out, err = command("x", *ENDS, "--build", "make -j 'all of it'")
    said, lines = err.splitlines(), out.splitlines()
    assert status == 0
    assert said[0] == "16 candidates after c0 Change 0 up to c16 Change 16, on mi300x"
    assert said[1].startswith("about 52 pairs and ")
    assert said[1].endswith("pairs differ by 0.5%; wrong at most once in 20")
    assert said[2] == "0 pairs so far; measuring c16 Change 16"
    assert lines[1].split() == ["c11", "Change", "11"]
    assert lines[3].startswith("made x slower: 2.96% (")
    assert "% sure, after " in lines[-1]
    assert "history/bisections/" in lines[-1]
    assert command.asked[0] == ("c0", "c16", ("make", "-j", "all of it"))


def test_json_holds_the_answer_and_every_pair(command, bed):
    bed.unbuildable = {10}
    found = command("x", *ENDS, "--json").json
    assert found["ending"] == "found"
    assert [change["name"] for change in found["changes"]] == ["c10", "c11"]
    assert found["interval"][0] < 0.03 < found["interval"][1]
    assert found["probability"] > 0.97
    assert set(found["skipped"]) == {"c10"}
    assert len(found["log_ratios"]["c16"]) >= 1
    assert Path(found["path"]).is_file()


def test_ends_that_do_not_differ_are_a_no(command, bed):
    bed.planted = {}
    status, out, _ = command("x", *ENDS)
    assert status == 1
    assert out.startswith("c16 Change 16 is not slower than c0 Change 0: ")
    assert set(bed.made) == {0, LAST}


def test_too_few_pairs_are_no_answer(command, monkeypatch):
    monkeypatch.setattr(ChangeSearch, "expected_pairs", lambda _: 1)
    monkeypatch.setattr("bench_lib.cli.bisect.MORE_PAIRS", 3)
    status, out, _ = command("x", *ENDS)
    assert status == 2
    assert out.startswith("undecided; run the same command to continue. Most probable so far:\n")


@pytest.mark.parametrize("other", [("--build", "make all"), ("--bad", "c15")])
def test_pairs_go_on_unless_candidates_are_others(command, bed, other):
    bed.interrupts_at = 8
    status, _, err = command("x", *ENDS)
    assert status == 130
    assert err.splitlines()[-1] == "bench-lib: interrupted"
    found = command("x", *ENDS, "--error", "1%")
    assert "continuing with 3 pairs from an earlier call, in history/bisections/" in found.err
    assert "wrong at most once in 100" in found.err
    assert "continuing with" not in command("x", *ENDS, *other).err


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
    assert err.startswith("12 candidates after c2 Change 2 up to c14 Change 14")
    assert "\ntorch 2.1.0 -> 2.2.0 changed as well; --package searches" in err
    _, _, err = command("x", "--good", "last-ok", "--package", "torch")
    assert "2.1.0 is no commit" in err
    assert command.asked[-1][2] == "torch"


def test_nights_of_one_commit_say_what_changed_instead(command):
    write_nights(("c2", Status.OK), ("c2", Status.REGRESSED))
    status, out, err = command("x", "--good", "last-ok")
    assert (status, out) == (2, "")
    assert "the commit of these runs is c2 and c2; what changed is torch 2.0.0 -> 2.1.0" in err
    assert "--package NAME" in err


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("y", *ENDS), ("no case 'y'", "--matrix FILE")),
        (("x", "--good", "c0"), ("--bad", "it is required")),
        (("x", "--good", "x1", "--bad", "c4"), ("x1 is no commit",)),
        (("x", *ENDS, "--error", "50%"), ("--error", "at most 20%")),
        (("x", *ENDS, "--build", "make 'x"), ("--build", "No closing quotation")),
        (("x", *ENDS, "--build", "make", "--package", "torch"), ("--build", "not commits")),
        (("x", "--good", "last-ok"), ("x has no run on this hardware",)),
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


@pytest.mark.usefixtures("nothing_is_stolen")
def test_a_commit_of_a_repository_is_found_by_real_workers(tmp_path, monkeypatch, capsys):
    repository = Repository(tmp_path / "repository")
    monkeypatch.chdir(repository.folder)
    for subject, seconds in (("A step", 0.001), ("Wait for the others", 0.02)):
        repository.commit(subject, steps=STEP.format(seconds=seconds))
    Path("matrix.toml").write_text(MATRIX.replace("faulty:well", "steps:make"))
    for name, value in {**ON_THE_CPU, **TORCH_ALONE}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("bench_lib.backends.detect", lambda **_: [make_hardware_cpu()])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = ["bisect", "x", "--good", "main~1", "--bad", "main", "--matrix", "matrix.toml"]
    status, out, err = ran(words, monkeypatch, capsys)
    assert status == 0, err
    found = [repository.git("rev-parse", "HEAD"), "Wait for the others"]
    assert out.splitlines()[1].split(maxsplit=1) == found
    (folder,) = Path("history", "bisections").iterdir()
    runs = [history.read(path) for path in history.files(folder / "runs")]
    assert {(run.finished, tuple(run.problems)) for run in runs} == {(True, ())}
    assert repository.worktrees() == 0
