"""Versions of a package and images as candidates, with tiny wheels in real environments."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bench_lib.launch import exchanging, inquiry
from bench_lib.launch.faults import LaunchError
from bench_lib.studies.candidates import Candidate, CandidateError
from bench_lib.studies.candidates.commits import Commits
from bench_lib.studies.candidates.images import Images
from bench_lib.studies.candidates.kinds import Ends, of
from bench_lib.studies.candidates.packages import Packages


def wheel(folder: Path, name: str, version: str, text: str = "", *needs: str) -> Path:
    """Write a wheel of one module."""
    about = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {need}" for need in needs]
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", f"version = {version!r}\n{text}")
        file.writestr(f"{about}/METADATA", "\n".join([*lines, ""]))
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        files = [f"{name}.py", *(f"{about}/{each}" for each in ("METADATA", "WHEEL", "RECORD"))]
        file.writestr(f"{about}/RECORD", "".join(f"{each},,\n" for each in files))
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Return a folder: an engine, a painter that needs its own engine, and a stone alone."""
    folder = tmp_path_factory.mktemp("wheels")
    for n in (1, 2, 3):
        wheel(folder, "engine", f"{n}.0", "raise ImportError\n" if n == 3 else "")
        wheel(folder, "painter", f"{n}.0", "", f"engine=={n}.0")
    wheel(folder, "engine", "2.1.dev1")
    wheel(folder, "stone", "1.0", "", "nowhere-at-all; extra == 'never'")
    (folder / "README.whl").write_text("no wheel")
    return folder


@pytest.fixture(scope="module")
def offline(wheels):
    """Keep pip from every registry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(wheels))
        patch.setenv("PIP_NO_COMPILE", "1")
        patch.setattr("bench_lib.launch.exchanging.shutil.which", _no_uv)
        patch.setenv("XDG_CACHE_HOME", str(wheels / "cache"))
        yield patch


def _no_uv(name: str) -> str | None:
    return None if name == "uv" else name


@pytest.fixture(scope="module")
def base(wheels, offline, tmp_path_factory):
    """Return the interpreter of an environment with version 1 of everything, without pip."""
    folder = tmp_path_factory.mktemp("base")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (own,) = folder.glob("lib/python*/site-packages")
    for name in ("engine", "painter", "stone"):
        with zipfile.ZipFile(wheels / f"{name}-1.0-py3-none-any.whl") as file:
            file.extractall(own)
    (own / "mine.py").write_text("here = 'is edited'")
    return str(folder / "bin" / "python")


def says(python: str, *modules: str) -> list[str]:
    """Return the modules' versions, as an interpreter imports them."""
    script = f"import {', '.join(modules)}; print(*({', '.join(f'{m}.version' for m in modules)},))"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


# ---- an environment in which packages are exchanged ------------------------------------------


@pytest.fixture(scope="module")
def second(base):
    """Return an environment with the second engine."""
    return exchanging.exchanged(base, ["engine==2.0"], imports=["engine"])


def changed(*pythons):
    """Return by package its version in each of two environments, where they differ."""
    return exchanging.differing(*(inquiry.ask(each, {}, needs_torch=False) for each in pythons))


def test_what_needs_the_old_version_changes_along(base, second):
    assert says(second.python, "engine", "painter", "stone") == ["2.0", "2.0", "1.0"]
    assert changed(base, second.python) == {"engine": ("1.0", "2.0"), "painter": ("1.0", "2.0")}
    assert subprocess.run([second.python, "-c", "import mine"], check=False).returncode == 0


def test_the_environment_it_was_made_of_stays_as_it_is(base, second):
    assert says(base, "engine", "painter", "stone") == ["1.0", "1.0", "1.0"]


def test_what_was_made_once_is_not_made_again(base, second, monkeypatch):
    monkeypatch.setattr("bench_lib.launch.exchanging.build", None)
    assert exchanging.exchanged(base, ["engine==2.0"], imports=["engine"]) == second


def test_what_cannot_be_imported_is_no_environment(base):
    with pytest.raises(LaunchError, match="engine is not importable: ImportError"):
        exchanging.exchanged(base, ["engine==3.0", "painter==3.0"], imports=["engine"])


def test_what_nothing_fits_is_refused_by_the_installer(base):
    with pytest.raises(LaunchError, match="no environment with engine==9: ERROR: Could not"):
        exchanging.exchanged(base, ["engine==9"], imports=[])


def test_what_is_removed_is_gone(base):
    made = exchanging.exchanged(base, ["stone==1.0"], imports=["stone"])
    exchanging.remove(made)
    assert not made.folder.exists()
    assert not Path(f"{made.folder}.lock").exists()


def test_requirements_are_held_against_what_is_there():
    found = inquiry.Installed(
        python=["3.11.7 (main)", "/usr"],
        torch=False,
        installed=["A.b 2.0", "C 1.0.dev1"],
        requires={
            "A.b": ["c>=0.9", "d; python_version < '3'", "e; extra == 'x'", "not a need"],
            "C": ["a-b<2", "missing"],
        },
    )
    assert exchanging.unmet(found) == {"c": ["a-b<2", "missing"]}


# ---- versions ---------------------------------------------------------------------------


