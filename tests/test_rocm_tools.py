"""Asking ROCm's tools, and reading figures and ids as their versions write them."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import all_gone

from bench_lib.backends.amd.tools import amd_smi, rocm_smi, rocminfo, written
from bench_lib.backends.amd.tools.written import figure, whole, words
from bench_lib.backends.tool import ToolError, ToolHangError, ask, none_running, parse

Install = Callable[[str], dict[str, str]]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Put a stand-in of amd-smi, which does what the lines of shell say, on a PATH."""

    def write(lines: str) -> dict[str, str]:
        file = tmp_path / "bin/amd-smi"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{lines}\n")
        file.chmod(0o755)
        return {"PATH": str(file.parent)}

    return write


# --- asking ------------------------------------------------------------------------------


def test_an_answer_is_what_the_tool_prints(install: Install) -> None:
    environ = install('echo "[] $1 $#"; echo aside >&2')
    assert ask(["amd-smi", "list -e", "--json"], environ=environ) == "[] list -e 2\n"


def test_a_tool_gets_the_environment_that_is_given_and_no_input(install: Install) -> None:
    environ = install('read -r line || echo "$ROCR_VISIBLE_DEVICES"')
    assert ask(["amd-smi"], environ={**environ, "ROCR_VISIBLE_DEVICES": "3"}) == "3\n"


def test_a_tool_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"^amd-smi is not installed, or not on PATH$"):
        ask(["amd-smi"], environ={"PATH": str(tmp_path)})


def test_a_tool_that_cannot_be_run_is_said_to_be_so(install: Install, tmp_path: Path) -> None:
    environ = install("")
    (tmp_path / "bin/amd-smi").write_bytes(b"\x7fELF\x00")
    with pytest.raises(ToolError, match=r"^amd-smi cannot be run: "):
        ask(["amd-smi"], environ=environ)


def test_a_refusal_is_told_by_its_last_line(install: Install) -> None:
    environ = install("echo Traceback >&2; echo 'no permission' >&2; exit 3")
    with pytest.raises(ToolError, match=r"^amd-smi list ended with status 3: no permission$"):
        ask(["amd-smi", "list"], environ=environ)


def test_a_refusal_may_be_printed_like_an_answer(install: Install) -> None:
    with pytest.raises(ToolError, match=r"status 1: no driver$"):
        ask(["amd-smi"], environ=install("echo no driver; exit 1"))


def test_a_refusal_without_a_word_is_one(install: Install) -> None:
    with pytest.raises(ToolError, match=r"ended with status -9: nothing$"):
        ask(["amd-smi"], environ=install("kill -9 $$"))


def test_a_tool_that_hangs_is_ended_with_what_it_started(install: Install, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    environ = install(f"/bin/sleep 60 & echo $! > {pid}; wait")
    with pytest.raises(ToolHangError, match=r"^amd-smi metric did not answer in 0\.2 s$"):
        ask(["amd-smi", "metric"], timeout_s=0.2, environ=environ)
    assert all_gone(int(pid.read_text()))


def test_whoever_leaves_ends_the_tools_that_others_ask(install: Install, tmp_path: Path) -> None:
    pid, again = tmp_path / "pid", tmp_path / "again"
    environ = install(
        f"[ -e {pid} ] && echo > {again} && exit\n/bin/sleep 60 & echo $! > {pid}; wait"
    )
    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask, ["amd-smi"], timeout_s=50, environ=environ)
        while not (pid.exists() and pid.read_text().strip()):
            assert not first.done()
            time.sleep(0.01)
        with none_running():
            with pytest.raises(ToolError, match="status -9"):
                first.result()
            second = pool.submit(ask, ["amd-smi"], environ=environ)
            time.sleep(0.1)
            assert not again.exists()
        assert second.result() == ""
    assert again.exists()
    with none_running():
        pass


def test_an_interrupt_does_not_leave_a_tool_behind(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []

    def interrupted(child: subprocess.Popen[str], **_: object) -> None:
        started.append(child)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(["amd-smi"], environ=install("exec /bin/sleep 60"))
    assert [child.returncode for child in started] == [-signal.SIGKILL]


def test_bytes_that_are_no_text_do_not_matter(install: Install) -> None:
    assert ask(["amd-smi"], environ=install(r"printf 'R\377'")) == "R\ufffd"


# --- JSON --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"gpu": [0]}',
        'WARNING: a card is in a low-power state\n\n{"gpu": [0]}\n',
        '[WARNING] deprecated\n{"gpu": [0]}',
        "{'watching': 1}\n{\n  \"gpu\": [\n    0\n  ]\n}\nsee the log\n",
    ],
)
def test_prose_around_the_answer_is_passed_over(text: str) -> None:
    assert parse(text, "amd-smi") == {"gpu": [0]}


