"""``--compileContext``: its words, as a compile mode and options of a case."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench_lib.micro.output import cut, nearest, shown
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
_TRUTHS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")


@dataclass(frozen=True)
class Compiling:
    """How a network is compiled: a case's ``compile_mode`` and ``compile_options``."""

    mode: str = "eager"
    options: str = ""
    remarks: list[str] = field(default_factory=list)
    """Settings that are used differently from how they were written."""
    spelt: dict[str, str] = field(default_factory=dict, compare=False)
    """How options were written, by Inductor's names."""

    def in_their_words(self, text: str) -> str:
        """Return a text about Inductor's options with the names as they were written."""
        for name, spelt in self.spelt.items():
            text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", spelt, text)
        return text

    def typed(self, truths: Mapping[str, bool]) -> Compiling:
        """Return it with truth values for options that are such; raises UserError.

        ``truths`` says of Inductor's options whether they are.  Scripts write 1 there, since
        ROCm's tool takes everything for a truth value.
        """
        parts = []
        for part in self.options.split(","):
            name, given, value = part.partition("=")
            truth = given and truths.get(name, False)
            parts.append(f"{name}={_truth(self.spelt.get(name, name), value)}" if truth else part)
        return replace(self, options=",".join(parts))


def read_context(text: str) -> Compiling:
    """Read the dictionary of ``--compileContext``; raises UserError, naming the fault.

    Nothing in it is run: it has to be a literal.  ``'True'`` is True and ``'False'`` is False,
    whichever way they are written.
    """
    if len(text) > LONGEST:
        raise _wrong(text, f"it has {len(text)} characters, and has to be of {LONGEST} at most")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of backslashes, which are its own
            tree = ast.parse(text.strip() or "{}", mode="eval")
        context = ast.literal_eval(tree)
        twice = _twice(tree)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise _wrong(text, "it has to be a Python literal") from error
    if not isinstance(context, dict):
        raise _wrong(text, f"it has to be a dictionary, and is a {type(context).__name__}")
    if twice is not None:
        raise UserError(f"--compileContext: {twice} is there twice; leave one out")
    for key in context:
        if key not in KEYS:
            raise UserError(f"--compileContext: unknown key {shown(key)}; {_hint(key, KEYS)}")
    mode, options = context.get("mode"), context.get("options")
    if mode is not None and options is not None:
        raise UserError(
            "--compileContext: mode and options exclude each other, since a mode is a set of "
            "options; leave one out"
        )
    if mode is not None and mode not in MODES:
        raise UserError(f"--compileContext: unknown mode {shown(mode)}; {_hint(mode, MODES)}")
    if _truth("disable", context.get("disable", False)):
        return Compiling(remarks=["--compileContext has disable, so nothing is compiled"])
    remarks: list[str] = []
    spelt: dict[str, str] = {}
    parts = [name for name in ("fullgraph", "dynamic") if _truth(name, context.get(name, False))]
    if "dynamic" not in parts and context.get("dynamic") is not None and mode != "graph":
        parts.append("dynamic=False")
    backend = context.get("backend")
    if backend is not None and not (isinstance(backend, str) and _WORD.fullmatch(backend)):
        raise UserError(f"--compileContext: backend is {shown(backend)}; it has to be a name")
    if backend not in (None, "inductor"):
        parts.append(f"backend={backend}")
    parts += _options(options, remarks, spelt)
    if mode == "graph" and parts:
        raise UserError(f"--compileContext: mode graph compiles nothing, and has no {parts[0]}")
    return Compiling(mode or "default", ",".join(parts), remarks, spelt)


def _twice(tree: ast.AST) -> str | None:
    """Return a key that some dictionary has twice, because Python forgets the first."""
    for node in ast.walk(tree):
        keys = node.keys if isinstance(node, ast.Dict) else []
        values = [ast.literal_eval(key) for key in keys if key is not None]
        for i, value in enumerate(values):
            if value in values[:i]:
                return shown(value)
    return None


def _options(options: Any, remarks: list[str], spelt: dict[str, str]) -> list[str]:
    if options is None:
        return []
    if not isinstance(options, dict):
        raise UserError(f"--compileContext: options is {shown(options)}; it has to be a dictionary")
    values: dict[str, str] = {}
    for written, value in options.items():
        name = written.replace("-", "_") if isinstance(written, str) else written
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserError(f"--compileContext: {shown(written)} in options is no name")
        if name in KEYS:
            raise UserError(f"--compileContext: {written} does not go into options but beside them")
        if name in GONE:
            remarks.append(f"--compileContext: {written} is ignored: {GONE[name]}")
            continue
        if name in RENAMED:
            name = RENAMED[name]
            remarks.append(f"--compileContext: {written} is Inductor's {name} today")
        if name in values:
            raise UserError(f"--compileContext: options has {cut(name)} twice")
        values[name] = _value(written, value)
        spelt[name] = written
    return [f"{name}={value}" for name, value in values.items()]


def _value(name: str, value: Any) -> str:
    text = str(value)
    truth = {"true": "True", "false": "False"}.get(text.strip().lower())
    if value == "":  # ROCm's tool takes it for False
        truth = "False"
    if not isinstance(value, (bool, int, float, str)) or not (truth or _WORD.fullmatch(text)):
        raise UserError(
            f"--compileContext: {cut(name)} in options is {shown(value)}; it has to be a truth "
            "value, a number or a word"
        )
    return truth or text


def _truth(name: str, value: Any) -> bool:
    if value is None:
        return False
    truth = _TRUTHS.get(str(value).strip().lower())
    if truth is None:
        raise UserError(f"--compileContext: {name} is {shown(value)}; it has to be True or False")
    return truth


def _hint(word: object, known: tuple[str, ...]) -> str:
    return nearest(word, known) or f"there is {', '.join(known)}"


def _wrong(text: str, why: str) -> UserError:
    return UserError(f"--compileContext is {shown(text)}; {why}, such as {EXAMPLE}")
