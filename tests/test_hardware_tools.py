"""Which devices are found where the kernel does not tell, by stand-ins of ROCm's tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench_lib.backends import detect, sysfs, tool
from bench_lib.backends.amd.readiness import disagreements
from bench_lib.backends.amd.tools import identity
from bench_lib.model import Hardware

GIB = 2**30
MIB = 2**20

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every test see what is said, and what hangs, once a process."""
    sysfs.warn_once.cache_clear()
    monkeypatch.setattr(identity, "_hanging", {})


class Tools:
    """A PATH with nothing on it but stand-ins of ROCm's tools."""

    def __init__(self, root: Path) -> None:
        """Start without any."""
        self.root = root
        (root / "bin").mkdir()

    @property
    def calls(self) -> list[str]:
        """Every command that was run, in order."""
        log = self.root / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def install(self, name: str, answers: Mapping[str, object], otherwise: str = "") -> None:
        """Have a tool print an answer for each line of arguments, and refuse all others.

        An answer that is no string is printed as JSON; `otherwise` is done in any case else.
        """
        cases = []
        for words, answer in answers.items():
            file = self.root / f"{name} {words}"
            file.write_text(answer if isinstance(answer, str) else json.dumps(answer, indent=4))
            cases.append(f"'{words}') exec /bin/cat '{file}';;")
        script = self.root / "bin" / name
        script.write_text(
            f"#!/bin/sh\necho \"{name} $*\" >> '{self.root}/calls'\n"
            f'case "$*" in\n{chr(10).join(cases)}\n'
            f"*) {otherwise or 'echo unrecognized arguments >&2; exit 2'};;\nesac\n"
        )
        script.chmod(0o755)

    def rocm_smi(self, *cards: Row) -> None:
        """Install a rocm-smi that knows partitions."""
        told = {f"card{number}": card for number, card in enumerate(cards)}
        self.install("rocm-smi", {f"{ROCM_SMI} {ROCM_SMI_MODES} --json": told})

    def environ(self, **variables: str) -> dict[str, str]:
        """Make an environment in which only these tools are found."""
        return {"PATH": str(self.root / "bin"), **variables}

    def detect(self, **variables: str) -> list[Hardware]:
        """Look for devices on a machine whose kernel lists none."""
        return detect(self.root, self.environ(**variables), ask_tools=True)

    def keys(self, **variables: str) -> list[str]:
        """Say under which keys they are."""
        return [device.key for device in self.detect(**variables)]


ROCM_SMI = "--showid --showuniqueid --showproductname --showbus --showmeminfo vram --showmaxpower"
ROCM_SMI_MODES = "--showcomputepartition --showmemorypartition"


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    """Make a machine without any tool."""
    return Tools(tmp_path)


def static(gpu: int = 0, **changes: Any) -> Row:
    """Describe a GPU as ``amd-smi static`` of ROCm 7 does: an MI300X unless changed."""
    about = {
        "device_id": "0x74a1",
        "units": 304,
        "arch": "gfx942",
        "name": "AMD Instinct MI300X",
        "serial": f"0x5E00000000000A{gpu:02X}",
        "bdf": f"0000:{0x11 + 0x10 * gpu:02x}:00.0",
        "memory": {"value": 196592, "unit": "MB"},
        "cap": {"value": 725, "unit": "W"},
        **changes,
    }
    return {
        "gpu": gpu,
        "asic": {
            "market_name": about["name"],
            "vendor_id": "0x1002",
            "device_id": about["device_id"],
            "asic_serial": about["serial"],
            "oam_id": gpu,
            "num_compute_units": about["units"],
            "target_graphics_version": about["arch"],
        },
        "bus": {"bdf": about["bdf"], "max_pcie_width": 16, "slot_type": "OAM"},
        "ifwi": "N/A",
        "limit": {"max_power": {"value": 750, "unit": "W"}, "socket_power": about["cap"]},
        "board": {"product_name": "N/A"},
        "vram": {"type": "HBM3", "size": about["memory"]},
        "cache_info": "N/A",
    }


