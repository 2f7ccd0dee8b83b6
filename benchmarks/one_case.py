"""One case per process, the way benchmark scripts are usually written.

    python benchmarks/one_case.py --network resnet50 --batch-size 64 --fp16 --train

Builds a torchvision network, runs two warm-up and twenty timed steps, and prints the
throughput.  It is what ``suite_time.py`` holds the suite against.
"""

from __future__ import annotations

import argparse
import time

import torch
import torchvision


def main() -> None:
    """Run one network and print images per second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--train", action="store_true")
    arguments = parser.parse_args()
    device = torch.device("cuda")
    dtype = torch.float16 if arguments.fp16 else torch.float32
    model = torchvision.models.get_model(arguments.network, weights=None)
    model = model.to(device, dtype).train(arguments.train)
    images = torch.randn(arguments.batch_size, 3, 224, 224, device=device, dtype=dtype)
    target = torch.randint(1000, (arguments.batch_size,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        if not arguments.train:
            with torch.no_grad():
                model(images)
            return
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), target).backward()
        optimizer.step()

    for _ in range(2):
        step()
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    rate = 20 * arguments.batch_size / (time.monotonic() - begin)
    print(f"Throughput [img/sec] : {rate:.1f}")


if __name__ == "__main__":
    main()
