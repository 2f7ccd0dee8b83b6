"""``rocm-smi … --json``, deprecated, whose keys differ between versions in case and words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from bench_lib.rocm.tool import ToolError, parse


def cards(text: str) -> dict[int, dict[str, str]]:
    """Return each card's fields by its number; names in lower case without a last colon.

    Raises ToolError where the answer holds no JSON, or no card.
    """
    answer = parse(text, "rocm-smi")
    found = {}
    for name, about in answer.items() if isinstance(answer, dict) else ():
        card = re.fullmatch(r"card(\d+)", name)
        if card and isinstance(about, dict):
            found[int(card[1])] = {
                key.lower().rstrip(": "): str(value) for key, value in about.items()
            }
    if not found:
        raise ToolError("rocm-smi printed no card")
    return found


def first(card: Mapping[str, str], *names: str) -> str | None:
    """Return the first field that the card has of these names, in lower case."""
    return next((card[name] for name in names if name in card), None)
