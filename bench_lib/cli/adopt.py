"""``bench-lib adopt``: somebody's network, config or test becomes a case of their repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bench_lib.cli.output import DEFAULT_HISTORY, say
from bench_lib.model import UserError

FOLDER = Path("perf_tests")
"""The folder that pytest's plugin and ``baseline record`` search by default."""
STEPS, MATRIX, TEST = "adopted.py", "matrix.toml", "test_factories.py"
TIER = "smoke"
"""The tier for a machine without a GPU; in a new matrix the gate's tier has the same cases."""
NEW_MATRIX = f'[gate]\nextends = "{TIER}"\n'
LIMIT_S = 600.0
HEADER = '"""Steps that bench-lib measures, written by ``bench-lib adopt``; yours to change."""\n'
TEST_TEXT = '''"""Steps of this repository: ``[[<tier>.factory]]`` in the matrix."""

import pytest


@pytest.mark.perf_cases("factory")
def test_factory(case, perf):
    """Time of a step, against its baseline."""
    perf.measure(case)
'''


@dataclass(frozen=True)
class Adoption:
    """The files to write for an object."""

    target: str
    name: str
    """Name of the factory."""
    case_id: str
    batch: int | None
    """None for a test, whose batch is its own affair."""
    found: Mapping[str, Any]
    """The worker's answer on it."""

    @property
    def factory(self) -> str:
        """The factory's text."""
        module, _, name = self.target.partition(":")
        top, _, _ = name.partition(".")
        given = ", ".join(f"{key}={value!r}" for key, value in self.found["arguments"].items())
        if self.batch is None:
            body = [
                "from bench_lib.worker.adopting import benchmarked",
                f"from {module} import {top}",
                "",
                f"return benchmarked({name}{given and ', '}{given})",
            ]
            return self._function("setting", f"The step of {name}.", body)
        made = f"{name}({given})"
        imports = ["import torch", "from bench_lib import Workload", f"from {module} import {top}"]
        if self.found["kind"] == "config":
            imports.append("from bench_lib.worker.adopting import model_of")
            made = f"model_of({name}{given and ', dict('}{given}{given and ')'})"
        inputs = self.found["inputs"]
        by_name = self.found["kind"] == "config"
        call = ", ".join(
            f"{each['name']}={each['name']}" if by_name else each["name"] for each in inputs
        )
        body = [
            *imports,
            "",
            "torch.manual_seed(0)",
            f"network = {made}.to(setting.device).eval()",
            *(_drawn(each) for each in inputs),
            "",
            "@torch.inference_mode()",
            "def step():",
            f"    return network({call})",
            "",
            'return Workload(step, items_per_step=batch_size, item="sample")',
        ]
        return self._function("setting, batch_size", f"A forward pass of {name}.", body)

    def _function(self, parameters: str, about: str, body: Sequence[str]) -> str:
        lines = [f"def {self.name}({parameters}):", f'    """{about}"""']
        lines += [f"    {line}" if line else "" for line in body]
        return "\n".join(lines) + "\n"

    def row(self, folder: Path) -> str:
        """Return the matrix's row, which the worker finds from this folder."""
        module = ".".join([*folder.parts, STEPS.removesuffix(".py")])
        lines = [
            f"[[{TIER}.factory]]",
            f'id = "{self.case_id}"',
            f'target = "{module}:{self.name}"',
        ]
        if self.batch is not None:
            lines.append(f"params = {{ batch_size = {self.batch} }}")
        return "\n".join(lines) + "\n"


