"""What the catalogue knows, which device it takes for which, and what it refuses to guess."""

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_lib.backends import catalogue
from bench_lib.backends.amd import devices as kfd
from bench_lib.backends.catalogue import MEMORY_TOLERANCE
from bench_lib.backends.nvidia import devices as nvidia
from bench_lib.model import Hardware

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GIB = 2**30
PRECISIONS = {"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "fp4", "int8"}
FILES = (kfd.PEAKS, nvidia.PEAKS)
MODELS = [model for path in FILES for model in catalogue.read(path)]
BY_KEY = {model.key: model for model in MODELS}


def identify(device):
    if device.vendor == "amd":
        return kfd.identify(device)
    return catalogue.identify(device, catalogue.read(nvidia.PEAKS))


def amd(**known):
    return identify(Hardware(**{"vendor": "amd", "name": "", "key": "", "arch": "gfx942", **known}))


# --- what it knows -----------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_every_figure_is_positive_and_names_its_source_and_every_source_is_used(path):
    document = tomllib.loads(path.read_text())
    cited = {row["ids_source"] for row in document["gpu"]}
    for row in document["gpu"]:
        tables = [row, *(table for table in row.values() if isinstance(table, dict))]
        for name, value in (pair for table in tables for pair in table.items()):
            if isinstance(value, list) and name != "pci_ids":
                figure, source = value
                assert figure > 0, (row, name)
                cited.add(source)
            else:
                assert not isinstance(value, (int, float)) or name == "die_of_card", (row, name)
    assert cited == set(document["sources"])
    assert all(len(citation) > 20 for citation in document["sources"].values())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.key)
def test_a_row_is_one_of_its_kind(model):
    assert re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", model.key)
    assert re.fullmatch("[a-z0-9_]+", model.arch)
    assert model.name == model.name.strip() != ""
    assert model.pci_ids
    assert all(re.fullmatch("[0-9a-f]{4}", pci_id) for pci_id in model.pci_ids)
    assert set(model.tflops) <= PRECISIONS
    alike = [row for row in MODELS if row.arch[:2] == model.arch[:2] and row is not model]
    ids = {(pci_id, row.compute_units) for row in alike for pci_id in row.pci_ids}
    assert not ids & {(pci_id, model.compute_units) for pci_id in model.pci_ids}


def test_no_two_gpus_have_one_key():
    assert len(BY_KEY) == len(MODELS)


def test_keys_that_baselines_may_be_named_by_stay():
    assert BY_KEY.keys() >= {
        *("mi210", "mi250", "mi250x", "mi300a", "mi300x", "mi300x-hf", "mi308x", "mi308x-hf"),
        *("mi325x", "mi350x", "mi355x", "h100", "h200", "b200"),
        *("a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-40gb", "a100-pcie-80gb"),
    }


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.key)
def test_narrower_precisions_are_never_slower(model):
    peaks = model.tflops
    ladder = [peaks[p] for p in ("fp32", "tf32", "fp16", "fp8", "fp4") if p in peaks]
    assert ladder == sorted(ladder)
    for wider, narrower in (("tf32", "fp16"), ("fp16", "fp8"), ("fp8", "fp4"), ("fp16", "int8")):
        if wider in peaks and narrower in peaks:
            # An MI455X computes four times as much in FP8 as in FP16.
            assert peaks[narrower] <= (4.1 if model.key == "mi455x" else 2.05) * peaks[wider]


# --- partitions --------------------------------------------------------------------------


@pytest.mark.parametrize("pci", ["74a1", "74b5", None, "zzzz"])
@pytest.mark.parametrize(
    ("compute", "memory", "parts", "domains"),
    [
        ("SPX", "NPS1", 1, 1),
        ("SPX", "NPS2", 1, 2),
        ("DPX", "NPS2", 2, 2),
        ("CPX", "NPS1", 8, 1),
        ("CPX", "NPS4", 8, 4),
    ],
)
def test_an_mi300x_is_one_in_every_partition_mode(pci, compute, memory, parts, domains):
    gpu = amd(
        pci_device_id=pci,
        compute_units=304 // parts,
        memory_bytes=192 * GIB // parts,
        compute_partition=compute,
        memory_partition=memory,
    )
    mode = f"{compute}-{memory}".lower()
    assert gpu.key == ("mi300x" if mode == "spx-nps1" else f"mi300x-{mode}")
    assert gpu.peak_tflops["bf16"] == pytest.approx(1307.4 / parts)
    assert gpu.peak_gb_per_s == pytest.approx(5300 / domains)


