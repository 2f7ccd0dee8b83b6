"""The source says of itself: errors, units and shapes, and the reason of every exception."""

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
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name.startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            yield from functions(node.body)
        elif isinstance(node, ast.FunctionDef):
            yield node


def raised(function: ast.FunctionDef) -> Iterator[str]:
    ahead: list[ast.AST] = list(function.body)
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            continue
        ahead.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = ast.unparse(error).rpartition(".")[2]
            if name[0].isupper() and name != "StopIteration":
                yield name


def unsaid(source: str) -> list[str]:
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
    assert unsaid(path.read_text()) == []


def test_an_error_that_is_not_said_is_found():
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


def test_what_a_class_leaves_to_others_is_abstract_or_a_protocol():
    late = [p for p in PACKAGE.rglob("*.py") if "raise NotImplementedError" in p.read_text()]
    assert late == []


# ---- units and shapes are in names or docstrings -----------------------------------------


MEASURED = (
    *("s", "ms", "us", "ns", "bytes", "gb", "gib", "mhz", "ghz", "w", "c", "flops", "tflops"),
    *("seconds", "per", "pixels"),
)
"""Words of names that are units, those of docs/json.md and some more."""
PLAIN = (
    *("ratio", "share", "shares", "spread", "fraction", "percent", "percentage", "efficiency"),
    *("utilization", "tolerance", "tolerances", "speed_up", "speed_ups", "log", "logs", "p"),
    *("loss", "losses", "norm", "accuracy", "cosine", "n", "calls", "cpus", "degrees"),
)
"""Words of names whose values have no unit: fractions, logarithms, chances, counts."""
IN_NAME = re.compile(rf"(?:^|_)(?:{'|'.join(MEASURED + PLAIN)})(?:_|$)")
IN_WORDS = re.compile(
    r"\b(?:(?:micro|nano)?seconds|(?:a|per) second|bytes?|bits|MHz|FLOPs|pixels|elements|"
    r"units?|ratios?|shares?|fractions?|percent(?:ages)?|0 to 1|coefficient of variation|spreads|"
    r"standard deviations|ln|logarithms?|log (?:medians|times)|probability|cosine|2-norm|loss|"
    r"p-values?|how many)\b|%",
    re.IGNORECASE,
)
SHAPE = re.compile(r"\((?:\w+,|[\w.]+(?:, [\w.]+)+)\)|\b(?:scalars?|any shape|flattened)\b")
QUANTITIES = {"capacity", "clock", "limit", "memory", "power", "size", "sizes", "span", "time"}
"""Last words of names whose whole numbers count no things."""
COUNTS = {"batch_size", "image_size", "world_size"}


