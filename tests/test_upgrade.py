"""docs/rocm-upgrade.md: its commands as a shell reads them, run in order on a machine of stand-ins.

ROCm 7.2.4 makes one case slower by 5%, one faster by 5%, and leaves one as it is.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import upgraded_machine as machine

from bench_lib.cli import main
from bench_lib.engine.settings import Side
from bench_lib.model import Status
from bench_lib.storage import baselines, history

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
PAGE = (ROOT / "docs" / "rocm-upgrade.md").read_text()
SAME = "resnet50-b64-fp32-eager-infer"
PROGRAMS = ("bench-lib", "pytest", "git", "gh", "srun")
"""What the page runs; another is refused."""
MATRIX = """
[[gate.networks]]
network = "resnet50"
batch_size = 64
precision = "fp16"
task = ["infer", "train"]

[[gate.networks]]
network = "resnet50"
batch_size = 64
"""
SCRIPT = """
told() { "$python" -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@" >&3; }
"""


def blocks(page: str) -> list[str]:
    """Return a page's commands; a block that says neither that nor ``text`` is refused."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert {language for language, _ in found} <= {"bash", "text"}
    return [text for language, text in found if language == "bash"]


def as_read_by_a_shell(page: str, folder: Path) -> list[list[str]]:
    """Return the words of every command, in order, and where its output is to go."""
    script = folder / "page.sh"
    names = "\n".join(f'{name}() {{ told {name} "$@"; }}' for name in PROGRAMS)
    body = re.sub(r" > (\S+)$", r" '> \1'", "\n".join(blocks(page)), flags=re.MULTILINE)
    body = re.sub(r"^(SBATCH_\w+=\S+) ", r"told \1 ", body, flags=re.MULTILINE)
    script.write_text(f"set -eu\n{SCRIPT}{names}\n{body}\n")
    done = subprocess.run(
        ["/bin/bash", "-c", f"exec 3>&1 >&2; . {shlex.quote(str(script))}"],
        env={"PATH": "", "python": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@dataclass
class Done:
    """What a command of the page did."""

    words: list[str]
    status: int
    out: str
    sides: list[Side] = field(default_factory=list)


@dataclass
class Administrator:
    """Somebody who goes through the page, with a checkout and a machine."""

    folder: Path
    patch: pytest.MonkeyPatch
    done: list[Done] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    """What the page's words in capitals stand for, once they are known."""
    kept: dict[str, dict[str, float]] = field(default_factory=dict)
    """The accepted times after commands with such a word."""

    def install(self, rocm: str) -> None:
        """Have another ROCm on the machine."""
        (self.folder / "installed").write_text(rocm)

    def does(self, words: list[str]) -> Done:
        """Run a command and keep what it did."""
        told = list(words)
        variables, to = {}, None
        while re.match(r"[A-Z_]+=", told[0]):
            name, _, value = told.pop(0).partition("=")
            variables[name] = value
        if told[-1].startswith("> "):
            to = self.folder / told.pop()[2:]
        if told[0] == "srun":  # it runs on a node what comes after its options
            del told[: told.index("bench-lib")]
        told = [self.ids.get(word, word) for word in told]
        sides: list[Side] = []
        if told[0] == "bench-lib" and told[1] != "submit" and told[2:3] != ["record"]:
            status, out = self._in_this_process(told, sides)
        else:
            status, out = self.apart(told, variables)
        if to is not None:
            to.write_text(out)
        self.done.append(Done(words, status, out, sides))
        for word in self.ids.keys() & set(words):
            self.kept[word] = self.keeps()
        return self.done[-1]

    def _in_this_process(self, words: list[str], sides: list[Side]) -> tuple[int, str]:
        out = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
            machine.take_the_place_of(patch.setattr, self.folder, sides)
            patch.setattr("sys.argv", words)
            with pytest.raises(SystemExit) as ended:
                main()
        return int(ended.value.code or 0), out.getvalue()

    def apart(self, words: list[str], variables: dict[str, str]) -> tuple[int, str]:
        """Run a command in a process of its own; returns its status and what it printed."""
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        return done.returncode, done.stdout

    def runs(self) -> list[history.Run]:
        """Return what the history holds, oldest first."""
        return [history.read(path) for path in history.files(self.folder / "history")]

    def keeps(self) -> dict[str, float]:
        """Return by case the accepted time, in milliseconds."""
        file = baselines.load(self.folder / "baselines", machine.DEVICE.key)
        return {
            case: round(
                1e3 * math.exp(statistics.fmean(process.log_median for process in one.processes)), 1
            )
            for case, one in file.measured.items()
        }


def _programs(folder: Path) -> None:
    """Leave what notes how it was called; sinfo and sbatch answer as Slurm's."""
    says = {"sinfo": "mi300x*|3|96|2000000+|gpu:mi300x:8(S:0-1)|infinite", "sbatch": "17", "gh": ""}
    says["scontrol"] = "JobId=17 JobName=bench-lib JobState=COMPLETED Reason=None ExitCode=0:0"
    here = {"python": ["3.11.7", "/usr"], "torch": True, "installed": [], "requires": {}}
    says["docker"] = json.dumps(here)
    folder.mkdir()
    for name, answer in says.items():
        program = folder / name
        noted = f'echo "$SBATCH_CONSTRAINT $*" >> "{folder}/{name}.called"'
        program.write_text(f"#!/bin/sh\n{noted}\necho '{answer}'\n")
        program.chmod(0o755)
    (folder / "bench-lib").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bench_lib.cli "$@"\n')
    (folder / "bench-lib").chmod(0o755)


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> Administrator:
    """Go through the whole page, once."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "perf_tests").mkdir()
    shutil.copy(ROOT / "perf_tests/test_networks.py", folder / "perf_tests")
    (folder / "perf_tests/matrix.toml").write_text(MATRIX)
    (folder / "pytest.ini").write_text("[pytest]\nperf_paths = perf_tests\n")
    (folder / ".gitignore").write_text("*\n!baselines/\n!baselines/**\n!.gitignore\n")
    _programs(folder / "bin")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        where = (str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"])
        for name, value in {
            "PATH": os.pathsep.join(where),
            "PYTHONPATH": os.pathsep.join((str(TESTS), str(ROOT))),
            "PYTEST_ADDOPTS": (
                f"{os.environ['PYTEST_ADDOPTS']} -p upgraded_machine -p no:cacheprovider"
            ),
            "BENCH_LIB_UPGRADED": str(folder),
            "HOME": str(folder),
            "GIT_CONFIG_GLOBAL": os.devnull,
            **{f"GIT_{who}_NAME": "ada" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "ada@example.org" for who in ("AUTHOR", "COMMITTER")},
        }.items():
            patch.setenv(name, value)
        yield _walk(Administrator(folder, patch), as_read_by_a_shell(PAGE, folder))


def _walk(admin: Administrator, commands: list[list[str]]) -> Administrator:
    admin.install(machine.OLD)
    for line in (
        "git init --quiet",
        "git add .gitignore",
        "git commit --quiet --message first",
        "bench-lib baseline record --reason first",
        "git add baselines",
        "git commit --quiet --message baselines",
    ):
        done = admin.does(shlex.split(line))
        assert done.status == 0, done.out
    admin.done.clear()
    for words in commands:
        _meanwhile(admin, words)
        admin.does(words)
    return admin


def _meanwhile(admin: Administrator, words: list[str]) -> None:
    """Do what the page says in words: upgrade before the last test, roll back before the revert."""
    if words[:2] == ["pytest", "perf_tests"] and "--perf-strict" in words:
        admin.install(machine.NEW)
    if words[:2] == ["git", "revert"]:
        night = admin.apart(["pytest", "perf_tests", "--perf-processes", "5"], {})
        assert night[0] == 0, night[1]
        found = admin.apart(["git", "rev-parse", "HEAD"], {})
        admin.ids["COMMIT"] = found[1].strip()
        admin.install(machine.OLD)
    if "COMMIT" not in words and {"RUN_A", "RUN_B"} & set(words):
        admin.ids["RUN_A"], admin.ids["RUN_B"] = _sides(admin)


def _sides(admin: Administrator) -> tuple[str, str]:
    """Return the runs of the last comparison: the last that a command says, and the one before."""
    b = next(
        found[1]
        for done in reversed(admin.done)
        if (found := re.search(r"next: bench-lib baseline diff --run (\w+)", done.out))
    )
    ids = [run.run_id for run in admin.runs()]
    return ids[ids.index(b) - 1], b


def of(story: Administrator, *words: str) -> list[Done]:
    """Return what the commands did that hold all of some words, in order."""
    found = [done for done in story.done if set(words) <= set(done.words)]
    assert found, words
    return found


def statuses(done: Done) -> dict[str, str]:
    """Return by case how a table of a command calls it."""
    rows = re.findall(r"^(resnet50-\S+[^:\s]) +(\(?[A-Z_]+\)?) ", done.out, re.MULTILINE)
    return dict(rows)


def test_every_command_of_the_page_is_run(story):
    assert [done.words for done in story.done] == as_read_by_a_shell(PAGE, story.folder)
    assert {next(w for w in done.words if "=" not in w) for done in story.done} == set(PROGRAMS)


def test_each_ends_as_the_page_says(story):
    ended = {shlex.join(done.words): done.status for done in story.done if done.status}
    both = [*of(story, "ab"), *of(story, "upgrade")]
    compared = {shlex.join(d.words) for d in both if "REGRESSED" in d.out}
    assert ended == dict.fromkeys(compared, 1), [
        d.out for d in story.done if d.status not in (0, 1)
    ]


@pytest.mark.parametrize(
    "page",
    ["```\nbench-lib env\n```\n", "```console\n$ bench-lib env\n```\n"],
)
def test_a_block_that_does_not_say_what_it_is_is_refused(page, tmp_path):
    with pytest.raises(AssertionError):
        as_read_by_a_shell(page, tmp_path)


@pytest.mark.parametrize("line", ["bench-lib-next env", "rocm-smi", "--env-b X=1"])
def test_a_program_that_nobody_knows_here_is_refused(line, tmp_path):
    with pytest.raises(AssertionError):
        as_read_by_a_shell(f"```bash\n{line}\n```\n", tmp_path)


def test_both_ways_to_have_two_versions_start_what_they_should(story):
    by_python, *_ = of(story, "--python-a", "/opt/torch-rocm6/bin/python")
    assert [side.python for side in by_python.sides] == [
        "/opt/torch-rocm6/bin/python",
        "/opt/torch-rocm7/bin/python",
    ]
    (contained,) = of(story, "--prefix-a")
    prefixes = [side.command_prefix for side in contained.sides]
    assert [words[:3] + words[-1:] for words in prefixes] == [
        ("docker", "run", "--rm", "IMAGE_A"),
        ("docker", "run", "--rm", "IMAGE_B"),
    ]
    assert "--group-add" in prefixes[0]
    (other,) = of(story, "MIOPEN_FIND_MODE=2")
    assert "environment, A -> B: MIOPEN_FIND_MODE unset -> 2" in other.out


def test_one_command_does_the_steps_for_interpreters_and_for_images(story):
    by_python, by_image = of(story, "upgrade")
    for done in (by_python, by_image):
        assert statuses(done)[machine.SLOWER] == "REGRESSED"
        assert "change of the baselines: upgrade/baselines.md" in done.out
    assert "no culprit: it could not be measured with all packages exchanged" in by_python.out
    assert "packages inside an image cannot be exchanged" in by_image.out
    assert machine.SLOWER in (story.folder / "upgrade" / "baselines.md").read_text()


def test_each_side_warms_folders_of_its_own(story):
    warmed = of(story, "--most-pairs")[0]
    folders = [set(side.environment.values()) for side in warmed.sides]
    assert [len(each) for each in folders] == [4, 4]
    assert not folders[0] & folders[1]


def test_the_old_version_against_itself_is_ok_and_nothing_to_accept(story):
    (same,) = (d for d in of(story, "-k") if d.sides[0].python == d.sides[1].python)
    assert set(statuses(same).values()) == {"OK"}
    assert "next: nothing to accept; both sides are the same" in same.out


def test_old_against_new_says_case_by_case_what_became_of_it(story):
    for done in of(story, "ab", "--pairs", "5"):
        assert statuses(done) == {
            machine.SLOWER: "REGRESSED",
            machine.FASTER: "IMPROVED",
            SAME: "OK",
        }


def test_on_a_cluster_the_nodes_feature_chooses_the_version(story):
    called = (story.folder / "bin/sbatch.called").read_text().splitlines()
    assert [line.split()[0] for line in called] == ["rocm6", "rocm7"]


def test_what_was_not_slower_is_accepted_and_the_rest_is_in_the_pull_request(story):
    diff = (story.folder / "upgrade.md").read_text()
    assert f"| {machine.SLOWER} | 10.01 ms | 10.51 ms | 1.0500 |" in diff
    assert "refused: REGRESSED latency" in diff
    (accepted,) = of(story, "accept", "RUN_B")
    assert "2 of 3 cases accepted" in accepted.out
    assert "--body-file upgrade.md" in (story.folder / "bin/gh.called").read_text()
    assert story.kept["RUN_B"] == {machine.SLOWER: 10.0, machine.FASTER: 9.5, SAME: 10.0}


def test_under_the_new_version_they_fit(story):
    (strict,) = of(story, "--perf-strict")
    assert statuses(strict)[machine.SLOWER] == "(REGRESSED)"
    assert statuses(strict)[machine.FASTER] == "OK"


def test_after_the_roll_back_all_is_as_it_was(story):
    last = story.done[-1]
    assert set(statuses(last).values()) == {"OK"}
    assert story.kept["COMMIT"] == dict.fromkeys((machine.SLOWER, machine.FASTER, SAME), 10.0)
    file = baselines.load(story.folder / "baselines", machine.DEVICE.key)
    assert file.quarantines == {}
    *_, night, back = story.runs()
    assert night.records[machine.FASTER].status is Status.OK
    rocm = [run.environments[next(iter(run.environments))].rocm for run in (night, back)]
    assert rocm == [machine.NEW, machine.OLD]
