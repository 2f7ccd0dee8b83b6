"""The command line as a whole: what it imports, how every command ends and fails, its words."""

import contextlib
import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command import leaves, ran

import bench_lib.cli
import bench_lib.storage.archive
from bench_lib.cli.ending import in_words
from bench_lib.cli.group import COMMANDS
from bench_lib.model import UserError

CHECKOUT = Path(bench_lib.__file__).parents[1]
HEAVY = {
    *("torch", "msgspec", "scipy", "numpy", "duckdb", "jinja2", "rich", "pytest"),
    *("matplotlib", "pydantic", "asyncio", "concurrent", "multiprocessing"),
}
MOST_MODULES = 40
"""Of our own and of the standard library's, beyond what typer loads."""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def command(*words):
        return ran([*words], monkeypatch, capsys)

    return command


def modules(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


# ---- start-up ---------------------------------------------------------------------------


def test_the_command_line_starts_with_next_to_nothing():
    loaded = modules("import bench_lib.cli.ending")
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
    ours = {name for name in loaded if name.startswith("bench_lib")}
    assert ours == {"bench_lib", "bench_lib.cli", "bench_lib.cli.group", "bench_lib.cli.ending"}
    assert len(loaded - modules("import typer")) < MOST_MODULES


@pytest.mark.parametrize("words", [(name, "--help") for name in COMMANDS if name != "micro"])
def test_the_help_of_a_command_imports_that_command_and_nothing_heavy(words):
    code = (
        f"import sys\nsys.argv = ['bench-lib', *{words!r}]\nfrom bench_lib.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code"
    )
    loaded = modules(code)
    assert f"bench_lib.cli.{words[0]}" in loaded
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
    assert not {f"bench_lib.cli.{name}" for name in COMMANDS if name != words[0]} & loaded


def test_the_help_lists_every_command(run):
    status, out, err = run("--help")
    assert (status, err) == (0, "")
    flat = " ".join(out.split())
    for name, sentence in COMMANDS.items():
        assert f"{name} {sentence}" in flat


# ---- completion -------------------------------------------------------------------------


def test_a_shell_is_told_which_words_may_follow(run, monkeypatch):
    monkeypatch.setenv("_BENCH_LIB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "bench-lib rep")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert run() == (0, "report\n", "")


# ---- words ------------------------------------------------------------------------------


SHARED = ("--history", "--baselines", "--matrix", "--json", "--hardware", "--case", "--markdown")


@pytest.mark.parametrize("name", SHARED)
def test_an_option_that_several_commands_have_takes_the_same_in_all(name):
    taken = {
        str(parameter.metavar)
        for path, command in leaves()
        for parameter in command.params
        if name in parameter.opts and path != ("report",)
    }
    assert len(taken) == 1


# ---- mistakes ---------------------------------------------------------------------------

MISTAKES = """
bisect none --good a --bad b
bisect x --good a --bad b --error 50%
bisect x --good a --bad b --error none
ab --pairs x
ab --env-b X
adopt none
baseline accept --run none --reason x
baseline accept --run latest --reason x --history afile
baseline accept --dry-run --run none
baseline accept --dry-run --run none --json --markdown
baseline quarantine a
baseline record --reason ' '
baseline show --baselines afile
baseline show --hardware broken
baseline show --hardware ''
collectives --stepfactor 2 --stepbytes 8
compare none none
compare afile afile
env more
env --baselines
exercise batch-sweep resnet50 --batch-sizes none
exercise depth ''
exercise largest-batch resnet18 --at-most 1 --batch-sizes ''
exercise largest-batch resnet18 --at-most 1 --mode ''
history export --format csv --history afile
history list --history none://x
history query
history query 'DROP TABLE runs'
history show none
history show none --history afile
judge afile --tolerance much
ops --dtype ''
profile none
profile none --tool none
report --days 0
report --days 800000
report --history none://x
scaling mnist --at-most 0
selfcheck --tolerance 99
selfcheck ''
train cifar100 --download
train cifar100 --ranks ''
"""


def mistakes():
    return [shlex.split(line) for line in MISTAKES.strip().splitlines()]


@pytest.fixture
def surroundings(tmp_path):
    (tmp_path / "afile").write_text("neither JSON nor anything\n")
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines" / "broken.json").write_text("<<<<<<<")


@pytest.mark.usefixtures("surroundings")
@pytest.mark.parametrize("words", mistakes(), ids=" ".join)
def test_a_mistake_is_one_line_and_status_2(run, words):
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("bench-lib: error: ")
    assert not line.endswith(".")


def test_every_command_is_among_the_mistakes():
    wrong = {tuple(words) for words in mistakes()}
    for path, _ in leaves():
        assert path == ("micro",) or any(words[: len(path)] == path for words in wrong)


def test_an_option_that_there_is_not_is_named_with_those_like_it(run):
    status, out, err = run("history", "list", "--jsom")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("bench-lib: error: No such option: --jsom")
    assert "--json" in line
    assert line.endswith("; see bench-lib history list --help")


def test_a_command_that_there_is_not_is_named_with_those_like_it(run):
    for words in (("histroy",), ("history", "lst")):
        status, out, err = run(*words)
        assert (status, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith(f"bench-lib: error: No such command '{words[-1]}'")
        assert ("'history'" if len(words) == 1 else "'list'") in line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("scaling",), "'WHAT': mnist, or network (with --network); see bench-lib scaling --help"),
        (("bisect", "x"), "Missing option '--good': Fast commit or version; "),
        (("report", "--html"), "--html"),
        (("judge", "x", "--tolerance", "1"), "--tolerance: 1 is 100%; did you mean 1%?"),
    ],
)
def test_a_mistake_is_named_with_its_option_or_argument(run, words, expected):
    status, out, err = run(*words)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert expected in err


