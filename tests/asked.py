"""What a row of a table asks for, in few words: ``op=add shape=4-4 causal=True``."""

from __future__ import annotations

import ast
from typing import Any

TEXTS = ("shape", "shape2")
"""Values that stay text though they look like numbers."""


def asked(words: str | dict[str, Any]) -> dict[str, Any]:
    """Return the values by their names; what is no literal of Python is text."""
    if isinstance(words, dict):
        return words
    return {name: _value(name, text) for name, _, text in (w.partition("=") for w in words.split())}


def _value(name: str, text: str) -> Any:
    try:
        return text if name in TEXTS else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
