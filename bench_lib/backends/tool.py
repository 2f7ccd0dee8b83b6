"""Runs a program for its standard output, within a time limit; a failure comes with its cause."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class ToolError(RuntimeError):
    """A tool that did not answer: missing, refused, hanging, or not making sense."""


def ask(
    words: Sequence[str],
    *,
    timeout_s: float,
    environ: Mapping[str, str] = os.environ,
    what: str = "",
) -> str:
    """Return what a tool prints; errors call it ``what`` if that is given.

    Raises ToolError with the cause where it is not on PATH, ends with another status than 0, or
    has not answered after ``timeout_s`` seconds.
    """
    name = what or " ".join(words)
    found = shutil.which(words[0], path=environ.get("PATH"))
    if found is None:
        raise ToolError(f"{words[0]} is not installed, or not on PATH")
    try:
        done = subprocess.run(
            [found, *words[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=dict(environ),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{name} did not answer in {timeout_s:g} s") from None
    except OSError as error:
        raise ToolError(f"{name} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise ToolError(f"{name} ended with status {done.returncode}: {said[-1][:200]}")
    return done.stdout


def finding_us() -> dict[str, str]:
    """Return this process's variables, by which a Python that we start finds this package too."""
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def parse(text: str, tool: str) -> Any:
    """Return the JSON on the last line of a tool's answer; libraries may print above it.

    Raises ToolError where it is none.
    """
    said = text.strip()
    try:
        return json.loads(said[said.rfind("\n") + 1 :])
    except (ValueError, RecursionError) as error:
        raise ToolError(
            f"{tool} did not print JSON ({error}): {said[:80] or 'nothing'!r}"
        ) from None
