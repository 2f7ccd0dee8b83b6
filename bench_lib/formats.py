"""How times, quantities and other programs' words are written for people."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence


def seconds(value: float) -> str:
    """Return a time in seconds with four digits and a unit that suits it: ``6.972 ms``."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value * 1e9:.4g} ns"


def duration(seconds: float) -> str:
    """Return about how long something takes, in seconds or whole minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def quantity(value: float) -> str:
    """Return a number of any unit with four digits: ``9181``, ``22.07 k``."""
    rounded = float(f"{value:.4g}")
    for scale, unit in ((1.0, ""), (1e3, " k"), (1e6, " M")):
        if rounded < 10_000 * scale:
            return f"{rounded / scale:.4g}{unit}"
    return f"{rounded / 1e9:.4g} G"


NUMBER, SHARE, FINE_SHARE, CHANGE, RATIO, TIMES = "1", "", "%", "+%", "ratio", "x"
CHANGE_S = "+s"
"""Units of plain numbers: 0.05 as a share is 5.0% (5.00% finely), as a change +5.0%; 1.05 as a
ratio of new to old is +5.0%, and 1.05x as times."""


def percent(share: float, digits: int = 1) -> str:
    """Return a share as a percentage: ``8.0%``; one that rounds to zero has no sign."""
    return _without_zeros_sign(f"{share:.{digits}%}")


def signed_percent(share: float, digits: int = 1) -> str:
    """Return a share as a percentage with its sign: ``+8.0%``, and ``0.0%`` without one."""
    return _without_zeros_sign(f"{share:+.{digits}%}")


def _without_zeros_sign(words: str) -> str:
    return words if words.strip("+-0.%") else words.lstrip("+-")


def _change(share: float) -> str:
    """Return a change in percent; one below 1% has two digits after the point."""
    if share >= 9:
        return f"{1 + share:.3g}x"
    return signed_percent(share, 2 if 0.00005 <= abs(share) < 0.00995 else 1)


_WRITTEN: dict[str, Callable[[float], str]] = {
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
"""How a value of each unit is written; one of any other unit has that behind it."""


def amount(value: float, unit: str) -> str:
    """Return a value with its unit: ``NUMBER`` and its like, ``s``, ``B``, ``J``, ``img/s`` ..."""
    if not math.isfinite(value):
        return str(float(value))
    if unit in _WRITTEN:
        return _WRITTEN[unit](value)
    return f"{quantity(value)} {unit}"


def many(number: int, what: str) -> str:
    """Return ``1 core``, ``2 cores``, ``2 processes``."""
    ending = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{number} {what}{ending}"


_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # cursor, colour
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # the window's title, links
    r"|\x1b[ -/]*[0-~]"  # anything else
)
STEERING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"
    r"\u2028-\u202e\u2066-\u2069"  # which turn the letters after them round
    r"\ud800-\udfff]"  # half of a letter: no stream can write it
)
"""Characters that steer a terminal, but for the ends of lines and tabs."""
_COMMANDS = re.compile(r"^[^\S\n]*:(?=:[\w-]+[^\n]*?::)|##(?=\[)", re.MULTILINE)
"""The beginnings of what GitHub obeys in a log: ``::error::``, ``##[add-mask]``."""


def printable(text: str) -> str:
    """Return another program's words without what would steer who shows them.

    Escape sequences are left out, and other steering characters become U+FFFD.  What a log of
    GitHub's would take for a command is parted by a space.
    """
    steady = STEERING.sub("\ufffd", _ESCAPES.sub("", text.replace("\r\n", "\n")))
    return _COMMANDS.sub(r"\g<0> ", steady)


MOST_LINE = 1000
"""Characters of a line for people: it ends with the remedy, so it is cut only beyond reason."""


def some(names: Sequence[str], most: int) -> str:
    """Return names in a row, ``most`` of them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def on_one_line(text: str, most: int) -> str:
    """Return a text on one line, cut after ``most`` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def shortened(text: str, most: int = MOST_LINE) -> str:
    """Return the first line of a text, printable and cut after ``most`` characters."""
    first = printable(text).partition("\n")[0]
    return first if len(first) <= most else f"{first[: most - 1]}…"