# ---- what is nobody's mistake -----------------------------------------------------------


@pytest.fixture
def failing(run, monkeypatch):
    def command(error):
        def raising(*_, **__):
            raise error

        monkeypatch.setattr(bench_lib.storage.archive, "Archive", raising)
        return run("history", "list")

    return command


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UserError("it is so; do this"), "it is so; do this"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/x"),
            "/x: No space left on device",
        ),
        (
            ModuleNotFoundError("No module", name="torchao.core"),
            "the package torchao is not installed; pip install torchao",
        ),
    ],
)
def test_what_can_be_foreseen_is_one_line(failing, error, words):
    assert failing(error) == (2, "", f"bench-lib: error: {words}\n")
    assert in_words(error) == words


@pytest.mark.parametrize(
    "error", [RuntimeError("ours"), ModuleNotFoundError("x", name="bench_lib.x"), KeyError("x")]
)
def test_a_mistake_of_ours_keeps_its_traceback(failing, error):
    with contextlib.suppress(AssertionError), pytest.raises(type(error)):
        failing(error)


def test_ctrl_c_is_a_word_and_status_130(failing):
    assert failing(KeyboardInterrupt()) == (130, "", "bench-lib: interrupted\n")
    words = (130, "", "bench-lib: interrupted; it goes on\n")
    assert failing(KeyboardInterrupt("it goes on")) == words


def started(*words, **where):
    return subprocess.Popen(
        [sys.executable, "-m", "bench_lib", *words],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": ""},
        stderr=subprocess.PIPE,
        **where,
    )


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("--version",), 0),
        (("history", "query", "SELECT * FROM range(99999)", "--csv"), 141),
    ],
)
def test_a_reader_that_has_enough_is_nobody_s_mistake(tmp_path, words, status):
    reading, writing = os.pipe()
    os.close(reading)
    with started(*words, stdout=writing, cwd=tmp_path) as process:
        os.close(writing)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (status, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full disk to offer")
def test_a_full_disk_behind_the_output_is_said(tmp_path):
    with (
        Path("/dev/full").open("wb") as full,
        started("--version", stdout=full, cwd=tmp_path) as process,
    ):
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.decode() == "bench-lib: error: cannot write: No space left on device\n"


@pytest.mark.parametrize(
    "words", [("--version",), ("history", "list"), ("history", "list", "--json")]
)
def test_an_output_that_was_closed_at_the_start_is_no_error(run, monkeypatch, words):
    status = run(*words).status
    monkeypatch.setattr("sys.stdout", None)
    assert run(*words) == (status, "", "")


# ---- exit status ------------------------------------------------------------------------


def test_every_command_has_its_exit_statuses_in_the_table():
    page = (CHECKOUT / "docs" / "exit-status.md").read_text()
    cells = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    for path, _ in leaves():
        below = f"`{path[0]} …`"
        assert f"`{' '.join(path)}`" in cells or below in cells or f"`{path[-1]}`" in cells


NOTHING = [
    (("baseline", "show", "--hardware", "mi300x"), 1),
    (("baseline", "show", "--hardware", "mi300x", "--json"), 1),
    (("history", "list"), 1),
    (("history", "list", "--json"), 1),
    (("history", "query", "SELECT 1"), 0),
    (("history", "query", "SELECT 1", "--json"), 0),
]


@pytest.mark.parametrize(("words", "status"), NOTHING)
def test_an_answer_has_the_same_status_in_every_form(run, words, status):
    assert run(*words)[0] == status
