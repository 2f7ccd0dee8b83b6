"""Commits as candidates: their line, their worktrees and builds, and what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench_lib.launch.faults import LaunchError
from bench_lib.studies.candidates import Candidate, CandidateError
from bench_lib.studies.candidates.commits import Commits

DATE = "2026-11-0{}T12:00:00+02:00"


class Repository:
    """A repository that a test writes to."""

    def __init__(self, folder: Path) -> None:
        """Begin with nothing in it."""
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words: str, date: str = DATE.format(1)) -> str:
        """Run git as Ada."""
        names = {
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", "Ada"), ("EMAIL", "ada@example.org"), ("DATE", date))
        }
        done = subprocess.run(
            ["git", "-C", str(self.folder), *words],
            env={**os.environ, **names, "GIT_CONFIG_GLOBAL": os.devnull},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def commit(self, subject: str, day: int = 1, **files: str) -> str:
        """Commit files, by their names without ``.py``; returns the hash."""
        for name, text in files.items():
            path = self.folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject, date=DATE.format(day))
        return self.git("rev-parse", "HEAD")

    def worktrees(self) -> int:
        """How many git knows, besides its own."""
        return len(self.git("worktree", "list").splitlines()) - 1


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Return an empty repository that we are in, and a cache folder of its own."""
    made = Repository(tmp_path / "repository")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(made.folder)
    return made


def says(side, *words: str) -> str:
    """Run a side's interpreter as a worker is run, and return what it prints."""
    done = subprocess.run(
        [side.python, *words],
        cwd=side.folder,
        env={**os.environ, **side.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


# ---- the line ---------------------------------------------------------------------------


def test_commits_are_told_from_good_to_bad_with_what_people_ask_of_them(repository):
    repository.git("remote", "add", "origin", "https://ada:secret@gitlab.com/team/steps.git")
    hashes = [repository.commit(f"Step {n}", n) for n in (1, 2, 3)]
    found = Commits().between("HEAD~2", "main")
    assert [each.name for each in found] == hashes
    address = f"https://gitlab.com/team/steps/-/commit/{hashes[1]}"
    assert found[1] == Candidate(hashes[1], "Step 2", "Ada", "2026-11-02T10:00:00Z", address)


def test_a_merge_is_one_change(repository):
    first = repository.commit("First")
    repository.git("switch", "--quiet", "--create", "side")
    repository.commit("Aside", aside="")
    repository.git("switch", "--quiet", "main")
    repository.commit("Second", second="")
    repository.git("merge", "--quiet", "--no-ff", "-m", "Merge", "side")
    found = Commits().between(first, "main")
    assert [each.subject for each in found] == ["First", "Second", "Merge"]
    with pytest.raises(CandidateError, match=f"by a merge.*; name {first[:12]}"):
        Commits().between("side", "main")


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("nowhere", "main", "--good: .* has no commit 'nowhere'; name a hash, a tag or a branch"),
        ("main", "--all", "--bad: .* has no commit '--all'"),
        ("main", "HEAD", "main and HEAD are the same commit"),
        ("main", "main~1", "the other way round; exchange --good and --bad"),
        ("other", "main", "they part at {base}, which may be the good one"),
    ],
)
def test_ends_that_are_none_are_named(repository, good, bad, words):
    base = repository.commit("First")
    repository.git("switch", "--quiet", "--create", "other")
    repository.commit("Other")
    repository.git("switch", "--quiet", "main")
    repository.commit("Second")
    with pytest.raises(CandidateError, match=words.format(base=base[:12])):
        Commits().between(good, bad)


def test_a_folder_of_no_repository_is_refused(tmp_path):
    with pytest.raises(CandidateError, match="is in no git repository; go to the one"):
        Commits(repository=tmp_path)


def test_a_repository_that_git_says_nothing_of_is_not_called_none(tmp_path):
    (tmp_path / ".git").mkdir()
    with pytest.raises(CandidateError, match=r"git gives no answer in .*; see git status there"):
        Commits(repository=tmp_path)


# ---- worktrees --------------------------------------------------------------------------


def test_a_side_has_the_step_of_its_own_commit(repository, monkeypatch):
    for n in (1, 2):
        repository.commit(
            f"{n}",
            top=f"v = {n}",
            **{f"src/{name}": f"v = {n}" for name in ("below",)},
            **{"perf/here": f"v = {n}", "lib/told": f"v = {n}"},
        )
    monkeypatch.chdir(repository.folder / "perf")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("../lib", "/elsewhere")))
    commits = Commits()
    side = commits.make(commits.between("main~1", "main")[0])
    script = "import top, below, here, told; print(top.v, below.v, here.v, told.v)"
    assert says(side, "-c", script) == "1 1 1 1"
    assert side.python == sys.executable
    commits.close()