def _drawn(each: Mapping[str, Any]) -> str:
    sizes = ", ".join(["batch_size", *map(str, each["shape"])])
    if each["below"] is None:
        return f"{each['name']} = torch.randn({sizes}, device=setting.device)"
    return f"{each['name']} = torch.randint(0, {each['below']}, ({sizes}), device=setting.device)"


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
    ] = FOLDER,
) -> None:
    """Write a factory, a matrix row and a test for an object of yours, and measure it once."""
    found = _asked(target, arg or [], shape or [])
    name = re.sub(r"\W+", "_", target.partition(":")[2]).lower()
    is_test = found["kind"] == "test"
    words = name.replace("_", "-").strip("-")
    case_id = words if is_test else f"{words}-b{batch_size}"
    adoption = Adoption(target, f"{name}_step", case_id, None if is_test else batch_size, found)
    written = _write(adoption, output)
    say(f"{target} is a {found['kind']}; wrote {', '.join(map(str, written))}")
    status = _measured(adoption, output)
    for line in [*_doubts(adoption), *_not_known(adoption)]:
        print(line)
    raise typer.Exit(status)


def _asked(target: str, arguments: Sequence[str], inputs: Sequence[str]) -> dict[str, Any]:
    """Have a worker import an object and draw its inputs; raises UserError."""
    words = [sys.executable, "-m", "bench_lib.worker.adopting", target]
    words += [word for each in arguments for word in ("--arg", each)]
    words += [word for each in inputs for word in ("--input", each)]
    try:
        done = subprocess.run(
            words, env=_environ(), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        why = f"{target} was not tried within {LIMIT_S:g} s; --input a smaller one"
        raise UserError(why) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it ended without a word"]
        raise UserError(f"{target}: {lines[-1]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _environ() -> dict[str, str]:
    """Return an environment in which this folder's modules can be imported."""
    paths = [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _write(adoption: Adoption, folder: Path) -> list[Path]:
    """Write missing parts, behind the existing ones; raises UserError if it is there already."""
    if folder.is_absolute() or not all(part.isidentifier() for part in folder.parts):
        raise UserError(f"--output {folder}: it has to be a path from here that can be imported")
    steps, matrix, test = (folder / name for name in (STEPS, MATRIX, TEST))
    rows = matrix.read_text() if matrix.exists() else NEW_MATRIX
    if re.search(rf'^id = "{re.escape(adoption.case_id)}"$', rows, re.MULTILINE):
        raise UserError(
            f"{matrix} has {adoption.case_id} already; change it there, or --batch-size N"
        )
    folder.mkdir(parents=True, exist_ok=True)
    before = steps.read_text() if steps.exists() else HEADER
    if f"def {adoption.name}(" not in before:
        steps.write_text(f"{before.rstrip()}\n\n\n{adoption.factory}")
    matrix.write_text(f"{rows.rstrip()}\n\n{adoption.row(folder)}".lstrip())
    if not test.exists():
        test.write_text(TEST_TEXT)
    return [steps, matrix, test]


def _measured(adoption: Adoption, folder: Path) -> int:
    """Run the test once, in front; returns its exit status."""
    words = [str(folder / TEST), "-k", adoption.case_id, "--perf-matrix", str(folder / MATRIX)]
    words += ["--perf-tier", TIER]
    say(f"PYTHONPATH=. pytest {' '.join(words)}")
    return subprocess.call([sys.executable, "-m", "pytest", *words], env=_environ())


def _doubts(adoption: Adoption) -> list[str]:
    """Say what the first ``baseline accept`` would refuse, and what to do before it."""
    from bench_lib.storage import acceptance
    from bench_lib.storage.runs import Runs

    record = Runs(DEFAULT_HISTORY).record(adoption.case_id)
    why = None if record is None else acceptance.unsteady(record)
    if why is None:
        return []
    longer = "" if adoption.batch is None else f", --batch-size {8 * adoption.batch}"
    remedy = f"measure on a quiet machine{longer}, or accept it with --force and say why"
    return [f"baseline accept would refuse it: {why}; {remedy}"]


def _not_known(adoption: Adoption) -> list[str]:
    known = list(adoption.found["unknown"])
    if adoption.batch is not None:
        known += ["real weights and data: both are random", "training: the step is a forward pass"]
    known.append("how much slower is too slow: limits.tolerance in the matrix")
    return [f"not known: {words}" for words in known]
