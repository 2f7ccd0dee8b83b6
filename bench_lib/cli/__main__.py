"""``python -m bench_lib.cli``: the same as ``bench-lib``."""

from bench_lib.cli import main

main()