def listed(gpu: int = 0, **changes: Any) -> Row:
    """Describe a GPU as ``amd-smi list -e`` does."""
    return {
        "gpu": gpu,
        "bdf": f"0000:{0x11 + 0x10 * gpu:02x}:00.0",
        "uuid": f"00000000-0000-1000-8000-0000000000{gpu:02x}",
        "kfd_id": 1000 + gpu,
        "node_id": 2 + gpu,
        "partition_id": 0,
        "hip_id": gpu,
        "hip_uuid": f"GPU-5e00000000000a{gpu:02x}",
        **changes,
    }


def current(gpu: int = 0, mode: str = "SPX", memory: str = "NPS1", partition: int = 0) -> Row:
    """Describe a GPU as ``amd-smi partition -c`` does."""
    return {
        "gpu_id": gpu,
        "memory": memory,
        "accelerator_type": mode,
        "accelerator_profile_index": 0,
        "partition_id": str(partition),
    }


def amd_smi_7(rows: list[Row], lists: list[Row], partitions: list[Row]) -> dict[str, object]:
    """Answer as 7.1 does: partitions only by a command of their own."""
    return {
        "static --json": {"gpu_data": rows},
        "list -e --json": lists,
        "partition -c --json": {"current_partition": partitions},
    }


def amd_smi_6(rows: list[Row], lists: list[Row], partitions: list[Row]) -> dict[str, object]:
    """Answer as 6.3 does: bare lists, and partitions among the static figures."""
    old = []
    for row, part in zip(rows, partitions, strict=True):
        modes = {"compute_partition": part["accelerator_type"], "memory_partition": part["memory"]}
        modes["partition_id"] = part["partition_id"]
        old.append({**row, "vbios": row["ifwi"], "partition": modes})
    names = ("gpu", "bdf", "uuid", "kfd_id", "node_id", "partition_id")
    return {
        "static --json": old,
        "list --json": [{name: entry[name] for name in names} for entry in lists],
    }


def agent(number: int, node: int, **changes: Any) -> str:
    """Describe a GPU as rocminfo does: an MI300X unless changed."""
    about = {
        "arch": "gfx942",
        "uuid": f"GPU-5e00000000000a{node - 2:02x}",
        "chip": 0x74A1,
        "units": 304,
        "kib": 196592 * 1024,
        **changes,
    }
    lines = [
        "*******",
        f"Agent {number}",
        "*******",
        f"  Name:                    {about['arch']}",
        *([f"  Uuid:                    {about['uuid']}"] if about["uuid"] else []),
        "  Marketing Name:          AMD Radeon Graphics",
        f"  Node:                    {node}",
        "  Device Type:             GPU",
        f"  Chip ID:                 {about['chip']}(0x{about['chip']:x})",
        "  BDFID:                   4352",
        f"  Compute Unit:            {about['units']}",
        "  Packet Processor uCode:: 138",
        "  Pool Info:",
        "    Pool 1",
        "      Segment:                 GLOBAL; FLAGS: COARSE GRAINED",
        f"      Size:                    {about['kib']}(0x{about['kib']:x}) KB",
        "      Allocatable:             TRUE",
        "    Pool 2",
        "      Segment:                 GROUP",
        "      Size:                    64(0x40) KB",
        "  ISA Info:",
        "    ISA 1",
        f"      Name:                    amdgcn-amd-amdhsa--{about['arch']}:sramecc+:xnack-",
    ]
    return "".join(f"{line}                \n" for line in lines)


def rocminfo(*gpus: str) -> dict[str, object]:
    """Answer as rocminfo does, with a CPU before the GPUs."""
    head = "ROCk module is loaded\n=====================\nHSA Agents\n==========\n"
    cpu = agent(1, 0, arch="Some CPU", uuid="CPU-XX", chip=0, units=48).replace(
        "Device Type:             GPU", "Device Type:             CPU"
    )
    return {"": head + cpu + "".join(gpus) + "*** Done ***\n"}


# --- machines ----------------------------------------------------------------------------


@pytest.mark.parametrize("answers", [amd_smi_6, amd_smi_7])
def test_an_mi300x_is_described_by_amd_smi_alone(tools: Tools, answers: Any) -> None:
    tools.install("amd-smi", answers([static()], [listed()], [current()]))
    tools.install("rocminfo", {}, otherwise="exit 1")
    (gpu,) = tools.detect()
    assert (gpu.key, gpu.name, gpu.arch) == ("mi300x", "AMD Instinct MI300X", "gfx942")
    assert (gpu.pci_device_id, gpu.bdf) == ("74a1", "0000:11:00.0")
    assert gpu.uuid == "GPU-5e00000000000a00"
    assert (gpu.compute_units, gpu.memory_bytes) == (304, 196592 * MIB)
    assert (gpu.compute_partition, gpu.memory_partition) == ("SPX", "NPS1")
    assert gpu.power_cap_w == 725.0
    assert gpu.peak_tflops["bf16"] == 1307.4
    assert not any(call.startswith("rocminfo") for call in tools.calls)


