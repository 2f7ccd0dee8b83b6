"""``python -m bench_lib.worker serve | once CASE.json OUT | profile CASE.json OUT | describe``."""

from __future__ import annotations

import sys

USAGE = (
    "usage: python -m bench_lib.worker serve | once CASE.json OUT | describe"
    " | profile CASE.json OUT [--steps N] [--stacks] [--ranges]"
)


def main(arguments: list[str]) -> int:
    """Run one of the worker's forms; returns the exit status."""
    if arguments == ["serve"]:
        from bench_lib.worker.zygote import serve

        return serve()
    if arguments[:1] == ["once"] and len(arguments) == 3:
        from bench_lib.worker.ranks import once

        return once(arguments[1], arguments[2])
    if arguments[:1] == ["profile"]:
        from bench_lib.worker import tracing

        return tracing.main(arguments[1:])
    if arguments == ["describe"]:
        from bench_lib.worker.workloads.registry import describe

        return describe()
    sys.stderr.write(f"{USAGE}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