def test_what_is_not_committed_is_measured_nowhere(repository):
    repository.commit("1", step="v = 1")
    repository.commit("2", step="v = 2")
    (repository.folder / "step.py").write_text("v = 3")
    commits = Commits()
    side = commits.make(commits.between("main~1", "main")[1])
    assert says(side, "-c", "import step; print(step.v)") == "2"
    commits.close()
    assert (repository.folder / "step.py").read_text() == "v = 3"


def test_a_build_is_run_in_the_worktree_without_a_shell(repository):
    repository.commit("1")
    repository.commit("2")
    script = "import os, sys; open('built', 'w').write(sys.argv[1] + os.environ['KIND'])"
    commits = Commits([sys.executable, "-c", script, "$HOME; "], environment={"KIND": "fast"})
    side = commits.make(commits.between("main~1", "main")[1])
    assert (side.folder / "built").read_text() == "$HOME; fast"
    assert side.environment["KIND"] == "fast"
    commits.close()


def test_an_environment_that_the_build_makes_is_what_measures(repository):
    repository.commit("1")
    repository.commit("2")
    command = [sys.executable, "-m", "venv", "--without-pip", ".venv"]
    commits = Commits(command)
    side = commits.make(commits.between("main~1", "main")[1])
    assert side.python == str(side.folder / ".venv" / "bin" / "python")
    assert "PYTHONPATH" not in side.environment
    assert says(side, "-c", "import sys; print(sys.prefix)") == str(side.folder / ".venv")
    commits.close()


def test_an_interpreter_that_the_build_leaves_elsewhere_is_named(repository):
    repository.commit("1")
    repository.commit("2")
    commits = Commits(["true"], python="env/bin/python")
    with pytest.raises(LaunchError, match="does not build: the build left no env/bin/python"):
        commits.make(commits.between("main~1", "main")[1])
    commits.close()
    assert Commits(python="python3").make(Candidate("HEAD")).python == "python3"


def test_a_commit_that_does_not_build_is_named_and_leaves_nothing(repository):
    repository.commit("1", setup="raise SystemExit('error: no compiler')")
    good = repository.commit("2", setup="")
    commits = Commits([sys.executable, "setup.py"])
    bad_one, good_one = commits.between("main~1", "main")
    with pytest.raises(LaunchError, match=f"{bad_one.name[:12]} does not build: error: no comp"):
        commits.make(bad_one)
    assert repository.worktrees() == 0
    assert commits.make(good_one).folder.name == good[:12]
    commits.close()


def test_a_program_that_is_not_there_is_no_build(repository):
    repository.commit("1")
    with pytest.raises(LaunchError, match="no-such-tool cannot be run: No such file"):
        Commits(["no-such-tool"]).make(Candidate(repository.git("rev-parse", "HEAD")))


def test_an_interrupted_search_finds_what_is_built(repository, tmp_path):
    repository.commit("1")
    repository.commit("2")
    count = tmp_path / "count"
    command = [sys.executable, "-c", f"open({str(count)!r}, 'a').write('x')"]
    sides = []
    for _ in range(2):
        commits = Commits(command)
        candidate = commits.between("main~1", "main")[1]
        sides += [commits.make(candidate), commits.make(candidate)]
        del commits  # as a process that ends
    assert count.read_text() == "x"
    assert len(set(map(str, sides))) == 1
    other = Commits([*command, "other"])
    assert other.make(candidate).folder != sides[0].folder
    assert repository.worktrees() == 2
    for each in (other, Commits(command)):
        each.close()
    assert repository.worktrees() == 0
    assert not list((tmp_path / "cache").rglob("*.built"))


def test_other_variables_of_a_build_build_anew(repository):
    candidate = Candidate(repository.commit("1"))
    script = "import os; open('built', 'w').write(os.environ['FOR'])"
    made = [Commits([sys.executable, "-c", script], environment={"FOR": f}) for f in "ab"]
    assert [(each.make(candidate).folder / "built").read_text() for each in made] == ["a", "b"]
    for each in made:
        each.close()


def test_two_searches_do_not_share_worktrees(repository):
    name = repository.commit("1")
    first, second = Commits(), Commits()
    first.make(Candidate(name))
    with pytest.raises(LaunchError, match="another search uses the worktrees"):
        second.make(Candidate(name))
    first.close()
    second.make(Candidate(name))
    second.close()


def test_a_hook_of_the_users_is_left_alone(repository):
    name = repository.commit("1")
    hook = repository.folder / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    commits = Commits()
    assert not (commits.make(Candidate(name)).folder / "hooked").exists()
    commits.close()
