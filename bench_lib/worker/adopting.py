"""Finds the facts needed to measure somebody's object: a network, a Hugging Face config, or a test.

``python -m bench_lib.worker.adopting MODULE:OBJECT`` imports the object, draws inputs for it, tries
them on a CPU, and prints what ``bench-lib adopt`` writes from as JSON.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

TRIED = 2
"""Items of the batch that inputs are tried with."""
SIDES = (224, 32, 28, 64)
"""Pixels of images, as networks commonly take them."""
LENGTH = 128
"""Elements of a sequence."""
MOST_WORDS = 300
"""Most characters of an error to report."""


class UnknownError(ValueError):
    """Facts that the object does not show, and the option for each."""


@dataclass(frozen=True)
class Drawn:
    """One input of a step, without its batch."""

    name: str
    shape: tuple[int, ...]
    below: int | None = None
    """Whole numbers below this; None for normal ones."""

    def tensor(self, batch: int) -> Tensor:
        """Return an input on the CPU, of shape (batch, elements) or more dimensions."""
        if self.below is None:
            return torch.randn(batch, *self.shape)
        return torch.randint(0, self.below, (batch, *self.shape))


@dataclass(frozen=True)
class Adopted:
    """An object's kind, and how to make a step of it."""

    kind: str
    """``network``, ``config`` or ``test``."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the constructor, or of the test."""
    inputs: list[Drawn] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Guessed facts, and unknown ones."""


# --- what it is ----------------------------------------------------------------------------


def adopted(target: str, arguments: Mapping[str, Any], inputs: Iterable[Drawn]) -> Adopted:
    """Look at an object; raises UnknownError, and ImportError where there is none."""
    found = imported(target)
    if isinstance(found, type) and issubclass(found, nn.Module):
        network = _built(found, arguments)
        drawn, unknown = _drawn(network, list(inputs))
        return Adopted("network", dict(arguments), drawn, unknown)
    if hasattr(found, "model_type") and hasattr(found, "to_dict"):
        return _config(found, arguments, list(inputs))
    if callable(found) and "benchmark" in inspect.signature(found).parameters:
        return _test(found, arguments)
    raise UnknownError(
        f"it is of type {type(found).__name__}; it has to be a class of torch.nn.Module, a config "
        "of transformers, or a test that takes pytest-benchmark's benchmark"
    )


def imported(target: str) -> Any:
    """Return the object of ``package.module:object``; raises UnknownError or ImportError."""
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise UnknownError("it has to be written as package.module:Object")
    found = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UnknownError(f"there is no {name} in {module}")
        found = getattr(found, part)
    return found


def _built(network: type[nn.Module], arguments: Mapping[str, Any]) -> nn.Module:
    missing = [
        each.name
        for each in inspect.signature(network).parameters.values()
        if each.default is each.empty
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        and each.name not in arguments
    ]
    if missing:
        words = " ".join(f"--arg {name}=VALUE" for name in missing)
        raise UnknownError(f"{network.__name__} needs {', '.join(missing)}; give {words}")
    return network(**arguments)


# --- inputs --------------------------------------------------------------------------------


def _drawn(network: nn.Module, told: list[Drawn]) -> tuple[list[Drawn], list[str]]:
    """Return inputs that a network takes, and the guesses about them."""
    names = _needed(network.forward)
    known = {each.name: each for each in told}
    missing = [name for name in names if name not in known]
    if not missing:
        _tried(network, told)
        return told, []
    why = "no layer of it tells a shape"
    for shape, below in _shapes(network):
        inputs = [known.get(name) or Drawn(name, shape, below) for name in names]
        try:
            _tried(network, inputs)
        except UnknownError as error:
            why = str(error)
            continue
        size = "x".join(map(str, shape))
        return inputs, [
            f"the size of {', '.join(missing)}: {size} works, give yours by --input NAME=SHAPE"
        ]
    words = " ".join(f"--input {name}=SHAPE" for name in missing)
    raise UnknownError(f"no input could be drawn for {', '.join(missing)} ({why}); give {words}")


def _needed(forward: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind in kinds]


def _shapes(network: nn.Module) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Yield shapes that the first layer that tells one may take, likelier ones first."""
    for layer in network.modules():
        match layer:
            case nn.Conv2d():
                yield from (((layer.in_channels, side, side), None) for side in SIDES)
            case nn.Conv1d():
                yield (layer.in_channels, 8 * LENGTH), None
            case nn.Conv3d():
                yield (layer.in_channels, 16, 112, 112), None
            case nn.Embedding():
                yield (LENGTH,), layer.num_embeddings
            case nn.RNNBase():
                yield (LENGTH, layer.input_size), None
            case nn.MultiheadAttention():
                yield (LENGTH, layer.embed_dim), None
            case nn.Linear():
                yield (layer.in_features,), None
                yield (LENGTH, layer.in_features), None
            case _:
                continue
        return


