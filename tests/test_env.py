"""``bench-lib env``: the devices and versions it shows, and whether the suite can run there."""

import json
from dataclasses import replace

import pytest
from builders import make_environment, make_hardware, make_record, write_run
from command import Quiet, ran
from golden import golden

from bench_lib import backends
from bench_lib.backends.backend import Check
from bench_lib.cli import machine as examined
from bench_lib.engine import telemetry
from bench_lib.environment import fingerprint, readiness
from bench_lib.model import Hardware

FIGURES = {
    "source": "amdsmi",
    "clock_mhz": 2100.4,
    "power_w": 140.5,
    "temperature_c": 41.0,
    "utilization": 0.125,
    "throttle": ["thermal", "power brake"],
    "t": 1.0,
}


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    return lambda *words: ran(words, monkeypatch, capsys, Quiet)


@pytest.fixture
def somewhere(monkeypatch):
    here = {
        "devices": [make_hardware()],
        "looks": {0: (FIGURES, None)},
        "checks": [Check("visible devices", ok=True, detail="0: mi300x")],
        "worker": ({"torch": "9.1.0", "cudnn": None}, None),
        "environment": make_environment(),
    }
    monkeypatch.setattr(backends, "detect", lambda **_: here["devices"])
    monkeypatch.setattr(telemetry, "look_once", lambda device: here["looks"][device.index])
    monkeypatch.setattr(readiness, "checks", lambda devices: here["checks"])
    monkeypatch.setattr(fingerprint, "collect", lambda: here["environment"])
    monkeypatch.setattr(examined, "_worker_versions", lambda *_: here["worker"])
    return here


def checked(answer):
    return {check["name"]: (check["ok"], check["fatal"]) for check in answer.json["checks"]}


def test_this_machine_is_described_and_whether_it_is_fit_said(cli):
    answer = cli("env", "--json")
    found = answer.json
    keys = [device.key for device in backends.detect()]
    assert [device["key"] for device in found["devices"]] == keys
    assert found["environment"]["torch"] is not None
    assert {"telemetry", "worker starts"} <= {check["name"] for check in found["checks"]}
    failed = [check for check in found["checks"] if check["ok"] is False]
    assert found["fit"] is not any(check["fatal"] for check in failed)
    assert answer.status == (0 if found["fit"] else 1)


def test_a_page_shows_what_is_known_with_units_and_passes_where_nothing_is_wrong(cli, somewhere):
    somewhere["devices"].append(make_hardware(index=1, bdf=None, power_cap_w=None, ptl="on, F8"))
    somewhere["looks"][1] = (None, "the amdsmi package did not answer within 5 s")
    somewhere["environment"] = make_environment(
        numa_balancing=True,
        kernel_options={"iommu": "pt", "nosmt": "set"},
        libraries={"MIOpen": "1.0.79901", "rccl": "1.0.79901"},
        cudnn="3009000",
        variables={"HSA_XNACK": "1"},
        caches={"miopen": "warm, 41 entries, 0123456789ab"},
    )
    answer = cli("env")
    assert (answer.status, answer.err) == (0, "")
    golden(answer.out)


def test_a_cpu_has_no_rows_that_only_a_gpu_could_fill(cli, somewhere):
    somewhere["devices"] = [Hardware(vendor="cpu", name="Test CPU", key="cpu-test-4c")]
    somewhere["looks"][0] = ({"source": "proc"}, None)
    somewhere["environment"] = make_environment(driver=None, rocm=None, hip=None)
    shown = cli("env").out
    assert not [word for word in ("ROCm", "driver", "power", "Instinct") if word in shown]


def test_what_nobody_has_tried_on_an_instinct_is_said_and_nothing_elsewhere(cli, somewhere):
    words = " ".join(cli("env").out.split())
    assert "No AMD Instinct has run this suite yet" in words
    for command in ("env --report", "selfcheck", "baseline record"):
        assert f"bench-lib {command}" in words
    somewhere["devices"] = [make_hardware(vendor="nvidia", key="h200", name="NVIDIA H200")]
    assert "Instinct" not in cli("env").out


