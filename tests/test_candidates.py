"""Commits and versions as candidates: their line, how they are made, and what is left of them."""

import os
import subprocess
import sys

import pytest
from repositories import Repository

from bench_lib.launch.faults import LaunchError
from bench_lib.model import UserError
from bench_lib.studies.bisect import Candidate, commits, versions


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Return an empty repository that we are in, and a cache folder of its own."""
    made = Repository(tmp_path / "repository")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(made.folder)
    return made


def says(side, *words):
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


# ---- commits ----------------------------------------------------------------------------


def test_commits_are_told_from_good_to_bad(repository):
    hashes = [repository.commit(f"Step {n}") for n in (1, 2, 3)]
    found = commits("HEAD~2", "main")
    assert [each.name for each in found] == hashes
    assert str(found[1]) == f"{hashes[1][:12]} Step 2"


def test_a_merge_is_one_change(repository):
    first = repository.commit("First")
    repository.git("switch", "--quiet", "--create", "side")
    repository.commit("Aside", aside="")
    repository.git("switch", "--quiet", "main")
    repository.commit("Second", second="")
    repository.git("merge", "--quiet", "--no-ff", "-m", "Merge", "side")
    found = commits(first, "main")
    assert [each.subject for each in found][1:] == ["Second", "Merge"]


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("nowhere", "main", "--good: .* has no commit 'nowhere'; name a hash, a tag or a branch"),
        ("main", "--all", "--bad: .* has no commit '--all'"),
        ("main", "HEAD", "main is not an earlier commit of the branch that HEAD is on"),
        ("main", "main~1", "main is not an earlier commit of the branch that main~1 is on"),
        ("other", "main", "git merge-base other main may be the good one"),
    ],
)
def test_ends_that_are_none_are_named(repository, good, bad, words):
    repository.commit("First")
    repository.git("switch", "--quiet", "--create", "other")
    repository.commit("Other")
    repository.git("switch", "--quiet", "main")
    repository.commit("Second")
    with pytest.raises(UserError, match=words):
        commits(good, bad)


def test_a_folder_of_no_repository_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"the repository around .* has no commit 'a'"):
        commits("a", "b")


def test_a_side_has_the_step_of_its_own_commit_and_no_edits(repository, monkeypatch, tmp_path):
    for n in (1, 2):
        repository.commit(
            f"{n}", **dict.fromkeys(("top", "src/below", "perf/here", "lib/told"), f"v = {n}")
        )
    (repository.folder / "top.py").write_text("v = 3")
    monkeypatch.chdir(repository.folder / "perf")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((f"{repository.folder}/lib", "/elsewhere")))
    side = commits("main~1", "main")[0].side(tmp_path / "made")
    script = "import top, below, here, told; print(top.v, below.v, here.v, told.v)"
    assert says(side, "-c", script) == "1 1 1 1"
    assert side.python == sys.executable


def test_a_folder_whose_name_begins_as_the_repositorys_keeps_its_place_in_the_path(
    repository, monkeypatch, tmp_path
):
    name = repository.commit("step")
    monkeypatch.chdir(repository.folder)
    beside = f"{repository.folder}-beside"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(repository.folder), beside)))
    side = Candidate(name).side(tmp_path / "made")
    here, behind = side.environment["PYTHONPATH"].split(os.pathsep)[-2:]
    assert (here, behind) == (str(side.folder), beside)


def test_a_build_is_run_once_in_the_worktree_without_a_shell(repository, tmp_path):
    name = repository.commit("1")
    script = "import sys; open('built', 'a').write(sys.argv[1])"
    command = [sys.executable, "-c", script, "$HOME; "]
    for _ in range(2):  # as in a search that was interrupted
        side = Candidate(name, command=command).side(tmp_path / "made")
        assert (side.folder / "built").read_text() == "$HOME; "


def test_an_environment_that_the_build_makes_is_what_measures(repository, tmp_path):
    name = repository.commit("1")
    command = [sys.executable, "-m", "venv", "--without-pip", ".venv"]
    side = Candidate(name, command=command).side(tmp_path / "made")
    assert side.python == str(side.folder / ".venv" / "bin" / "python")
    assert "PYTHONPATH" not in side.environment
    assert says(side, "-c", "import sys; print(sys.prefix)") == str(side.folder / ".venv")


def test_a_commit_that_does_not_build_is_named_and_built_anew_next_time(repository, tmp_path):
    name = repository.commit("1", setup="raise SystemExit('error: no compiler')")
    for _ in range(2):
        with pytest.raises(LaunchError, match=f"{name[:12]} does not build: error: no comp"):
            Candidate(name, command=[sys.executable, "setup.py"]).side(tmp_path / "made")
    with pytest.raises(LaunchError, match="no-such-tool cannot be run: No such file"):
        Candidate(name, command=["no-such-tool"]).side(tmp_path / "made")


def test_a_hook_of_the_users_is_left_alone(repository, tmp_path):
    name = repository.commit("1")
    hook = repository.folder / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    assert not (Candidate(name).side(tmp_path / "made").folder / "hooked").exists()


# ---- versions ---------------------------------------------------------------------------

SAID = "WARNING: ...\nengine (3.0)\nAvailable versions: 3.0, {}2.0+rocm7, 1.0\n  INSTALLED"


@pytest.fixture
def pip(monkeypatch):
    asked = []

    def build(words, _what):
        asked.append(list(words))
        return SAID.format("2.1.dev1, " * ("--pre" in words))

    monkeypatch.setattr("bench_lib.studies.bisect.build", build)
    return asked


def test_versions_are_those_that_pip_lists_between_the_ends(pip):
    found = versions("Engine==1.0", "3.0", "Engine")
    assert [each.name for each in found] == ["Engine==1.0", "Engine==2.0+rocm7", "Engine==3.0"]
    assert pip[0][-3:] == ["index", "versions", "Engine"]
    found = versions("2.0+rocm7", "2.1.dev1", "Engine")
    assert [each.name for each in found] == ["Engine==2.0+rocm7", "Engine==2.1.dev1"]


def test_builds_of_a_version_are_in_the_order_of_their_rocm(monkeypatch):
    builds = ["2.13.0+rocm10.1.0", "2.13.0+rocm7.14.0", "2.12.0+rocm10.0.0"]
    said = f"Available versions: {', '.join(builds)}\n"
    monkeypatch.setattr("bench_lib.studies.bisect.build", lambda *_: said)
    found = versions("2.13.0+rocm7.14.0", "2.13.0+rocm10.1.0", "torch")
    assert [each.name for each in found] == ["torch==2.13.0+rocm7.14.0", "torch==2.13.0+rocm10.1.0"]


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("1.0", "4.0", r"engine 1.0 to 4.0 is not a range .*; pip finds 1.0, 2.0\+rocm7, 3.0"),
        ("3.0", "1.0", "is not a range of versions from older to newer"),
        ("newest", "1.0", "'newest' is not a version; write engine==2.10.0, for example"),
        ("stone==1.0", "2.0", "'stone==1.0' is not a version; write engine==2.10.0"),
    ],
)
def test_versions_that_are_none_are_named(pip, good, bad, words):
    with pytest.raises(UserError, match=words):
        versions(good, bad, "engine")


def test_a_version_is_installed_once(tmp_path, monkeypatch):
    made = []

    def overlaid(folder, *about):
        folder.mkdir()
        made.append(about)

    monkeypatch.setattr("bench_lib.studies.bisect.overlaid", overlaid)
    for _ in range(2):
        side = Candidate("stone==1.0").side(tmp_path / "made")
        assert side.python == str(tmp_path / "made" / "stone==1.0" / "bin" / "python")
    assert made == [(sys.executable, "stone==1.0")]


def test_versions_with_a_long_beginning_in_common_are_installed_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("bench_lib.studies.bisect.overlaid", lambda folder, *_: folder.mkdir())
    names = [f"a-package-with-a-long-name==2.10.0.dev2026{month}01" for month in ("01", "02")]
    assert len({Candidate(name).side(tmp_path).python for name in names}) == 2
