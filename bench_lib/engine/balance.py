"""Divides cases among several devices: each on its last one, unless that means a long wait.

A case that changes its device adds the difference between devices to its series, so that few do.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

SLACK = 0.08
"""The longest queue may be longer than the mean by this share, before cases change devices."""
LEAST_KNOWN = 0.5
"""If fewer cases have known times, none is moved."""


def balanced(
    homes: Mapping[str, int], devices: int, seconds: Callable[[str], float | None]
) -> dict[str, int]:
    """Return by name the device, from 0, that measures a case.

    ``homes`` are where cases are measured if nothing speaks against it, and ``seconds`` is what
    one takes, or None if unknown.  As long as the longest queue is too long, the case moves from
    it to the shortest that leaves both shortest.
    """
    known = {name: taken for name in homes if (taken := seconds(name)) is not None}
    found = dict(homes)
    if not known or len(known) < LEAST_KNOWN * len(homes):
        return found
    usual = statistics.median(known.values())
    takes = {name: known.get(name, usual) for name in homes}
    loads = [sum(takes[n] for n in homes if homes[n] == device) for device in range(devices)]
    most = (1 + SLACK) * sum(loads) / devices
    while max(loads) > most:
        longest, shortest = loads.index(max(loads)), loads.index(min(loads))
        gap = loads[longest] - loads[shortest]
        movable = [name for name in found if found[name] == longest and 0 < takes[name] < gap]
        if not movable:
            break
        moved = min(movable, key=lambda name: abs(gap / 2 - takes[name]))
        found[moved] = shortest
        loads[longest] -= takes[moved]
        loads[shortest] += takes[moved]
    return found


def queues(found: Mapping[str, int], devices: int) -> list[Sequence[str]]:
    """Return the names of each device's cases, in their order."""
    return [[name for name in found if found[name] == device] for device in range(devices)]