def test_partitions_may_be_told_by_static_alone(tools: Tools) -> None:
    part = {"accelerator_partition": "CPX", "memory_partition": "NPS4", "partition_id": 0}
    answers = {
        "static --json": {"gpu_data": [static(units=38)]},
        "static -p --json": {"gpu_data": [{"gpu": 0, "partition": part}]},
    }
    tools.install("amd-smi", answers)
    assert tools.keys() == ["mi300x-cpx-nps4"]


def test_eight_mi325x_are_in_the_order_of_their_nodes(tools: Tools) -> None:
    nodes = [9, 8, 2, 3, 4, 5, 6, 7]
    rows = [static(n, device_id="0x74a5", memory={"value": 256, "unit": "GB"}) for n in range(8)]
    lists = [listed(n, node_id=nodes[n]) for n in range(8)]
    tools.install("amd-smi", amd_smi_7(rows, lists, [current(n) for n in range(8)]))
    found = tools.detect()
    assert [gpu.key for gpu in found] == ["mi325x"] * 8
    assert [gpu.index for gpu in found] == list(range(8))
    buses = [0x31, 0x41, 0x51, 0x61, 0x71, 0x81, 0x21, 0x11]
    assert [gpu.bdf for gpu in found] == [f"0000:{bus:02x}:00.0" for bus in buses]
    (third,) = tools.detect(HIP_VISIBLE_DEVICES="2")
    assert (third.bdf, third.index) == ("0000:51:00.0", 0)
    (named,) = tools.detect(ROCR_VISIBLE_DEVICES="GPU-5e00000000000a01")
    assert named.bdf == "0000:21:00.0"


@pytest.mark.parametrize("device_id", ["0x7408", "0x740c"])
def test_the_two_dies_of_an_mi250x_are_two_devices(tools: Tools, device_id: str) -> None:
    about = {"device_id": device_id, "units": 110, "arch": "gfx9010", "name": "AMD Radeon"}
    rows = [
        static(0, **about, memory={"value": 65520, "unit": "MB"}, cap={"value": 560, "unit": "W"}),
        static(1, **about, memory={"value": 65520, "unit": "MB"}, cap={"value": 0, "unit": "W"}),
    ]
    for row in rows:
        row["partition"] = {"compute_partition": "N/A", "memory_partition": "N/A"}
    tools.install("amd-smi", {"static --json": rows, "list --json": [listed(0), listed(1)]})
    tools.install("rocminfo", rocminfo(), otherwise="exit 1")
    found = tools.detect()
    assert [gpu.key for gpu in found] == ["mi250x", "mi250x"]
    assert [gpu.arch for gpu in found] == ["gfx90a", "gfx90a"]
    assert [gpu.power_cap_w for gpu in found] == [560.0, None]
    assert [gpu.uuid for gpu in found] == ["GPU-5e00000000000a00", "GPU-5e00000000000a01"]
    assert tools.calls == ["amd-smi static --json", "amd-smi list -e --json", "amd-smi list --json"]


def test_an_old_amd_smi_leaves_the_units_to_rocminfo(tools: Tools) -> None:
    row = static(device_id="0x740c", memory="65520 MB")
    for name in ("num_compute_units", "target_graphics_version"):
        del row["asic"][name]
    die = agent(2, 2, chip=0x740C, units=110, arch="gfx90a", kib=65520 * 1024)
    tools.install("amd-smi", {"static --json": [row]})
    tools.install("rocminfo", rocminfo(die))
    (gpu,) = tools.detect()
    assert (gpu.key, gpu.arch, gpu.compute_units) == ("mi250x", "gfx90a", 110)
    assert (gpu.bdf, gpu.power_cap_w) == ("0000:11:00.0", 725.0)


