"""Is the median that bench_lib reports the one that a bare loop of device events sees?

    python benchmarks/fidelity.py [--rounds 5]

Measures ResNet-50, batch 64, fp16, inference, in one process: alternately through
``bench_lib.worker.measure`` and by a loop of events around a model built right here.  Prints
the medians and their ratio; the aim is within 0.5%.  Each side runs once before the first
pair: on an H200 the first network of a context was seen 0.8% faster than all after it, on
either side, and that is the context's doing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torchvision

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_lib.model import Case
from bench_lib.worker.clock import clock_of
from bench_lib.worker.device import open_device
from bench_lib.worker.measure import MeasuringContext, measure
from bench_lib.worker.workloads import Setting

BATCH = 64


def bare_loop(device: torch.device, iterations: int) -> float:
    """Median step time in seconds of plain torchvision code, timed by events."""
    torch.backends.cudnn.allow_tf32 = False
    model = torchvision.models.resnet50(weights=None).half().to(device).eval()
    images = torch.randn(BATCH, 3, 224, 224, device=device, dtype=torch.float16)
    with torch.no_grad():
        begin = time.monotonic()
        while time.monotonic() - begin < 1.0:
            model(images)
            torch.cuda.synchronize()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
        events[0].record()
        for event in events[1:]:
            model(images)
            event.record()
        torch.cuda.synchronize()
    pairs = itertools.pairwise(events)
    return statistics.median(a.elapsed_time(b) for a, b in pairs) / 1e3


def main() -> None:
    """Run both, alternating, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    device, seen = open_device()
    if device.type != "cuda":
        sys.exit("fidelity.py needs a GPU: on a CPU both sides read the same clock")
    context = MeasuringContext(Setting(device), clock_of(device), "fidelity", seen.uuid)
    case = Case(
        id="resnet50-b64-fp16-eager-infer",
        workload="network",
        params={"network": "resnet50", "batch_size": BATCH, "precision": "fp16"},
    )
    rows = []
    for _ in range(arguments.rounds + 1):
        measured = measure(case, context).iteration_s
        bare = bare_loop(device, len(measured))
        rows.append({"bench_lib_s": statistics.median(measured), "bare_loop_s": bare})
    before, *rows = rows
    ratios = [row["bench_lib_s"] / row["bare_loop_s"] for row in rows]
    report = {
        "device": seen.name,
        "torch": torch.__version__,
        "before": before,
        "rounds": rows,
        "ratio": {
            "median": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
        },
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
