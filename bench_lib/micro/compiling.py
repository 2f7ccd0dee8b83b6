"""``--compileContext``: what scripts say there, as a compile mode and options of a case."""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass, field
from typing import Any

from bench_lib.model import COMPILE_MODES, UserError

KEYS = ("mode", "dynamic", "fullgraph", "backend", "options", "disable")
MODES = tuple(mode for mode in COMPILE_MODES if mode != "eager")
EXAMPLE = "\"{'mode': 'max-autotune', 'fullgraph': True}\""
RENAMED = {"matmul_padding": "shape_padding"}
"""Options that Inductor has under another name now."""
LONGEST = 2000
"""Characters that are read: no number in so few is too long for Python to say it."""
GONE = {
    "static_memory": "Inductor has no such option today; what keeps memory in place are graphs, "
    "{'triton.cudagraphs': True}"
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")


@dataclass(frozen=True)
class Compiling:
    """How a network is compiled: a case's ``compile_mode`` and ``compile_options``."""

    mode: str = "eager"
    options: str = ""
    remarks: list[str] = field(default_factory=list)
    """What was taken differently from how it was written."""


def read_context(text: str) -> Compiling:
    """Read the dictionary of ``--compileContext``; raises UserError, naming what is wrong.

    Nothing in it is run: it has to be a literal.  ``'True'`` is True and ``'False'`` is False,
    whichever way they are written.
    """
    if len(text) > LONGEST:
        raise _wrong(text, f"it has {len(text)} characters, and has to be of {LONGEST} at most")
    try:
        context = ast.literal_eval(text.strip() or "{}")
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise _wrong(text, "it has to be a Python literal") from error
    if not isinstance(context, dict):
        raise _wrong(text, f"it has to be a dictionary, and is a {type(context).__name__}")
    for key in context:
        if key not in KEYS:
            raise UserError(f"--compileContext: unknown key {key!r}; {_nearest(key, KEYS)}")
    mode, options = context.get("mode"), context.get("options")
    if mode is not None and options is not None:
        raise UserError(
            "--compileContext: mode and options exclude each other, since a mode is a set of "
            "options; leave one out"
        )
    if mode is not None and mode not in MODES:
        raise UserError(f"--compileContext: unknown mode {mode!r}; {_nearest(mode, MODES)}")
    if _truth("disable", context.get("disable", False)):
        return Compiling(remarks=["--compileContext has disable, so nothing is compiled"])
    remarks: list[str] = []
    parts = [name for name in ("fullgraph", "dynamic") if _truth(name, context.get(name, False))]
    backend = context.get("backend")
    if backend is not None and not (isinstance(backend, str) and _WORD.fullmatch(backend)):
        raise UserError(f"--compileContext: backend is {backend!r}; it has to be a name")
    if backend not in (None, "inductor"):
        parts.append(f"backend={backend}")
    parts += _options(options, remarks)
    if mode == "graph" and parts:
        raise UserError(f"--compileContext: mode graph compiles nothing, and has no {parts[0]}")
    return Compiling(mode or "default", ",".join(parts), remarks)


def _options(options: Any, remarks: list[str]) -> list[str]:
    if options is None:
        return []
    if not isinstance(options, dict):
        raise UserError(f"--compileContext: options is {options!r}; it has to be a dictionary")
    values: dict[str, str] = {}
    for spelt, value in options.items():
        name = spelt.replace("-", "_") if isinstance(spelt, str) else spelt
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserError(f"--compileContext: {spelt!r} in options is no name")
        if name in KEYS:
            raise UserError(f"--compileContext: {spelt} does not go into options but beside them")
        if name in GONE:
            remarks.append(f"--compileContext: {spelt} is ignored: {GONE[name]}")
            continue
        if name in RENAMED:
            name = RENAMED[name]
            remarks.append(f"--compileContext: {spelt} is Inductor's {name} today")
        if name in values:
            raise UserError(f"--compileContext: options has {name} twice")
        values[name] = _value(spelt, value)
    return [f"{name}={value}" for name, value in values.items()]


def _value(name: str, value: Any) -> str:
    text = str(value)
    truth = {"true": "True", "false": "False"}.get(text.strip().lower())
    if not isinstance(value, (bool, int, float, str)) or not (truth or _WORD.fullmatch(text)):
        raise UserError(
            f"--compileContext: {name} in options is {value!r}; it has to be a truth value, a "
            "number or a word"
        )
    return truth or text


def _truth(name: str, value: Any) -> bool:
    if value is None:
        return False
    truth = {"true": True, "false": False, "1": True, "0": False}.get(str(value).strip().lower())
    if truth is None:
        raise UserError(f"--compileContext: {name} is {value!r}; it has to be True or False")
    return truth


def _nearest(word: object, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(word), known, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(known)}"


def _wrong(text: str, why: str) -> UserError:
    shown = text if len(text) <= 80 else f"{text[:79]}…"
    return UserError(f"--compileContext is {shown!r}; {why}, such as {EXAMPLE}")
