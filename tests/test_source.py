"""The source says of itself: errors, units and shapes, and the reason of every exception."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

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
ARRAYS = {"NDArray", "Tensor"}
SHAPE = re.compile(r"\((?:\w+,|[\w.]+(?:, [\w.]+)+)\)|\b(?:scalars?|any shape|flattened)\b")
QUANTITIES = {"capacity", "clock", "limit", "memory", "power", "size", "sizes", "span", "time"}
"""Last words of names whose whole numbers count no things."""
COUNTS = {"batch_size", "image_size", "world_size"}


class Value(NamedTuple):
    where: str
    name: str
    annotation: ast.expr | None
    said: str
    """Docstrings that it may be told in."""


def values(body: list[ast.stmt], owner: ast.ClassDef | None = None) -> Iterator[Value]:
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for value in values(node.body, node):
                yield value._replace(where=f"{node.name}.{value.where}")
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            said = ast.get_docstring(node) or ""
            for each in (n for n in ast.walk(node.args) if isinstance(n, ast.arg)):
                yield Value(f"{node.name}({each.arg})", each.arg, each.annotation, said)
            yield Value(f"{node.name}()", node.name, node.returns, said)
        elif isinstance(node, ast.AnnAssign) and owner and isinstance(node.target, ast.Name):
            own = following.value if isinstance(following, ast.Expr) else None
            said = f"{texts(own)} {ast.get_docstring(owner) or ''}"
            if not node.target.id.startswith("_"):
                yield Value(node.target.id, node.target.id, node.annotation, said)


def texts(node: ast.AST | None) -> str:
    found = ast.walk(node) if node is not None else ()
    constants = (each.value for each in found if isinstance(each, ast.Constant))
    return " ".join(each for each in constants if isinstance(each, str))


def types_in(node: ast.AST | None, aliases: Mapping[str, ast.expr]) -> Iterator[str]:
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        yield name
        yield from types_in(aliases.get(name), {})
    elif isinstance(node, ast.Subscript):
        outer = set(types_in(node.value, {}))
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        kept = 0 if "Callable" in outer else 1 if "Annotated" in outer else len(inner)
        yield from outer
        for each in inner[:kept]:
            yield from types_in(each, aliases)
    elif node is not None:
        for child in ast.iter_child_nodes(node):
            yield from types_in(child, aliases)


def aliases_in(body: list[ast.stmt]) -> dict[str, ast.expr]:
    return {
        node.targets[0].id: node.value
        for node in body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Subscript)
    }


def untold(body: list[ast.stmt], aliases: Mapping[str, ast.expr]) -> list[str]:
    found = []
    for value in values(body):
        types = set(types_in(value.annotation, aliases))
        helps = (texts(node) for node in (value.annotation, *map(aliases.get, types)))
        said = " ".join([value.said, *helps])
        if types & ARRAYS:
            found += [] if SHAPE.search(said) else [f"{value.where}: no shape"]
        elif "float" in types or ("int" in types and is_quantity(value.name)):
            is_told = IN_NAME.search(value.name) or IN_WORDS.search(said)
            found += [] if is_told else [f"{value.where}: no unit"]
    return found


def is_quantity(name: str) -> bool:
    return name.rpartition("_")[2] in QUANTITIES and name not in COUNTS


def test_units_and_shapes_are_said():
    modules = {path: ast.parse(path.read_text()).body for path in sorted(PACKAGE.rglob("*.py"))}
    aliases = {name: what for body in modules.values() for name, what in aliases_in(body).items()}
    found = {str(path.relative_to(ROOT)): untold(body, aliases) for path, body in modules.items()}
    assert {name: values for name, values in found.items() if values} == {}


def test_a_unit_or_a_shape_that_is_not_said_is_found():
    source = '''
Pairs = list[tuple[Tensor, Tensor]]
Limit = Annotated[float, Option("--limit", help="Seconds for a case.")]
Wait = Annotated[float, Option("--wait", help="For others.")]

class Thing:
    """A thing."""

    width: float
    weight_bytes: int
    height: float
    """In pixels."""
    name: str
    _hidden: float

    @property
    def depth(self) -> float | None:
        """How deep."""

def timed(step: Callable[[float], None], wait_s: float, *pauses: float) -> None:
    """Time something."""

def commanded(limit: Limit, wait: Wait, batch_size: int, memory: int) -> float:
    """Do as told."""

def paired(left: torch.Tensor, ranks: int) -> Pairs:
    """Pair what is there (or not)."""

def shaped(left: torch.Tensor) -> Pairs:
    """Pair (n, width) with (n,); returns as many."""

def _hidden(left: float) -> float:
    """Of no interest."""
'''
    body = ast.parse(source).body
    assert untold(body, aliases_in(body)) == [
        "Thing.width: no unit",
        "Thing.depth(): no unit",
        "timed(pauses): no unit",
        "commanded(wait): no unit",
        "commanded(memory): no unit",
        "commanded(): no unit",
        "paired(left): no shape",
        "paired(): no shape",
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
    "pedantic": "a test of pytest-benchmark's calls it",
    "pytest_collectreport": "pytest tells of a collected file with it",
    "redirect_request": "urllib asks what to do with a redirection",
    "toterminal": "pytest prints a failure with it",
}
"""Methods that nobody here calls, and who does."""
REGISTERING = {"app", "pytest"}
"""What is decorated with one of their methods is called by typer or by pytest."""


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return dotted(node.func)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def names_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        by = {dotted(each).partition(".")[0] for each in node.decorator_list}
        if not by & REGISTERING:
            yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = (name for target in targets for name in ast.walk(target))
        yield from (name.id for name in names if isinstance(name, ast.Name))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def uses(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of all that a module uses.

    The module is empty where only a text or an attribute of something tells.
    """
    known: dict[str, str] = {}
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                known[each.asname or each.name] = f"{node.module}.{each.name}"
                yield node.module, each.name
        elif isinstance(node, ast.Import):
            known.update({each.asname: each.name for each in node.names if each.asname})
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield module, node.id
        elif isinstance(node, ast.Attribute):
            first, dot, rest = dotted(node.value).partition(".")
            yield known.get(first, first) + dot + rest, node.attr
            yield "", node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield "text", node.value.rpartition(":")[2]


