"""How long do 24 eager cases take through the suite, and through one process each?

    python benchmarks/suite_time.py [--cases 24]

Runs ``pytest perf_tests`` on suite_time.toml, then one_case.py once per case, then the suite
again, and prints wall times and their ratio; the aim is at most a third.  One script runs
before all, so that nobody pays for reading torch from a cold disk.  With fewer cases the
scripts' time is scaled up to 24, and the output says so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NETWORKS = ("resnet18", "resnet34", "resnet50", "mobilenet_v2", "densenet121", "vgg16")


def suite() -> float:
    """Wall seconds of one run of the suite."""
    with tempfile.TemporaryDirectory() as history:
        begin = time.monotonic()
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "perf_tests", "--perf-tier", "gate"),
                *("--perf-matrix", str(HERE / "suite_time.toml"), "--perf-history", history),
                *("-q", "-p", "no:cacheprovider"),
            ],
            cwd=HERE.parent,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return time.monotonic() - begin


def script(network: str, *flags: str) -> float:
    """Wall seconds of one process for one case."""
    begin = time.monotonic()
    subprocess.run(
        [sys.executable, str(HERE / "one_case.py"), "--network", network, *flags],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.monotonic() - begin


def main() -> None:
    """Run both and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=24)
    arguments = parser.parse_args()
    cases = list(itertools.product(NETWORKS, ((), ("--fp16",)), ((), ("--train",))))
    chosen = cases[: arguments.cases]
    script(NETWORKS[0])
    first = suite()
    scripts = [script(network, *precision, *task) for network, precision, task in chosen]
    second = suite()
    total = sum(scripts) * len(cases) / len(chosen)
    report = {
        "suite_s": [first, second],
        "scripts_s": total,
        "scripts_run": len(chosen),
        "scripts_scaled": len(chosen) < len(cases),
        "median_script_s": sorted(scripts)[len(scripts) // 2],
        "ratio": [first / total, second / total],
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