def test_the_memory_of_a_partition_may_be_its_domains():
    mode = {"compute_partition": "CPX", "memory_partition": "NPS4"}
    assert amd(compute_units=38, memory_bytes=48 * GIB, **mode).key == "mi300x-cpx-nps4"
    assert amd(compute_units=38, memory_bytes=64 * GIB, **mode).key == "mi325x-cpx-nps4"
    assert (
        amd(compute_units=38, memory_bytes=96 * GIB, **mode).key == "amd-gfx942-38cu-96gb-cpx-nps4"
    )


def test_an_mi300a_has_six_dies_and_a_mode_of_three():
    known = {"pci_device_id": "74a0", "memory_partition": "NPS1"}
    cpx = amd(compute_units=38, compute_partition="CPX", **known)
    assert cpx.key == "mi300a-cpx-nps1"
    assert cpx.peak_tflops["fp16"] == pytest.approx(980.6 / 6)
    tpx = amd(compute_units=76, memory_bytes=128 * GIB // 3, compute_partition="TPX")
    assert tpx.key == "mi300a-tpx"
    assert tpx.peak_tflops["fp16"] == pytest.approx(980.6 / 3)


def test_a_partition_of_which_no_units_are_told_has_the_share_of_its_mode():
    known = amd(pci_device_id="74a1", compute_partition="CPX")
    assert known.peak_tflops["fp16"] == pytest.approx(1307.4 / 8)
    unknown = amd(pci_device_id="74a2", compute_partition="CPX")
    assert (unknown.key, unknown.peak_tflops) == ("mi308x-cpx", {})


@pytest.mark.parametrize(
    ("mode", "units"),
    [("CPX", 304), ("CPX", 20), ("DPX", 304), ("DPX", 76), ("TPX", 101), ("XPX", 38)],
)
def test_units_that_are_not_those_of_the_mode_leave_no_peaks(mode, units):
    gpu = amd(
        pci_device_id="74a1",
        compute_units=units,
        compute_partition=mode,
        memory_partition="NPS1",
    )
    assert gpu.key == f"mi300x-{mode.lower()}-nps1"
    assert (gpu.peak_tflops, gpu.peak_gb_per_s) == ({}, None)


def test_a_partition_whose_memory_mode_is_unknown_has_no_bandwidth():
    gpu = amd(pci_device_id="74a1", compute_units=38, compute_partition="CPX")
    assert (gpu.key, gpu.peak_gb_per_s) == ("mi300x-cpx", None)
    assert gpu.peak_tflops["fp16"] == pytest.approx(1307.4 / 8)


@pytest.mark.parametrize("compute", ["SPX", None])
def test_a_whole_card_that_tells_no_memory_mode_is_plain(compute):
    gpu = amd(pci_device_id="74a1", compute_units=304, compute_partition=compute)
    assert (gpu.key, gpu.peak_gb_per_s) == ("mi300x", 5300)


def test_a_share_of_a_card_keeps_its_memory_mode():
    mode = {"compute_partition": "SPX", "memory_partition": "NPS4"}
    gpu = amd(pci_device_id="74a1", compute_units=152, **mode)
    assert (gpu.key, gpu.peak_gb_per_s) == ("mi300x-spx-nps4-152cu", None)
    assert gpu.peak_tflops["fp16"] == pytest.approx(1307.4 / 2)


# --- each signal's part ------------------------------------------------------------------


def test_a_known_id_decides_against_everything_else():
    gpu = amd(
        name="AMD Instinct MI325X",
        pci_device_id="74a1",
        compute_units=304,
        memory_bytes=256 * GIB,
        power_cap_w=1000.0,
    )
    assert (gpu.key, gpu.name) == ("mi300x", "AMD Instinct MI300X")


@pytest.mark.parametrize("pci", ["74a9", "74bd"])
def test_an_id_of_a_gpu_without_figures_is_that_gpu(pci):
    gpu = amd(pci_device_id=pci, compute_units=304, memory_bytes=192 * GIB, power_cap_w=750.0)
    assert (gpu.key, gpu.peak_tflops, gpu.peak_gb_per_s) == ("mi300x-hf", {}, None)


@pytest.mark.parametrize(
    ("pci", "key"), [("7410", "mi210"), ("74b5", "mi300x"), ("74b9", "mi325x")]
)
def test_a_virtual_function_is_its_card(pci, key):
    known = {"arch": BY_KEY[key].arch, "compute_units": BY_KEY[key].compute_units}
    gpu = amd(pci_device_id=pci, **known)
    assert (gpu.key, gpu.peak_tflops) == (key, BY_KEY[key].tflops)


@pytest.mark.parametrize("pci", ["74a1", "74a5"])
def test_an_unknown_id_is_an_unknown_gpu_whatever_else_it_has(pci):
    known = {"compute_units": 304, "memory_bytes": 192 * GIB, "power_cap_w": 750.0}
    unknown = amd(name="AMD Instinct MI300X", pci_device_id="74be", **known)
    assert (unknown.key, unknown.peak_tflops) == ("amd-gfx942-74be", {})
    assert unknown.peak_gb_per_s is None
    assert amd(pci_device_id=pci, **known).key == {"74a1": "mi300x", "74a5": "mi325x"}[pci]


@pytest.mark.parametrize("pci", ["74A1", "0x74a1", "0x74A1", "0x000074a1"])
def test_an_id_is_read_in_any_spelling(pci):
    assert amd(pci_device_id=pci).key == "mi300x"


@pytest.mark.parametrize(
    "name", ["", "AMD Radeon Graphics", "Device 74a1", "N/A", "AMD Instinct MI100"]
)
def test_a_name_that_does_not_say_the_model_is_replaced(name):
    gpu = amd(name=name, pci_device_id="74b5", compute_units=304)
    assert (gpu.key, gpu.name) == ("mi300x", "AMD Instinct MI300X")


def test_a_name_that_says_the_model_stays():
    gpu = amd(name="AMD Instinct MI300X VF", pci_device_id="74b5", compute_units=304)
    assert (gpu.key, gpu.name) == ("mi300x", "AMD Instinct MI300X VF")


@pytest.mark.parametrize(
    ("known", "key"),
    [
        ({"compute_units": 304, "memory_bytes": 192 * GIB}, "mi300x"),
        ({"compute_units": 304, "memory_bytes": 256 * GIB}, "mi325x"),
        ({"compute_units": 304, "power_cap_w": 1000.0}, "mi325x"),
        ({"compute_units": 228}, "mi300a"),
        ({"compute_units": 304, "memory_bytes": 256 * GIB, "power_cap_w": 750.0}, "mi325x"),
        # The cap is more than an MI300X's board may draw.
        ({"compute_units": 304, "memory_bytes": 192 * GIB, "power_cap_w": 1000.0}, None),
        ({"compute_units": 304, "power_cap_w": 1100.0}, None),
        ({"arch": "gfx950", "compute_units": 256, "power_cap_w": 1200.0}, "mi355x"),
        ({"arch": "gfx950", "compute_units": 256, "power_cap_w": 1000.0}, None),
        # What several models have, or may have: memory is not enough.
        ({"memory_bytes": 192 * GIB, "power_cap_w": 750.0}, None),
        ({"memory_bytes": 256 * GIB}, None),
        ({"compute_units": 304}, None),
        ({"compute_units": 304, "power_cap_w": 750.0}, None),
        ({"compute_units": 304, "power_cap_w": 600.0}, None),
        # One that contradicts.
        ({"compute_units": 300, "memory_bytes": 192 * GIB, "power_cap_w": 750.0}, None),
        ({"compute_units": 304, "memory_bytes": 180 * GIB, "power_cap_w": 750.0}, None),
        ({"arch": "gfx950", "compute_units": 304, "memory_bytes": 192 * GIB}, None),
        ({"arch": None, "compute_units": 304, "memory_bytes": 192 * GIB}, None),
    ],
)
def test_without_an_id_one_model_alone_has_to_fit(known, key):
    gpu = amd(**known)
    if key is None:
        assert gpu.key.startswith("amd-")
        assert (gpu.peak_tflops, gpu.peak_gb_per_s) == ({}, None)
    else:
        assert gpu.key == key
        assert gpu.peak_tflops == BY_KEY[key].tflops


@pytest.mark.parametrize("cap_w", [None, 250.0, 300.0])
def test_a_model_whose_power_is_not_known_is_excluded_by_no_cap(cap_w):
    known = {"arch": "gfx90a", "memory_bytes": 64 * GIB, "power_cap_w": cap_w}
    assert amd(compute_units=104, **known).key == "amd-gfx90a-104cu-64gb"
    assert amd(compute_units=110, **known).key == "mi250x"


def test_feature_flags_are_no_part_of_an_architecture():
    flagged = "gfx942:sramecc+:xnack-"
    assert amd(arch=flagged, compute_units=304, memory_bytes=192 * GIB).key == "mi300x"
    assert amd(arch=flagged, compute_units=7).key == "amd-gfx942-7cu"


@pytest.mark.parametrize(("units", "key"), [(110, "mi250x"), (104, "mi250")])
@pytest.mark.parametrize("name", ["", "AMD Instinct MI250X / MI250", "AMD Instinct MI250X"])
def test_a_gcd_says_that_it_is_one_of_two(units, key, name):
    known = {"name": name, "arch": "gfx90a", "pci_device_id": "740c", "memory_bytes": 64 * GIB}
    gpu = amd(compute_units=units, **known)
    assert gpu.key == key
    assert gpu.name == f"AMD Instinct {key.upper()} (one GCD of two)"
    assert gpu.peak_tflops["fp16"] == {"mi250x": 191.5, "mi250": 181.05}[key]
    assert gpu.peak_gb_per_s == 1638


# --- a key of one's own ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "key"),
    [
        ({"pci_device_id": "74ff"}, "amd-gfx942-74ff"),
        ({"pci_device_id": "74ff", "arch": None}, "amd-74ff"),
        ({"compute_units": 96, "memory_bytes": 64 * GIB}, "amd-gfx942-96cu-64gb"),
        ({"pci_device_id": "what", "compute_units": 96}, "amd-gfx942-96cu"),
        ({"pci_device_id": "0000", "memory_bytes": 64 * GIB}, "amd-gfx942-64gb"),
        ({"compute_units": 96, "compute_partition": "CPX"}, "amd-gfx942-96cu-cpx"),
        ({"arch": None}, "amd-gpu"),
        ({"vendor": "nvidia", "arch": "sm_90", "pci_device_id": "23ff"}, "nvidia-23ff"),
        ({"vendor": "nvidia", "arch": None}, "nvidia-gpu"),
    ],
)
def test_an_unknown_gpu_is_keyed_by_its_ids_or_else_by_its_size(known, key):
    gpu = amd(**known)
    assert (gpu.key, gpu.name) == (key, key.removesuffix("-cpx"))
    assert (gpu.peak_tflops, gpu.peak_gb_per_s) == ({}, None)


