"""What a case's step comes to by arithmetic alone is counted once for each software."""

from __future__ import annotations

import os
import time

import pytest
from builders import make_case, make_environment

from bench_lib.model import Launch, Numerics, StepCounts
from bench_lib.storage import facts

COUNTS = StepCounts(8e9, 1e8, 0.5)
SOUND = Numerics(finite=True, cosine=0.9999)
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
    monkeypatch.setattr(facts, "_code", lambda *folders: "mended")
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


def test_numerics_are_known_on_the_device_that_computed_them():
    """Another device may compute otherwise, and a baseline's counts are no device's."""
    facts.keep_numerics(make_case(), HERE, "GPU-1", SOUND)
    other_host = make_environment(host="b", caches={"inductor": "cold"}, commit="1234567")
    assert facts.numerics_of(make_case(), other_host, "GPU-1") == SOUND
    assert facts.numerics_of(make_case(), HERE, "GPU-2") is None
    assert facts.counts_of(make_case(), HERE) is None


@pytest.mark.parametrize(
    "software",
    [
        {"cudnn": "9.9"},
        {"libraries": {"MIOpen": "3.6"}},
        {"variables": {"NVIDIA_TF32_OVERRIDE": "0"}},
    ],
)
def test_numerics_are_computed_again_by_other_software(software):
    """Whatever may choose another kernel."""
    facts.keep_numerics(make_case(), HERE, "GPU-1", SOUND)
    assert facts.numerics_of(make_case(), make_environment(**software), "GPU-1") is None


def test_numerics_are_known_wherever_the_compiler_keeps_its_caches():
    """A scheduler may give each job a folder of its own."""
    facts.keep_numerics(make_case(), HERE, "GPU-1", SOUND)
    elsewhere = make_environment(variables={**HERE.variables, "TRITON_CACHE_DIR": "/jobs/7"})
    assert facts.numerics_of(make_case(), elsewhere, "GPU-1") == SOUND


def test_a_device_without_a_name_has_no_numerics():
    """It may be another one tomorrow."""
    facts.keep_numerics(make_case(), HERE, None, SOUND)
    assert facts.numerics_of(make_case(), HERE, None) is None


def test_numerics_are_computed_again_after_a_week():
    """The device may have begun to compute wrongly."""
    facts.keep_numerics(make_case(), HERE, "GPU-1", SOUND)
    (path,) = facts.folder().iterdir()
    for days, known in ((6.9, SOUND), (7.1, None)):
        then_s = time.time() - days * 86_400
        os.utime(path, (then_s, then_s))
        assert facts.numerics_of(make_case(), HERE, "GPU-1") == known
