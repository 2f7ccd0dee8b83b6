"""``bench-lib adopt``: somebody's network, config or test becomes a case of their repository."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from bench_lib import files
from bench_lib.cli.output import say, write
from bench_lib.model import UserError

MOST_BYTES = 2**20
"""A matrix or a file of factories is no larger."""
PERF_TESTS = Path("perf_tests")
IGNORED = "/history/"
"""What git has to leave alone, from the repository's root."""
PYTEST_FILES = {
    "pytest.toml": "pytest",
    ".pytest.toml": "pytest",
    "pytest.ini": "pytest",
    ".pytest.ini": "pytest",
    "pyproject.toml": r"tool\.pytest(?:\.ini_options)?",
    "tox.ini": "pytest",
    "setup.cfg": "tool:pytest",
}
"""The files that pytest reads its settings from, in its order, and the section in each."""
TEST = """import pytest


@pytest.mark.perf_cases("factory")
def test_factory(case, perf):
    perf.measure(case)
"""


def adopt(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:OBJECT", help="A torch.nn.Module, a config, or a test."),
    ],
    *,
    batch_size: Annotated[int, typer.Option(min=1, help="Items a step.")] = 8,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An argument that has no default."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=SHAPE",
            help="An input without its batch: x=3,224,224; ids=128:30000 for whole numbers below "
            "30000; user=int64:1000 for one number a sample.",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Write over the case and the factory of an earlier try."),
    ] = False,
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the measuring tests, from here.")
    ] = PERF_TESTS,
) -> None:
    """Write a factory, a matrix row and a test for an object of yours, and measure it once."""
    name = re.sub(r"\W+", "_", target.partition(":")[2]).lower()
    paths = [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    given = {"arguments": dict(map(_argument, arg or [])), "inputs": dict(map(_input, shape or []))}
    request = json.dumps({"target": target, "name": f"{name}_step", **given})
    command = [sys.executable, "-m", "bench_lib.worker.adopting", request]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        error = done.stderr.strip() or f"importing it ended Python with status {done.returncode}"
        raise UserError(f"{target}: {error.splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    case_id = name.replace("_", "-").strip("-")
    row = ["[[smoke.factory]]", f'target = "{".".join(output.parts)}.adopted:{name}_step"']
    if not found["is_test"]:
        case_id += f"-b{batch_size}"
        row.append(f"params = {{ batch_size = {batch_size} }}")
    _write(output, case_id, [*row, f'id = "{case_id}"'], found["factory"], replace=replace)
    left = _configured(output)
    words = [str(output), "-k", case_id]
    if output != PERF_TESTS:
        words += ["--perf-matrix", str(output / "matrix.toml")]
    say(f"{case_id} is in {output / 'matrix.toml'}; PYTHONPATH=. pytest {' '.join(words)}")
    status = subprocess.call([sys.executable, "-m", "pytest", *words], env=environ)
    guessed = [*found["guessed"], "how much slower is too slow: limits.tolerance in the matrix"]
    for each in guessed:
        print(f"not known: {each}")
    for each in left:
        print(f"left to you: {each}")
    raise typer.Exit(status)


def _argument(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    with contextlib.suppress(ValueError, SyntaxError):
        return name, ast.literal_eval(value)
    return name, value


def _input(text: str) -> tuple[str, tuple[list[int], int | None]]:
    name, _, sizes = text.partition("=")
    shape, _, below = sizes.partition(":")
    try:
        own = [] if shape == "int64" and below else list(map(int, shape.split(",")))
        return name, (own, int(below) if below else None)
    except ValueError:
        why = (
            f"{text}; it has to be NAME=3,224,224, NAME=128:30000 for numbers below 30000, or "
            "NAME=int64:1000 for one number a sample"
        )
        raise typer.BadParameter(why, param_hint="--input") from None


def _write(folder: Path, case_id: str, row: list[str], factory: str, *, replace: bool) -> None:
    """Write what is missing, behind what there is.

    Raises UserError if the case, or another factory of that name, is there and not to be replaced.
    """
    if folder.is_absolute() or not all(part.isidentifier() for part in folder.parts):
        raise UserError(f"--output {folder}: it has to be a path from here that can be imported")
    # Two test files of one name would be one module to pytest.
    name = "factories" if folder == PERF_TESTS else "_".join(folder.parts)
    steps, matrix, test = folder / "adopted.py", folder / "matrix.toml", folder / f"test_{name}.py"
    rows, known = _text(matrix) or '[gate]\nextends = "smoke"\n', _text(steps)
    tables = re.split(r"^(?=\[)", rows, flags=re.MULTILINE)
    others = [table for table in tables if f'id = "{case_id}"' not in table.splitlines()]
    begin = re.escape(factory.partition("(")[0])
    rest = re.sub(rf"^{begin}\(.*\n(?:[ \t].*\n|\n)*", "", known, flags=re.MULTILINE)
    if len(others) < len(tables) and not replace:
        raise UserError(
            f"{matrix} has {case_id} already; --replace writes it anew, --batch-size N adds another"
        )
    if rest != known and factory not in known and not replace:
        raise UserError(
            f"{steps} has another {factory[4:].partition('(')[0]}; --replace takes its place"
        )
    if rest == known or replace:
        write(steps, f"{rest.rstrip()}\n\n\n{factory}".lstrip())
    write(matrix, "\n".join(["".join(others).rstrip(), "", *row, ""]).lstrip())
    if not test.exists():
        write(test, TEST)


def _configured(folder: Path) -> list[str]:
    """Have git ignore the history, and pytest measure only where it is asked to.

    Returns what is left to the user.
    """
    left = []
    try:
        ignored = _text(Path(".gitignore"))
        if IGNORED not in ignored.splitlines():
            write(Path(".gitignore"), f"{ignored.rstrip()}\n{IGNORED}\n".lstrip())
    except UserError as error:
        left.append(f"{error}; add {IGNORED} to it")
    try:
        _configure_pytest(folder.as_posix())
    except UserError as error:
        left.append(str(error))
    return left


def _configure_pytest(folder: str) -> None:
    """Add ``perf_paths`` to the settings that pytest reads.

    Raises UserError, which says what is left to the user.
    """
    usual = "pyproject.toml" if Path("pyproject.toml").exists() else "pytest.ini"
    name = next(filter(_is_read_by_pytest, PYTEST_FILES), usual)
    text, header = _text(Path(name)), _header(name)
    end = "\r\n" if "\r\n" in text else "\n"
    if header is not None:
        begin = header.end()
    elif text.strip() and _is_read_by_pytest(name):
        raise UserError(f"no section for pytest was found in {name}; add {folder} to perf_paths")
    else:
        section = "[tool.pytest.ini_options]" if name == "pyproject.toml" else "[pytest]"
        text = f"{text.rstrip()}{end}{end}{section}{end}".lstrip()
        begin = len(text)
    own = re.compile(
        r"^perf_paths[ \t]*[=:][ \t]*(\[[^]]*\]|.*(?:\n[ \t]+.*)*)", re.MULTILINE
    ).search(text, begin)
    if own is None:
        line = f'perf_paths = ["{folder}"]' if name.endswith(".toml") else f"perf_paths = {folder}"
        before = text[:begin] if text[:begin].endswith("\n") else text[:begin] + end
        write(Path(name), f"{before}{line}{end}{text[begin:]}")
    elif folder not in (Path(item).as_posix() for item in re.findall(r"[^][\s,\"']+", own[1])):
        raise UserError(f"{name} has {' '.join(own[0].split())}; add {folder} to it")


def _header(name: str) -> re.Match[str] | None:
    pattern = rf"^\[{PYTEST_FILES[name]}\][ \t]*(?:[#;].*)?\r?(?:\n|$)"
    return re.search(pattern, _text(Path(name)), re.MULTILINE)


def _is_read_by_pytest(name: str) -> bool:
    """Whether pytest takes its settings from a file, if it finds none in an earlier one."""
    if name == "pyproject.toml":
        try:
            return "pytest" in tomllib.loads(_text(Path(name))).get("tool", {})
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{name} cannot be read: {error}; add perf_paths to it") from error
    is_its_own = PYTEST_FILES[name] == "pytest" and name != "tox.ini"  # read even if it is empty
    return Path(name).exists() if is_its_own else _header(name) is not None


def _text(path: Path) -> str:
    """Return the text of a file, if there is one; raises UserError where it cannot be read."""
    try:
        return files.content(path, MOST_BYTES).decode() if path.exists() else ""
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read: it is not in UTF-8") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
