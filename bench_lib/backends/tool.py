"""Runs a program that answers on standard output; if it fails or hangs, there is a cause."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class ToolError(RuntimeError):
    """A tool gave no usable answer: it is missing, failed, hung, or printed something else."""


def ask(
    command: Sequence[str],
    *,
    timeout_s: float,
    environ: Mapping[str, str] = os.environ,
    what: str = "",
) -> str:
    """Return what a command prints; error messages call it ``what`` if given.

    Raises ToolError with the cause if it is not on PATH, ends with a status other than 0, or does
    not end within ``timeout_s`` seconds.
    """
    name = what or " ".join(command)
    program = shutil.which(command[0], path=environ.get("PATH"))
    if program is None:
        raise ToolError(f"{command[0]} is not installed, or not on PATH")
    try:
        process = subprocess.Popen(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=dict(environ),
        )
    except OSError as error:
        raise ToolError(f"{name} cannot be run: {error.strerror}") from error
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ToolError(f"{name} did not answer in {timeout_s:g} s") from None
    finally:
        if process.returncode is None:  # it is late, or this program is being interrupted
            process.kill()
            for pipe in filter(None, (process.stdout, process.stderr)):
                pipe.close()
            # One that is stuck in the driver ends when the driver lets it: do not wait for that.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
    if process.returncode != 0:
        lines = (errors or output).strip().splitlines() or ["nothing"]
        raise ToolError(f"{name} ended with status {process.returncode}: {lines[-1][:200]}")
    return output


def finding_us() -> dict[str, str]:
    """Return the environment variables with which a child Python can import this package."""
    folder = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def parse(text: str, tool: str) -> Any:
    """Return the JSON on the last line of a tool's output; libraries may print above it.

    Raises ToolError if it is not JSON.
    """
    output = text.strip()
    try:
        return json.loads(output[output.rfind("\n") + 1 :])
    except (ValueError, RecursionError) as error:
        raise ToolError(
            f"{tool} did not print JSON ({error}): {output[:80] or 'nothing'!r}"
        ) from None
