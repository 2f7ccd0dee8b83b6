"""The documentation: what it shows runs, what the program has is in it, links lead somewhere."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from command import commands_below
from processes import TORCH_ALONE
from repositories import WHO
from scripts import script

import bench_lib.cli
from bench_lib.storage import history

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "baselines" / "README.md"])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def reference():
    return script("docs/write_reference.py")


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((DOCS / page).read_text())


def write_files(page: str, folder: Path) -> None:
    for _, text in blocks(page):
        if named := re.match(r"# ([\w./-]+\.(?:py|toml))\n", text):
            path = folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


# ---- the reference -----------------------------------------------------------------------


def test_every_command_option_and_argument_is_in_the_reference_as_the_program_has_it(reference):
    written = {p.name: p.read_text() for p in reference.FOLDER.glob("*.md")}
    for name in reference.OWN_PAGES:
        del written[name]
    assert written == reference.pages()


@pytest.mark.parametrize(
    ("command", "named"),
    [
        pytest.param(lambda: None, "bench-lib silent", id="a command"),
        pytest.param(lambda told=1: None, "bench-lib silent --told", id="an option"),
        pytest.param(lambda thing: None, "bench-lib silent thing", id="an argument"),
    ],
)
def test_what_says_nothing_of_itself_is_named(reference, monkeypatch, command, named):
    app = typer.Typer(add_completion=False, help="Some program.")
    app.command("spoken", help="Fine.")(lambda: None)
    app.command("silent", help="" if named == "bench-lib silent" else "Fine.")(command)
    monkeypatch.setattr(bench_lib.cli, "app", app)
    with pytest.raises(reference.UndocumentedError, match=f"no help text: {named}$"):
        reference.pages()


def test_every_variable_that_the_program_reads_is_on_its_page():
    words = "ADDRESS BEHIND COMMAND CONTEXT LOGS RANKS STARTER LAUNCHED"
    own = {f"BENCH_LIB_{word}" for word in words.split()}
    source = "".join(path.read_text() for path in (ROOT / "bench_lib").rglob("*.py"))
    named = set(
        re.findall(r"BENCH_LIB_[A-Z_]+", (DOCS / "reference" / "environment.md").read_text())
    )
    assert set(re.findall(r"BENCH_LIB_[A-Z_]+", source)) - own == named


# ---- commands and links -------------------------------------------------------------------


def commands() -> list[tuple[str, str]]:
    found = []
    for path in PAGES:
        for language, text in BLOCK.findall(path.read_text()):
            if language not in ("", "bash", "console") or "usage" in text:
                continue
            joined = text.replace("\\\n", " ")
            for line in joined.splitlines():
                command = line.removeprefix("$ ").split(" # ")[0].strip()
                if re.match(r"(bench-lib|pytest) [\w-]", command):
                    found.append(
                        (str(path.relative_to(ROOT)), re.split(r" &&| \|\|? ", command)[0])
                    )
    return found


@functools.cache
def program():
    return typer.main.get_command(bench_lib.cli.app)


def options_of(words: list[str]) -> set[str]:
    command = program()
    for word in words[1:]:
        below = commands_below(command)
        if not below:
            break
        assert word in below, f"there is no bench-lib {word}"
        command = below[word]
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)}


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_in_the_docs_have_the_options_that_they_are_given(reference, page, line):
    words = [word.partition("=")[0] for word in shlex.split(line)]
    given = {word for word in words if word.startswith("--") and word != "--"}
    if words[0] == "pytest":
        known = {each["name"] for each in reference._of_pytest()[0]}
        assert {word for word in given if word.startswith("--perf")} <= known
    elif words[1] != "micro":
        ours = words[: words.index("--")] if "--" in words else words
        assert given & set(ours) <= options_of(words) | {"--version", "--help"}


def anchors(path: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.add(anchor if anchor not in found else f"{anchor}-1")
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_are_there(path):
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name) if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_contents():
    for folder in (DOCS, DOCS / "reference"):
        text = (folder / "index.md").read_text()
        listed = {name.split("#")[0] for name in re.findall(r"\]\(([^):]+\.md[^)]*)\)", text)}
        there = {path.name for path in folder.glob("*.md")} - {"index.md"}
        assert there <= listed


# ---- the tour -----------------------------------------------------------------------------

CONFTEST = """
import functools
import sys
sys.path.insert(0, {tests!r})

import bench_lib.plugin.session as session
from bench_lib.engine import engine
from pathlib import Path
from standins.worker import held_class, nobody_shares
from standins import worker as scripted

