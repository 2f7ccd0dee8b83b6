"""``python -m bench_lib``: the same as ``bench-lib``, where that is not on the PATH."""

from bench_lib.cli import main

main()
