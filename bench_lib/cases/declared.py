"""Workloads whose tables are their functions' signatures.

A module of ``bench_lib/worker/workloads/`` that has a function of its own name is a workload,
and the function's parameters are the keys of a table of that name::

    def scan(setting: Setting, *, rows: int, precision: Literal["fp32", "bf16"] = "fp32")

They are read and not imported, because importing them takes torch.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from bench_lib.cases.axes import (
    LAUNCH,
    Axis,
    MatrixError,
    WorkloadAxes,
    one_of,
    positive,
    quiet,
    truth,
)
from bench_lib.model import ID_RULE, is_case_id

FOLDER = Path(__file__).parents[1] / "worker" / "workloads"
TYPES = 'int, float, bool, str or Literal["one", "another"]'
SETTINGS = ("sampling", "limits", "time_limit_s")
"""Keys of any table besides its axes."""
TAKEN = {*SETTINGS, "exclude", *(axis.name for axis in LAUNCH)}
_SHORT = {"batch_size": "b"}
"""Short forms of parameters' names in an id, if all workloads have the same word for it."""


def declared_axes(but: Collection[str] = (), folder: Path = FOLDER) -> dict[str, WorkloadAxes]:
    """Return the axes of each workload that a signature declares, by the module's name.

    A function with ``**params`` declares none of them and has no table; those named in ``but`` are
    passed over.  Raises MatrixError.
    """
    found = {}
    for path in sorted(folder.glob("[!.]*.py")):  # an editor's lock is a link to nowhere
        function = None if path.stem in but else _function(path)
        if function is not None and function.args.kwarg is None:
            axes = tuple(_axes(path, function))
            found[path.stem] = WorkloadAxes(path.stem, axes, begins=path.stem)
    return found


def _function(path: Path) -> ast.FunctionDef | None:
    """Return the function that has the module's name, or None."""
    source = path.read_bytes()
    if not re.search(rf"^def {re.escape(path.stem)}\b".encode(), source, re.MULTILINE):
        return None
    try:
        body = ast.parse(source, str(path)).body
    except SyntaxError as error:
        raise MatrixError(f"{path}:{error.lineno}: {error.msg}") from error
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    # The last, which is the one that Python keeps.
    return next((node for node in reversed(functions) if node.name == path.stem), None)


def _axes(path: Path, function: ast.FunctionDef) -> Iterator[Axis]:
    arguments, where = function.args, f"{path}:{function.lineno}: {function.name}"
    if not [*arguments.posonlyargs, *arguments.args]:
        raise MatrixError(f"{where}: its first parameter has to be the setting, by position")
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    lacking = len(named) - len(arguments.kwonlyargs) - len(arguments.defaults)
    defaults = [*([None] * lacking), *arguments.defaults, *arguments.kw_defaults]
    for argument, default in list(zip(named, defaults, strict=True))[1:]:
        where = f"{path}:{argument.lineno}: {function.name}, {argument.arg}"
        if argument in arguments.posonlyargs:
            raise MatrixError(f"{where}: it is given by name; move it behind the /")
        if argument.arg in TAKEN:
            raise MatrixError(f"{where}: every table has that word; give it another name")
        yield _axis(where, argument, default)


def _axis(where: str, argument: ast.arg, default: ast.expr | None) -> Axis:
    name, usual = argument.arg, None if default is None else _constant(default)
    check = _check(name, argument.annotation, usual)
    if check is None:
        told = f"the type {ast.unparse(argument.annotation)}" if argument.annotation else "no type"
        raise MatrixError(f"{where}: it has {told}; a table can give {TYPES}")
    if default is not None and (problem := check(usual)):
        raise MatrixError(f"{where}: its default is {ast.unparse(default)}; {problem}")
    return quiet(name, check, usual, _in_id(name), told=usual is None)


def _check(
    name: str, annotation: ast.expr | None, usual: Any
) -> Callable[[Any], str | None] | None:
    """Return what tells whether a value has the type; None for a type that no table can give."""
    match annotation:
        case ast.Name("int"):
            return positive(name, 0 if usual == 0 else 1)
        case ast.Name("float"):
            return _number(name)
        case ast.Name("bool"):
            return truth(name)
        case ast.Name("str"):
            return _text(name)
        case ast.Subscript(ast.Name("Literal"), words):
            choices = words.elts if isinstance(words, ast.Tuple) else [words]
            allowed = [_constant(choice) for choice in choices]
            if all(isinstance(word, str) for word in allowed):
                return one_of(name, allowed)
    return None


def _constant(node: ast.expr) -> Any:
    """Return a literal value; None if it is none."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return None


def _number(kind: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if isinstance(value, (int, float)) and type(value) is not bool and math.isfinite(value):
            return None
        return f"{kind} is {value!r}; it has to be a finite number"

    return check


def _text(kind: str) -> Callable[[Any], str | None]:
    """Return a check that a value is text that an id can hold."""

    def check(value: Any) -> str | None:
        return None if is_case_id(value) else f"{kind} is {value!r}; it has to be {ID_RULE}"

    return check


def _in_id(name: str) -> Callable[[Any], str]:
    """Return how a value shows in an id: a text without its name."""

    def part(value: Any) -> str:
        if isinstance(value, bool):
            return name if value else f"no-{name}"
        return value if isinstance(value, str) else f"{_SHORT.get(name, name)}{value}"

    return part
