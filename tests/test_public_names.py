"""What others may import is frozen here: rooms may move behind these names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bench_lib

ROOT = Path(__file__).parents[1]
PUBLIC = {
    *("Case", "Hardware", "Launch", "Limits", "Measurement", "Record", "Sampling", "Setting"),
    *(
        "Backend",
        "Metric",
        "Rule",
        "Source",
    ),
    *("Status", "Telemetry", "UnsupportedError", "UserError", "Verdict", "Workload"),
}


DOCUMENTED = (*ROOT.glob("docs/*.md"), ROOT / "README.md")


def test_the_public_names_are_these():
    assert set(bench_lib.__all__) == PUBLIC
    assert sorted(bench_lib.__all__) == list(bench_lib.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_can_be_imported(name):
    assert getattr(bench_lib, name).__name__ == name
    assert name in dir(bench_lib)


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'nonsense'"):
        _ = bench_lib.nonsense


def test_importing_bench_lib_loads_nothing_else():
    program = "import sys, bench_lib; print(*(m for m in sys.modules if m.startswith('bench_lib')))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["bench_lib"]


@pytest.mark.parametrize("page", DOCUMENTED, ids=lambda page: page.name)
def test_what_the_documentation_imports_is_public(page):
    for module, names in re.findall(
        r"^from (bench_lib[\w.]*) import (.+)$", page.read_text(), re.MULTILINE
    ):
        assert module == "bench_lib", f"{page.name}: {module} import {names}"
        assert {name.strip() for name in names.split(",")} <= PUBLIC
