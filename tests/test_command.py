"""Somebody else's program as a case: its server, its client, and what it reports."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from pathlib import Path

import pytest
import torch
from builders import make_case, make_hardware_cpu, make_measurement
from command import ran
from processes import ON_THE_CPU, TORCH_ALONE, fresh_context

from bench_lib.engine import commands
from bench_lib.launch.faults import CaseFault
from bench_lib.launch.zygote import Zygote
from bench_lib.model import Case, Fault
from bench_lib.worker.workload import Setting, Workload
from bench_lib.worker.workloads.command import VARIABLE, CommandError, command

SERVER = """
import http.server, os, subprocess, sys, time

NAP_S, WELL = float(os.environ.get("NAP_S", "0")), int(os.environ.get("WELL", "200"))
print("my token is hf_abcdefghijklmnopqrstuvwxyz0123", flush=True)
if os.environ.get("CHILD"):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    open(os.environ["CHILD"], "w").write(str(child.pid))
if WELL < 0:
    sys.exit(-WELL)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(NAP_S * (self.path != "/health"))
        self.send_response(WELL if self.path == "/health" else 200)
        self.end_headers()

    def log_message(self, *_):
        pass

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
CLIENT = """
import json, sys, time, urllib.request
times = []
for _ in range(3):
    begin = time.perf_counter()
    urllib.request.urlopen(sys.argv[1], timeout=10).read()
    times.append(time.perf_counter() - begin)
metric = {"name": "median_itl_ms", "benchmark_values": [sorted(times)[1] * 1e3]}
record = {"benchmark": {"name": "echo"}, "model": {"name": "m"}, "metric": metric}
json.dump(record, open(sys.argv[2], "w"))
"""


@pytest.fixture
def words(tmp_path: Path) -> dict[str, str]:
    """Return the parameters of a case that asks a server of its own."""
    for name, text in (("server.py", SERVER), ("client.py", CLIENT)):
        (tmp_path / name).write_text(text)
    here = shlex.quote(str(tmp_path))
    return {
        "start": f"{{python}} {here}/server.py {{port}}",
        "health": "http://127.0.0.1:{port}/health",
        "client": f"{{python}} {here}/client.py http://127.0.0.1:{{port}}/work {{folder}}/r.json",
        "result": "{folder}/r.json",
        "format": "pytorch",
    }


@contextlib.contextmanager
def built(words: dict[str, str], **more):
    workload: Workload = command(Setting(torch.device("cpu")), **{**words, **more})
    with contextlib.closing(workload):
        yield workload


