"""What a case's step comes to by arithmetic alone is counted once for each software."""

import os
import time

import pytest
from builders import make_case, make_environment
from processes import no_file_beyond

from bench_lib.model import Launch, Numerics, StepCounts
from bench_lib.storage import facts

COUNTS = StepCounts(8e9, 1e8, 0.5)
SOUND = Numerics(finite=True, cosine=0.9999)
HERE = make_environment()


def test_what_was_counted_is_known_from_then_on():
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
    facts.keep_counts(make_case(), HERE, COUNTS)
    other, there = make_case(**case), make_environment(**environment)
    assert facts.counts_of(other, there) is None


def test_it_is_counted_again_where_the_code_that_counts_changed(monkeypatch):
    facts.keep_counts(make_case(), HERE, COUNTS)
    monkeypatch.setattr(facts, "_code", lambda *folders: "fixed")
    assert facts.counts_of(make_case(), HERE) is None


@pytest.mark.parametrize("text", [b"{", b"\xff", b'{"of": {}, "fact": {"flops_per_step": "8"}}'])
def test_a_damaged_file_costs_a_count(text):
    facts.keep_counts(make_case(), HERE, COUNTS)
    (path,) = facts.folder().iterdir()
    path.write_bytes(text)
    assert facts.counts_of(make_case(), HERE) is None
    facts.keep_counts(make_case(), HERE, COUNTS)
    assert facts.counts_of(make_case(), HERE) == COUNTS


def test_a_folder_that_cannot_be_written_costs_a_count(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(facts, "folder", lambda: tmp_path / "file" / "below")
    facts.keep_counts(make_case(), HERE, COUNTS)
    assert facts.counts_of(make_case(), HERE) is None


def test_a_full_disk_leaves_what_is_known_and_no_half_a_file():
    facts.keep_counts(make_case(), HERE, COUNTS)
    with no_file_beyond(10):
        facts.keep_counts(make_case(), HERE, StepCounts(1.0))
        facts.keep_numerics(make_case(), HERE, "GPU-1", SOUND)
    assert facts.counts_of(make_case(), HERE) == COUNTS
    assert facts.numerics_of(make_case(), HERE, "GPU-1") is None
    assert len(list(facts.folder().iterdir())) == 1


def networks():
    names = [f"net{i}" for i in range(6)]
    known = [n for n in names if facts.counts_of(make_case(params={"network": n}), HERE)]
    return "".join(name[-1] for name in known)


@pytest.fixture
def counted():
    def counted(number, days):
        before = set(facts.folder().glob("*"))
        facts.keep_counts(make_case(params={"network": f"net{number}"}), HERE, COUNTS)
        (path,) = set(facts.folder().iterdir()) - before
        then_s = time.time() - days * 86_400
        os.utime(path, (then_s, then_s))

    return counted


def test_facts_that_nobody_used_for_a_season_go_when_another_is_kept(counted):
    counted(0, 91)
    assert networks() == "0"
    for number, days in ((1, 89), (2, 91), (3, 0)):
        counted(number, days)
    assert networks() == "013"


def test_what_cannot_be_removed_keeps_no_fact_from_being_kept(counted):
    counted(0, 91)
    stays = facts.folder() / "somebody's"
    stays.mkdir()
    os.utime(stays, (time.time() - 92 * 86_400,) * 2)
    counted(1, 0)
    assert (networks(), stays.exists()) == ("1", True)


def test_numerics_are_known_on_the_device_that_computed_them():
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
    facts.keep_numerics(make_case(), HERE, "GPU-1", SOUND)
    assert facts.numerics_of(make_case(), make_environment(**software), "GPU-1") is None


def test_numerics_are_known_wherever_the_compiler_keeps_its_caches():
    facts.keep_numerics(make_case(), HERE, "GPU-1", SOUND)
    elsewhere = make_environment(variables={**HERE.variables, "TRITON_CACHE_DIR": "/jobs/7"})
    assert facts.numerics_of(make_case(), elsewhere, "GPU-1") == SOUND


def test_a_device_without_a_name_has_no_numerics():
    facts.keep_numerics(make_case(), HERE, None, SOUND)
    assert facts.numerics_of(make_case(), HERE, None) is None


def test_numerics_are_computed_again_after_a_week(monkeypatch):
    facts.keep_numerics(make_case(), HERE, "GPU-1", SOUND)
    now_s = time.time()
    for days, known in ((6.9, SOUND), (6.95, SOUND), (7.1, None)):
        monkeypatch.setattr(time, "time", lambda days=days: now_s + days * 86_400)
        assert facts.numerics_of(make_case(), HERE, "GPU-1") == known
