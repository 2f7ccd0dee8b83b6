"""``micro_benchmarking_pytorch.py``: ours under the name of ROCm's tool."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the program and leave with its exit status."""
    from bench_lib.micro.program import main as run

    sys.exit(run())