def started_by_cases() -> set[int]:
    """Return the processes of this host that a case's commands started."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{VARIABLE}=".encode() in entry.read_bytes():
                found.add(int(entry.parent.name))
    return found


def all_gone(before: set[int], limit_s: float = 10.0) -> bool:
    """Whether nothing is left but what was there; a process that was killed takes a moment."""
    ends_s = time.monotonic() + limit_s
    while (left := started_by_cases() - before) and time.monotonic() < ends_s:
        time.sleep(0.01)
    return not left


def test_a_server_is_started_asked_and_ended_with_all_its_children(words, tmp_path, monkeypatch):
    before = started_by_cases()
    monkeypatch.setenv("CHILD", str(tmp_path / "child"))
    with built(words) as workload:
        workload.step()
        workload.rewind()
        for _ in range(2):
            workload.step()
        documents = workload.documents()
        assert [json.loads(each)["metric"]["name"] for each in documents] == ["median_itl_ms"] * 2
        child = int((tmp_path / "child").read_text())
        assert child in started_by_cases()
    assert all_gone(before)


@pytest.mark.parametrize(
    ("variables", "more", "error"),
    [
        ({"WELL": "500"}, {"start_s": 1.5}, r"/health answered 500 within 1\.5 s of the server's"),
        ({"WELL": "-3"}, {}, "the server ended with status 3 before it was ready; its last output"),
        ({}, {"health": "http://127.0.0.1:9/", "start_s": 0.3}, "did not answer within 0.3 s"),
    ],
)
def test_a_server_that_is_not_well_is_an_error_and_is_ended(
    words, variables, more, error, monkeypatch
):
    before = started_by_cases()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CommandError, match=error), built(words, **more):
        pass
    assert all_gone(before)


def test_health_is_asked_without_the_environments_proxy(words, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with built(words):
        pass


def test_a_result_from_before_the_first_run_is_no_figure(tmp_path):
    stale = tmp_path / "r.json"
    stale.write_text("{}")
    with (
        built({"client": "true", "result": str(stale), "format": "pytorch"}) as workload,
        pytest.raises(CommandError, match=r"the client wrote no r\.json"),
    ):
        workload.step()


def test_a_command_that_outlives_its_cases_time_limit_leaves_nothing(words, tmp_path):
    before, started = started_by_cases(), tmp_path / "child"
    params = {**words, "client": "{python} -c 'import time; time.sleep(600)'"}
    case = Case("echo", "bench_lib.worker.workloads.command:command", params, time_limit_s=3.0)
    environment = {**ON_THE_CPU, **TORCH_ALONE, "CHILD": str(started)}
    with (
        contextlib.closing(Zygote(environment=environment)) as zygote,
        fresh_context(zygote) as context,
    ):
        with pytest.raises(CaseFault) as raised:
            context.measure(case)
        assert raised.value.fault.kind == "time limit"
        assert started.exists()
        assert all_gone(before)


@pytest.mark.parametrize(
    ("client", "error"),
    [
        ("{python} -c 'import sys; print(\"no\"); sys.exit(4)'", "status 4; its last output: no"),
        ("true", "the client wrote no r.json"),
        ("no-such-program-anywhere", "the client ended with status"),
    ],
)
def test_a_client_that_fails_is_an_error_with_its_last_words(words, client, error):
    with (
        built({"client": client, "result": words["result"], "format": "pytorch"}) as workload,
        pytest.raises(CommandError, match=error),
    ):
        workload.step()


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"start": "true"}, "start needs health"),
        ({"health": "file:///etc/passwd"}, "it must be an HTTP URL"),
    ],
)
def test_words_that_cannot_be_meant_start_nothing(more, error):
    with pytest.raises(ValueError, match=error), built({"client": "true", **more}):
        pass


def test_no_shell_runs_the_words(tmp_path):
    made = tmp_path / "made"
    with built({"client": f"echo $HOME; touch {shlex.quote(str(made))}"}) as workload:
        workload.step()
    assert not made.exists()


def test_secrets_in_a_programs_words_are_not_kept(words, monkeypatch):
    monkeypatch.setenv("WELL", "-3")
    with pytest.raises(CommandError) as caught, built(words):
        pass
    kept = CaseFault(Fault("exception", str(caught.value), "build")).fault.message
    assert "hf_abc" in str(caught.value)
    assert "hf_abc" not in kept


# ---- what it reports --------------------------------------------------------------------------


def record(name: str, value: float, benchmark: str = "echo") -> str:
    metric = {"name": name, "benchmark_values": [value]}
    return json.dumps({"benchmark": {"name": benchmark}, "model": {"name": "m"}, "metric": metric})


def timed(*documents: str, **params: str) -> list[float]:
    case = make_case(workload="command", params={"format": "pytorch", **params})
    return commands.timed(case, make_measurement(documents=list(documents))).iteration_s


def test_a_steps_time_is_the_programs_own_and_a_rates_is_of_one() -> None:
    assert timed(record("median_itl_ms", 20.0), record("median_itl_ms", 25.0)) == [0.02, 0.025]
    assert timed(record("tokens_per_second", 50.0)) == [0.02]
    both = record("median_itl_ms", 20.0) + "\n" + record("median_ttft_ms", 90.0)
    assert timed(both, metric="first_token") == [0.09]
    assert timed() == make_measurement().iteration_s


@pytest.mark.parametrize(
    ("document", "params", "error"),
    [
        ("no JSON", {}, "the client's result cannot be read: "),
        (record("peak_bytes", 3.0), {}, "peak_bytes is neither a time nor a rate"),
        (record("median_itl_ms", 3.0), {"metric": "latency"}, "it has between_tokens of "),
        (record("median_itl_ms", 3.0), {"format": "vlm"}, "format is 'vlm'; choose from vllm"),
        (record("median_itl_ms", 0.0), {}, "it must be above zero"),
    ],
)
def test_a_result_that_tells_no_time_is_a_fault(document, params, error):
    with pytest.raises(CaseFault, match=error):
        timed(document, **params)


# ---- two servers, interleaved ------------------------------------------------------------------

MATRIX = """
[smoke.sampling]
warmup_s = 0.001
warmup_max_s = 0.001
checks = false

[smoke.limits]
tolerance = 0.5
throughput = 9.0

[[smoke.factory]]
id = "echo"
target = "bench_lib.worker.workloads.command:command"
params = {params}
"""


@pytest.mark.usefixtures("nothing_is_stolen")
def test_two_environments_of_a_server_are_interleaved(words, monkeypatch, capsys):
    params = ", ".join(f"{name} = {json.dumps(value)}" for name, value in words.items())
    monkeypatch.chdir(Path(shlex.split(words["start"])[1]).parent)
    Path("matrix.toml").write_text(MATRIX.format(params=f"{{ {params} }}"))
    for name, value in {**ON_THE_CPU, **TORCH_ALONE}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("bench_lib.backends.detect", lambda **_: [make_hardware_cpu()])
    sides = ["--env-a", "NAP_S=0.03", "--env-b", "NAP_S=0.12"]
    asked = ["--matrix", "matrix.toml", "--tier", "smoke", "--pairs", "3", "--most-pairs", "3"]
    before = started_by_cases()
    answer = ran(["ab", *asked, *sides, "--json"], monkeypatch, capsys)
    assert answer.status == 1, answer
    assert [row["status"] for row in answer.json["cases"]] == ["REGRESSED"]
    assert all_gone(before)