@pytest.mark.parametrize("text", ["", "\n", "GPU: 0", '[\n  {"gpu": 0},\n  {"gp', '{"a": [1,'])
def test_an_answer_that_is_torn_or_none_is_an_error(text: str) -> None:
    with pytest.raises(ToolError, match=r"^rocm-smi did not print JSON \("):
        parse(text, "rocm-smi")


def test_an_answer_of_many_brackets_is_an_error_and_no_crash() -> None:
    with pytest.raises(ToolError):
        parse("[" * 200_000, "amd-smi")


def test_a_long_answer_is_quoted_in_part() -> None:
    with pytest.raises(ToolError) as error:
        parse("x" * 1000, "amd-smi")
    assert len(str(error.value)) < 200


# --- figures -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (734, "W", 734.0),
        ("734", "W", 734.0),
        ("734.5 W", "W", 734.5),
        ({"value": 734, "unit": "W"}, "W", 734.0),
        ({"value": "734000", "unit": "mW"}, "W", 734.0),
        ({"value": 7.34e8, "unit": "uW"}, "W", 734.0),
        ("(1725Mhz)", "MHz", 1725.0),
        ({"value": 1.725, "unit": "GHz"}, "MHz", 1725.0),
        ("51.0", "C", 51.0),
        ({"value": 51, "unit": "°C"}, "C", 51.0),
        ({"value": 2, "unit": "GB"}, "B", 2.0 * 2**30),
        ({"value": 2048, "unit": "MB"}, "B", 2.0 * 2**30),
        ("2097152 KB", "B", 2.0 * 2**30),
        ({"value": 2147483648, "unit": "B"}, "B", 2.0 * 2**30),
        (7, "", 7.0),
        (-3, "C", -3.0),
    ],
)
def test_a_figure_is_read_however_it_is_written(value: object, unit: str, expected: float) -> None:
    assert figure(value, unit) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "value",
    [
        "N/A",
        "N/A (Secondary die)",
        "",
        None,
        True,
        [734],
        {},
        {"value": "N/A", "unit": "W"},
        {"value": {"value": 1}},
        {"value": 734, "unit": "MHz"},
        "734 C",
        "7 3 4",
        "0x2de",
        math.nan,
        math.inf,
        10**400,
        "9" * 400,
    ],
)
def test_what_is_no_figure_of_the_kind_is_none(value: object) -> None:
    assert figure(value, "W") is None


@given(st.floats(min_value=0, max_value=1e12), st.sampled_from(["W", "mW", "uW", "kW"]))
def test_a_figure_is_the_same_in_every_spelling(number: float, unit: str) -> None:
    spelled = [f"{number!r} {unit}", f"({number!r}{unit})", {"value": number, "unit": unit}]
    read = [figure(value, "W") for value in [*spelled, {"value": repr(number), "unit": unit}]]
    assert read == [read[0]] * 4
    assert read[0] == pytest.approx(number * {"W": 1, "mW": 1e-3, "uW": 1e-6, "kW": 1e3}[unit])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(JSON, st.sampled_from(["W", "MHz", "C", "%", "B", ""]))
def test_whatever_a_tool_writes_is_a_finite_figure_or_none(value: object, unit: str) -> None:
    number = figure(value, unit)
    assert number is None or math.isfinite(number)
    assert whole(value) is None or isinstance(whole(value), int)
    for read in (words, written.pci_id, written.uuid, written.bdf, written.arch, written.mode):
        assert read(value) is None or isinstance(read(value), str)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(304, 304), ("304", 304), (" 0x130 ", 304), (304.0, 304), ("-1", -1)],
)
def test_a_whole_number_is_read_however_it_is_written(value: object, expected: int) -> None:
    assert whole(value) == expected


@pytest.mark.parametrize("value", ["N/A", "", None, True, 1.5, math.nan, math.inf, [3], "130h"])
def test_what_is_no_whole_number_is_none(value: object) -> None:
    assert whole(value) is None


@pytest.mark.parametrize("value", ["N/A", "n/a", "", "  ", "None", "UNKNOWN", None, 7, ["SPX"]])
def test_a_word_that_says_nothing_is_none(value: object) -> None:
    assert words(value) is None


# --- ids ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["0x74a1", "74a1", "0X74A1", " 74A1 ", 0x74A1])
def test_a_pci_id_is_four_digits(value: object) -> None:
    assert written.pci_id(value) == "74a1"