def test_an_nvidia_gpu_is_known_by_its_id_alone():
    known = {"arch": "sm_90", "compute_units": 132, "memory_bytes": 141 * GIB, "power_cap_w": 700.0}
    assert amd(vendor="nvidia", **known).key == "nvidia-sm_90-132cu-141gb"
    assert amd(vendor="nvidia", pci_device_id="2335", **known).key == "h200"


SIZES = sorted({m.memory_gib for m in MODELS if m.memory_gib})
UNITS = sorted({m.compute_units for m in MODELS if m.compute_units})
NOBODYS = sorted({"74ff", "75ff", "ffff"} - {pci for m in MODELS for pci in m.pci_ids})


@given(
    arch=st.none() | st.sampled_from(["gfx90a", "gfx942", "gfx950", "gfx1100"]),
    pci=st.none() | st.sampled_from([*NOBODYS, "zzzz", ""]),
    units=st.none() | st.integers(1, 400) | st.sampled_from(UNITS),
    memory_gib=st.none() | st.floats(1, 400) | st.sampled_from(SIZES),
    cap_w=st.none() | st.floats(100, 2000) | st.sampled_from([300.0, 550.0, 750.0, 1000.0, 1400.0]),
    compute=st.none() | st.sampled_from(["SPX", "DPX", "TPX", "QPX", "CPX"]),
    memory=st.none() | st.sampled_from(["NPS1", "NPS2", "NPS4"]),
)
def test_no_gpu_gets_the_peaks_of_a_model_that_any_signal_contradicts(
    *, arch, pci, units, memory_gib, cap_w, compute, memory
):
    gpu = amd(
        arch=arch,
        pci_device_id=pci,
        compute_units=units,
        memory_bytes=memory_gib and int(memory_gib * GIB),
        power_cap_w=cap_w,
        compute_partition=compute,
        memory_partition=memory,
    )
    if gpu.key.startswith("amd-"):
        assert (gpu.peak_tflops, gpu.peak_gb_per_s) == ({}, None)
        return
    assert pci in (None, "zzzz", "")
    model = BY_KEY[gpu.key.split("-")[0]]
    parts = {"DPX": 2, "TPX": 3, "QPX": 4, "CPX": model.xcds}.get(compute or "", 1)
    domains = int((memory or "NPS1")[3:])
    assert arch == model.arch
    assert units is not None or memory_gib is not None
    if units is not None:
        assert units * parts == model.compute_units
    if memory_gib is not None:
        wholes = (memory_gib * parts, memory_gib * domains)
        assert any(abs(w / model.memory_gib - 1) < MEMORY_TOLERANCE * 1.001 for w in wholes)
    if cap_w is not None and model.board_power_w is not None:
        assert cap_w <= model.board_power_w + 1
