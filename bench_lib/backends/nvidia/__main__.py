"""``python -m bench_lib.backends.nvidia``: the child that asks NVML, for `devices.devices`."""

import json

from bench_lib.backends.nvidia import devices

if __name__ == "__main__":
    print(json.dumps(devices.ask_here()))  # noqa: T201 - the answer
