"""What the compiler draws, and whether a draw can be replayed in empty caches.

Compiles one network in fresh processes, each with empty caches of Inductor and Triton of its
own.  Then it compiles the network again, in empty caches and with the choices of an earlier
process, in each way that torch offers:

    files   the ``*.best_config`` files of the earlier cache, copied before the compilation
    table   ``torch._inductor.config.autotune_lookup_table``, filled from what the earlier process
            had in memory, without any file

    python benchmarks/draws.py                       # ResNet-50, 7 processes, under three minutes
    python benchmarks/draws.py --workload gemm       # three GEMMs with max-autotune

Prints one JSON object: ``processes`` (median step, choices by kernel) and ``replays`` (which
kernels a replay chose differently).  Needs torch and a GPU; torchvision for ResNet-50.  The
user's caches are neither read nor written.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench_lib.worker import draws

MODES = {"resnet50": "reduce-overhead", "gemm": "max-autotune-no-cudagraphs"}
PLAN = (
    # name, whose cache (None: an empty one), whose choices, how they are replayed
    ("a", None, None, None),
    ("b", None, None, None),
    ("a by files", None, "a", "files"),
    ("a by table", None, "a", "table"),
    ("b by table", None, "b", "table"),
    ("b by files", None, "b", "files"),
    ("a again, same cache", "a", None, None),
)


def main() -> int:
    """Run the plan, or be one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", choices=sorted(MODES), default="resnet50")
    parser.add_argument("--mode", help="compile mode (default: the workload's own)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--budget", type=float, default=170.0, help="seconds for all processes")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--measure", metavar="TABLE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.mode = arguments.mode or MODES[arguments.workload]
    if arguments.measure is not None:
        print(json.dumps(measured(arguments)))
        return 0
    print(json.dumps(played(arguments), indent=1))
    return 0


def played(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run each process of the plan for which there is time; return what they say."""
    begin, longest = time.monotonic(), 0.0
    processes: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="draws-") as folder:
        folders = {name: Path(folder, str(at)) for at, (name, *_) in enumerate(PLAN)}
        for name, cache, choices, way in PLAN:
            if time.monotonic() - begin + longest > arguments.budget:
                processes[name] = {"skipped": "no time left"}
                continue
            if choices and "draw" not in processes.get(choices, {}):
                processes[name] = {"skipped": f"process {choices} has no choices"}
                continue
            since = time.monotonic()
            own = folders[cache] if cache else folders[name]
            table = ""
            if choices and way == "files":
                copied = _copied(folders[choices], own)
            elif choices:
                kept = processes[choices]["draw"]["kernels"].values()
                table = json.dumps({c["source"]: c["config"] for c in kept if not c["template"]})
            processes[name] = _child(arguments, own, table)
            if choices and way == "files":
                processes[name]["copied"] = copied
            longest = max(longest, time.monotonic() - since)
            processes[name]["wall_s"] = round(time.monotonic() - since, 1)
            print(f"{name}: {processes[name].get('median_ms')} ms", file=sys.stderr)
    replays = {
        name: _difference(processes[choices or cache], processes[name])
        for name, cache, choices, _ in PLAN
        if (choices or cache) and "draw" in processes[name]
    }
    if "draw" in processes["a"] and "draw" in processes["b"]:
        replays["b against a, both drawn"] = _difference(processes["a"], processes["b"])
    return {
        "workload": f"{arguments.workload} b{arguments.batch} fp16 {arguments.mode}",
        "seconds": round(time.monotonic() - begin, 1),
        "medians_ms": {name: each.get("median_ms") for name, each in processes.items()},
        "replays": replays,
        "processes": processes,
    }


def _copied(of: Path, to: Path) -> int:
    """Copy the files of a cache that hold choices alone; return how many."""
    files = [*of.rglob("*.best_config"), *(of / "inductor" / "cache").rglob("*")]
    files = [file for file in files if file.is_file()]
    for file in files:
        place = to / file.relative_to(of)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    return len(files)


def _child(arguments: argparse.Namespace, folder: Path, table: str) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    environ = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    options = ("workload", "mode", "batch", "device")
    given = [f"--{name}={getattr(arguments, name)}" for name in options]
    done = subprocess.run(
        [sys.executable, __file__, *given, f"--measure={table}"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"failed": done.returncode, "stderr": done.stderr[-3000:]}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def _difference(of: dict[str, Any], to: dict[str, Any]) -> dict[str, Any]:
    old, new = (each["draw"]["kernels"] for each in (of, to))
    both = sorted({*old} & {*new})
    return {
        "kernels": len(both),
        "only_one_has": sorted({*old} ^ {*new}),
        "sources_differ": [n for n in both if old[n]["source"] != new[n]["source"]],
        "choices_differ": {
            name: [old[name]["config"], new[name]["config"]]
            for name in both
            if old[name]["config"] != new[name]["config"]
        },
        "ratio": round(to["median_ms"] / of["median_ms"], 5),
    }


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compile, measure and say what was chosen; the work of one process."""
    table = json.loads(arguments.measure) if arguments.measure else None
    device = torch.device(arguments.device)
    with contextlib.nullcontext() if table is None else draws.replayed(table):
        before = draws.compiled_so_far()
        step = _step(arguments, device)
        begin = time.monotonic()
        with torch.no_grad():
            step()
            _wait(device)
            first = time.monotonic() - begin
            for _ in range(20):
                step()
            _wait(device)
            times = [_block(step, device) for _ in range(30)]
        draw = draws.drawn(since=before)
    return {
        "torch": torch.__version__,
        "median_ms": round(statistics.median(times), 5),
        "blocks_ms": [round(each, 5) for each in times],
        "first_s": round(first, 1),
        "draw": dataclasses.asdict(draw),
    }


def _step(arguments: argparse.Namespace, device: Any) -> Any:
    torch.manual_seed(0)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    if arguments.workload == "resnet50":
        from torchvision.models import resnet50  # noqa: PLC0415 - not needed for products

        model, shape = resnet50(weights=None), (arguments.batch, 3, 224, 224)
    else:
        layers = [torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)]
        model = torch.nn.Sequential(*layers, torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 3072))
        shape = (arguments.batch * 64, 1024)
    model = model.to(device, dtype).eval()
    given = torch.randn(shape, device=device, dtype=dtype)
    compiled = torch.compile(model, mode=arguments.mode)
    return lambda: compiled(given)


def _block(step: Any, device: Any, steps: int = 20) -> float:
    """Return the milliseconds of a step, over some in a row."""
    if device.type != "cuda":
        begin = time.monotonic()
        step()
        return (time.monotonic() - begin) * 1000
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(steps):
        step()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / steps


def _wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
