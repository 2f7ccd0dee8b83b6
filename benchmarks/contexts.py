"""What differs between fresh contexts: a launch's cost in each stream, and what it explains.

Forks fresh contexts one after the other.  In each, a short probe runs in the default stream and
in several others (a chain of tiny kernels behind a long one, so that the device alone sets its
pace), and then the same networks run in each of these streams.  One JSON object a context:
``chain_us`` by stream and for three rounds, ``network_ms`` by network and stream.

    python benchmarks/contexts.py --contexts 12 --streams 10 -o contexts.jsonl
    python benchmarks/contexts.py --show contexts.jsonl

Needs torch and a GPU.  Before each stretch another context uses the device for some
milliseconds, as bench-lib's own measuring has it; see docs/architecture.md, "Giving way".
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LAUNCHES = 600
HOLD_CYCLES = 7_000_000
"""As long as the host takes to issue the chain; a launch queue holds 1024 kernels."""
NETWORKS = (("resnet50", 64, "float16"), ("resnet50", 64, "float32"), ("vit_b_16", 64, "bfloat16"))


def main() -> int:
    """Measure contexts, or show what a file of them says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--contexts", type=int, default=12)
    parser.add_argument("--streams", type=int, default=10)
    parser.add_argument("-o", "--output", type=Path, default=Path("contexts.jsonl"))
    parser.add_argument("--show", type=Path)
    arguments = parser.parse_args()
    if arguments.show is None:
        measure(arguments.contexts, arguments.streams, arguments.output)
    show(arguments.show or arguments.output)
    return 0


def measure(contexts: int, streams: int, output: Path) -> None:
    """Write one line a fresh context."""
    import torch  # noqa: F401, PLC0415 - imported once, before the forks
    import torchvision  # noqa: F401, PLC0415

    companion = _companion()
    begin = time.monotonic()
    with output.open("a", encoding="utf-8", buffering=1) as file:
        for number in range(1, contexts + 1):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    file.write(json.dumps(_context(streams, companion)) + "\n")
                    code = 0
                finally:
                    os._exit(code)
            _, status = os.waitpid(pid, 0)
            if status != 0:
                raise SystemExit(f"context {number} failed")
            took = time.monotonic() - begin
            left = took / number * (contexts - number)
            print(f"context {number} of {contexts}, {left:.0f} s left", file=sys.stderr)


def _companion() -> Callable[[], None]:
    """Fork a context that uses the device for some milliseconds whenever it is asked to."""
    asked, ask = os.pipe()
    done, answer = os.pipe()
    if os.fork() == 0:
        os.close(ask)
        import torch  # noqa: PLC0415

        matrix = None
        while os.read(asked, 1):
            if matrix is None:
                matrix = torch.randn(4096, 4096, device="cuda")
            product = matrix
            for _ in range(10):
                product = torch.tanh(product @ matrix)
            torch.cuda.synchronize()
            del product
            torch.cuda.empty_cache()
            os.write(answer, b"x")
        os._exit(0)

    def use() -> None:
        os.write(ask, b"x")
        os.read(done, 1)

    return use


def _context(count: int, companion: Callable[[], None]) -> dict[str, Any]:
    import torch  # noqa: PLC0415
    import torchvision  # noqa: PLC0415

    begin = time.monotonic()
    torch.cuda.init()
    numbers = torch.ones(32, device="cuda")
    opened_s = time.monotonic() - begin
    streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(count - 1))]

    def chain(stream: Any) -> float:
        companion()
        with torch.cuda.stream(stream):
            for _ in range(50):
                numbers.add_(0)
            torch.cuda.synchronize()
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(HOLD_CYCLES)
            first.record()
            for _ in range(LAUNCHES):
                numbers.add_(0)
            last.record()
            torch.cuda.synchronize()
        return round(first.elapsed_time(last) / LAUNCHES * 1e3, 4)

    def block(step: Callable[[], object], iterations: int) -> float:
        torch.cuda.synchronize()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
        events[0].record()
        for event in events[1:]:
            step()
            event.record()
        torch.cuda.synchronize()
        pairs = itertools.pairwise(events)
        return float(round(statistics.median(a.elapsed_time(b) for a, b in pairs), 5))

    chains = [[chain(stream) for stream in streams] for _ in range(2)]
    times: dict[str, list[float]] = {}
    with torch.no_grad():
        for name, batch, precision in NETWORKS:
            torch.manual_seed(0)
            dtype = getattr(torch, precision)
            with torch.device("cuda"):
                network = torchvision.models.get_model(name, weights=None).to(dtype).eval()
            images = torch.randn(batch, 3, 224, 224, device="cuda").to(dtype)
            step = functools.partial(network, images)
            block(step, 30)
            row = times[f"{name}-b{batch}-{precision}"] = []
            for stream in streams:
                with torch.cuda.stream(stream):
                    block(step, 5)
                    companion()
                    block(step, 10)
                    row.append(block(step, 30))
    chains.append([chain(stream) for stream in streams])
    return {
        "device": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "opened_s": round(opened_s, 3),
        "chain_us": chains,
        "network_ms": times,
    }


def show(path: Path) -> None:
    """Say what the probe explains: spread by default, in the stream with the cheapest launches."""
    contexts = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    repeat = [
        abs(math.log(b / a)) for c in contexts for a, b in zip(*c["chain_us"][:2], strict=True)
    ]
    print(f"{len(contexts)} contexts, {len(contexts[0]['chain_us'][0])} streams each")
    print(f"probe, repeated in the same stream: median difference {statistics.median(repeat):.2%}")
    print("network                     default  cheapest stream  left by the probe  r2")
    for name in contexts[0]["network_ms"]:
        default, cheapest, points = [], [], []
        for context in contexts:
            costs, values = context["chain_us"][0], context["network_ms"][name]
            logs = [math.log(value) for value in values]
            default.append(logs[0])
            cheapest.append(logs[min(range(len(logs)), key=costs.__getitem__)])
            points += list(zip(costs, logs, strict=False))
        left, r2 = _regressed(points)
        spreads = f"{statistics.stdev(default):8.2%}  {statistics.stdev(cheapest):15.2%}"
        print(f"{name:26}{spreads}  {left:17.2%}  {r2:.2f}")


def _regressed(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the residual spread of a straight line through (cost, log time), and its r2."""
    slope, intercept = statistics.linear_regression(*zip(*points, strict=True))
    rest = [y - slope * x - intercept for x, y in points]
    total = statistics.pvariance([y for _, y in points])
    return statistics.stdev(rest), 1 - statistics.pvariance(rest) / total


if __name__ == "__main__":
    sys.exit(main())
