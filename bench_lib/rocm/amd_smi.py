"""``amd-smi … --json``, whose envelopes and names changed from ROCm 6.1 to 7.x."""

from __future__ import annotations

from typing import Any

from bench_lib.rocm.tool import ToolError, parse

_ENVELOPES = ("gpu_data", "current_partition")
"""Keys under which 7.x puts the list that 6.x printed bare."""


def entries(text: str) -> list[dict[str, Any]]:
    """Return one dictionary a GPU from the answer of any command and version.

    Raises ToolError where the answer holds no JSON, or other than a list of GPUs.
    """
    answer = parse(text, "amd-smi")
    if isinstance(answer, dict):
        answer = next((answer[key] for key in _ENVELOPES if key in answer), [answer])
    if not isinstance(answer, list):
        raise ToolError(f"amd-smi printed {type(answer).__name__}, not a list of GPUs")
    found = [entry for entry in answer if isinstance(entry, dict)]
    gpus = [entry for entry in found if "gpu" in entry or "gpu_id" in entry]
    if answer and not gpus:
        raise ToolError("amd-smi printed no entry of a GPU")
    return gpus


def section(entry: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a part of an entry; empty where it is ``N/A``, missing or no dictionary."""
    part = entry.get(name)
    return part if isinstance(part, dict) else {}
