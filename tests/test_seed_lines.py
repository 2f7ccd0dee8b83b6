"""The comparison of the seeds' command lines, with programs that only print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from scripts import ROOT, script


@pytest.fixture
def compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Return a function that compares what programs print; it returns the lines of the table."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    seed_lines: ModuleType = script("benchmarks/seed_lines.py")
    (tmp_path / "micro_benchmarking_pytorch.py").touch()
    monkeypatch.setattr(sys, "argv", ["seed_lines.py", str(tmp_path)])

    def compare(theirs: str, ours: str) -> list[str]:
        def printed(_launcher: str, words: list[str], folder: Path) -> str:
            if "cifar100" in words:
                return seed_lines.OF_THE_SCRIPT
            (folder / "x.json").write_text(json.dumps({"Throughput": 1}))
            return ours if "bench_lib.micro" in words else theirs

        monkeypatch.setattr(seed_lines, "printed", printed)
        seed_lines.main()
        return capsys.readouterr().out.splitlines()

    return compare


def test_twelve_lines_are_compared_alone_and_under_both_launchers(
    compared: Callable[..., list[str]],
) -> None:
    found = compared("Throughput [img/sec] : 5.25\n", "[GPU 0] Throughput [img/sec] : 7\n")
    assert len(found) == 12
    assert [sum(f"| {word} " in row for row in found) for word in ("nothing", "mpirun")] == [7, 2]
    assert sum(row.endswith("| 1 | 1 | same |") for row in found) == 9
    assert sum(row.endswith("| 1 | 1 | - |") for row in found) == 3


def test_a_line_that_is_missing_is_shown(compared: Callable[..., list[str]]) -> None:
    found = compared("OK: finished\nNum devices: 2\n", "Num devices: 1\n")
    assert found[0].endswith("| 2 | 1 | same |")
    assert found.count("  missing: OK: finished") == 9
