"""When more iterations of a case would tell nothing: its median is as good as processes allow.

Processes of unchanged software differ, and a verdict is about their medians.  An error of the
median that is a third of that adds 5% to it (docs/statistics.md).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

LEAST = 6
"""Fewer iterations than these are never enough."""
OF_MEDIAN = 1.2533
"""A median's standard error, in those of a mean, where times are normal."""


def is_enough(times: Sequence[float], error: float) -> bool:
    """Whether the median of some times is known to a relative standard error.

    One stall among few iterations, or halves that lie apart, say that the spread is not known yet.
    """
    if len(times) < LEAST:
        return False
    middle, half = statistics.median(times), len(times) // 2
    drift = abs(statistics.median(times[:half]) - statistics.median(times[half:]))
    own = OF_MEDIAN * statistics.stdev(times) / math.sqrt(len(times))
    return own <= error * middle and drift <= 2 * error * middle


def blocks(most: int) -> Iterator[int]:
    """Yield how many iterations to measure before looking, and how many more each time."""
    done = min(LEAST, most)
    yield done
    while done < most:
        more = min(max(2, done // 3), most - done)
        done += more
        yield more