def cpx(partition: int) -> Row:
    """Describe a partition, of which only the first tells the card's own figures."""
    row = static(partition, units=38, bdf="0000:11:00.0", serial="0x5E00000000000A00")
    if partition:
        row = {**row, "limit": "N/A", "vram": {"type": "HBM3", "size": "N/A"}}
    return row


def test_the_partitions_of_a_card_are_eight_devices(tools: Tools) -> None:
    rows = [cpx(n) for n in range(8)]
    lists = [
        listed(n, bdf=f"0000:11:00.{n}", partition_id=n, hip_uuid=f"GPU-{n + 1:016x}")
        for n in range(8)
    ]
    tools.install(
        "amd-smi", amd_smi_7(rows, lists, [current(n, "CPX", "NPS4", n) for n in range(8)])
    )
    agents = [
        agent(n + 2, n + 2, units=38, kib=24574 * 1024, uuid=f"GPU-{n + 1:016x}") for n in range(8)
    ]
    tools.install("rocminfo", rocminfo(*reversed(agents)))
    found = tools.detect()
    assert [gpu.key for gpu in found] == ["mi300x-cpx-nps4"] * 8
    assert [gpu.bdf for gpu in found] == [f"0000:11:00.{n}" for n in range(8)]
    assert [gpu.uuid for gpu in found] == [f"GPU-{n + 1:016x}" for n in range(8)]
    assert {gpu.memory_bytes for gpu in found} == {24574 * MIB}
    assert [gpu.power_cap_w for gpu in found] == [725.0] + [None] * 7
    assert found[7].peak_tflops["bf16"] == pytest.approx(1307.4 / 8)


def test_an_mi300a_stands_beside_its_processors(tools: Tools) -> None:
    cpu = {"cpu": 0, "smu": {"fw_version": "85.90.0"}}
    about = {"device_id": "0x74a0", "units": 76, "bdf": "0000:01:00.0"}
    rows = [static(n, **about) for n in range(3)]
    lists = [listed(n, bdf="0000:01:00.0", partition_id=n, node_id=4 + n) for n in range(3)]
    answers = amd_smi_7(rows, lists, [current(n, "TPX", "NPS1", n) for n in range(3)])
    answers["static --json"] = {"cpu_data": [cpu], "gpu_data": [cpu, *rows]}
    answers["list -e --json"] = [cpu, *lists]
    tools.install("amd-smi", answers)
    found = tools.detect()
    assert [gpu.key for gpu in found] == ["mi300a-tpx-nps1"] * 3
    assert [gpu.bdf for gpu in found] == [f"0000:01:00.{n}" for n in range(3)]


def test_a_virtual_function_without_a_name_is_its_card(tools: Tools) -> None:
    row = static(device_id="0x74b5", name="", cap="N/A")
    tools.install("amd-smi", {"static --json": {"gpu_data": [row]}, "list -e --json": [listed()]})
    tools.install("rocminfo", rocminfo(agent(2, 2, chip=0x74B5)))
    (gpu,) = tools.detect()
    assert (gpu.key, gpu.name) == ("mi300x", "AMD Instinct MI300X")
    assert (gpu.compute_partition, gpu.power_cap_w) == (None, None)


@pytest.mark.parametrize(
    ("device_id", "key"), [("0x74ff", "amd-gfx942-74ff"), ("0xMI300", "amd-gfx942-200cu-192gb")]
)
def test_an_unknown_gpu_gets_its_own_key_and_no_peaks(
    tools: Tools, device_id: str, key: str
) -> None:
    rows = [static(device_id=device_id, units=200)]
    tools.install("amd-smi", amd_smi_7(rows, [listed()], [current()]))
    (gpu,) = tools.detect()
    assert (gpu.key, gpu.peak_tflops) == (key, {})


def test_a_gpu_of_a_known_size_and_an_unknown_id_is_unknown(tools: Tools) -> None:
    unknown = "amd-gfx942-74ff"
    for device_id, key in (("0x74ff", unknown), ("0x000074ff", unknown), ("N/A", "mi300x")):
        rows = [static(device_id=device_id)]
        tools.install("amd-smi", amd_smi_7(rows, [listed()], [current()]))
        assert tools.keys() == [key]


