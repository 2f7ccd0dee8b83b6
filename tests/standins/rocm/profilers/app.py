"""An application: what its processes have a made-up GPU do, told to the profiler around it.

``app.py PROCESSES`` runs 3 steps of warm-up and 2 steps inside the range ``steps`` in each.
Times are nanoseconds of a made-up clock.
"""

import json
import os
import sys
from pathlib import Path

GEMM = "Cijk_Ailk_Bljk_HHS_BH_MT64x64x16.kd"
ADD = "void add<float>(float*, float const*, int) [clone .kd]"
START = 5_000_000_000_000_000
STEP = 1_000_000
WARM_UP, STEPS = 3, 2


def ran(rank: int) -> dict:
    kernels, copies = [], []
    for step in range(WARM_UP + STEPS):
        begin = START + step * STEP
        slow = 100_000 if step < WARM_UP else 0
        copies.append(["HOST_TO_DEVICE", begin, begin + 50_000, 4096])
        kernels += [
            [GEMM, begin + 60_000, begin + 360_000 + slow + 1000 * rank],
            [ADD, begin + 600_000, begin + 605_000],
            [ADD, begin + 606_000, begin + 611_000],
        ]
    first = START + WARM_UP * STEP
    ranges = [["warm-up", START, first - 1], ["steps", first, first + STEPS * STEP]]
    return {"kernels": kernels, "copies": copies, "ranges": ranges}


if __name__ == "__main__":
    told = Path(os.environ["PROFILED"])
    for rank in range(int(sys.argv[1])):
        (told / f"{4000 + rank}.json").write_text(json.dumps(ran(rank)))
    sys.exit(int(os.environ.get("APP_STATUS", "0")))
