"""The source: nothing in it is left over."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bench_lib"

CALLED_BY_OTHERS = {
    "format_help": "typer prints the help with it",
    "redirect_request": "urllib asks what to do with a redirection",
    "toterminal": "pytest prints a failure with it",
}
"""Methods that nobody here calls, and who does."""
REGISTERED = re.compile(r"^@(?:app|pytest)\b")


def defined(body):
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if not any(REGISTERED.match(f"@{ast.unparse(each)}") for each in node.decorator_list):
                yield node.name
            if isinstance(node, ast.ClassDef):
                yield from (each.name for each in node.body if isinstance(each, ast.FunctionDef))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def named(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.rpartition(":")[2]


def left_over(sources, others):
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
