"""When more iterations of a case would tell nothing: its median is as good as processes allow.

Processes of unchanged software differ, and a verdict is about their medians.  An error of the
median that is half of that adds 12% to it, and 1% to what nights differ by (docs/statistics.md).

An idle device makes the next iteration wait for its launch, 1 to 2% of a training step, so it is
never left idle for a look.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

LEAST = 6
"""Fewer iterations than these are never enough."""
AHEAD = 1
"""Iterations that the device still has to do while the host looks at those before them."""
OF_MEDIAN = 1.2533
"""A median's standard error, in those of a mean, where times are normal."""
STALL = 0.01
"""An iteration that is later than the median by this has met a stall."""


def is_enough(times: Sequence[float], error: float) -> bool:
    """Whether the median of some times in seconds has at most an error, a fraction of it.

    The first says nothing, because it waited for its launch.  A stall among few iterations, or
    halves that lie apart, show that the spread is still unknown.
    """
    if len(times) < LEAST:
        return False
    under_way, half = times[1:], len(times) // 2
    middle = statistics.median(under_way)
    drift = abs(statistics.median(under_way[:half]) - statistics.median(under_way[half:]))
    return (
        OF_MEDIAN * statistics.stdev(under_way) / math.sqrt(len(under_way)) <= error * middle
        and drift <= 2 * error * middle
        and max(under_way) <= (1 + STALL) * middle
    )


def looks(most: int) -> list[int]:
    """Return after how many of at most so many iterations to look."""
    found, done = list[int](), LEAST
    while done + AHEAD < most:
        found.append(done)
        done += max(2, done // 3)
    return found