@pytest.mark.parametrize(
    "value", ["0x74g1", "MI300X", "N/A", "0x0", "0x0000", 0, -1, "174a1", "4a1", True, None]
)
def test_an_id_that_is_not_hexadecimal_is_none(value: object) -> None:
    assert written.pci_id(value) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("GPU-9a00b1c2d3e4f506", "GPU-9a00b1c2d3e4f506"),
        ("0x9A00B1C2D3E4F506", "GPU-9a00b1c2d3e4f506"),
        ("0xa00b1c2d3e4f506", "GPU-0a00b1c2d3e4f506"),
        ("GPU-0000000000000000", None),
        ("GPU-XX", None),
        ("CPU-XX", None),
        ("N/A", None),
        ("29ff74a1-0000-1000-80b6-8d14570000e2", None),
    ],
)
def test_a_uuid_is_spelled_as_the_kernel_does(value: str, expected: str | None) -> None:
    assert written.uuid(value) == expected


@pytest.mark.parametrize(
    ("value", "partition", "expected"),
    [
        ("0000:0C:00.0", None, "0000:0c:00.0"),
        ("0000:0c:00.0", 3, "0000:0c:00.3"),
        ("0000:0c:00.3", 0, "0000:0c:00.3"),
        ("00000001:0c:00.0", 0, "0001:0c:00.0"),
        ("0c:00.0", None, None),
        ("N/A", 2, None),
    ],
)
def test_a_partition_is_the_function_of_its_address(
    value: str, partition: int | None, expected: str | None
) -> None:
    assert written.bdf(value, partition) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("gfx942", "gfx942"),
        ("GFX942", "gfx942"),
        ("gfx90a:sramecc+:xnack-", "gfx90a"),
        ("gfx9010", "gfx90a"),
        ("gfx9008", "gfx908"),
        ("gfx11000", "gfx1100"),
        ("gfx1100", "gfx1100"),
        ("gfx1030", "gfx1030"),
        ("gfx950", "gfx950"),
        ("gfx18446744073709551615", None),
        ("gfx90", None),
        ("N/A", None),
    ],
)
def test_an_architecture_is_named_as_compilers_do(value: str, expected: str | None) -> None:
    assert written.arch(value) == expected


@pytest.mark.parametrize("value", ["N/A", "UNKNOWN", "NONE", "../x", "cpx nps4", "", None])
def test_a_mode_that_cannot_be_part_of_a_file_name_is_none(value: str | None) -> None:
    assert written.mode(value) is None


# --- amd-smi -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        [{"gpu": 0}, {"gpu": 1}],
        {"gpu_data": [{"gpu": 0}, {"gpu": 1}]},
        {"cpu_data": [{"cpu": 0}], "gpu_data": [{"gpu": 0}, {"gpu": 1}]},
        [{"cpu": 0}, {"gpu": 0}, {"cpu": 1}, {"gpu": 1}],
        [{"gpu": 0}, "N/A", {"gpu": 1}],
    ],
)
def test_entries_are_the_gpus_of_any_envelope(answer: object) -> None:
    assert amd_smi.entries(json.dumps(answer)) == [{"gpu": 0}, {"gpu": 1}]


def test_current_partitions_number_gpus_by_another_name() -> None:
    rows = [{"gpu_id": 0, "memory": "NPS1"}]
    assert amd_smi.entries(json.dumps({"current_partition": rows})) == rows


def test_a_single_gpu_may_come_without_a_list() -> None:
    assert amd_smi.entries('{"gpu": 0}') == [{"gpu": 0}]


@pytest.mark.parametrize("answer", [[], {"gpu_data": []}])
def test_no_gpu_is_an_answer(answer: object) -> None:
    assert amd_smi.entries(json.dumps(answer)) == []


@pytest.mark.parametrize(
    "answer", [{"gpu_data": {}}, {"gpu_data": None}, [[{"gpu": 0}]], [{"cpu": 0}], {"error": 3}, 7]
)
def test_an_answer_that_lists_no_gpu_is_an_error(answer: object) -> None:
    with pytest.raises(ToolError, match="amd-smi"):
        amd_smi.entries(json.dumps(answer))


@pytest.mark.parametrize("part", ["N/A", None, [], [{"device_id": "0x74a1"}], 3])
def test_a_section_of_another_shape_is_empty(part: object) -> None:
    assert amd_smi.section({"asic": part}, "asic") == {}


def test_a_section_is_what_it_holds() -> None:
    assert amd_smi.section({"asic": {"device_id": 1}}, "asic") == {"device_id": 1}


@given(JSON, JSON, JSON)
def test_no_content_of_an_entry_is_fatal(asic: object, limit: object, partition: object) -> None:
    entry = {"gpu": 0, "asic": asic, "limit": limit, "partition": partition, "vram": asic}
    assert len(amd_smi.identities([entry], [{"gpu": 0, "node_id": asic, "bdf": limit}])) == 1


