"""The schemas of documents and files: what files hold is as they say.

What each command prints is held against them by the tests of that command (tests/documents.py).
"""

import collections
import dataclasses
import datetime as dt
import json
import lzma
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from builders import (
    CASE_ID,
    make_attempt,
    make_case,
    make_environment,
    make_hardware,
    make_record,
    make_verdict,
)
from command import leaves
from documents import answers, schema_writer, validator
from scripts import script

from bench_lib.model import Baseline, Kernel, KernelTable, Quarantine, SlowDown, Status
from bench_lib.profiling.store import Profile, keep
from bench_lib.storage import baselines
from bench_lib.storage.baselines import BaselineChange
from bench_lib.storage.history import Writer, content
from bench_lib.studies.networks import STUDIES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


WRITER = schema_writer()
SCHEMAS = WRITER.schemas()


def test_every_schema_is_one_and_is_in_the_docs_and_no_other_is():
    source = [(DOCS / "json.md").read_text()]
    rows = re.findall(r"^\|.*\| (.*) \|$", source[0], re.MULTILINE)
    assert set(re.findall(r"`([\w-]+\.json)`", " ".join(rows))) == set(SCHEMAS)
    script("docs/conf.py").link_schemas(None, "json", source)
    assert set(re.findall(r"\[([^]]*)]\(schemas/\1\)", source[0])) == set(SCHEMAS)
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def commands(*, json):
    """Return the words of every command that takes --json, or that does not."""
    return {
        " ".join(path)
        for path, command in leaves()
        if any("--json" in each.opts for each in command.params) is json
    }


def test_commands_without_json_are_named_in_the_docs():
    page = " ".join((DOCS / "json.md").read_text().split())
    told = re.search(r"All commands take it but (.*?), which writes", page)[1]
    assert set(re.findall(r"`([^`]+)`", told)) == commands(json=False)


def test_every_command_that_takes_json_has_recorded_fields_and_no_other_has():
    names = [re.sub(r"[ -]+", "-", path) for path in commands(json=True)]
    beside = {"profile-diff"}
    beside |= {f"exercise-{name}" for name in (*STUDIES, "largest-batch")}
    beside |= {"train-cifar100", "train-cifar10-table"}
    assert {*answers()} == {*names, *beside} - {"exercise", "train"}


UNITS = re.compile(r"(seconds|_sec|_ms|_us|millis|_mb|_mib|_gb|_kb|_ghz|_watts?|bytes_)$")


def test_names_of_fields_have_the_project_s_units():
    names = {
        name
        for schema in SCHEMAS.values()
        for each in schema["$defs"].values()
        for name in each.get("properties", {})
    }
    names |= {path.rpartition(".")[2] for fields in answers().values() for path in fields}
    assert {"step_s", "memory_bytes", "clock_mhz"} <= names
    assert {name for name in names if UNITS.search(name)} == {"items_per_s_per_gb"}


JSON_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}
SINCE_0_1_0 = {
    ("history-line", ".attempt.measurement.operations_s", "no object"),
    ("history-line", ".attempt.measurement.operations_s{}", "no number"),
    ("history-line", ".attempt.measurement.probe", "no object"),
    ("history-line", ".attempt.measurement.probe{}", "no number"),
    ("samples-line", ".probe", "no object"),
    ("samples-line", ".probe{}", "no number"),
    ("samples-line", ".slow", "no null"),
    ("samples-line", ".slow", "no number"),
    ("history-line", ".database", "no string"),  # MIOpen's database is no longer filled
    ("history-line", ".exit_status", "null"),  # of a run that was stopped before it knew
    *(
        (document, f".case.limits.{limit}", kind)
        for document in ("history-line", "kernels-file")
        for limit in ("efficiency", "tail")
        for kind in ("no null", "no number")
    ),
    ("history-line", ".attempt.telemetry.counters", "no object"),
    ("history-line", ".attempt.telemetry.counters{}", "no number"),
    *(
        ("history-line", f".attempt.telemetry.{clock}", kind)
        for clock in ("clock_min_mhz", "memory_clock_mhz")
        for kind in ("no null", "no number")
    ),
}
"""What a field may hold, or no longer holds, that it did in version 0.1.0."""
GONE = {
    "baseline-diff",
    "exercise-sheet",
    "history-compact",
    "history-query-schema",
    "selfcheck-contexts",
    "submit",
    "submit-collect",
    "submit-dry-run",
}
"""Documents of commands and options that are removed."""


