"""``bench-lib env``: what is here, what is missing or suspicious, and what to do about it."""

from __future__ import annotations

import contextlib
import sys

import typer

from bench_lib.cli.output import DEFAULT_BASELINES, BaselinesDir, Json, print_json


def env(*, baselines: BaselinesDir = DEFAULT_BASELINES, json: Json = False) -> None:
    """Show hardware, versions, variables and caches.

    Exit status 1 where the suite cannot run.
    """
    from bench_lib.cli.machine import Examination, first_half, second_half

    with contextlib.closing(Examination(baselines)) as examination:
        if not json:
            print("\n".join(first_half(examination)), flush=True)
        machine = examination.finish(_unsaid if json else _say)
    if json:
        print_json(machine)
    else:
        print("\n".join(second_half(machine)))
    raise typer.Exit(0 if machine.fit else 1)


def _say(words: str) -> None:
    print(f"bench-lib: {words}", file=sys.stderr, flush=True)


def _unsaid(_words: str) -> None:
    """Leave a document alone on the terminal."""