@torch.no_grad()
def _tried(network: nn.Module, inputs: list[Drawn]) -> None:
    try:
        network.eval()(*(each.tensor(TRIED) for each in inputs))
    except Exception as error:
        words = f"{type(error).__name__}: {error}".splitlines()[0][:MOST_WORDS]
        raise UnknownError(words) from error


# --- a config of transformers --------------------------------------------------------------


def _config(found: Any, arguments: Mapping[str, Any], told: list[Drawn]) -> Adopted:
    config = found(**arguments) if isinstance(found, type) else found
    inputs, unknown = told, []
    if not inputs and (words := getattr(config, "vocab_size", None)):
        length = min(LENGTH, getattr(config, "max_position_embeddings", None) or LENGTH)
        inputs = [Drawn("input_ids", (length,), words)]
        unknown = [f"the length of a text: {length} tokens (--input input_ids=LENGTH:{words})"]
    elif not inputs and (side := getattr(config, "image_size", None)):
        height, width = (side, side) if isinstance(side, int) else side
        inputs = [Drawn("pixel_values", (getattr(config, "num_channels", 3), height, width))]
    if not inputs:
        raise UnknownError(
            "the config has no vocab_size and no image_size; give --input NAME=SHAPE"
        )
    network = model_of(found, arguments)
    network.eval()
    with torch.no_grad():
        network(**{each.name: each.tensor(TRIED) for each in inputs})
    return Adopted("config", dict(arguments), inputs, unknown)


def model_of(found: Any, arguments: Mapping[str, Any] | None = None) -> nn.Module:
    """Return the model of a config, or of its class, with random weights."""
    transformers = importlib.import_module("transformers")
    config = found(**(arguments or {})) if isinstance(found, type) else found
    model: nn.Module = transformers.AutoModel.from_config(config)
    return model


# --- a test of pytest-benchmark ------------------------------------------------------------


def _test(test: Callable[..., Any], told: Mapping[str, Any]) -> Adopted:
    arguments, unknown = {**_first_values(test), **told}, []
    others = [
        each.name
        for each in inspect.signature(test).parameters.values()
        if each.name not in ("benchmark", *arguments) and each.default is each.empty
    ]
    if others:
        words = " ".join(f"--arg {name}=VALUE" for name in others)
        raise UnknownError(f"the test needs {', '.join(others)}; give {words}, a value each")
    if arguments and not told:
        unknown = ["other values of its parameters: each is a row of the matrix"]
    benchmarked(test, **arguments)()
    return Adopted("test", arguments, unknown=unknown)


def _first_values(test: Callable[..., Any]) -> dict[str, Any]:
    """Return the first value of each parameter that pytest.mark.parametrize gives."""
    values: dict[str, Any] = {}
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names, rows = mark.args[:2]
            names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
            first = getattr(rows[0], "values", rows[0])
            values |= zip(names, first if len(names) > 1 else [first], strict=True)
    return values


class _Benchmark:
    """Stands for pytest-benchmark's fixture: keeps the step, and does it once."""

    def __init__(self) -> None:
        self.step: Callable[[], Any] | None = None
        self.extra_info: dict[str, Any] = {}
        self.group = self.name = None

    def __call__(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.step = functools.partial(step, *args, **kwargs)
        return self.step()

    def pedantic(
        self,
        target: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        **_counts: Any,
    ) -> Any:
        if setup is not None:
            raise UnknownError("benchmark.pedantic has a setup, which would be measured too")
        return self(target, *args, **(kwargs or {}))


def benchmarked(test: Callable[..., Any], **arguments: Any) -> Callable[[], Any]:
    """Return the step that a test gives to pytest-benchmark, the test's assertions passed.

    Raises UnknownError where it gives none.
    """
    fixture = _Benchmark()
    test(benchmark=fixture, **arguments)
    if fixture.step is None:
        raise UnknownError("the test never calls benchmark")
    return fixture.step


# --- the program ---------------------------------------------------------------------------


def _argument(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _input(text: str) -> Drawn:
    name, _, sizes = text.partition("=")
    shape, _, below = sizes.partition(":")
    try:
        return Drawn(name, tuple(map(int, shape.split(","))), int(below) if below else None)
    except ValueError:
        raise UnknownError(
            f"--input {text}; it has to be NAME=3,224,224, or NAME=128:30000 for whole numbers "
            "below 30000"
        ) from None


def main(words: list[str]) -> int:
    """Print an object's kind as JSON; unknown facts go to stderr, with status 1."""
    asked = argparse.ArgumentParser()
    asked.add_argument("target")
    asked.add_argument("--arg", action="append", default=[])
    asked.add_argument("--input", action="append", default=[])
    given = asked.parse_args(words)
    try:
        inputs = [_input(text) for text in given.input]
        found = adopted(given.target, dict(map(_argument, given.arg)), inputs)
        text = json.dumps(asdict(found))
    except (UnknownError, ImportError, TypeError) as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