def left_over(sources: Mapping[str, str], others: Mapping[str, str] | None = None) -> list[str]:
    """Name what no module of ``sources`` uses, nor of ``others``; both are texts by module.

    What has the name of its module is found by that, and pytest finds its hooks.
    """
    trees = {module: ast.parse(text) for module, text in sources.items()}
    more = {module: ast.parse(text) for module, text in (others or {}).items()}
    used = {use for module, tree in {**trees, **more}.items() for use in uses(tree, module)}
    found = []
    for module, tree in trees.items():
        for node in tree.body:
            found += [
                f"{module}.{name}"
                for name in names_of(node)
                if name != module.rpartition(".")[2]
                and not name.startswith(("__", "pytest_"))
                and not used & {(module, name), ("text", name)}
            ]
            methods = node.body if isinstance(node, ast.ClassDef) else []
            found += [
                f"{module}.{node.name}.{method.name}"
                for method in methods
                if isinstance(method, ast.FunctionDef)
                and not method.name.startswith("__")
                and not used & {("", method.name), ("text", method.name)}
            ]
    return found


def test_no_function_class_or_constant_is_left_over():
    ours = {module_of(path): path.read_text() for path in PACKAGE.rglob("*.py")}
    around = [ROOT / "conftest.py"]
    for folder in ("benchmarks", "docs", "perf_tests"):
        around += (ROOT / folder).rglob("*.py")
    found = left_over(ours, {module_of(path): path.read_text() for path in around})
    assert [name for name in found if name.rpartition(".")[2] not in CALLED_BY_OTHERS] == []


def test_what_is_left_over_is_found():
    sources = {
        "package.one": "LEFT, TAKEN = 1, 2\ndef read(): ...\ndef one(): ...\ndef made(): ...\n",
        "package.two": "from package import one as first\nimport os\ndef read(): return os.sep\n"
        "class Kept:\n    def call(self): return first.TAKEN\n    def idle(self): ...\n"
        "@app.command()\ndef told(): return read(), Kept().call, 'package.one:made'\n",
    }
    assert left_over(sources) == ["package.one.LEFT", "package.one.read", "package.two.Kept.idle"]
    other = {"script": "from package.one import read\nimport package.one as p\np.LEFT, x.idle\n"}
    assert left_over(sources, other) == []


def test_no_public_class_has_the_name_of_another():
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / "bench_lib").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice == {}
