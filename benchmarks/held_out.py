"""How often is a clean run called slower on devices that no baseline knows, and what is found?

Each command uses all visible GPUs at once, one run a GPU.  Each run has empty compiler caches:

    python benchmarks/held_out.py record --out DIR   # a baseline of the gate, from these devices
    python benchmarks/held_out.py clean --out DIR    # the gate held against it
    python benchmarks/held_out.py decode --out DIR   # a language model, and a kernel planted in it
    python benchmarks/held_out.py reference --out DIR  # the gate interleaved with the same software
    python benchmarks/held_out.py interleaved --out DIR  # time planted in networks, found by pairs

``clean`` belongs on other machines than ``record``; DIR travels.  What follows ``--`` goes to
pytest.

``decode`` accepts three processes of Llama 3.1's 8B that decodes one sequence.  Then it puts an
elementwise kernel into the step's graph, as long as ``--share`` of the step (1%), and judges.  The
last line has the verdict.  The exit status is 0 if the case is slower and the kernel is named.
``decode --share 1 -- --perf-tier smoke`` does so with a small model on a CPU.

``reference`` interleaves each case with this environment itself, so no case is slower than
it.  The last line says how many cases were ``paired`` with it, and in how many 1.3% is detectable
(``sharp``).

``interleaved`` measures one process of eager networks.  Then it plants ``--share`` of each step
(1.3%) and judges it with a reference without.  The last line has the reference's verdicts.  The
exit status is 0 if nine in ten of the cases are slower.

Prints a JSON object for each run: how many cases have which status, and by case the status, the
ratio and the smallest slowdown that would have been found.  The runs and what pytest printed stay
in DIR.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import re
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
from bench_lib.storage import history
from bench_lib.verdict.evidence import REFERENCE
from bench_lib.verdict.metrics import DEVICE, LEADING
from bench_lib.verdict.statistics.change import POWER

HERE = Path(__file__).resolve().parent
DECODE = HERE / "held_out_decode.toml"
INTERLEAVED = HERE / "held_out_interleaved.toml"
UNITS = "HELD_OUT_UNITS"
"""Names the variable that tells planted networks how many units of delay their steps have."""
SECONDS = "HELD_OUT_SECONDS"
"""Names the variable that tells the decoding network how long its planted kernel takes."""
KERNEL = re.compile(r"\bsin_?\b")
"""A word of the planted kernel's name, which no other kernel of the network has."""
UNIT_S = {True: 1 / 1.98e9, False: 3e-6}
"""A unit of delay on an H200, or on no GPU; the ratio that a run found says how much it was."""
TIMES = (LEADING.name, DEVICE.name)
SHARP = 0.013
"""In nine of ten cases an interleaved reference is to detect this."""


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
            *("--perf-tier", "gate", "-o", "perf_kernels=none", *self.options),
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
        [sys.executable, "-m", "bench_lib", *words], capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"bench-lib {' '.join(words)}: {done.stderr.decode()}")
    return done.stdout


