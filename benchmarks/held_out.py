"""How often is a clean run called slower on devices that no baseline knows, and is 3% found?

Each command uses all visible GPUs at once, one run a GPU.  Each run has empty compiler caches:

    python benchmarks/held_out.py record --out DIR   # a baseline of the gate, from these devices
    python benchmarks/held_out.py clean --out DIR    # the gate held against it
    python benchmarks/held_out.py planted --out DIR  # a compiled network, and time planted in it

``clean`` belongs on other machines than ``record``; DIR travels.  ``planted`` accepts one run of
ResNet-50.  Then it runs the network in one empty cache after the other, in turn as it is and with
3% planted.  What follows ``--`` goes to pytest.

Prints a JSON object for each run: how many cases have which status, and by case the status, the
ratio and the smallest slow-down that would have been found.  The runs and what pytest printed stay
in DIR.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_lib import backends
from bench_lib.model import Hardware

HERE = Path(__file__).resolve().parent
MATRIX = HERE / "held_out.toml"
UNITS = "HELD_OUT_UNITS"
"""Names the variable that tells the planted network how many units of delay its step has."""
PLANTED = 0.03
CYCLE_S = 1 / 1.98e9
"""Of an H200's clock, in seconds; the ratio that a run found says how much it was."""
TIMES = ("latency", "device_time")


@dataclass(frozen=True)
class Run:
    """One run of pytest on one device, in empty compiler caches."""

    name: str
    device: Hardware
    options: Sequence[str]
    environ: dict[str, str] = field(default_factory=dict)

    def start(self, out: Path, caches: Path) -> subprocess.Popen[bytes]:
        """Start it; what it prints is kept beside its history."""
        found = self.history(out)
        found.mkdir(parents=True)
        environ = {
            **os.environ,
            **backends.visibility(self.device),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / self.name / "inductor"),
            "TRITON_CACHE_DIR": str(caches / self.name / "triton"),
            "PYTHONPATH": os.pathsep.join(
                [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
            ),
            **self.environ,
        }
        command = [
            *(sys.executable, "-m", "pytest", "perf_tests", "-q", "-p", "no:cacheprovider"),
            *("--perf-history", str(found), "--perf-baselines", str(out / "baselines")),
            *("--perf-tier", "gate", "--perf-kernels", "none", *self.options),
        ]
        with (found / "pytest.txt").open("wb") as log:
            return subprocess.Popen(
                command, cwd=HERE.parent, env=environ, stdout=log, stderr=subprocess.STDOUT
            )

    def history(self, out: Path) -> Path:
        """Name the folder of its history: one a run, so that runs know nothing of each other."""
        return out / "runs" / self.name


def bench_lib(*words: str) -> bytes:
    """Return what a command of bench-lib prints; RuntimeError with its words where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "bench_lib.cli", *words], capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"bench-lib {' '.join(words)}: {done.stderr.decode()}")
    return done.stdout


def told(run: Run, out: Path) -> dict[str, Any]:
    """Say in short what a run found."""
    history = str(run.history(out))
    shown = json.loads(bench_lib("history", "show", "latest", "--json", "--history", history))
    cases = {}
    for record in shown["records"]:
        times = (v for v in record["verdicts"] if v["metric"] in TIMES and v["ratio"])
        verdict: dict[str, Any] = next(times, {})
        cases[record["case"]["id"]] = {
            "status": record["status"],
            "processes": len(record["attempts"]),
            **{name: verdict.get(name) for name in ("ratio", "detectable_effect", "reason")},
        }
    visible = [c["detectable_effect"] for c in cases.values() if c["detectable_effect"]]
    return {
        "run": run.name,
        "device": run.device.uuid,
        "counts": collections.Counter(c["status"] for c in cases.values()),
        "processes": sum(c["processes"] for c in cases.values()) / max(1, len(cases)),
        "visible": statistics.quantiles(visible, n=10) if len(visible) > 1 else visible,
        "cases": cases,
    }


def at_once(runs: Sequence[Run], out: Path) -> list[dict[str, Any]]:
    """Make runs beside each other; print and return what they found."""
    with tempfile.TemporaryDirectory() as caches:
        begin = time.monotonic()
        started = [(run, run.start(out, Path(caches))) for run in runs]
        answers = []
        for run, process in started:
            process.wait()
            answers.append({"seconds": time.monotonic() - begin, **told(run, out)})
            print(json.dumps(answers[-1]), flush=True)
    return answers


def accept(runs: Sequence[Run], out: Path) -> None:
    """Make the runs the baseline."""
    files = [str(f) for run in runs for f in run.history(out).glob("*.jsonl")]
    words = itertools.chain.from_iterable(("--run", file) for file in files)
    where = ("--baselines", str(out / "baselines"), "--history", str(out / "runs"))
    bench_lib("baseline", "accept", *words, *where, "--reason", "held out", "--force")


def name(word: str, device: Hardware) -> str:
    """Name a run so that no other has its name."""
    return f"{word}-{(device.uuid or 'device').removeprefix('GPU-')[:8]}-{time.time_ns() // 10**9}"


def record(devices: Sequence[Hardware], out: Path, options: Sequence[str]) -> None:
    """Record a baseline from every device."""
    asked = ("--perf-processes", "5", *options)
    runs = [Run(name("record", device), device, asked) for device in devices]
    at_once(runs, out)
    accept(runs, out)


def clean(devices: Sequence[Hardware], out: Path, options: Sequence[str]) -> None:
    """Judge every device by the baseline."""
    at_once([Run(name("clean", device), device, options) for device in devices], out)


def planted(devices: Sequence[Hardware], out: Path, options: Sequence[str]) -> None:
    """Plant a delay in a compiled network, in every second of ten empty caches."""
    device = devices[0]
    asked = ("--perf-matrix", str(MATRIX), *options)

    def run(word: str, units: int, *more: str) -> Run:
        return Run(name(word, device), device, (*asked, *more), {UNITS: str(units)})

    first = run("accepted", 0, "--perf-processes", "5")
    at_once([first], out)
    accept([first], out)
    units = round(PLANTED * step_s(first, out) / CYCLE_S)
    for _ in range(5):
        for word, some in (("as-it-is", 0), ("planted", units)):
            at_once([run(word, some)], out)


def step_s(run: Run, out: Path) -> float:
    """Seconds that the first case of a run took, in the median."""
    history = str(run.history(out))
    shown = json.loads(bench_lib("history", "show", "latest", "--json", "--history", history))
    seconds: float = shown["records"][0]["verdicts"][0]["value"]
    return seconds


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = {"record": record, "clean": clean, "planted": planted}
    parser.add_argument("command", choices=sorted(commands))
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and baselines")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    devices = backends.detect()
    if not devices:
        raise SystemExit("no device was found")
    commands[arguments.command](devices, arguments.out.resolve(), options)


if __name__ == "__main__":
    main()
