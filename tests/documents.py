"""What ``--json`` printed, held against what 0.3.0 printed when its fields were recorded."""

from __future__ import annotations

import copy
import functools
import json
import lzma
import re
from pathlib import Path

import jsonschema
from scripts import script

RECORDED = Path(__file__).parent / "recorded" / "0.3.0" / "documents.json.xz"


def document_in(text: str):
    """Return a document, decoded; it has the fields and types that were recorded, and no other."""
    document = json.loads(text)
    if "machine_info" not in document:  # which is pytest-benchmark's
        assert list(document)[:2] == ["schema", "command"]
        validator(re.sub(r"[ -]+", "-", document["command"])).validate(document)
    return document


@functools.cache
def recorded():
    """Return the schemas of all documents, by name."""
    return json.loads(lzma.decompress(RECORDED.read_bytes()))


@functools.cache
def schema_writer():
    """Return the module that makes the schemas of files."""
    return script("docs/write_schemas.py")


@functools.cache
def validator(name: str, *, strict: bool = True):
    """Return what holds a value against the schema of a document, or of a file, by its name."""
    schema = recorded().get(name) or schema_writer().schemas()[f"{name}.json"]
    return jsonschema.Draft202012Validator(closed(schema) if strict else schema)


def closed(schema: dict) -> dict:
    """Return a schema that takes no field which it does not name."""
    strict = copy.deepcopy(schema)
    for each in strict["$defs"].values():
        if "properties" in each:
            each["additionalProperties"] = False
    return strict