def told(run: Run, out: Path, against: str | None = None) -> dict[str, Any]:
    """Say in short what a run found, by verdicts against one thing if that is named."""
    history = str(run.history(out))
    shown = json.loads(bench_lib("history", "show", "latest", "--json", "--history", history))
    cases = {}
    for record in shown["records"]:
        times = (v for v in record["verdicts"] if v["metric"] in TIMES and v["ratio"])
        asked = (v for v in times if against in (None, v["against"]))
        verdict: dict[str, Any] = next(asked, {})
        cases[record["case"]["id"]] = {
            "status": record["status"],
            "processes": len(record["attempts"]),
            "answer": verdict.get("status"),
            **{name: verdict.get(name) for name in ("ratio", "detectable_effect", "reason")},
            "blamed": record["blamed"],
        }
    detects = [c["detectable_effect"] for c in cases.values() if c["detectable_effect"]]
    return {
        "run": run.name,
        "device": run.device.uuid,
        "counts": collections.Counter(c["status"] for c in cases.values()),
        "processes": sum(c["processes"] for c in cases.values()) / max(1, len(cases)),
        "detects": statistics.quantiles(detects, n=10, method="inclusive")
        if len(detects) > 1
        else detects,
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
    files = [str(f) for run in runs for f in history.files(run.history(out))]
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


def decode(devices: Sequence[Hardware], out: Path, options: Sequence[str], share: float) -> bool:
    """Plant a kernel in a decoding step; return whether the case is slower and names it."""
    device, begin = devices[0], time.monotonic()
    asked = ("--perf-matrix", str(DECODE), "-o", "perf_kernels=auto", *options)
    first = Run(name("accepted", device), device, ("--perf-processes", "3", *asked))
    at_once([first], out)
    accept([first], out)
    (seconds,) = steps_s(first, out).values()
    planted = Run(name("planted", device), device, asked, {SECONDS: str(share * seconds)})
    (answer,) = at_once([planted], out)
    ((case, found),) = answer["cases"].items()
    said = verdict_on(found)
    about = {"case": case, "step_s": seconds, "planted": share, "s": time.monotonic() - begin}
    print(json.dumps({**about, **said}))
    return bool(said["is_found"] and said["is_named"])


def reference(devices: Sequence[Hardware], out: Path, options: Sequence[str]) -> None:
    """Judge a device's cases interleaved with the same software."""
    device, begin = devices[0], time.monotonic()
    asked = ("--perf-reference", "same", *options)
    answer = by_pairs(Run(name("reference", device), device, asked), out)
    detects = [case["detectable_effect"] for case in answer["cases"].values()]
    paired = [each for each in detects if each is not None]
    about = {"asked": len(detects), "paired": len(paired), "s": time.monotonic() - begin}
    sharp = sum(each <= SHARP for each in paired)
    print(json.dumps({**answer, **about, "sharp": sharp}))


def interleaved(
    devices: Sequence[Hardware], out: Path, options: Sequence[str], share: float
) -> bool:
    """Plant time in eager networks; return whether pairs find it in nine of ten."""
    device, begin = devices[0], time.monotonic()
    asked = ("--perf-matrix", str(INTERLEAVED), *options)
    first = Run(name("before", device), device, asked)
    at_once([first], out)
    units = delays(first, out, share)
    # Without the variable the reference plants nothing.
    options = ("--perf-reference", sys.executable, "-o", f"perf_reference_env={UNITS}={{}}")
    answer = by_pairs(Run(name("planted", device), device, (*options, *asked), {UNITS: units}), out)
    found = sum(case["answer"] == "REGRESSED" for case in answer["cases"].values())
    cases, seconds = len(answer["cases"]), time.monotonic() - begin
    print(json.dumps({**answer, "asked": cases, "found": found, "s": seconds}))
    return bool(cases) and found >= POWER * cases


def by_pairs(run: Run, out: Path) -> dict[str, Any]:
    """Make a run that has a reference, and return what its pairs told."""
    at_once([run], out)
    return told(run, out, REFERENCE)


def verdict_on(found: dict[str, Any]) -> dict[str, Any]:
    """Say whether a planted kernel was found, how much slower the case was, and who is named."""
    kernels: list[str] = found["blamed"]
    return {
        "is_found": found["status"] == "REGRESSED",
        "is_named": any(map(KERNEL.search, kernels)),
        "status": found["status"],
        "per_cent": None if found["ratio"] is None else round(100 * (found["ratio"] - 1), 3),
        "kernels": kernels,
        "reason": found["reason"],
    }


def steps_s(run: Run, out: Path) -> dict[str, float]:
    """Seconds that a run's networks took, in the median."""
    history = str(run.history(out))
    shown = json.loads(bench_lib("history", "show", "latest", "--json", "--history", history))
    return {
        each["case"]["params"]["network"]: each["verdicts"][0]["value"] for each in shown["records"]
    }


def delays(run: Run, out: Path, share: float) -> str:
    """Say as the planted networks read it how many units are a share of their steps."""
    share /= UNIT_S[backends.of(run.device).is_gpu]
    return json.dumps({network: round(share * s) for network, s in steps_s(run, out).items()})


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = {"record": record, "clean": clean}
    parser.add_argument(
        "command", choices=sorted([*commands, "decode", "reference", "interleaved"])
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and baselines")
    parser.add_argument("--share", type=float, help="of a step, where time is planted")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    devices = backends.detect()
    if not devices:
        raise SystemExit("no device was found")
    out = arguments.out.resolve()
    if arguments.command == "decode":
        raise SystemExit(0 if decode(devices, out, options, arguments.share or 0.01) else 1)
    if arguments.command == "interleaved":
        raise SystemExit(0 if interleaved(devices, out, options, arguments.share or SHARP) else 1)
    if arguments.command == "reference":
        reference(devices, out, options)
        return
    commands[arguments.command](devices, out, options)


if __name__ == "__main__":
    main()