scripted.KERNELS = "the profiler recorded no operations"
scripted.make_measurement = functools.partial(
    scripted.make_measurement, items_per_step=8, item="sample"
)
HERE = Path(__file__).parent
step_s = 0.022 if "0.022" in (HERE / "net.py").read_text() else 0.020
script = {{"net-b8": [[step_s] * 20]}}
session.network_sizes = dict
engine.HeldDevice = held_class(script, HERE / "history" / "locks")
engine.processes.share = nobody_shares
"""
"""Workers that take exactly as long as the tour's network waits."""

WORDS = [
    (r"\b[0-9a-f]{12}\b|\b[0-9a-f]{8}\b", "HASH"),
    (r"\bcpu-[\w-]*\w", "KEY"),
    (r"\d{4}-\d\d-\d\dT[\d:]+Z", "TIME"),
    (r"[+-]?\d[\d,.]*\d|[+-]?\d", "N"),
    (r"\s+", " "),
]
"""What differs between machines and nights, and what is said instead."""


def gist(line: str) -> str:
    for pattern, word in WORDS:
        line = re.sub(pattern, word, line)
    return line.strip()


def console() -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for language, text in blocks("tour.md"):
        if language == "console":
            for line in text.splitlines():
                if line.startswith("$ "):
                    found.append((line.removeprefix("$ "), []))
                else:
                    found[-1][1].append(line)
    return found


def missing(expected: list[str], printed: list[str]) -> list[str]:
    rest = iter([gist(line) for line in printed])
    wanted = [gist(line) for line in expected if line != "..."]
    patterns = [re.escape(line).replace(re.escape("..."), ".*") for line in wanted]
    return [p for p in patterns if not any(re.fullmatch(p, line) for line in rest)]


def test_the_tour_shows_what_its_commands_print(tmp_path):
    write_files("tour.md", tmp_path)
    (tmp_path / "conftest.py").write_text(CONFTEST.format(tests=str(ROOT / "tests")))
    told = console()
    end = "----end----"
    script = "".join(
        f"(exit $status)\n{command}\nstatus=$?\necho\necho {end}\n" for command, _ in told
    )
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **WHO,
        "CUDA_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        ["bash"],
        input=f"status=0\n{script}",
        check=False,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    printed = [part.splitlines() for part in done.stdout.split(f"{end}\n")]
    assert len(printed) == len(told) + 1, done.stderr
    for (command, expected), lines in zip(told, printed, strict=False):
        assert missing(expected, lines) == [], f"{command}\n{chr(10).join(lines)}\n{done.stderr}"
    assert "net-b8" in (tmp_path / "report.html").read_text()
    assert "REGRESSED" in (tmp_path / "report.md").read_text()


# ---- somebody's own repository -------------------------------------------------------------


@pytest.fixture
def own_repository(tmp_path):
    write_files("own-repository.md", tmp_path)
    (tmp_path / "mypackage" / "__init__.py").touch()
    environment = os.environ | {
        **WHO,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTEST_ADDOPTS": f"{os.environ['PYTEST_ADDOPTS']} -p no:cacheprovider",
        "TMPDIR": str(tmp_path),
    }
    return tmp_path, environment


def test_the_example_of_ones_own_repository_measures_and_skips(own_repository):
    folder, environment = own_repository
    hidden = {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "", **TORCH_ALONE}
    words = ["-m", "pytest", "tests/perf", "-o", "perf_kernels=none", "-q"]
    done = subprocess.run(
        [sys.executable, *words],
        check=False,
        cwd=folder,
        env=environment | hidden | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed, 1 skipped" in done.stdout
    (file,) = history.files(folder / "history")
    records = history.read(file).records
    assert sorted(records) == ["attention-128", "attention-512", "mlp-bf16", "mlp-fp32"]
    measurement = next(a.measurement for a in records["mlp-fp32"].attempts if a.measurement)
    assert (measurement.items_per_step, measurement.item) == (256, "row")


def test_the_commands_of_ones_own_repository_lead_to_a_committed_baseline(own_repository):
    folder, environment = own_repository
    install, *commands = [
        text for language, text in blocks("own-repository.md") if language == "bash"
    ]
    assert install.splitlines()[-1] == "pip install ./bench-lib"
    environment["BENCH_LIB_STANDIN"] = str(folder)
    environment["PYTEST_ADDOPTS"] += " -p standins.machine"
    tests = f"PYTHONPATH=$PYTHONPATH:{ROOT / 'tests'}\n"
    first, *rest = commands
    done = subprocess.run(
        ["bash", "-e"],
        input="\n".join(["git init --quiet", first.replace("\n", f"\n{tests}", 1), *rest]),
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 cases accepted into baselines/mi300x.json" in done.stdout
    assert "First baseline" in done.stdout
