"""``bench-lib env``: what is here, what is missing or suspicious, and what to do about it."""

from __future__ import annotations

import typer

from bench_lib.cli.output import DEFAULT_BASELINES, BaselinesDir, Json, print_json


def env(*, baselines: BaselinesDir = DEFAULT_BASELINES, json: Json = False) -> None:
    """Show hardware, versions, variables and caches.

    Exit status 1 where the suite cannot run.
    """
    from bench_lib.cli.machine import examine, page

    machine = examine(baselines)
    if json:
        print_json("env", **vars(machine))
    else:
        print("\n".join(page(machine)))
    raise typer.Exit(0 if machine.fit else 1)