def test_modes_are_read_in_small_letters_too(tools: Tools) -> None:
    rows = [static(units=38)]
    tools.install("amd-smi", amd_smi_7(rows, [listed()], [current(mode="cpx", memory="nps4")]))
    (gpu,) = tools.detect()
    assert (gpu.key, gpu.compute_partition) == ("mi300x-cpx-nps4", "CPX")


def test_units_of_the_whole_card_in_a_partition_leave_no_peaks(tools: Tools) -> None:
    tools.install("amd-smi", amd_smi_7([static()], [listed()], [current(mode="CPX")]))
    (gpu,) = tools.detect()
    assert (gpu.key, gpu.peak_tflops) == ("mi300x-cpx-nps1", {})


def test_a_memory_mode_that_nobody_tells_is_not_in_the_key(tools: Tools) -> None:
    answers = amd_smi_7([static(units=38)], [listed()], [current(mode="CPX", memory="N/A")])
    tools.install("amd-smi", answers)
    (gpu,) = tools.detect()
    assert (gpu.key, gpu.peak_gb_per_s) == ("mi300x-cpx", None)
    tools.install("amd-smi", amd_smi_7([static()], [listed()], [current(memory="N/A")]))
    (gpu,) = tools.detect()
    assert (gpu.key, gpu.peak_gb_per_s) == ("mi300x", 5300)


@pytest.mark.parametrize("uuid", ["GPU-5e00000000000a00", None])
def test_rocminfo_alone_is_enough(tools: Tools, uuid: str | None) -> None:
    tools.install("rocminfo", rocminfo(agent(2, 3, uuid=uuid), agent(3, 2, chip=0x74A5)))
    found = tools.detect()
    assert [gpu.key for gpu in found] == ["mi325x", "mi300x"]
    assert [gpu.uuid for gpu in found] == ["GPU-5e00000000000a00", uuid]
    assert found[1].memory_bytes == 196592 * MIB
    assert found[1].bdf is None


def test_rocminfo_is_asked_without_what_would_hide_gpus_from_it(tools: Tools) -> None:
    answer = tools.root / "answer"
    answer.write_text(str(rocminfo(agent(2, 2), agent(3, 3))[""]))
    hidden = "$ROCR_VISIBLE_DEVICES$HIP_VISIBLE_DEVICES$HSA_OVERRIDE_GFX_VERSION"
    tools.install("rocminfo", {}, otherwise=f'test -z "{hidden}" && exec /bin/cat {answer}')
    (gpu,) = tools.detect(
        ROCR_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="0", HSA_OVERRIDE_GFX_VERSION="9.0.0"
    )
    assert gpu.uuid == "GPU-5e00000000000a01"


@pytest.mark.parametrize(
    "card",
    [
        {
            "GPU ID": "0x74a1",
            "Unique ID": "0x5e00000000000a00",
            "Max Graphics Package Power (W)": "725.0",
            "PCI Bus": "0000:11:00.0",
            "VRAM Total Memory (B)": "206141652992",
            "Card series": "Some Board [Instinct]",
            "Card model": "0x0c34",
        },
        {
            "Device Name": "N/A",
            "Device ID": "0x74a1",
            "Subsystem ID": "0x74a1",
            "GUID": "41122",
            "Unique ID": "0x5E00000000000A00",
            "Max Graphics Package Power (W)": 725.0,
            "PCI Bus": "0000:11:00.0",
            "VRAM Total Memory (B)": 206141652992,
            "Card Series": "N/A",
            "Card Model": "0x74a1",
            "Node ID": "2",
            "GFX Version": "gfx942",
            "Compute Partition": "SPX",
            "Memory Partition": "NPS1",
        },
    ],
)
def test_rocm_smi_alone_is_enough(tools: Tools, card: Row) -> None:
    tools.rocm_smi(card)
    (gpu,) = tools.detect()
    assert gpu.key == "mi300x"
    assert (gpu.uuid, gpu.bdf) == ("GPU-5e00000000000a00", "0000:11:00.0")
    assert (gpu.memory_bytes, gpu.power_cap_w) == (206141652992, 725.0)


def test_a_rocm_smi_without_partitions_is_asked_without(tools: Tools) -> None:
    card = {"GPU ID": "0x740f", "VRAM Total Memory (B)": "68702699520"}
    tools.install("rocm-smi", {f"{ROCM_SMI} --json": {"card0": card}})
    assert tools.keys() == ["mi210"]