def test_a_text_to_send_has_no_host_home_or_serial_number(cli, somewhere, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/grace")
    detail = "node-1 has /home/grace/.cache, and node-10 /home/graceful"
    somewhere["checks"].append(Check("temporary folder", ok=None, detail=detail))
    (device,) = somewhere["devices"]
    answer = cli("env", "--report", str(tmp_path / "sent.txt"))
    assert answer.status == 0
    sent = (tmp_path / "sent.txt").read_text()
    assert "HOST has ~/.cache, and node-10 /home/graceful" in sent
    assert device.uuid not in sent
    document = json.loads(sent[sent.index("\n{\n") :])
    assert (document["environment"]["host"], document["fit"]) == ("HOST", True)
    answer = cli("env", "--report", str(tmp_path))
    assert answer.status == 2
    assert "cannot write" in answer.err
    answer = cli("env", "--json", "--report", "-")
    assert (answer.status, answer.out) == (2, "")


@pytest.mark.usefixtures("somewhere")
def test_a_user_without_a_home_gets_a_text_too(cli, tmp_path, monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    answer = cli("env", "--report", "sent.txt")
    assert answer.status == 0
    assert "HOST" in (tmp_path / "sent.txt").read_text()


def test_warnings_pass_and_what_keeps_the_suite_from_running_fails(cli, somewhere):
    warning = Check("CPU governor", ok=False, detail="powersave", remedy="set it")
    somewhere["checks"].append(warning)
    answer = cli("env")
    assert (answer.status, answer.lines[-1]) == (0, "The suite can run here; 1 warning above.")
    assert "warn  CPU governor: powersave -> set it" in answer.lines
    somewhere["checks"].append(replace(warning, name="torch", fatal=True))
    answer = cli("env")
    assert (answer.status, answer.lines[-1]) == (1, "The suite cannot run here; fix first: torch.")
    assert cli("env", "--json").json["fit"] is False


def test_where_no_worker_starts_the_suite_cannot_run(cli, somewhere):
    somewhere["worker"] = ({}, "torch cannot be imported: no such library")
    answer = cli("env")
    assert answer.status == 1
    assert "FAIL  worker starts: torch cannot be imported: no such library" in answer.out


def test_a_device_that_cannot_be_watched_is_a_warning(cli, somewhere):
    somewhere["looks"][0] = (None, "the amdsmi package did not answer within 5 s")
    answer = cli("env", "--json")
    assert (answer.status, checked(answer)["telemetry"]) == (0, (False, False))
    assert answer.json["telemetry"][0]["cause"] == "the amdsmi package did not answer within 5 s"


@pytest.mark.parametrize(("pids", "ok"), [([], True), ([4711, 12], False), (None, None)])
def test_processes_on_an_nvidia_gpu_are_named_by_telemetry(cli, somewhere, pids, ok):
    somewhere["devices"] = [make_hardware(vendor="nvidia", key="h200")]
    somewhere["looks"][0] = ({"source": "nvml", "pids": pids}, None)
    answer = cli("env", "--json")
    expected = None if ok is None else (ok, False)
    assert checked(answer).get("other processes on the GPUs") == expected
    assert not pids or "2: 12, 4711" in answer.out


def test_accepted_cases_are_counted_and_a_broken_baseline_file_fails(cli, somewhere, tmp_path):
    write_run(tmp_path / "history", [make_record()])
    words = ("--run", "latest", "--reason", "first", "--force")
    assert cli("baseline", "accept", *words).status == 0
    assert cli("env", "--json").json["devices"][0]["accepted"] == 1
    found = cli("env", "--baselines", "elsewhere", "--json").json
    assert found["devices"][0]["accepted"] == 0
    (tmp_path / "baselines/mi300x.json").write_text("{")
    answer = cli("env", "--json")
    assert (answer.status, checked(answer)["baselines"]) == (1, (False, True))
