"""Looking at a device again and again, in whichever way works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from bench_lib.backends.looks import PERIOD_S, PIDS_EVERY, Source, cause_of, tells

RETRY_S = 10.0
"""Between two looks at a device that tells nothing any more."""
SILENT_LOOKS = 3
"""So many in a row without any figure mean that it tells nothing any more."""


def watch(
    choose_source: Callable[[], Source],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, Any]]:
    """Look at a device for ever, each look with its time, its source and when the next is due.

    A device that fails or falls silent later has ``trouble``, no figures, and is looked at
    more slowly, in whichever way works then.  Raises what choosing the first time raises.
    """
    source = choose_source()
    pause_s = 0.0
    silent, is_known, looks = 0, False, 0
    while True:
        sleep(pause_s)
        begin = clock()
        seen, trouble = _attempt(source, with_pids=looks % PIDS_EVERY == 0)
        end = clock()
        looks += 1
        is_known = is_known or tells(seen)
        silent = 0 if tells(seen) or not is_known else silent + 1
        if trouble is None and silent >= SILENT_LOOKS:
            trouble = f"{source.name} tells nothing of the device any more"
        pause_s = max(PERIOD_S - (end - begin), end - begin)
        if trouble is not None:
            pause_s = max(pause_s, RETRY_S)
            seen = {"trouble": trouble}
        yield {"t": (begin + end) / 2, "source": source.name, "due": end + pause_s, **seen}
        if trouble is not None:
            source, looks = _again(choose_source, source), 0


def _attempt(source: Source, *, with_pids: bool) -> tuple[dict[str, Any], str | None]:
    try:
        return source.look(with_pids=with_pids), None
    except Exception as error:  # noqa: BLE001 - a GPU that is gone fails in many ways
        return {}, f"{source.name}: {cause_of(error)}"


def _again(choose_source: Callable[[], Source], before: Source) -> Source:
    """Choose anew, since numbers and handles may name something else now."""
    try:
        return choose_source()
    except Exception:  # noqa: BLE001 - named already, as trouble
        return before
