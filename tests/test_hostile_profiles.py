"""Profiles that somebody made so that reading them never ends, or takes all memory."""

from __future__ import annotations

import gzip

import pytest

from bench_lib.profiling import store
from bench_lib.profiling.store import ProfileError
from bench_lib.profiling.traces import TraceError


def test_a_table_whose_header_has_several_lines_is_refused_in_one(tmp_path):
    path = tmp_path / "kernel_trace.csv"
    path.write_text('Kind,"Kernel_Name,Start_Timestamp,End_Timestamp\nKERNEL_DISPATCH,gemm,1,2\n')
    with pytest.raises(ProfileError, match="no column") as refused:
        store.read_foreign(path, 1)
    assert "\n" not in str(refused.value)


def test_a_trace_that_unpacks_to_more_than_its_share_of_memory_is_refused(tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b" " * 2**24) * 20)
    with pytest.raises(TraceError, match=r"trace\.json\.gz unpacks to more than 0\.\d+ GiB"):
        store.load(str(path))
