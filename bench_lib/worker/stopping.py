"""When more iterations of a case would tell nothing: its median is as good as processes allow.

Processes of unchanged software differ, and a verdict is about their medians.  An error of the
median that is half of that adds 12% to it, and 1% to what nights differ by (docs/statistics.md).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

LEAST = 6
"""Fewer iterations than these are never enough."""
OF_MEDIAN = 1.2533
"""A median's standard error, in those of a mean, where times are normal."""
WITHOUT_SLOWEST = 1.7
"""By this over their number are times farther apart than they seem without the slowest one."""
STALL = 0.01
"""The slowest may be later by this: the first waits for its launch.  More is a stall."""


def is_enough(times: Sequence[float], error: float) -> bool:
    """Whether the median of some times in seconds has at most an error, a fraction of it.

    A stall among few iterations, or halves that lie apart, show that the spread is still unknown.
    """
    n, half = len(times), len(times) // 2
    if n < LEAST:
        return False
    middle, ordered = statistics.median(times), sorted(times)
    spread = statistics.stdev(ordered[:-1]) * (1 + WITHOUT_SLOWEST / n)
    drift = abs(statistics.median(times[:half]) - statistics.median(times[half:]))
    return (
        OF_MEDIAN * spread / math.sqrt(n) <= error * middle
        and drift <= 2 * error * middle
        and ordered[-1] <= (1 + STALL) * middle
    )


def blocks(most: int) -> Iterator[int]:
    """Yield how many iterations to measure before looking, and how many more each time."""
    done = min(LEAST, most)
    yield done
    while done < most:
        more = min(max(2, done // 3), most - done)
        done += more
        yield more
