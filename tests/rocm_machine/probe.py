"""What bench-lib says on this machine, as JSON; for tests of bench-lib that was tampered with.

``probe.py devices`` lists them; ``probe.py look INDEX`` tells what telemetry sees of one;
``probe.py pin INDEX`` opens a context on one; ``probe.py kernels FOLDER NAME`` reads what a
profiler left.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path


def devices():
    """List the devices."""
    from bench_lib import backends

    return [asdict(device) for device in backends.detect()]


def look(index):
    """Look at a device."""
    from bench_lib import backends
    from bench_lib.engine import telemetry

    return telemetry.look_once(backends.detect()[int(index)])


def pin(index):
    """Open a context that is to have a device."""
    from bench_lib import backends
    from bench_lib.launch.zygote import Zygote

    device = backends.detect()[int(index)]
    with Zygote(environment=backends.visibility(device)) as zygote:
        return asdict(zygote.context(draws=1).device)


def kernels(folder):
    """Read what a profiler left."""
    from bench_lib.backends.amd.rocprof import profilers

    profiler = profilers.find()
    (process,) = profiler.results(Path(folder)).processes
    return [asdict(kernel) for kernel in process.kernels]


def main(what, *arguments):
    """Print what was asked for, and whose bench-lib said it."""
    import bench_lib

    ways = {"devices": devices, "look": look, "pin": pin, "kernels": kernels}
    said = ways[what](*arguments)
    package = Path(bench_lib.__file__).parent
    sys.stdout.write(json.dumps({"bench_lib": str(package), "said": said}))


if __name__ == "__main__":
    main(*sys.argv[1:])
