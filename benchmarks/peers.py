"""Our images per second beside those of ROCm's tool: the same work, interleaved on one GPU.

    python benchmarks/peers.py FOLDER [--rounds 3] [--only NAME ...]

Compares ``bench-lib micro`` with micro_benchmarking_pytorch.py in FOLDER, a checkout of
github.com/ROCm/pytorch-micro-benchmarking.  Every run is a process of its own, forked from one that
has imported torch and opened no device.  It prints a line of JSON for each setting: each side's
images per second in every round, the median of the rounds' ratios (ours over theirs), and the
ratio's 95% interval by Student's t on the logarithms.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import runpy
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from scipy.special import stdtrit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SETTINGS = {
    "train-fp32": "--network resnet50",
    "train-fp16": "--network resnet50 --fp16 1",
    "infer-fp32": "--network resnet50 --mode inference",
    "infer-fp16": "--network resnet50 --fp16 1 --mode inference",
    "train-fp16-nhwc": "--network resnet50 --batch-size 256 --fp16 1 --nhwc",
    "infer-fp16-nhwc": "--network resnet50 --fp16 1 --nhwc --mode inference",
    "densenet-train-fp16": "--network densenet121 --batch-size 256 --fp16 1",
    "train-amp": "--network resnet50 --amp",
    "infer-fp16-compiled": "--network resnet50 --fp16 1 --mode inference --compile",
    "train-fp16-compiled": "--network resnet50 --batch-size 256 --fp16 1 --compile",
    "best-fp16": (
        "--network resnet50 --fp16 1 --nhwc --mode inference "
        "--compile --compileContext {'mode':'reduce-overhead'}"
    ),
}
RATE = re.compile(r"^Throughput \[img/sec\] : ([0-9.e+]+)$", re.MULTILINE)


def forked(work: Callable[[], object]) -> str:
    """Return what a process of its own prints while it does the work."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            with log.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.chdir(folder)
            status = 1
            with contextlib.suppress(SystemExit):
                try:
                    work()
                    status = 0
                except Exception as error:  # noqa: BLE001 - told, and the others go on
                    print(repr(error))
            sys.stdout.flush()
            os._exit(status)
        os.waitpid(child, 0)
        return log.read_text(errors="replace")


def run_rocm(folder: Path, words: list[str]) -> None:
    """Run ROCm's tool."""
    sys.argv = ["micro_benchmarking_pytorch.py", *words, "--output-file", "x"]
    sys.path.insert(0, str(folder))
    runpy.run_path(str(folder / sys.argv[0]), run_name="__main__")


def rate(output: str) -> float | None:
    """Return the images per second that a run printed last."""
    found = RATE.findall(output)
    return float(found[-1]) if found else None


def interval(ratios: list[float]) -> tuple[float, float] | None:
    """Return the ratio's 95% interval; None of fewer than two."""
    if len(ratios) < 2:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    half = float(stdtrit(len(logs) - 1, 0.975)) * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.fmean(logs)
    return math.exp(mean - half), math.exp(mean + half)


def compare(folder: Path, name: str, rounds: int) -> dict[str, object]:
    """Return what both made of a setting."""
    from bench_lib.micro import program  # noqa: PLC0415 - imports torch, before the forks

    words = SETTINGS[name].split()
    rates: dict[str, list[float | None]] = {"theirs": [], "ours": []}
    failed = []
    sides = (
        ("theirs", lambda: run_rocm(folder, words)),
        ("ours", lambda: program.main(words)),
    )
    for _ in range(rounds):
        for side, run in sides:
            output = forked(run)
            seen = rate(output)
            rates[side].append(seen)
            if seen is None:
                failed.append({side: output[-1500:]})
    pairs = zip(rates["ours"], rates["theirs"], strict=True)
    ratios = [a / b for a, b in pairs if a and b]
    return {
        "setting": name,
        "words": words,
        **rates,
        "ratio": statistics.median(ratios) if ratios else None,
        "interval": interval(ratios),
        "failed": failed,
    }


def main() -> None:
    """Compare each setting."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(SETTINGS), choices=[*SETTINGS])
    arguments = parser.parse_args()
    for name in arguments.only:
        line = json.dumps(compare(arguments.folder.resolve(), name, arguments.rounds))
        print(line, flush=True)


if __name__ == "__main__":
    main()
