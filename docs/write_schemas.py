"""Write docs/schemas/ from the program's types: ``python docs/write_schemas.py``.

The documentation's build does the same. Git ignores the folder.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench_lib.cli.documents import Document, files, kept, measured, seen
from bench_lib.profiling.store import Profile

FOLDER = Path(__file__).with_name("schemas")
DIALECT = "https://json-schema.org/draft/2020-12/schema"
FILES = {
    "baselines-file": files.BaselinesFile,
    "history-line": files.LINES,
    "kernels-file": Profile,
    "samples-line": files.SamplesLine,
}
"""What is in files; by the schema's name."""


@functools.cache
def schemas() -> dict[str, dict[str, Any]]:
    """Return every schema by its file's name."""
    found = {f"{name_of(each)}.json": _printed(each) for each in documents()}
    for name, about in FILES.items():
        found[f"{name}.json"] = _stored(about)
    return dict(sorted(found.items()))


def documents() -> list[type[Document]]:
    """Return the types of all that ``--json`` prints."""
    modules = (kept, measured, seen)
    declared = [each for module in modules for each in vars(module).values()]
    return [
        each
        for each in declared
        if isinstance(each, type) and issubclass(each, Document) and command_of(each)
    ]


def command_of(document: type[Document]) -> str:
    """Return the command that prints a document; nothing of what none prints."""
    default = document.__dataclass_fields__["command"].default
    return default if isinstance(default, str) else ""


def name_of(document: type[Document]) -> str:
    """Return what the schema of a document is called."""
    return re.sub(r"[ -]+", "-", command_of(document))


def _printed(document: type[Document]) -> dict[str, Any]:
    """Return the schema of what is printed: every field is there."""
    about = _described(document)
    for each in about["$defs"].values():
        if "properties" in each:
            each["required"] = list(each["properties"])
    title = f"bench-lib {command_of(document)}"
    return {"$schema": DIALECT, "title": title if "--" in title else f"{title} --json", **about}


def _stored(about: Any) -> dict[str, Any]:
    """Return the schema of what is in a file; of several types, each line is of one."""
    if not isinstance(about, tuple):
        return {"$schema": DIALECT, **_described(about)}
    each = [_described(one) for one in about]
    defs = {name: what for one in each for name, what in one["$defs"].items()}
    return {"$schema": DIALECT, "oneOf": [{"$ref": one["$ref"]} for one in each], "$defs": defs}


def _described(about: type) -> dict[str, Any]:
    """Return msgspec's schema, each property with what the code says of it."""
    schema = msgspec.json.schema(about)
    named = {each.__name__: each for each in _types(about)}
    for name, what in schema["$defs"].items():
        if name not in named:
            continue
        told, properties = _docstrings(named[name]), what["properties"]
        what["properties"] = {f.name: properties[f.name] for f in dataclasses.fields(named[name])}
        for field, of_field in properties.items():
            of_field.pop("default", None)
            if field in told:
                of_field["description"] = told[field]
        what["description"] = _flat(what.get("description", ""))
    return schema


def _types(about: Any, known: dict[type, None] | None = None) -> dict[type, None]:
    """Return a dataclass and all that its fields name."""
    known = {} if known is None else known
    if dataclasses.is_dataclass(about) and isinstance(about, type):
        if about not in known:
            known[about] = None
            for hint in typing.get_type_hints(about).values():
                _types(hint, known)
    elif typing.get_origin(about) is not None or isinstance(about, types.UnionType):
        for argument in typing.get_args(about):
            _types(argument, known)
    return known


@functools.cache
def _docstrings(about: type) -> dict[str, str]:
    """Return what stands below each field of a class, and of those it is made from."""
    found: dict[str, str] = {}
    for each in reversed(about.__mro__):
        if dataclasses.is_dataclass(each):
            found |= dict(_below_fields(each))
    return found


def _below_fields(about: type) -> Iterator[tuple[str, str]]:
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(about))).body
    assert isinstance(declared, ast.ClassDef)
    for field, below in zip(declared.body, declared.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as text)),
            ):
                yield name, _flat(text)


def _flat(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def write() -> None:
    """Write every schema into its file."""
    FOLDER.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (FOLDER / name).write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write()