# --- what goes wrong ---------------------------------------------------------------------


def test_without_any_tool_nothing_is_started_or_said(tools: Tools) -> None:
    assert [device.vendor for device in tools.detect()] == ["cpu"]
    assert tools.calls == []


def test_the_tools_of_this_machine_do_not_describe_another(tools: Tools) -> None:
    tools.install("amd-smi", amd_smi_7([static()], [listed()], [current()]))
    assert [device.vendor for device in detect(tools.root, tools.environ())] == ["cpu"]
    assert tools.calls == []


def test_an_error_that_amd_smi_prints_with_status_0_is_a_refusal(
    tools: Tools, recwarn: pytest.WarningsRecorder
) -> None:
    answers = amd_smi_6([static()], [listed()], [current()])
    answers["list -e --json"] = {"error": "Command 'list' was passed '-e'", "code": -2}
    tools.install("amd-smi", answers)
    assert tools.keys() == ["mi300x"]
    assert [call for call in tools.calls if "list" in call] == [
        "amd-smi list -e --json",
        "amd-smi list --json",
    ]
    assert not recwarn.list


def test_the_kernel_is_the_authority_where_it_lists_nodes(tools: Tools) -> None:
    node = tools.root / "sys/class/kfd/kfd/topology/nodes/0"
    node.mkdir(parents=True)
    (node / "gpu_id").write_text("0\n")
    tools.install("amd-smi", amd_smi_7([static()], [listed()], [current()]))
    assert [device.vendor for device in tools.detect()] == ["cpu"]
    assert tools.calls == []


def test_a_tool_without_gpus_is_believed_by_nobody_and_blamed_for_nothing(tools: Tools) -> None:
    tools.install("amd-smi", {"static --json": {"gpu_data": []}})
    tools.install("rocminfo", rocminfo())
    assert [device.vendor for device in tools.detect()] == ["cpu"]


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ('{\n    "gpu_data": [\n        {\n            "gpu": 0,', "did not print JSON"),
        ({"gpu_data": {"gpu": 0}}, "printed dict, not a list of GPUs"),
        ([[{"gpu": 0}]], "printed no entry of a GPU"),
        ("amdgpu is not loaded", "did not print JSON"),
    ],
)
def test_garbage_is_named_and_the_next_tool_is_asked(
    tools: Tools, answer: object, cause: str
) -> None:
    tools.install("amd-smi", {"static --json": answer})
    tools.install("rocminfo", rocminfo(agent(2, 2)))
    with pytest.warns(RuntimeWarning, match=f"^amd-smi {cause}") as warned:
        assert tools.keys() == ["mi300x"]
    assert len(warned) == 1


def test_the_same_cause_is_warned_of_once(tools: Tools) -> None:
    tools.install("amd-smi", {}, otherwise="exit 1")
    tools.install("rocminfo", rocminfo(agent(2, 2)))
    with pytest.warns(RuntimeWarning, match="status 1"):
        tools.detect()
    assert tools.keys() == ["mi300x"]


def test_tools_that_all_fail_are_one_warning(tools: Tools) -> None:
    tools.install("amd-smi", {}, otherwise="echo 'driver not initialized' >&2; exit 255")
    tools.install("rocminfo", {"": "ROCk module is NOT loaded, possibly no GPU devices\n"})
    expected = "^no AMD GPU is used: amd-smi .*driver not initialized; rocminfo printed no agent"
    with pytest.warns(RuntimeWarning, match=expected) as warned:
        assert [device.vendor for device in tools.detect()] == ["cpu"]
    assert len(warned) == 1


def test_sections_of_another_shape_leave_figures_to_the_next_tool(tools: Tools) -> None:
    row = {**static(), "asic": [{"device_id": "0x74a1"}], "limit": ["725 W"], "vram": []}
    tools.install("amd-smi", amd_smi_7([row], [listed()], [current()]))
    tools.install("rocminfo", rocminfo(agent(2, 2)))
    (gpu,) = tools.detect()
    assert (gpu.key, gpu.compute_units, gpu.power_cap_w) == ("mi300x", 304, None)


