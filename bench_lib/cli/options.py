"""Options that several commands have, each declared once as the field of a dataclass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes dataclasses as typer needs it: with an option for each field.

    The options stand where the dataclass stands among the parameters.
    """

    @functools.wraps(command)
    def told(**values: Any) -> None:
        command(**_gathered(command, values))

    parameters = list(_spread(command))
    told.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(told)["__signature__"] = inspect.Signature(parameters)  # what typer reads
    return told


def _spread(taker: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a command or dataclass, those of a dataclass in its place."""
    hints = get_type_hints(taker, include_extras=True)
    for each in inspect.signature(taker).parameters.values():
        hint = hints[each.name]
        if isinstance(hint, type) and is_dataclass(hint):
            yield from (own.replace(kind=inspect.Parameter.KEYWORD_ONLY) for own in _spread(hint))
        else:
            yield each.replace(annotation=hint)


def _gathered(taker: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a command or dataclass takes, its dataclasses made of their fields' values."""
    hints = get_type_hints(taker, include_extras=True)
    return {
        name: hints[name](**_gathered(hints[name], values))
        if is_dataclass(hints[name])
        else values[name]
        for name in inspect.signature(taker).parameters
    }
