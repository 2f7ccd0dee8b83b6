"""The output of pytest-benchmark with ``--benchmark-json`` or ``--benchmark-autosave``.

Fields: ``src/pytest_benchmark/plugin.py`` and ``stats.py`` of ionelmc/pytest-benchmark at
47d66c88b84b.  Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

import msgspec

from bench_lib.storage.foreign import documents
from bench_lib.storage.foreign.figures import Reported


class Stats(msgspec.Struct):
    """A benchmark's rounds, in seconds."""

    median: float
    rounds: int


class BenchmarkedTest(msgspec.Struct):
    """One test."""

    fullname: str
    stats: Stats


class BenchmarkSession(msgspec.Struct):
    """One session of pytest."""

    telltale: ClassVar[str] = "benchmarks"
    written_by: ClassVar[str] = "pytest --benchmark-json"
    remedy: ClassVar[str] = "write it with pytest-benchmark 3.1 or later"

    version: str
    benchmarks: list[BenchmarkedTest]

    def figures(self) -> Iterator[Reported]:
        """Yield the median round of each test."""
        for each in self.benchmarks:
            yield Reported(each.fullname, each.stats.median)


class PytestBenchmark:
    """Files of pytest-benchmark."""

    name = "pytest-benchmark"
    program = "pytest-benchmark"

    def figures(self, data: bytes) -> Iterable[Reported]:
        """Return what a file tells, in its order; raises FormatError."""
        return documents.figures(data, self.program, (BenchmarkSession,))
