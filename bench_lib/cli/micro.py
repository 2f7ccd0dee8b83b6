"""``bench-lib micro``: runs ``python -m bench_lib.micro``, which imports torch and measures."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

SETTINGS = {
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
"""All arguments are for the other program, --help too."""


def micro(
    flags: Annotated[
        list[str] | None, typer.Argument(metavar="FLAGS", help="See bench-lib micro --help.")
    ] = None,
) -> None:
    """Run the command line of ROCm's micro_benchmarking_pytorch.py, measured like the suite."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "bench_lib.micro", *(flags or [])])  # noqa: S606 - no shell
