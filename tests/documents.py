"""What ``--json`` printed, held against the schema that its type makes."""

from __future__ import annotations

import copy
import functools
import json
import re

import jsonschema
from scripts import script


def document_in(text: str):
    """Return a document, decoded; it is what its schema says, and has no other field."""
    document = json.loads(text)
    if "machine_info" not in document:  # which is pytest-benchmark's
        assert list(document)[:2] == ["schema", "command"]
        validator(re.sub(r"[ -]+", "-", document["command"])).validate(document)
    return document


@functools.cache
def schema_writer():
    """Return the module that makes the schemas."""
    return script("docs/write_schemas.py")


@functools.cache
def validator(name: str, *, strict: bool = True):
    """Return what holds a value against a schema by its name."""
    schema = schema_writer().schemas()[f"{name}.json"]
    return jsonschema.Draft202012Validator(closed(schema) if strict else schema)


def closed(schema: dict) -> dict:
    """Return a schema that takes no field which it does not name."""
    strict = copy.deepcopy(schema)
    for each in strict["$defs"].values():
        if "properties" in each:
            each["additionalProperties"] = False
    return strict
