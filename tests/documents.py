"""What ``--json`` printed, held against what 0.3.0 printed when its fields were recorded.

An answer's fields and columns are in ``answers.json``.  With ``RECORD_ANSWERS=1`` in the
environment tests write down what they see; look at the difference before it is committed.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import re
from pathlib import Path

import jsonschema
from scripts import script

ANSWERS = Path(__file__).parent / "recorded" / "0.3.0" / "answers.json"


def document_in(text: str):
    """Return a document, decoded; it has the fields and types that were recorded, and no other."""
    document = json.loads(text)
    if "machine_info" not in document:  # which is pytest-benchmark's
        assert list(document)[:2] == ["schema", "command"]
        # A query's rows have the columns that it asks for.
        own = {"rows": []} if document["command"] == "history query" else {}
        check_answer(re.sub(r"[ -]+", "-", document["command"]), {**document, **own})
    return document


def check_answer(name: str, document: dict) -> None:
    """Hold an answer's fields, and its tables' columns, against those that were recorded."""
    seen: dict[str, set[str]] = {}
    for path, value in fields_of(document):
        seen.setdefault(path, set()).add(type(value).__name__.replace("int", "float"))
    known = answers()
    if os.environ.get("RECORD_ANSWERS"):
        fields = known.setdefault(name, {})
        for path, types in seen.items():
            fields[path] = sorted({*fields.get(path, ()), *types})
        ANSWERS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    tables = {path.partition("[]")[0] for path in seen if "[]" in path}
    expected = {
        path for path in known[name] if "[]" not in path or path.partition("[]")[0] in tables
    }
    assert set(seen) == expected
    assert {path: types - set(known[name][path]) for path, types in seen.items()} == {
        path: set() for path in seen
    }


def fields_of(document: dict):
    """Yield each field of a document with its value, and each column of each row of its tables."""
    for name, value in document.items():
        yield name, value
        if isinstance(value, list) and all(isinstance(row, dict) for row in value):
            for row in value:
                yield from ((f"{name}[].{column}", each) for column, each in row.items())


def answers() -> dict[str, dict[str, list[str]]]:
    """Return the fields of every answer, with the types that their values may have."""
    return json.loads(ANSWERS.read_text())


@functools.cache
def schema_writer():
    """Return the module that makes the schemas of files."""
    return script("docs/write_schemas.py")


@functools.cache
def validator(name: str, *, strict: bool = True):
    """Return what holds a value against the schema of a file, by its name."""
    schema = schema_writer().schemas()[f"{name}.json"]
    return jsonschema.Draft202012Validator(closed(schema) if strict else schema)


def closed(schema: dict) -> dict:
    """Return a schema that takes no field which it does not name."""
    strict = copy.deepcopy(schema)
    for each in strict["$defs"].values():
        if "properties" in each:
            each["additionalProperties"] = False
    return strict
