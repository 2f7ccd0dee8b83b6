"""Profiles that somebody made so that reading them never ends, or takes all memory."""

import gzip

import pytest

from bench_lib.profiling import store
from bench_lib.profiling.traces import TraceError


def test_a_trace_that_unpacks_to_more_than_its_share_of_memory_is_refused(tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b" " * 2**24) * 20)
    with pytest.raises(TraceError, match=r"trace\.json\.gz unpacks to more than 0\.\d+ GiB"):
        store.load(str(path))
