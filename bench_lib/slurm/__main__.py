"""Commands of a job's script: ``check`` its resources, ``run`` the suite and note its use."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench_lib.model import UserError
from bench_lib.slurm import asked, job


def main() -> int:
    """Do what the script asks and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench_lib.slurm", description=__doc__)
    parser.add_argument("what", choices=("check", "run"))
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--cpus", type=int)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--mem", metavar="SIZE")
    parser.add_argument("--time", metavar="TIME")
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*", metavar="-- WORDS")
    given = parser.parse_args()
    try:
        wanted = asked.resources(given.nodes, given.cpus, given.gpus, given.mem, given.time)
        if given.what == "check":
            return job.check(wanted, given.folder)
        return job.run(wanted, given.folder, given.words)
    except UserError as error:
        print(f"bench-lib: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