def test_numbers_may_be_strings_and_units_others(tools: Tools) -> None:
    row = static(
        units="304", device_id="74A1", memory={"value": "0.19198", "unit": "TB"}, cap="725000 mW"
    )
    tools.install("amd-smi", amd_smi_7([{**row, "gpu": "0"}], [listed(node_id="2")], [current()]))
    (gpu,) = tools.detect()
    assert (gpu.key, gpu.compute_units, gpu.power_cap_w) == ("mi300x", 304, 725.0)
    assert gpu.memory_bytes == pytest.approx(0.19198 * 2**40, abs=1)


def test_a_tool_that_hangs_is_asked_once_a_process(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "TIMEOUT_S", 0.2)
    tools.install("amd-smi", {}, otherwise="exec /bin/sleep 60")
    tools.install("rocminfo", rocminfo(agent(2, 2)))
    with pytest.warns(RuntimeWarning, match=r"^amd-smi static --json did not answer in 0\.2 s$"):
        assert tools.keys() == ["mi300x"]
    assert tools.keys() == ["mi300x"]
    assert [call for call in tools.calls if call.startswith("amd-smi")] == ["amd-smi static --json"]


def test_what_was_learnt_before_a_hang_is_kept(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "TIMEOUT_S", 0.2)
    tools.install(
        "amd-smi", {"static --json": {"gpu_data": [static()]}}, otherwise="exec /bin/sleep 60"
    )
    with pytest.warns(RuntimeWarning, match="list -e --json did not answer") as warned:
        assert tools.keys() == ["mi300x"]
    assert len(warned) == 1
    assert tools.calls == ["amd-smi static --json", "amd-smi list -e --json"]
    identity._hanging.clear()
    assert disagreements([mi300x()], tools.environ()) == [
        "amd-smi list -e --json did not answer in 0.2 s"
    ]


def test_a_list_that_makes_no_sense_is_named_and_done_without(tools: Tools) -> None:
    answers = amd_smi_7([static()], [listed()], [current()])
    tools.install("amd-smi", {**answers, "list -e --json": '[\n    {"gpu"'})
    with pytest.warns(RuntimeWarning, match="^amd-smi list -e: amd-smi did not print JSON"):
        assert tools.keys() == ["mi300x"]


# --- tools that disagree -----------------------------------------------------------------


def test_the_first_tool_keeps_its_word(tools: Tools) -> None:
    tools.install("amd-smi", {"static --json": [static(device_id="0x74a5", units="N/A")]})
    tools.install("rocminfo", rocminfo(agent(2, 2, chip=0x74A1)))
    expected = "^GPU 0: PCI device id 74a5 by amd-smi, 74a1 by rocminfo; amd-smi is believed$"
    with pytest.warns(RuntimeWarning, match=expected) as warned:
        (gpu,) = tools.detect()
    assert len(warned) == 1
    assert (gpu.key, gpu.compute_units) == ("mi325x", 304)


def test_tools_that_count_differently_are_named(tools: Tools) -> None:
    rows = [static(n, units="N/A", device_id="0x74a5") for n in range(2)]
    tools.install("amd-smi", {"static --json": rows})
    tools.install("rocminfo", rocminfo(agent(2, 3, units=304)))
    expected = "^amd-smi lists 2 AMD GPUs, rocminfo 1; amd-smi is believed$"
    with pytest.warns(RuntimeWarning, match=expected):
        found = tools.detect()
    assert [gpu.compute_units for gpu in found] == [None, 304]


def test_a_gpu_in_the_place_of_another_is_not_taken_for_it(tools: Tools) -> None:
    tools.install("amd-smi", {"static --json": [static(units="N/A")]})
    tools.install("rocminfo", rocminfo(agent(2, 2, uuid="GPU-00000000000000ff", units=38)))
    expected = "^GPU 0: rocminfo does not list GPU-5e00000000000a00 0000:11:00.0; amd-smi is"
    with pytest.warns(RuntimeWarning, match=expected):
        (gpu,) = tools.detect()
    assert gpu.compute_units is None


def test_a_tool_that_sees_no_gpu_contradicts_one_that_does(tools: Tools) -> None:
    tools.install("amd-smi", {"static --json": [static(units="N/A")]})
    tools.install("rocminfo", rocminfo())
    with pytest.warns(RuntimeWarning, match="amd-smi lists 1 AMD GPUs, rocminfo 0"):
        assert tools.keys() == ["mi300x"]


