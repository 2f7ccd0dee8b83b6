"""Which settings make runs incomparable: the table in the docs and the code say the same."""

import re
from pathlib import Path

import pytest
from builders import cold, make_case, make_environment, make_hardware

from bench_lib.storage.acceptance import conditions_of

DOCS = Path(__file__).parents[1] / "docs/baselines.md"
SETTINGS = {"governor": "performance", "caches": {"miopen": "cold", "tunableop": "cold"}}


def names():
    environment = make_environment(**SETTINGS)
    return {
        name
        for vendor in ("amd", "nvidia", "cpu")
        for name in conditions_of(make_case(), make_hardware(vendor=vendor), environment)
    }


def test_the_table_in_the_docs_names_every_condition_and_no_other():
    section = re.search(r"^## Conditions\n(.*?)^## ", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \|", section[1], re.MULTILINE)
    cold_case = conditions_of(cold(make_case()), make_hardware(), make_environment())
    assert set(rows) == names() | cold_case.keys()
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize(
    "fields",
    [
        {"torch": "2.99.0", "torchvision": "0.99", "triton": "9.9", "python": "3.99.1"},
        {"hip": "9.9", "rocm": "9.9.1", "cuda": "99.1", "cudnn": "9"},
        {"driver": "amdgpu 9.9", "firmware": "113-X", "kernel": "9.9.9"},
        {"libraries": {"MIOpen": "9.9"}, "commit": "f" * 40, "dirty": True},
        {"variables": {"HSA_XNACK": "1", "MIOPEN_FIND_MODE": "1"}},
        {"kernel_options": {"iommu": "pt"}, "numa_balancing": True, "huge_pages": "never"},
        {"cpu_count": 1, "threads": 1, "host": "elsewhere", "cpu": "another"},
        {"caches": {**SETTINGS["caches"], "inductor": "warm, 9 entries", "triton": "cold"}},
    ],
    ids=lambda fields: next(iter(fields)),
)
@pytest.mark.parametrize("vendor", ["amd", "nvidia", "cpu"])
def test_software_and_what_somebody_set_are_no_conditions(vendor, fields):
    device = make_hardware(vendor=vendor)
    before, after = make_environment(**SETTINGS), make_environment(**{**SETTINGS, **fields})
    assert before != after
    assert conditions_of(make_case(), device, before) == conditions_of(make_case(), device, after)


@pytest.mark.parametrize("vendor", ["amd", "nvidia"])
def test_every_setting_of_the_device_is_a_condition_by_its_value(vendor):
    device = make_hardware(vendor=vendor, power_cap_w=650.0, clock_policy=None)
    found = conditions_of(make_case(), device)
    assert (found["power_cap_w"], found["clock_policy"]) == (650.0, None)
    assert found["compute_partition"] == "SPX"


def test_cold_caches_are_a_condition_and_the_users_own_are_none():
    device = make_hardware()
    environment = make_environment(caches={"miopen": "warm, 3 entries, 0123456789ab"})
    assert conditions_of(cold(make_case()), device, environment)["caches"] == "cold"
    assert "miopen_cache" not in conditions_of(cold(make_case()), device, environment)
    assert conditions_of(make_case(), device, environment)["miopen_cache"] == "warm"
