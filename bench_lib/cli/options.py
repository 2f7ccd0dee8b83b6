"""Options that several commands share, and how shares and times are read."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, TypeVar, get_type_hints

import typer

from bench_lib.model import UserError

T = TypeVar("T")
TYPED = "COMMANDLINE"
"""The source of a value that was typed, as click calls it."""
MOST = 0.5
"""A tolerance above this is taken for a mistake."""


def share_of(text: str, option: str, *, most: float = MOST, zero: bool = False) -> float:
    """Return the share that ``1%`` or ``0.01`` stands for, at most ``most`` and above 0.

    With ``zero`` it may be 0 too.  Raises typer.BadParameter, naming the option.
    """
    percent = text.strip().endswith("%")
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = math.nan
    share = value / 100 if percent else value
    if 0 < share <= most or (zero and share == 0):
        return share
    amount = text if percent else f"{text} is {share:.0%}"
    message = f"{amount}; it must be {'0 or more' if zero else 'above 0'} and at most {most:.0%}"
    if not math.isfinite(value):
        message = f"{text!r} is not a share; write it as 1% or 0.01"
    elif not percent and most < value <= 100 * most:
        message = f"{amount}; did you mean {text}%?"
    raise typer.BadParameter(message, param_hint=option)


def seconds_of(text: str, option: str) -> float:
    """Return the seconds that ``0.5us`` stands for; raises BadParameter, naming the option."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d*)?)\s*(ns|us|ms|s)\s*", text)
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not a time; write it as 0.5us, 2ms or 1s", param_hint=option
        )
    return float(match[1]) * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]


def refuse(context: typer.Context, names: Iterable[str], reason: str) -> None:
    """Raise UserError where one of these parameters is on the command line."""
    params: dict[str, Any] = {p.name or "": p for p in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in names}
    typed = [params[name] for name, source in sources.items() if source and source.name == TYPED]
    flags = [
        p.metavar or p.name.upper() if p.param_type_name == "argument" else p.opts[0] for p in typed
    ]
    if flags:
        raise UserError(f"{', '.join(flags)}: {reason}; leave it out")


def known(value: str, names: Iterable[str], option: str) -> str:
    """Return a value that is one of some names; raises typer.BadParameter for any other."""
    if value in (choices := list(names)):
        return value
    raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}", param_hint=option)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes dataclasses as typer needs it: with an option for each field.

    The options take the place of the dataclass among the parameters.
    """

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        command(**_gathered(command, values))

    parameters = list(_spread(command))
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    vars(wrapper)["__signature__"] = inspect.Signature(parameters)  # what typer reads
    return wrapper


def _spread(target: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a command or dataclass, those of a dataclass in its place."""
    hints = get_type_hints(target, include_extras=True)
    for parameter in inspect.signature(target).parameters.values():
        hint = hints[parameter.name]
        if isinstance(hint, type) and is_dataclass(hint):
            yield from (p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in _spread(hint))
        else:
            yield parameter.replace(annotation=hint)


def _gathered(target: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a command or dataclass takes, with its dataclasses built from ``values``."""
    hints = get_type_hints(target, include_extras=True)
    return {
        name: hints[name](**_gathered(hints[name], values))
        if is_dataclass(hints[name])
        else values[name]
        for name in inspect.signature(target).parameters
    }


def read(parse: Callable[[str], T], text: str, option: str) -> T:
    """Return an option's parsed value; raises BadParameter where it cannot be parsed."""
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
