"""Write docs/schemas/ from the program's types: ``python docs/write_schemas.py``.

The documentation's build does the same. Git ignores the folder.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import json
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from bench_lib.findings import KINDS
from bench_lib.model import (
    SCHEMA,
    Accepted,
    Choice,
    Environment,
    Finding,
    Hardware,
    KernelTable,
    Limits,
    ProcessSummary,
    Published,
    Quarantine,
)
from bench_lib.profiling.store import Profile
from bench_lib.storage import lines as history_lines
from bench_lib.storage.samples import Sample

FOLDER = Path(__file__).with_name("schemas")
DIALECT = "https://json-schema.org/draft/2020-12/schema"

# ---- files that are read without a type of their own --------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredChoice(Choice):
    """What one kernel of a draw runs with."""

    kernel: str
    """The kernel's name."""


@dataclasses.dataclass(frozen=True)
class StoredProcess(ProcessSummary):
    """One process of a case."""

    draw: str | None = None  # type: ignore[assignment] # a file has each draw once
    """Which of the case's ``draws`` it had."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredCase:
    """The values of one case; what is empty is left out."""

    provenance: Literal["measured", "published"] = "measured"
    processes: list[StoredProcess] = dataclasses.field(default_factory=list)
    """Of what was measured."""
    accepted: Accepted | None = None
    """Who accepted these values, where they were measured."""
    limits: Limits = dataclasses.field(default_factory=Limits)
    """``spread`` alone; the others are the matrix's."""
    conditions: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What has to be equal for a comparison to mean anything."""
    published: Published | None = None
    kernels: KernelTable | None = None
    began: dict[str, float] = dataclasses.field(default_factory=dict)
    """By metric, in its unit, the value from which slowdowns that were accepted one after the
    other add up."""
    draws: dict[str, list[StoredChoice]] = dataclasses.field(default_factory=dict)
    """By name, what the compiler chose for each kernel."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselinesFile:
    """The baselines of one hardware key."""

    schema: Literal[2]
    key: str
    """The hardware key, as the file's name has it."""
    hardware: Hardware | None = None
    """The device of the last run that was accepted."""
    environments: dict[str, Environment] = dataclasses.field(default_factory=dict)
    """By reference, those that processes name."""
    cases: dict[str, StoredCase] = dataclasses.field(default_factory=dict)
    """By case id."""
    quarantine: dict[str, Quarantine] = dataclasses.field(default_factory=dict)
    """By case id."""


# ---- the schemas --------------------------------------------------------------------------


@functools.cache
def lines() -> dict[str, type[history_lines.Line]]:
    """Return the types of a run's lines, by kind."""
    known = history_lines.Line.__subclasses__()
    return {str(each.__struct_config__.tag): each for each in known}


@functools.cache
def schemas() -> dict[str, dict[str, Any]]:
    """Return every schema by its file's name."""
    found = {"history-line.json": _lines()}
    for name, about in (
        ("baselines-file", BaselinesFile),
        ("kernels-file", Profile),
        ("samples-line", Sample),
    ):
        found[f"{name}.json"] = {"$schema": DIALECT, **_described(about)}
    return dict(sorted(found.items()))


def _lines() -> dict[str, Any]:
    """Return the schema of a run's lines, each of which is of one kind."""
    each = {kind: _described(about) for kind, about in lines().items()}
    defs = {name: what for one in each.values() for name, what in one["$defs"].items()}
    for kind, about in lines().items():
        line = defs[about.__name__]
        head = {"schema": {"const": SCHEMA}, "kind": {"const": kind}}
        line["properties"] = {
            **head,
            **{k: v for k, v in line["properties"].items() if k not in head},
        }
    return {
        "$schema": DIALECT,
        "oneOf": [{"$ref": one["$ref"]} for one in each.values()],
        "$defs": defs,
    }


def _described(about: type) -> dict[str, Any]:
    """Return msgspec's schema, each property with what the code says of it."""
    schema = msgspec.json.schema(about, schema_hook=_of_ours)
    named = {each.__name__: each for each in _types(about)}
    for name, what in schema["$defs"].items():
        if name not in named:
            continue
        told, properties = _docstrings(named[name]), what["properties"]
        what["properties"] = {field: properties[field] for field in _fields(named[name])}
        for field, of_field in properties.items():
            of_field.pop("default", None)
            if field in told:
                of_field["description"] = told[field]
        what["description"] = _flat(what.get("description", ""))
    return schema


def _of_ours(about: type) -> dict[str, Any]:
    """Describe a finding by its kinds; what else msgspec does not know is a path."""
    if about is Finding:
        kind = {"enum": [*KINDS]}
        return {"type": "object", "required": ["kind"], "properties": {"kind": kind}}
    return {"type": "string"}


def _types(about: Any, known: dict[type, None] | None = None) -> dict[type, None]:
    """Return a type with fields and all that these name."""
    known = {} if known is None else known
    if isinstance(about, type) and _fields(about):
        if about not in known:
            known[about] = None
            for hint in typing.get_type_hints(about).values():
                _types(hint, known)
    elif typing.get_origin(about) is not None or isinstance(about, types.UnionType):
        for argument in typing.get_args(about):
            _types(argument, known)
    return known


def _fields(about: type) -> tuple[str, ...]:
    """Return the names of a type's fields; nothing of one that has none."""
    if dataclasses.is_dataclass(about):
        return tuple(field.name for field in dataclasses.fields(about))
    is_struct = issubclass(about, msgspec.Struct) and about is not msgspec.Struct
    return about.__struct_fields__ if is_struct else ()


@functools.cache
def _docstrings(about: type) -> dict[str, str]:
    """Return what stands below each field of a class, and of those it is made from."""
    found: dict[str, str] = {}
    for each in reversed(about.__mro__):
        if _fields(each):
            found |= dict(_below_fields(each))
    return found


@functools.cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Return what a module declares as classes, by name."""
    source = inspect.getsource(sys.modules[module])
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


def _below_fields(about: type) -> Iterator[tuple[str, str]]:
    declared = _classes(about.__module__)[about.__qualname__]
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
