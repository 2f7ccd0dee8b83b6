"""``python -m bench_lib.hardware``: the child process that asks NVML, for `nvidia.devices`."""

import json

from bench_lib.hardware import nvidia

if __name__ == "__main__":
    print(json.dumps(nvidia.ask_here()))  # noqa: T201 - the answer