@pytest.mark.parametrize(
    ("limit", "cap"),
    [
        ({"max_power": {"value": 750, "unit": "W"}, "socket_power": "500 W"}, 500),
        ({"max_power": "750 W", "current_power": "500 W"}, 500),
        ({"ppt0": {"max_power_limit": 1400, "socket_power_limit": 1000}, "ppt1": "N/A"}, 1000),
        ({"socket_power": {"value": 500000, "unit": "mW"}}, 500),
        ({"max_power": {"value": 750, "unit": "W"}, "socket_power": "N/A"}, None),
        ({"socket_power": {"value": 0, "unit": "W"}}, None),
        ("N/A", None),
    ],
)
def test_the_power_cap_is_the_one_in_force(limit: object, cap: float | None) -> None:
    (gpu,) = amd_smi.identities([{"gpu": 0, "limit": limit}])
    assert gpu.power_cap_w == cap


@pytest.mark.parametrize(
    ("listed", "order"),
    [
        ([{"node_id": 5, "hip_id": 0}, {"node_id": 4, "hip_id": 1}], ["b", "a"]),
        ([{"node_id": "N/A", "hip_id": 1}, {"node_id": "N/A", "hip_id": 0}], ["b", "a"]),
        ([{"node_id": 7, "hip_id": "1"}, {"node_id": 7, "hip_id": "0"}], ["b", "a"]),
        ([{"node_id": 9}, {}], ["a", "b"]),
        ([], ["a", "b"]),
    ],
)
def test_gpus_are_in_the_order_of_hip(listed: list[dict[str, object]], order: list[str]) -> None:
    static = [{"gpu": n, "asic": {"device_id": f"0x000{'ab'[n]}"}} for n in range(2)]
    found = amd_smi.identities(static, [{"gpu": n, **entry} for n, entry in enumerate(listed)])
    assert [(gpu.pci_device_id or "")[-1] for gpu in found] == order


def test_a_gpu_that_one_answer_lacks_still_counts() -> None:
    static = [{"gpu": n, "asic": {"device_id": "0x74a1"}} for n in (0, 2)]
    listed = [{"gpu": n, "bdf": f"0000:0{n}:00.0", "node_id": n + 1} for n in range(3)]
    found = amd_smi.identities(static, listed)
    assert [gpu.pci_device_id for gpu in found] == ["74a1", None, "74a1"]
    assert found[1].bdf == "0000:01:00.0"


# --- rocm-smi and rocminfo ---------------------------------------------------------------


def test_cards_are_told_by_number_and_their_fields_in_lower_case() -> None:
    answer = {"card1": {"sclk clock speed:": "(800Mhz)", "Card Series": "X"}, "system": {"a": "b"}}
    assert rocm_smi.cards(json.dumps(answer)) == {
        1: {"sclk clock speed": "(800Mhz)", "card series": "X"}
    }


@pytest.mark.parametrize("answer", [{}, [], {"system": {"Driver version": "6"}}, {"card0": []}])
def test_an_answer_without_a_card_is_an_error(answer: object) -> None:
    with pytest.raises(ToolError, match="rocm-smi printed no card"):
        rocm_smi.cards(json.dumps(answer))


def test_partitions_at_one_address_are_numbered() -> None:
    cards = {
        f"card{n}": {"PCI Bus": "0000:0C:00.0", "Compute Partition": "TPX", "Node ID": str(n + 4)}
        for n in range(3)
    }
    found = rocm_smi.identities(json.dumps(cards))
    assert [gpu.bdf for gpu in found] == [f"0000:0c:00.{n}" for n in range(3)]


def test_cards_are_in_the_order_of_their_nodes() -> None:
    told = {"card0": {"Node ID": "3", "Device ID": "0x000a"}}
    told["card1"] = {"Node ID": "2", "Device ID": "0x000b"}
    assert [g.pci_device_id for g in rocm_smi.identities(json.dumps(told))] == ["000b", "000a"]
    untold = {f"card{n}": {"Device ID": f"0x{n:04x}"} for n in (10, 2)}
    assert [g.pci_device_id for g in rocm_smi.identities(json.dumps(untold))] == ["0002", "000a"]


@pytest.mark.parametrize("text", ["", "ROCk module is NOT loaded, possibly no GPU devices\n"])
def test_a_rocminfo_without_agents_is_an_error(text: str) -> None:
    with pytest.raises(ToolError, match="rocminfo printed no agent"):
        rocminfo.identities(text)


def test_agents_that_are_no_gpus_are_passed_over() -> None:
    agent = "*******\nAgent 1\n*******\n  Name:   EPYC\n  Uuid:   CPU-XX\n  Device Type:   CPU\n"
    assert rocminfo.identities(agent) == []


def test_a_torn_agent_is_a_gpu_of_which_little_is_known() -> None:
    agent = "*******  \nAgent 2  \n*******  \n  Name:   gfx942  \n  Device Type:   GPU  \n  Comp"
    (gpu,) = rocminfo.identities(agent)
    assert (gpu.arch, gpu.compute_units, gpu.memory_bytes) == ("gfx942", None, None)
