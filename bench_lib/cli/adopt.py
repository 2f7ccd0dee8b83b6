"""``bench-lib adopt``: turns a network or a config of the user's into a case."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from bench_lib import files
from bench_lib.cli.output import say, write
from bench_lib.model import UserError

MOST_BYTES = 2**20
"""Size limit of a matrix and of a file of factories."""
PERF_TESTS = Path("perf_tests")
IGNORED = "/history/"
"""The line of .gitignore that keeps runs out of git."""
TEST = """import pytest


@pytest.mark.perf_cases("factory")
def test_factory(case, perf):
    perf.measure(case)
"""


def adopt(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:OBJECT", help="A torch.nn.Module or a transformers config."),
    ],
    *,
    batch_size: Annotated[int, typer.Option(min=1, help="Items per step.")] = 8,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Argument of the class; may be repeated."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=SHAPE",
            help="Shape of an input without its batch dimension; may be repeated: x=3,224,224; "
            "ids=128:30000 for integers below 30000; user=int64:1000 for one integer per sample.",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace the case and the factory of an earlier attempt."),
    ] = False,
) -> None:
    """Write a factory, a matrix row and a test for your own model, and measure it once.

    They go into perf_tests, which a bare pytest skips.
    """
    name = re.sub(r"\W+", "_", target.partition(":")[2]).lower()
    paths = [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    given = {"arguments": dict(map(_argument, arg or [])), "inputs": dict(map(_input, shape or []))}
    request = json.dumps({"target": target, "name": f"{name}_step", **given})
    command = [sys.executable, "-m", "bench_lib.worker.adopting", request]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        error = done.stderr.strip() or f"importing it made Python exit with {done.returncode}"
        _, head, frames = error.partition("Traceback (most recent call last):\n")
        raise UserError(f"{target}: {head + frames if head else error.splitlines()[-1]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    case_id = f"{name.replace('_', '-').strip('-')}-b{batch_size}"
    row = [
        "[[smoke.factory]]",
        f'target = "perf_tests.adopted:{name}_step"',
        f"params = {{ batch_size = {batch_size} }}",
        f'id = "{case_id}"',
    ]
    _write(case_id, row, answer["factory"], replace=replace)
    reminder = _ignore_runs()
    arguments = [str(PERF_TESTS), "-k", case_id]
    say(f"{case_id} is in {PERF_TESTS / 'matrix.toml'}; PYTHONPATH=. pytest {' '.join(arguments)}")
    command = [sys.executable, "-m", "pytest", *arguments, "--perf-tier", "smoke"]
    status = subprocess.call(command, env=environ)
    guesses = [*answer["guessed"], "how much slower is too slow (limits.tolerance in the matrix)"]
    for guess in guesses:
        print(f"not known: {guess}")
    if reminder:
        print(f"left to you: {reminder}")
    if status not in (0, 1, 2):
        raise UserError(
            f"pytest ended with status {status}; if --perf-tier is unknown to it, it did not load "
            "bench-lib's plugin: install bench-lib beside it, and unset "
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD; if it ran no test, have its python_files match "
            "test_factories.py"
        )
    raise typer.Exit(status)


def _argument(text: str) -> tuple[str, str]:
    name, is_given, value = text.partition("=")
    if not (is_given and name.isidentifier()):
        raise typer.BadParameter(f"{text!r}; it must be NAME=VALUE", param_hint="--arg")
    return name, value


def _input(text: str) -> tuple[str, tuple[list[int], int | None]]:
    name, _, sizes = text.partition("=")
    shape, _, below = sizes.partition(":")
    try:
        dims = [] if shape == "int64" and below else list(map(int, shape.split(",")))
        return name, (dims, int(below) if below else None)
    except ValueError:
        message = (
            f"{text}; it must be NAME=3,224,224, NAME=128:30000 for integers below 30000, or "
            "NAME=int64:1000 for one integer per sample"
        )
        raise typer.BadParameter(message, param_hint="--input") from None


def _write(case_id: str, row: list[str], factory: str, *, replace: bool) -> None:
    """Append the case, its factory and the test where they are missing.

    Raises UserError if the case, or another factory of that name, exists and is not replaced.
    """
    steps, matrix = PERF_TESTS / "adopted.py", PERF_TESTS / "matrix.toml"
    test = PERF_TESTS / "test_factories.py"
    rows, source = _text(matrix) or '[gate]\nextends = "smoke"\n', _text(steps)
    tables = re.split(r"^(?=\[)", rows, flags=re.MULTILINE)
    kept = [table for table in tables if f'id = "{case_id}"' not in table.splitlines()]
    begin = re.escape(factory.partition("(")[0])
    rest = re.sub(rf"^{begin}\(.*\n(?:[ \t].*\n|\n)*", "", source, flags=re.MULTILINE)
    if len(kept) < len(tables) and not replace:
        raise UserError(
            f"{matrix} already has {case_id}; --replace overwrites it, --batch-size N adds another"
        )
    if rest != source and factory not in source and not replace:
        raise UserError(
            f"{steps} already has another {factory[4:].partition('(')[0]}; --replace overwrites it"
        )
    if rest == source or replace:
        write(steps, f"{rest.rstrip()}\n\n\n{factory}".lstrip())
    write(matrix, "\n".join(["".join(kept).rstrip(), "", *row, ""]).lstrip())
    if not test.exists():
        write(test, TEST)


def _ignore_runs() -> str:
    """Have git ignore the history; return what is left for the user to do, or nothing."""
    try:
        ignored = _text(Path(".gitignore"))
        if IGNORED not in ignored.splitlines():
            write(Path(".gitignore"), f"{ignored.rstrip()}\n{IGNORED}\n".lstrip())
    except UserError as error:
        return f"{error}; add {IGNORED} to it"
    return ""


def _text(path: Path) -> str:
    """Return a file's text, empty if there is none; raises UserError if it cannot be read."""
    try:
        return files.content(path, MOST_BYTES).decode() if path.exists() else ""
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read: it is not UTF-8") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
