"""The wheel and the sdist: what is in them, and that they work where no checkout is."""

import os
import re
import site
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import bench_lib

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGE = {
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "bench_lib").rglob("*")
    if path.is_file() and path.suffix != ".pyc"
}


def run(words, folder, ends=(0,), **more):
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "-1",
        "PYTEST_ADDOPTS": f"{os.environ['PYTEST_ADDOPTS']} -p no:cacheprovider",
        "TMPDIR": str(folder),
        **more,
    }
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode in ends, done.stdout + done.stderr
    return done.stdout


def build(source, folder, *kinds):
    targets = [word for kind in kinds for word in ("-t", kind)]
    run([sys.executable, "-m", "hatchling", "build", "-d", folder, *targets], source)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    wheel, sdist = build(ROOT, tmp_path_factory.mktemp("dist"), "wheel", "sdist")
    return {"sdist": sdist, "wheel": wheel}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Return what installs one of them into an environment of its own, and returns its programs.

    What others wrote is seen where it is: it takes 6 GB.
    """
    known = {}

    def install(kind):
        if kind not in known:
            folder = tmp_path_factory.mktemp(kind)
            venv.create(folder, symlinks=True)
            python = folder / "bin" / "python"
            told = "import sysconfig; print(sysconfig.get_path('purelib'))"
            packages = Path(run([python, "-c", told], folder).strip())
            others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
            others |= set(site.getsitepackages())
            (packages / "others.pth").write_text("\n".join(sorted(others)))
            words = ["-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
            words += ["--no-deps", "--ignore-installed", "--no-build-isolation", built[kind]]
            run([sys.executable, *words], folder)
            known[kind] = python.parent
        return known[kind]

    return install


# ---- what is in them ---------------------------------------------------------------------


def test_the_wheel_holds_the_package_its_data_and_nothing_else(built):
    with zipfile.ZipFile(built["wheel"]) as archive:
        names = set(archive.namelist())
    told = {name for name in names if name.startswith("bench_lib-")}
    assert names - told == PACKAGE
    assert {Path(name).name for name in told} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "LICENSE",
    }  # fmt: skip
    assert {Path(name).suffix for name in PACKAGE} >= {".py", ".toml", ".js", ".css", ".j2"}


def test_the_sdist_has_what_a_packager_needs(built):
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names > PACKAGE | {
        "CHANGELOG.md", "LICENSE", "README.md", "benchmarks/error_rates.py", "conftest.py",
        "docs/architecture.md", "perf_tests/matrix.toml", "pyproject.toml",
        "tests/test_packaging.py", "tox.ini",
    }  # fmt: skip
    assert not [name for name in names if "__pycache__" in name or name.startswith("history/")]


def test_the_version_is_one_that_the_changes_begin_with():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version = bench_lib.__version__.partition(".dev")[0]
    assert version in [heading.strip("[]") for heading in headings[:2]]


# ---- where no checkout is -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_the_program_runs_where_it_is_installed(kind, installed, tmp_path):
    programs = installed(kind)
    told = "import bench_lib.plugin as p, sys; print(p.__file__)"
    assert Path(run([programs / "python", "-c", told], tmp_path)).is_relative_to(programs.parent)
    assert (
        run([programs / "bench-lib", "--version"], tmp_path)
        == f"bench-lib {bench_lib.__version__}\n"
    )


def test_mutants_are_tried_with_tests_that_are_there():
    mutmut = PYPROJECT["tool"]["mutmut"]
    named = [*mutmut["pytest_add_cli_args_test_selection"], *mutmut["also_copy"]]
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert all(list(ROOT.glob(pattern)) for pattern in mutmut["only_mutate"])