def test_sizes_that_differ_by_what_the_driver_keeps_agree(tools: Tools) -> None:
    tools.install("amd-smi", {"static --json": [static(units="N/A")]})
    tools.install("rocminfo", rocminfo(agent(2, 2, kib=196000 * 1024)))
    assert tools.keys() == ["mi300x"]
    tools.install("amd-smi", {"static --json": [static(units="N/A", device_id="0x74a0")]})
    tools.install("rocminfo", rocminfo(agent(2, 2, chip=0x74A0, units=228, kib=94000 * 1024)))
    assert tools.keys() == ["mi300a"]


# --- what the tools say of devices that were found ----------------------------------------


def mi300x(index: int = 0, **changes: Any) -> Hardware:
    """Describe what the kernel tells of a GPU."""
    figures: dict[str, Any] = {
        "arch": "gfx942",
        "pci_device_id": "74a1",
        "bdf": f"0000:{0x11 + 0x10 * index:02x}:00.0",
        "uuid": f"GPU-5e00000000000a{index:02x}",
        "compute_units": 304,
        "memory_bytes": 196592 * MIB,
        "compute_partition": "SPX",
        "memory_partition": "NPS1",
        **changes,
    }
    return Hardware(vendor="amd", name="x", key="mi300x", index=index, **figures)


def test_tools_that_agree_say_nothing(tools: Tools) -> None:
    tools.install("amd-smi", amd_smi_7([static()], [listed()], [current()]))
    tools.install("rocminfo", rocminfo(agent(2, 2)))
    tools.rocm_smi({"Device ID": "0x74a1", "PCI Bus": "0000:11:00.0"})
    assert disagreements([mi300x()], tools.environ()) == []
    assert {call.split()[0] for call in tools.calls} == {"amd-smi", "rocminfo", "rocm-smi"}


def test_each_disagreement_is_said_with_the_tool_that_says_it(tools: Tools) -> None:
    row = static(device_id="0x74a5", memory={"value": 256, "unit": "GB"}, cap="100 W")
    tools.install("amd-smi", amd_smi_7([row], [listed()], [current(mode="SPX", memory="NPS4")]))
    tools.install("rocminfo", rocminfo(agent(2, 2, units=38)))
    assert disagreements([mi300x()], tools.environ()) == [
        "device 0, mi300x: PCI device id 74a1, 74a5 by amd-smi",
        "device 0, mi300x: memory 192.0 GiB, 256.0 GiB by amd-smi",
        "device 0, mi300x: memory partition NPS1, NPS4 by amd-smi",
        "device 0, mi300x: compute units 304, 38 by rocminfo",
    ]


def test_hidden_gpus_are_no_disagreement(tools: Tools) -> None:
    rows = [static(0, device_id="0x74a5"), static(1)]
    tools.install("amd-smi", {"static --json": rows, "list -e --json": [listed(0), listed(1)]})
    shown = mi300x(uuid=None, bdf=None)
    assert disagreements([shown], tools.environ(HIP_VISIBLE_DEVICES="1")) == []
    by_uuid = tools.environ(ROCR_VISIBLE_DEVICES="GPU-5e00000000000a01")
    assert disagreements([shown], by_uuid) == []


def test_a_tool_without_uuids_is_not_counted_by_them(tools: Tools) -> None:
    tools.rocm_smi(*({"Device ID": "0x74a1", "PCI Bus": f"0000:{n}1:00.0"} for n in (1, 2)))
    environ = tools.environ(ROCR_VISIBLE_DEVICES="GPU-5e00000000000a01")
    assert disagreements([mi300x(bdf="0000:21:00.0")], environ) == []


def test_gpus_that_cannot_be_used_are_a_disagreement(tools: Tools) -> None:
    tools.install("amd-smi", {"static --json": [static()]})
    assert disagreements([], tools.environ()) == ["amd-smi shows 1 AMD GPUs, 0 can be used"]


def test_a_tool_that_fails_is_named_and_not_warned_of(tools: Tools) -> None:
    tools.install("rocminfo", {}, otherwise="echo no permission >&2; exit 1")
    assert disagreements([mi300x()], tools.environ()) == [
        "rocminfo ended with status 1: no permission"
    ]


def test_without_tools_nothing_is_contradicted(tools: Tools) -> None:
    assert disagreements([mi300x()], tools.environ()) == []
