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

from bench_lib import files
from bench_lib.cli.output import say, write
from bench_lib.model import UserError

MOST_BYTES = 2**20
"""A matrix or a file of factories is no larger."""
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
            help="An input without its batch: x=3,224,224, or ids=128:30000 for whole numbers.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the measuring tests, from here.")
    ] = Path("perf_tests"),
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
        raise UserError(f"{target}: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    case_id = name.replace("_", "-").strip("-")
    row = ["[[smoke.factory]]", f'target = "{".".join(output.parts)}.adopted:{name}_step"']
    if not found["is_test"]:
        case_id += f"-b{batch_size}"
        row.append(f"params = {{ batch_size = {batch_size} }}")
    matrix, test = _write(output, case_id, [*row, f'id = "{case_id}"'], found["factory"])
    words = [str(test), "-k", case_id, "--perf-matrix", str(matrix), "--perf-tier", "smoke"]
    say(f"{case_id} is in {matrix}; PYTHONPATH=. pytest {' '.join(words)}")
    status = subprocess.call([sys.executable, "-m", "pytest", *words], env=environ)
    guessed = [*found["guessed"], "how much slower is too slow: limits.tolerance in the matrix"]
    for each in guessed:
        print(f"not known: {each}")
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
        return name, (list(map(int, shape.split(","))), int(below) if below else None)
    except ValueError:
        why = f"{text}; it has to be NAME=3,224,224, or NAME=128:30000 for numbers below 30000"
        raise typer.BadParameter(why, param_hint="--input") from None


def _write(folder: Path, case_id: str, row: list[str], factory: str) -> tuple[Path, Path]:
    """Write what is missing, behind what there is; raises UserError if the case is there."""
    if folder.is_absolute() or not all(part.isidentifier() for part in folder.parts):
        raise UserError(f"--output {folder}: it has to be a path from here that can be imported")
    steps, matrix, test = (
        folder / "adopted.py",
        folder / "matrix.toml",
        folder / "test_factories.py",
    )
    rows = _text(matrix) or '[gate]\nextends = "smoke"\n'
    if re.search(rf'^id = "{re.escape(case_id)}"$', rows, re.MULTILINE):
        raise UserError(f"{matrix} has {case_id} already; change it there, or --batch-size N")
    before = _text(steps)
    if factory.partition("(")[0] + "(" not in before:
        write(steps, f"{before.rstrip()}\n\n\n{factory}".lstrip())
    write(matrix, "\n".join([rows.rstrip(), "", *row, ""]).lstrip())
    if not test.exists():
        write(test, TEST)
    return matrix, test


def _text(path: Path) -> str:
    return files.content(path, MOST_BYTES).decode() if path.exists() else ""
