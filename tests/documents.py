"""What ``--json`` printed, held against its schema in docs/schemas/."""

from __future__ import annotations

import copy
import functools
import json
import re
from pathlib import Path

import jsonschema

SCHEMAS = Path(__file__).parents[1] / "docs" / "schemas"


def document_in(text: str):
    """Return a document, decoded; it is what its schema says, and has no other field."""
    document = json.loads(text)
    if "machine_info" not in document:  # which is pytest-benchmark's
        assert list(document)[:2] == ["schema", "command"]
        validator(re.sub(r"[ -]+", "-", document["command"])).validate(document)
    return document


@functools.cache
def validator(name: str, *, strict: bool = True):
    """Return what holds a value against a schema by its name."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    return jsonschema.Draft202012Validator(closed(schema) if strict else schema)


def closed(schema: dict) -> dict:
    """Return a schema that takes no field which it does not name."""
    strict = copy.deepcopy(schema)
    for each in strict["$defs"].values():
        if "properties" in each:
            each["additionalProperties"] = False
    return strict