def values(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield name, annotation and docstring of all that is public: fields, arguments, answers."""
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from values(node.body, ast.get_docstring(node) or ".")
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            said = ast.get_docstring(node) or ""
            arguments = [each for each in ast.walk(node.args) if isinstance(each, ast.arg)]
            for name, annotation in [
                *((each.arg, each.annotation) for each in arguments),
                (node.name, node.returns),
            ]:
                if annotation is not None:
                    yield name, ast.unparse(annotation), said
        elif isinstance(node, ast.AnnAssign) and owner:
            said = ast.unparse(following) if isinstance(following, ast.Expr) else ""
            name = ast.unparse(node.target)
            if not name.startswith("_"):
                yield name, ast.unparse(node.annotation), f"{said} {owner}"


def untold(body: list[ast.stmt]) -> list[str]:
    found = []
    for name, annotation, docstring in values(body):
        said = f"{docstring} {annotation}"
        plain = re.sub(r"Callable\[.*\]", "", annotation)
        if re.search(r"\b(?:NDArray|Tensor)\b", plain):
            found += [] if SHAPE.search(said) else [f"{name}: no shape"]
        elif re.search(r"\bfloat\b", plain) or (plain.startswith("int") and is_quantity(name)):
            is_told = IN_NAME.search(name) or IN_WORDS.search(said)
            found += [] if is_told else [f"{name}: no unit"]
    return found


def is_quantity(name: str) -> bool:
    return name.rpartition("_")[2] in QUANTITIES and name not in COUNTS


def test_units_and_shapes_are_said():
    modules = {path: ast.parse(path.read_text()).body for path in sorted(PACKAGE.rglob("*.py"))}
    found = {str(path.relative_to(ROOT)): untold(body) for path, body in modules.items()}
    assert {name: values for name, values in found.items() if values} == {}


def test_a_unit_or_a_shape_that_is_not_said_is_found():
    source = '''
class Thing:
    """A thing."""

    width: float
    memory: int
    batch_size: int
    height: float
    """In pixels."""

def timed(step: Callable[[float], None], wait_s: float, *pauses: float) -> None:
    """Time something."""

def commanded(limit: Annotated[float, Option(help="Seconds for a case.")]) -> float | None:
    """Do as told."""

def paired(left: Tensor, right: Tensor) -> None:
    """Pair what is there (or not)."""

def shaped(left: torch.Tensor) -> Tensor:
    """Pair (n, width) with (n,); returns as many."""

def _hidden(left: float) -> float:
    """Of no interest."""
'''
    assert untold(ast.parse(source).body) == [
        "width: no unit",
        "memory: no unit",
        "pauses: no unit",
        "commanded: no unit",
        "left: no shape",
        "right: no shape",
    ]


# ---- every exception from a rule has its reason ------------------------------------------


EXCEPTION = re.compile(r"# (?:noqa: |type: ignore\[)([\w-]+(?:, [\w-]+)*)]?(.*)")


def unreasoned(path: Path) -> list[str]:
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
    found = {str(path.relative_to(ROOT)): unreasoned(path) for path in SOURCE}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_an_exception_without_a_reason_is_found(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "a = 1  # noqa: X100 - why\nb = 2  # noqa: X100\nc = 3  # noqa: X100, Y1\n"
        "d = 4  # type: ignore[misc]  # why\ne = 5  # type: ignore[attr-defined]\n"
    )
    assert unreasoned(path) == [
        "line 3: # noqa: X100, Y1",
        "line 5: # type: ignore[attr-defined]",
    ]


# ---- nothing is left over ---------------------------------------------------------------

CALLED_BY_OTHERS = {
    "format_help": "typer prints the help with it",
    "redirect_request": "urllib asks what to do with a redirection",
    "toterminal": "pytest prints a failure with it",
}
"""Methods that nobody here calls, and who does."""
REGISTERED = re.compile(r"^@(?:app|pytest)\b")


def defined(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if not any(REGISTERED.match(f"@{ast.unparse(each)}") for each in node.decorator_list):
                yield node.name
            if isinstance(node, ast.ClassDef):
                yield from (each.name for each in node.body if isinstance(each, ast.FunctionDef))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def named(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.rpartition(":")[2]


def left_over(sources: list[str], others: list[str]) -> list[str]:
    """Name what is defined in ``sources`` and used neither there nor in ``others``."""
    trees = [ast.parse(source) for source in sources]
    used = {name for tree in [*trees, *map(ast.parse, others)] for name in named(tree)}
    names = {name for tree in trees for name in defined(tree.body)}
    return sorted(name for name in names - used if not name.startswith(("__", "pytest_")))


def test_no_function_class_or_constant_is_left_over():
    around = [ROOT / "conftest.py"]
    for folder in ("benchmarks", "docs", "perf_tests"):
        around += (ROOT / folder).rglob("*.py")
    ours, others = (
        [path.read_text() for path in paths] for paths in (PACKAGE.rglob("*.py"), around)
    )
    assert [name for name in left_over(ours, others) if name not in CALLED_BY_OTHERS] == []


def test_what_is_left_over_is_found():
    sources = [
        "LEFT, TAKEN = 1, 2\ndef read(): ...\ndef made(): ...\n",
        "class Kept:\n    def call(self): return TAKEN\n    def idle(self): ...\n",
        "@app.command()\ndef told(): return read(), Kept().call, 'package.one:made'\n",
    ]
    assert left_over(sources, []) == ["LEFT", "idle"]
    assert left_over(sources, ["p.LEFT, x.idle"]) == []


def test_no_public_class_has_the_name_of_another():
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / "bench_lib").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice == {}
