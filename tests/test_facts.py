"""What a case's step comes to by arithmetic alone is counted once for each software."""

from __future__ import annotations

import pytest
from builders import make_case, make_environment

from bench_lib.model import Launch, StepCounts
from bench_lib.storage import facts

COUNTS = StepCounts(8e9, 1e8, 0.5)
HERE = make_environment()


def test_what_was_counted_is_known_from_then_on():
    """To another run of the same software, whatever else it is measured like."""
    assert facts.counts_of(make_case(), HERE) is None
    facts.keep_counts(make_case(), HERE, COUNTS)
    assert facts.counts_of(make_case(id="other", tier="gate"), make_environment(host="b")) == COUNTS


@pytest.mark.parametrize(
    ("case", "environment"),
    [
        pytest.param({"params": {"network": "vgg16"}}, {}, id="another case"),
        pytest.param({}, {"torch": "9.9.9"}, id="another torch"),
        pytest.param({}, {"torch": None}, id="nobody knows which torch"),
        pytest.param({"workload": "mine.py:step"}, {}, id="somebody else's workload"),
        pytest.param({"launch": Launch(ranks=2)}, {}, id="several ranks"),
    ],
)
def test_it_is_counted_again_for(case, environment):
    """Nothing is known of it, before and after."""
    facts.keep_counts(make_case(), HERE, COUNTS)
    other, there = make_case(**case), make_environment(**environment)
    assert facts.counts_of(other, there) is None


def test_it_is_counted_again_where_the_code_that_counts_changed(monkeypatch):
    """Or formulas that were mended would never be used."""
    facts.keep_counts(make_case(), HERE, COUNTS)
    monkeypatch.setattr(facts, "_code", lambda: "mended")
    assert facts.counts_of(make_case(), HERE) is None


def test_a_damaged_file_and_a_folder_that_cannot_be_written_cost_a_count(monkeypatch, tmp_path):
    """And nothing else."""
    facts.keep_counts(make_case(), HERE, COUNTS)
    (path,) = facts.folder().iterdir()
    path.write_bytes(b"{")
    assert facts.counts_of(make_case(), HERE) is None
    (tmp_path / "file").touch()
    monkeypatch.setattr(facts, "folder", lambda: tmp_path / "file" / "below")
    facts.keep_counts(make_case(), HERE, COUNTS)
    assert facts.counts_of(make_case(), HERE) is None
