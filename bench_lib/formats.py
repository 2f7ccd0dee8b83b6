"""Format times and quantities for people, and make other programs' text safe to print."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence


def seconds(value: float) -> str:
    """Format a time in seconds with four digits and a suitable unit: ``6.972 ms``."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value * 1e9:.4g} ns"


def duration(seconds: float) -> str:
    """Format a rough duration in whole seconds or minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def quantity(value: float) -> str:
    """Format a number with four digits and a prefix: ``9181``, ``22.07 k``."""
    rounded = float(f"{value:.4g}")
    for scale, unit in ((1.0, ""), (1e3, " k"), (1e6, " M")):
        if rounded < 10_000 * scale:
            return f"{rounded / scale:.4g}{unit}"
    return f"{rounded / 1e9:.4g} G"


NUMBER, SHARE, FINE_SHARE, CHANGE, RATIO, TIMES = "1", "", "%", "+%", "ratio", "x"
CHANGE_S = "+s"
"""Units of plain numbers: 0.05 is 5.0% as SHARE, 5.00% as FINE_SHARE, +5.0% as CHANGE; 1.05 is
+5.0% as RATIO (new to old) and 1.05x as TIMES."""


def percent(share: float, digits: int = 1) -> str:
    """Format a share as a percentage: ``8.0%``; a share that rounds to zero has no sign."""
    return _without_zeros_sign(f"{share:.{digits}%}")


def signed_percent(share: float, digits: int = 1) -> str:
    """Format a share as a signed percentage: ``+8.0%``; zero has no sign."""
    return _without_zeros_sign(f"{share:+.{digits}%}")


def _without_zeros_sign(text: str) -> str:
    return text if text.strip("+-0.%") else text.lstrip("+-")


def _change(share: float) -> str:
    """Format a change in percent; a change below 1% has two decimals."""
    if share >= 9:
        return f"{1 + share:.3g}x"
    return signed_percent(share, 2 if 0.00005 <= abs(share) < 0.00995 else 1)


_FORMATS: dict[str, Callable[[float], str]] = {
    NUMBER: quantity,
    SHARE: lambda value: percent(value) if value < 10 else "> 1000%",
    FINE_SHARE: lambda value: percent(value, 2),
    CHANGE: signed_percent,
    RATIO: lambda value: _change(value - 1),
    TIMES: lambda value: f"{value:.2f}x",
    CHANGE_S: lambda value: f"{'-' if value < 0 else '+'}{seconds(abs(value))}",
    "raw": lambda value: str(value) if isinstance(value, int) else f"{value:.6g}",
    "cos": lambda value: f"{value:.6f}",
    "s": seconds,
    "B": lambda value: f"{value / 2**20:.{0 if value >= 1000 * 2**20 else 1}f} MiB",
    "1/s": lambda value: f"{quantity(value)}/s",
}
"""The format of each unit; a value in any other unit is followed by the unit itself."""


def amount(value: float, unit: str) -> str:
    """Format a value in a unit: one of the above, or any other such as ``J`` or ``img/s``."""
    number = float(str(value))  # an integer may be larger than any float
    if not math.isfinite(number):
        return str(number)
    if unit in _FORMATS:
        return _FORMATS[unit](value)
    return f"{quantity(value)} {unit}"


def many(number: float, noun: str) -> str:
    """Return ``1 core``, ``2 cores``, ``2.5 processes``."""
    ending = "" if number == 1 else "es" if noun.endswith(("s", "ch")) else "s"
    return f"{round(number, 2):.10g} {noun}{ending}"


_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # cursor, colour
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # the window's title, links
    r"|\x1b[ -/]*[0-~]"  # anything else
)
STEERING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"
    r"\u2028-\u202e\u2066-\u2069"  # change the direction of the text that follows
    r"\ud800-\udfff]"  # surrogates, which no stream can encode
)
"""Characters that control a terminal, except line feeds and tabs."""
_COMMANDS = re.compile(r"^[^\S\n]*:(?=:[\w-]+[^\n]*?::)|##(?=\[)", re.MULTILINE)
"""The beginnings of GitHub's workflow commands: ``::error::``, ``##[add-mask]``."""


def printable(text: str) -> str:
    """Return another program's text without anything that controls a terminal or a CI log.

    Escape sequences are removed, and other control characters become U+FFFD.  A space breaks what
    a GitHub log would take for a workflow command.
    """
    plain = STEERING.sub("\ufffd", _ESCAPES.sub("", text.replace("\r\n", "\n")))
    return _COMMANDS.sub(r"\g<0> ", plain)


def some(names: Sequence[str], most: int) -> str:
    """List up to ``most`` names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def on_one_line(text: str, most: int) -> str:
    """Join a text into one line of at most ``most`` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def shortened(text: str, most: int = 1000) -> str:
    """Return the first line of a text, printable and with at most ``most`` characters.

    These are many by default, because a message ends with the remedy.
    """
    first = printable(text).partition("\n")[0]
    return first if len(first) <= most else f"{first[: most - 1]}…"
