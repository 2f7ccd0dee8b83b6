"""How long a whole run of ours takes, beside ROCm's micro_benchmarking_pytorch.py.

python benchmarks/micro_wall.py FOLDER [--device cuda] [--rounds 5] [--out FILE]

FOLDER holds github.com/ROCm/pytorch-micro-benchmarking.  Its tool needs a GPU.  On a CPU its text
runs with the CPU in place of "cuda".  Every run is a process of its own, the sides take turns.
A line of JSON a setting: seconds of each run, medians, and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ON_CPU = {
    "guide's first": "--network resnet18 --batch-size 16 --iterations 5",
    "training": "--network resnet50 --batch-size 4 --iterations 10",
    "inference": "--network resnet50 --batch-size 4 --iterations 10 --mode inference",
    "short steps": "--network mobilenet_v3_small --batch-size 1 --iterations 20 --mode inference",
}
ON_GPU = {
    "guide's first": "--network resnet50",
    "training fp16": "--network resnet50 --batch-size 256 --fp16 1",
    "inference": "--network resnet50 --mode inference",
    "short steps": "--network mobilenet_v3_small --batch-size 1 --mode inference",
}
ON_A_CPU = (
    ('device="cuda"', 'device="cpu"'),
    ("torch.cuda.synchronize()", "None"),
    (".cuda()", ""),
    ("torch.cuda.set_device(", "str("),
    ("torch.cuda.device_count()", "1"),
    ("autocast('cuda')", "autocast('cpu')"),
    ("device_ids=devices_to_run_on", "device_ids=None"),
    ("'dist_backend'] = \"nccl\"", "'dist_backend'] = \"gloo\""),
    ("emit_nvtx(enabled=autograd_profiler)", "emit_nvtx(enabled=False)"),
    ("GradScaler('cuda')", "GradScaler('cpu')"),
    ('torch.autocast(device_type="cuda"', 'torch.autocast(device_type="cpu"'),
)


def theirs(folder: Path, copy: Path, device: str) -> list[str]:
    """Return the command of their tool for a device, written into ``copy``."""
    for module in folder.glob("*.py"):
        text = module.read_text()
        for on_gpu, on_cpu in ON_A_CPU if device == "cpu" else ():
            text = text.replace(on_gpu, on_cpu)
        (copy / module.name).write_text(text)
    return [sys.executable, str(copy / "micro_benchmarking_pytorch.py")]


def wall_s(command: list[str], folder: str, device: str) -> float:
    """Return the seconds that a process takes, from its start to its end."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    if device == "cpu":
        environ["CUDA_VISIBLE_DEVICES"] = ""
    begin = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout.decode() + done.stderr.decode())
    return time.monotonic() - begin


def main() -> None:
    """Run the settings."""
    asked = argparse.ArgumentParser()
    asked.add_argument("folder", type=Path)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--out", type=Path)
    asked.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    asked.add_argument("--only", nargs="+", metavar="NAME", choices=ON_CPU)
    options = asked.parse_args()
    settings = ON_CPU if options.device == "cpu" else ON_GPU
    with tempfile.TemporaryDirectory() as copy:
        their_words = theirs(options.folder, Path(copy), options.device)
        our_words = [sys.executable, "-m", "bench_lib.micro"]
        for name, text in settings.items():
            if name not in (options.only or settings):
                continue
            seen: dict[str, list[float]] = {"theirs": [], "ours": []}
            for turn in range(options.rounds):
                order = ("theirs", "ours") if turn % 2 == 0 else ("ours", "theirs")
                for side in order:
                    words = their_words if side == "theirs" else our_words
                    seen[side].append(wall_s([*words, *text.split()], copy, options.device))
            pairs = zip(seen["ours"], seen["theirs"], strict=True)
            told = {
                "setting": name,
                "flags": text,
                **{side: [round(value, 3) for value in times] for side, times in seen.items()},
                "medians": {side: round(statistics.median(t), 3) for side, t in seen.items()},
                "ratio": round(statistics.median(ours / their for ours, their in pairs), 3),
            }
            line = json.dumps(told)
            print(line, flush=True)
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(f"{line}\n")


if __name__ == "__main__":
    main()
