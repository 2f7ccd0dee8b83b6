"""``python -m bench_lib.worker.sweep CASES.json OUT``: ranks that measure one case after another.

What starting ranks costs, 8 to 10 s, is then paid once.  Of the i-th case each rank leaves
``rank-N.json`` in ``OUT/i``, as ``once`` does in OUT; after a fault nothing more is measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_lib.launch.launchers import who_am_i
from bench_lib.model import UserError
from bench_lib.worker.rank_log import RankLog

if TYPE_CHECKING:
    from bench_lib.launch.launchers import Placement


LOOK_S = 0.05


def sweep(cases: Path, out: Path, place: Placement, log: RankLog) -> int:
    """Measure the list of cases on this rank.

    Returns 0 where there is a measurement or a skip of each; with a fault the process leaves
    at once, because the other ranks may be in a collective that will not end now.
    """
    from bench_lib.worker.context import answer
    from bench_lib.worker.ranks import Group, fault_of, prepared
    from bench_lib.worker.zygote import die_with_parent

    die_with_parent()
    phases = ["start"]

    def enter(phase: str) -> None:
        phases.append(phase)
        log.enter(phase)

    orders = json.loads(cases.read_text())
    about: dict[str, Any] = {}
    failed: dict[str, Any] = {}
    group = Group()
    try:
        context, group, about = prepared(json.dumps(orders[0]), out, place, enter)
    except (RuntimeError, OSError, UserError) as error:
        traceback.print_exc()
        failed = fault_of(error)
    for number, order in enumerate(orders):
        enter(f"case {order['id']}")
        outcome = {**(failed or answer(order, context)), **about}
        outcome |= {"rank": place.rank, "ended_s": time.time(), "phase": phases[-1]}
        _write(out / str(number) / f"rank-{place.rank}.json", outcome)
        if "fault" in outcome:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
        if "skipped" in outcome:
            _wait_for_all(out / str(number), place.ranks)
    enter("leave")
    group.leave()
    return 0


def _wait_for_all(folder: Path, ranks: int) -> None:
    """Wait until every rank is done with a case, for as long as the case may take.

    A rank that skips what others measure would meet them in collectives of another case.
    """
    while len(list(folder.glob("rank-*.json"))) < ranks:
        time.sleep(LOOK_S)


def _write(target: Path, outcome: dict[str, Any]) -> None:
    """Have a rank's file appear whole or not at all."""
    target.parent.mkdir(exist_ok=True)
    partial = target.with_suffix(".part")
    partial.write_text(json.dumps(outcome, allow_nan=False))
    partial.replace(target)


def main(cases: str, out: str) -> int:
    """Be a rank; its output is its own from here on, torch's import included."""
    try:
        place = who_am_i(os.environ)
        log = RankLog(Path(out), place.rank)
    except (UserError, OSError) as error:
        sys.stderr.write(f"bench-lib: {error}\n")
        return 2
    log.enter("import torch")
    return sweep(Path(cases), Path(out), place, log)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
