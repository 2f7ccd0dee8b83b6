"""Command lines of the seeds, alone and under mpirun and torchrun: theirs and ours side by side.

python benchmarks/seed_lines.py FOLDER [--out FILE]

FOLDER holds github.com/ROCm/pytorch-micro-benchmarking, of which a copy for the CPU runs.  Of the
CIFAR-100 script, which needs a GPU, the line of its documentation stands for its output.  A row of
Markdown a command line: how many different lines theirs prints (numbers apart), how many of them
ours prints too, and whether the JSON files have the same keys.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from micro_wall import ROOT, theirs

TORCHRUN = "torchrun --nproc-per-node 2"
MPIRUN = "mpirun -np 2"
_MICRO = "--network resnet18 --batch-size 4"
_TRAIN = "--model resnet -bs 8 -ms 3 --precision float32"
LINES = (
    ("", "micro", f"{_MICRO} --iterations 5"),
    ("", "micro", f"{_MICRO} --iterations 5 --mode inference"),
    ("", "micro", f"{_MICRO} --iterations 5 --nhwc"),
    ("", "micro", f"{_MICRO} --iterations 10 --kineto --profiler-output trace"),
    ("", "micro", f"{_MICRO} --iterations 5 --autograd_profiler"),
    ("", "micro", f"{_MICRO} --iterations 4 --flops-prof-step 2"),
    (TORCHRUN, "micro", f"{_MICRO} --iterations 5"),
    (TORCHRUN, "micro", f"{_MICRO} --iterations 5 --mode inference"),
    (MPIRUN, "micro", f"{_MICRO} --iterations 5"),
    ("", "train", _TRAIN),
    (TORCHRUN, "train", _TRAIN),
    (MPIRUN, "train", _TRAIN),
)
OF_THE_SCRIPT = "0 / 0: loss 5.00, acc 0.39%, images / second / gpu: 564.89."
SEARCHED = re.compile(
    r"^(INFO: |OK: |-{8}|Microbenchmark |Num devices|Dtype|Mini batch|Throughput|Time per mini"
    r"|Initializing|Rendezvous|Benchmark result)"
)
"""Lines that the tool itself prints; a profiler's tables are torch's and DeepSpeed's."""


def shapes(output: str) -> set[str]:
    """Return the lines of an output that count, without their numbers and ranks' marks."""
    kept = (re.sub(r"^\[GPU \d+\] ", "", line.strip()) for line in output.splitlines())
    numbers = r"-?\d+(\.\d+)?(e-?\d+)?"
    found = {re.sub(numbers, "N", line) for line in kept if SEARCHED.match(line)}
    script = re.compile(r"^\d+ / \d+: loss .* images / second / gpu: .*\.$", re.MULTILINE)
    return found | {re.sub(numbers, "N", line) for line in script.findall(output)}


def printed(launcher: str, words: list[str], folder: Path) -> str:
    """Return what a command prints; raises SystemExit where it fails."""
    start: list[str] = []
    if launcher == TORCHRUN:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        start += ["--nproc-per-node", "2", "--no-python"]
    elif launcher == MPIRUN:
        start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    environ.pop("PYTHONUNBUFFERED", None)  # or ranks of theirs write into each other's lines
    done = subprocess.run(
        [*start, *words], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{launcher} {words}: {done.stdout}{done.stderr}")
    return done.stdout


def keys(folder: Path) -> list[str]:
    """Return the keys of a result."""
    return list(json.loads((folder / "x.json").read_text()))


def main() -> None:
    """Print the table."""
    asked = argparse.ArgumentParser()
    asked.add_argument("folder", type=Path)
    asked.add_argument("--out", type=Path)
    asked.add_argument("--only", help="lines launched so: torchrun, mpirun, nothing")
    options = asked.parse_args()
    rows = [
        "| launched by | command line | lines of theirs | in ours | keys |",
        "|---|---|---|---|---|",
    ]
    for launcher, program, text in LINES:
        if options.only and (launcher or "nothing").partition(" ")[0] != options.only:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder, same = Path(name), "-"
            if program == "train":
                wanted = shapes(OF_THE_SCRIPT)
                ours = [sys.executable, "-m", "bench_lib.cli", "train", "cifar100", *text.split()]
                found = shapes(printed(launcher, ours, folder))
            else:
                words = [*text.split(), "--output-dir", ".", "--output-file", "x"]
                wanted = shapes(
                    printed(launcher, [*theirs(options.folder, folder, "cpu"), *words], folder)
                )
                their_keys = keys(folder)
                ours = [sys.executable, "-m", "bench_lib.micro", *words]
                found = shapes(printed(launcher, ours, folder))
                same = "same" if keys(folder) == their_keys else "differ"
            missing = sorted(wanted - found)
            shown = f"| {launcher or 'nothing'} | {program} {text} | {len(wanted)} | "
            rows.append(f"{shown}{len(wanted) - len(missing)} | {same} |")
            print(rows[-1], *missing, sep="\n  missing: ", flush=True)
    if options.out is not None:
        options.out.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
