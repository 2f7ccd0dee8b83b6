"""Read another program's profile with little time and memory, and print it: ``PATH STEPS``.

Whoever made the file may have made it so that reading takes for ever.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import msgspec

from bench_lib.model import UserError
from bench_lib.profiling.store import LIMIT_S, Reading, read_foreign

LEAST_BYTES = 2**28
BYTES_FOR_EACH = 200
"""For each byte of a file: JSON is compressed to a twentieth, and takes ten times its size."""
MOST_BYTES = 32 * 2**30


def main(arguments: list[str]) -> int:
    """Print a Reading; returns the exit status."""
    path, steps = Path(arguments[0]), int(arguments[1])
    most = _confine(path)
    try:
        profile, problems = read_foreign(path, steps)
        reading = Reading(profile, problems)
    except UserError as error:
        reading = Reading(error=str(error))
    except MemoryError:
        reading = Reading(
            error=f"{path} cannot be read in {most / 2**30:.1f} GiB of memory; profile fewer steps"
        )
    except OSError as error:
        reading = Reading(error=f"{path} cannot be read: {error.strerror}")
    sys.stdout.buffer.write(msgspec.json.encode(reading))
    return 0


def _confine(path: Path) -> int:
    """Limit this process's time and memory, and have it write no file; returns the bytes."""
    most = min(LEAST_BYTES + BYTES_FOR_EACH * path.stat().st_size, MOST_BYTES)
    for limit, value in (
        (resource.RLIMIT_AS, most),
        (resource.RLIMIT_CPU, int(LIMIT_S)),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (allowed, allowed))
    return most


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
