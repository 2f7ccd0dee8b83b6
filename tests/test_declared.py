"""Workloads whose signatures are their tables, and what is no such signature."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench_lib.cases import declared, matrix
from bench_lib.cases.axes import WorkloadAxes, case_of
from bench_lib.cases.declared import declared_axes
from bench_lib.cases.matrix import MatrixError, cases_of, tables
from bench_lib.model import UserError

SIGNATURE = (
    "*, rows: int, pad: int = 0, rate: float = 0.5, pinned: bool = False, fused: bool = True, "
    'way: str = "up", precision: Literal["fp32", "bf16"] = "fp32", batch_size: int = 8'
)


def declare(folder: Path, signature: str, name: str = "scan") -> dict[str, WorkloadAxes]:
    (folder / f"{name}.py").write_text(
        f"import torch_that_is_not_there\n\ndef {name}(setting: Setting, {signature}): ...\n"
    )
    return declared_axes(folder=folder)


def test_an_id_is_the_name_and_what_differs_from_the_defaults(tmp_path):
    scan = declare(tmp_path, SIGNATURE)["scan"]
    plain = case_of(scan, {"rows": 64})
    assert (plain.id, plain.workload, plain.params) == ("scan-rows64", "scan", {"rows": 64})
    values = {
        "rows": 2,
        "pad": 3,
        "rate": 1.5,
        "pinned": True,
        "fused": False,
        "way": "down",
        "precision": "bf16",
        "batch_size": 4,
    }
    other = case_of(scan, values)
    assert other.id == "scan-rows2-pad3-rate1.5-pinned-no-fused-down-bf16-b4"
    assert other.params == values
    assert case_of(scan, {"rows": 1, "ranks": 2, "strong": True}).id == "scan-rows1-x2-strong"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "rows is None; it has to be a whole number of 1 or more"),
        ({"rows": 0}, "rows is 0; it has to be a whole number of 1 or more"),
        ({"rows": 1, "pad": -1}, "pad is -1; it has to be a whole number of 0 or more"),
        ({"rows": 1, "rate": float("nan")}, "rate is nan; it has to be a finite number"),
        ({"rows": 1, "pinned": 1}, "pinned is 1; it has to be true or false"),
        ({"rows": 1, "way": "a b"}, "way is 'a b'; it has to be letters"),
        ({"rows": 1, "precision": "bf61"}, "unknown precision 'bf61'; did you mean bf16"),
        ({"rows": 1, "colour": "red"}, "scan has no colour"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(tmp_path, values, words):
    with pytest.raises(UserError, match=f"^{re.escape(words)}"):
        case_of(declare(tmp_path, SIGNATURE)["scan"], values)


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        ("rows", "rows: it has no type; a table can give int, float, bool, str or Literal["),
        ("rows: list[int]", "rows: it has the type list[int]; a table can give int"),
        ("rows: Literal[1, 2]", "rows: it has the type Literal[1, 2]; a table can give int"),
        ("rows: int = None", "rows: its default is None; rows is None; it has to be a whole"),
        ("rows: int = MOST", "rows: its default is MOST; rows is None; it has to be a whole"),
        ('way: Literal["a"] = "b"', "way: its default is 'b'; unknown way 'b'; there is a"),
    ],
)
def test_a_signature_that_is_no_tables_is_named_with_its_line(tmp_path, signature, words):
    with pytest.raises(MatrixError) as caught:
        declare(tmp_path, signature)
    assert str(caught.value).startswith(f"{tmp_path / 'scan.py'}:3: scan, {words}")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("*, setting, rows: int", "scan: its first parameter has to be the setting, by position"),
        ("", "scan: its first parameter has to be the setting, by position"),
        ("setting, rows: int, /", "scan, rows: it is given by name; move it behind the /"),
        ("setting, ranks: int", "scan, ranks: every table has that word; give it another name"),
        ("setting, limits: int", "scan, limits: every table has that word; give it another name"),
        ("setting, rows: int = {[]}", "scan, rows: its default is {[]}; rows is None"),
    ],
)
def test_a_signature_that_could_not_be_called_is_refused(tmp_path, parameters, words):
    (tmp_path / "scan.py").write_text(f"def scan({parameters}): ...\n")
    with pytest.raises(MatrixError) as caught:
        declared_axes(folder=tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'scan.py'}:1: {words}")


def test_of_functions_of_one_name_the_last_counts(tmp_path):
    first = "def scan(setting, rows: int): ...\n"
    (tmp_path / "scan.py").write_text(f"{first}def scan(setting, columns: int): ...\n")
    (axis,) = declared_axes(folder=tmp_path)["scan"].axes
    assert axis.name == "columns"


def test_what_editors_leave_beside_a_module_is_passed_over(tmp_path):
    declare(tmp_path, "rows: int")
    (tmp_path / ".#scan.py").symlink_to("somebody@somewhere.1")
    assert list(declared_axes(folder=tmp_path)) == ["scan"]


def test_a_module_may_say_how_it_is_encoded(tmp_path):
    text = "# coding: latin-1\n# caf\u00e9\ndef scan(setting, rows: int): ...\n"
    (tmp_path / "scan.py").write_bytes(text.encode("latin-1"))
    assert list(declared_axes(folder=tmp_path)) == ["scan"]


def test_a_module_that_is_no_python_is_named_with_its_line(tmp_path):
    (tmp_path / "scan.py").write_text("def scan(setting):\n    return (\n")
    with pytest.raises(MatrixError, match=r"scan\.py:2: "):
        declared_axes(folder=tmp_path)


def test_what_is_no_workload_is_passed_over(tmp_path):
    (tmp_path / "helping.py").write_text("def help(rows): ...\n")
    assert declare(tmp_path, "**params") == {}
    (tmp_path / "other.py").write_text("def other(setting, rows: list[int]): ...\n")
    assert declared_axes(but={"other"}, folder=tmp_path) == {}


@pytest.mark.parametrize("name", ["ops", "factory", "sampling", "workloads"])
def test_a_word_of_the_matrix_is_no_workloads_name(monkeypatch, name):
    axes = {name: WorkloadAxes(name, (), begins=name)}
    monkeypatch.setattr(matrix, "declared_axes", lambda **_: axes)
    with pytest.raises(MatrixError, match=rf"{name}\.py: {name} is a word of the matrix already"):
        tables({"resnet18": 224})


def test_a_broken_signature_is_an_error_of_the_matrix(monkeypatch, tmp_path):
    (tmp_path / "scan.py").write_text("def scan(setting, rows): ...\n")
    monkeypatch.setattr(matrix, "declared_axes", lambda but: declared.declared_axes(but, tmp_path))
    with pytest.raises(MatrixError, match=r"scan\.py:1: scan, rows: it has no type"):
        tables({"resnet18": 224})


def test_cases_are_found_by_their_table_and_declared_ones_together(tmp_path):
    own = declare(tmp_path, SIGNATURE)
    workloads = {"training": WorkloadAxes("training", ()), **own}
    scan = case_of(own["scan"], {"rows": 1})
    assert cases_of("workloads", [scan], workloads) == [scan]
    assert cases_of("scan", [scan], workloads) == [scan]
    assert cases_of("training", [scan], workloads) == []
    assert cases_of("factory", [scan], workloads) == []
    for name in ("scans", None):
        with pytest.raises(MatrixError, match="it takes one of training, scan, workloads, factory"):
            cases_of(name, [scan], workloads)
