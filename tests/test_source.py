"""The source says of itself: errors in docstrings, the reason of every exception from a rule."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bench_lib"
SOURCE = sorted(
    path for name in ("bench_lib", "benchmarks", "docs") for path in (ROOT / name).rglob("*.py")
)
FOR_OTHERS = {"cli", "plugin"}
"""Docstrings of commands are help texts, and pytest's hooks end a session as pytest has it."""
SAID = re.compile(r"\b(?:[Rr]aises?|refuses?)\b")


# ---- errors are in docstrings -----------------------------------------------------------


def functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """Yield public functions, and public methods of public classes."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name.startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            yield from functions(node.body)
        elif isinstance(node, ast.FunctionDef):
            yield node


def raised(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the names of the errors that a function itself raises; not what it hands on."""
    ahead: list[ast.AST] = list(function.body)
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            continue
        ahead.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = ast.unparse(error).rpartition(".")[2]
            if name[0].isupper() and name not in {"NotImplementedError", "StopIteration"}:
                yield name


def unsaid(source: str) -> list[str]:
    """Name the functions that raise something of which their docstring says nothing."""
    return [
        f"{function.name} raises {name}"
        for function in functions(ast.parse(source).body)
        for name in raised(function)
        if name not in (said := ast.get_docstring(function) or "") and not SAID.search(said)
    ]


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in FOR_OTHERS
    ],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_docstrings_of_public_functions_say_what_they_raise(path):
    """By the error's name, or in words with raise or refuse."""
    assert unsaid(path.read_text()) == []


def test_an_error_that_is_not_said_is_found():
    """In methods too; what a function within raises is not its own."""
    source = '''
class Thing:
    """A thing."""

    def use(self):
        """Use it."""
        raise files.WornError("out")

    def _hidden(self):
        """Of no interest."""
        raise ValueError

def told():
    """Tell; raises OSError."""
    raise OSError

def made():
    """Make what fails later."""
    def inner():
        raise KeyError
    return inner
'''
    assert unsaid(source) == ["use raises WornError"]


# ---- every exception from a rule has its reason ------------------------------------------


EXCEPTION = re.compile(r"# (?:noqa: |type: ignore\[)([\w-]+(?:, [\w-]+)*)]?(.*)")


def unreasoned(path: Path) -> list[str]:
    """Name the comments that leave a rule without saying why, there or at an earlier one."""
    given: set[str] = set()
    found = []
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT and (seen := EXCEPTION.search(token.string)):
                codes = set(seen[1].split(", "))
                if seen[2].strip(" -#"):
                    given |= codes
                elif not codes <= given:
                    found.append(f"line {token.start[0]}: {token.string}")
    return found


def test_every_exception_from_a_rule_has_its_reason():
    """Said once for each rule and file; further ones are as the first."""
    found = {str(path.relative_to(ROOT)): unreasoned(path) for path in SOURCE}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_an_exception_without_a_reason_is_found(tmp_path):
    """For each rule of its own."""
    path = tmp_path / "module.py"
    path.write_text(
        "a = 1  # noqa: X100 - why\nb = 2  # noqa: X100\nc = 3  # noqa: X100, Y1\n"
        "d = 4  # type: ignore[misc]  # why\ne = 5  # type: ignore[attr-defined]\n"
    )
    assert unreasoned(path) == [
        "line 3: # noqa: X100, Y1",
        "line 5: # type: ignore[attr-defined]",
    ]