def fields_below(schema, about, path="", above=()):
    """Yield the path of each field with the types that its values may have."""
    name = about.get("$ref", "").rpartition("/")[2]
    if name in above:
        return
    if name:
        about, above = schema["$defs"][name], (*above, name)
    if path and about.get("type") in JSON_TYPES:
        yield path, about["type"]
    below = [(path, each) for key in ("anyOf", "oneOf") for each in about.get(key, ())]
    below += [(f"{path}.{key}", each) for key, each in about.get("properties", {}).items()]
    below += [(f"{path}[]", each) for each in about.get("prefixItems", ())]
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(about.get(key), dict):
            below.append((path + mark, about[key]))
    for further, each in below:
        yield from fields_below(schema, each, further, above)


def test_a_document_has_all_that_0_1_0_printed_or_another_number():
    path = ROOT / "tests" / "recorded" / "0.1.0" / "documents.json.xz"
    then = json.loads(lzma.decompress(path.read_bytes()))
    known = {name.removesuffix(".json"): SCHEMAS[name] for name in SCHEMAS}
    assert then.keys() - GONE <= known.keys() | answers().keys()
    renumbered, changed = set(), set()
    for document, about in then.items():
        if document in GONE or document in answers():  # which have another number, all of them
            continue
        schema = known[document]
        if about["schema"] != number_of(schema):
            renumbered.add(document)
            continue
        types = collections.defaultdict(set)
        for path, kind in fields_below(schema, schema):
            types[path].add(kind)
        for path, kinds in about["fields"].items():
            changed |= {(document, path, kind) for kind in types[path] - set(kinds)}
            changed |= {(document, path, f"no {kind}") for kind in set(kinds) - types[path]}
    assert renumbered == {"baselines-file"}
    assert changed == SINCE_0_1_0


def number_of(schema):
    head = schema.get("oneOf", [schema])[0]["$ref"].rpartition("/")[2]
    number = schema["$defs"][head]["properties"].get("schema", {})
    return number.get("const") or number.get("enum", [0])[0]


# ---- files ------------------------------------------------------------------------------


def test_lines_of_a_run_are_as_their_schema_says(tmp_path):
    writer = Writer(tmp_path, "mi300x")
    ref = writer.environment(make_environment(), make_hardware())
    case, attempt = make_case(id=CASE_ID), make_attempt(environment=ref)
    writer.attempt(case, "test_x.py::test_y", attempt)
    writer.kernels(CASE_ID, KernelTable("torch.profiler", 5, [Kernel("gemm", 1.0, 0.01)]))
    quarantine = Quarantine("why", dt.date(2099, 12, 31), "2026-01-01T00:00:00Z", "me")
    writer.verdict(
        make_record(case=case, status=Status.OK, verdicts=[make_verdict()], quarantine=quarantine)
    )
    told = SlowDown("2026-01-01T01:00:00Z", "0a", [CASE_ID], 1.01, (1.0, 1.02), 3, "0b")
    writer.slow_down(told)
    writer.end({"OK": 1}, 0, caches={"miopen": "cold"})
    lines = [json.loads(line) for line in content(writer.path).splitlines()]
    assert {line["kind"] for line in lines} == set(WRITER.lines())
    for line in lines:
        validator("history-line").validate(line)
        with pytest.raises(jsonschema.ValidationError):
            validator("history-line").validate({**line, "kind": "another"})


@pytest.mark.parametrize(
    "path", sorted((ROOT / "baselines").glob("*.json")), ids=lambda path: path.stem
)
def test_the_baselines_that_come_along_are_written_as_their_schema_says(path, tmp_path):
    file = baselines.load(path.parent, path.stem)
    changes = [
        BaselineChange(case_id, None, measured) for case_id, measured in file.measured.items()
    ]
    hardware = file.hardware or make_hardware(key=path.stem)
    written = baselines.write(
        replace(file, path=tmp_path / path.name), changes, hardware, file.environments
    )
    document = json.loads(written.read_text())
    assert len(document["cases"]) == len(file.baselines)
    validator("baselines-file").validate(document)


def test_a_case_of_a_baseline_file_may_have_all_that_a_baseline_has():
    of_a_file = {field.name for field in dataclasses.fields(WRITER.StoredCase)}
    of_a_baseline = {field.name for field in dataclasses.fields(Baseline)}
    assert of_a_file == of_a_baseline - {"case_id"} | {"draws"}


def test_a_kept_profile_is_as_its_schema_says(tmp_path):
    keep(Profile(KernelTable("rocprofv3", 5, [Kernel("gemm", 1.0, 0.01)])), tmp_path / "k.json")
    validator("kernels-file").validate(json.loads((tmp_path / "k.json").read_text()))


def test_a_line_of_timings_is_as_its_schema_says():
    line = {"case": "a", "role": "baseline", "process": 1, "iteration_s": [0.1, 0.2]}
    validator("samples-line").validate(line)
    with pytest.raises(jsonschema.ValidationError):
        validator("samples-line").validate({**line, "role": "other"})