def test_versions_lie_between_the_ends_of_a_folder(wheels, base):
    packages = Packages("Engine", base, folder=wheels)
    found = packages.between("engine==1.0", "3.0")
    assert [each.name for each in found] == ["engine 1.0", "engine 2.0", "engine 3.0"]
    found = packages.between("1.0", "2.1.dev1")
    assert [each.name for each in found] == ["engine 1.0", "engine 2.0", "engine 2.1.dev1"]


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("1.0", "4.0", r"has no engine 4.0; there is 1.0, 2.0"),
        ("2.0", "1.0", r"2.0 is newer than 1.0; name the older one first"),
        ("1", "1.0", "are the same version of engine"),
        ("newest", "1.0", "'newest' is no version of a package; write engine==2.10.0"),
        ("stone==1.0", "2.0", "stone==1.0 is not a version of engine"),
    ],
)
def test_versions_that_are_none_are_named(wheels, base, good, bad, words):
    with pytest.raises(CandidateError, match=words):
        Packages("engine", base, folder=wheels).between(good, bad)


def test_a_registry_is_asked_by_pip(base, monkeypatch):
    asked = []

    def build(words, _what, **_told):
        asked.append(list(words))
        return "WARNING: ...\nengine (3.0)\nAvailable versions: 3.0, 2.0+rocm7, 1.0\n  INSTALLED"

    monkeypatch.setattr("bench_lib.studies.candidates.packages.build", build)
    packages = Packages("engine", base, options=["--index-url", "https://example.org"])
    found = packages.between("1.0", "3.0")
    assert [each.name for each in found] == ["engine 1.0", "engine 2.0+rocm7", "engine 3.0"]
    (words,) = asked
    assert words[-5:] == ["index", "versions", "engine", "--index-url", "https://example.org"]


def test_a_registry_that_lists_nothing_is_named(base, monkeypatch):
    monkeypatch.setattr("bench_lib.studies.candidates.packages.build", lambda *_, **__: "")
    with pytest.raises(LaunchError, match="see that pip index versions engine works"):
        Packages("engine", base).between("1.0", "2.0")


def test_a_version_is_a_side_until_the_search_ends(wheels, base):
    variables = {"KIND": "fast"}
    packages = Packages(
        "stone", base, folder=wheels, environment=variables, imports=["stone", "engine"]
    )
    side = packages.make(Candidate("stone 1.0"))
    assert side.environment == variables
    assert says(side.python, "stone") == ["1.0"]
    assert packages.make(Candidate("stone 1.0")) == side
    packages.close()
    assert not Path(side.python).exists()


# ---- images -----------------------------------------------------------------------------


def test_images_lie_between_the_ends_in_the_order_given():
    images = Images(["6.4", "7.0", "other:1"], ["docker", "run"])
    found = images.between("host:5000/rocm:6.3", "7.2")
    assert [each.name for each in found] == [
        *("host:5000/rocm:6.3", "host:5000/rocm:6.4", "host:5000/rocm:7.0", "other:1"),
        "host:5000/rocm:7.2",
    ]
    found = Images(["a:1", "a:2", "a:3", "a:4"], ["docker", "run"]).between("a:2", "a:3")
    assert [each.name for each in found] == ["a:2", "a:3"]


@pytest.mark.parametrize(
    ("images", "good", "bad", "words"),
    [
        ([], "a:1", "1", "are the same image"),
        (["a:2", "a:1"], "a:1", "a:2", "a:2 comes before a:1 among the images"),
        (["a:2", "2"], "a:1", "a:3", "a:2 is named twice"),
    ],
)
def test_images_without_an_order_are_refused(images, good, bad, words):
    with pytest.raises(CandidateError, match=words):
        Images(images, ["docker", "run"]).between(good, bad)


def test_an_image_is_put_where_its_place_is(monkeypatch):
    asked = []
    monkeypatch.setattr("bench_lib.launch.inquiry.ask", lambda *words: asked.append(words))
    image = Candidate("rocm:7")
    variables = {"X": "1"}
    side = Images([], ["docker", "run", "--rm"], environment=variables).make(image)
    assert side.command_prefix == ("docker", "run", "--rm", "rocm:7")
    side = Images([], ["apptainer", "exec", "docker://{image}", "env"], python="py").make(image)
    assert (side.python, side.command_prefix[2:]) == ("py", ("docker://rocm:7", "env"))
    assert asked[0] == ("python3", variables, ("docker", "run", "--rm", "rocm:7"))


# ---- kinds ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({}, Commits),
        ({"build": ["make"]}, Commits),
        ({"package": "torch"}, Packages),
        ({"good": "torch==1", "bad": "torch==2"}, Packages),
        ({"prefix": ["docker", "run"]}, Images),
    ],
)
def test_a_command_line_names_a_kind(told, kind):
    assert type(of(Ends(**{"good": "1", "bad": "2", **told}))) is kind


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"build": ["make"], "package": "torch"}, "both versions of a package and commits"),
        ({"prefix": ["docker"], "wheels": Path()}, "both images and versions of a package"),
        ({"wheels": Path()}, "no package is named"),
        ({"images": ["a:1"]}, "images need the command that runs them: --prefix"),
        ({"good": "torch==1", "bad": "triton==2"}, "versions of torch and of triton"),
    ],
)
def test_a_command_line_of_several_kinds_is_refused(told, words):
    with pytest.raises(CandidateError, match=words):
        of(Ends(**{"good": "1", "bad": "2", **told}))
