"""Whether watching a device disturbs what is measured on it: blocks with and without, in turns.

    python benchmarks/telemetry_cost.py [--pairs 60] [--json FILE]

One process measures; the project's own telemetry process watches the device beside it and is
stopped for every other block, in random order within each pair.  A block is the median of its
iterations by device events.  Printed is the mean of the pairs' differences, in percent of the
block without, with its 95% interval.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torchvision

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scipy import special

from bench_lib import backends

Step = Callable[[], object]


def main() -> int:
    """Print a line for each workload."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--json", type=Path, help="file for every block's median, in ms")
    options = parser.parse_args()
    device = backends.detect()[0]
    if device.vendor == "cpu":
        parser.error("this needs a GPU")
    told = backends.visibility(device)
    os.environ.update(told)
    blocks = {}
    print(f"{'workload':28} {'without':>10} {'watched less without':>22}   95% interval")
    for name, (step, iterations) in workloads().items():
        pairs = _pairs(step, iterations, options.pairs, [json.dumps(asdict(device))])
        blocks[name] = pairs
        changes = [100 * (with_ / without - 1) for with_, without in pairs]
        mean, error = statistics.fmean(changes), statistics.stdev(changes) / len(changes) ** 0.5
        half = error * special.stdtrit(len(changes) - 1, 0.975)
        base = statistics.median(without for _, without in pairs)
        interval = f"{mean - half:+.4f}% to {mean + half:+.4f}%"
        print(f"{name:28} {base:7.3f} ms {mean:+21.4f}%   {interval}", flush=True)
    if options.json:
        options.json.write_text(
            "".join(json.dumps({"case": n, "ms": p}) + "\n" for n, p in blocks.items())
        )
    return 0


def workloads() -> dict[str, tuple[Step, int]]:
    """Return a step and a block's iterations: launched, replayed, long, waiting for the host."""
    torch.manual_seed(0)
    images = torch.randn(64, 3, 224, 224, device="cuda", dtype=torch.half)
    network = torchvision.models.resnet50().cuda().half().eval()
    small = torchvision.models.mobilenet_v2().cuda().half().eval()
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.half)

    @torch.inference_mode()
    def eager() -> object:
        return network(images)

    @torch.inference_mode()
    def waiting() -> object:
        return small(images[:1])

    return {
        "resnet50-b64-fp16-eager": (eager, 60),
        "resnet50-b64-fp16-graph": (_recorded(eager), 60),
        "matmul-8192-fp16": (lambda: a @ a, 200),
        "mobilenet_v2-b1-host-bound": (waiting, 150),
        "mobilenet_v2-b1-graph": (_recorded(waiting), 600),
    }


def _recorded(step: Step) -> Step:
    """Record a step as a graph; return what replays it."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Step = graph.replay
    return replay


def _pairs(step: Step, iterations: int, pairs: int, device: list[str]) -> list[list[float]]:
    """Return each pair's medians in ms: watched, and without."""
    order = random.Random(1)
    watcher = subprocess.Popen(
        [sys.executable, "-m", "bench_lib.engine.telemetry", *device],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert watcher.stdin is not None
    try:
        begin = time.monotonic()
        while time.monotonic() < begin + 3:  # it starts while the device warms up
            _block(step, iterations)
        measured = []
        for _ in range(pairs):
            pair = [0.0, 0.0]
            for which in order.sample((0, 1), 2):
                watcher.send_signal(signal.SIGSTOP if which else signal.SIGCONT)
                time.sleep(0.06)
                _block(step, 10)
                pair[which] = _block(step, iterations)
            measured.append(pair)
        return measured
    finally:
        watcher.send_signal(signal.SIGCONT)
        watcher.stdin.close()
        watcher.wait(timeout=10)


def _block(step: Step, iterations: int) -> float:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
    torch.cuda.synchronize()
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events))


if __name__ == "__main__":
    sys.exit(main())
