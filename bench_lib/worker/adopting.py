"""Finds out how to measure a user's network, or a config of transformers.

``python -m bench_lib.worker.adopting`` takes a MODULE:OBJECT, arguments and inputs as JSON.  It
imports the object, tries its step on the CPU, and prints as JSON what ``bench-lib adopt`` writes.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bench_lib.worker.process import is_users, short_traceback

Input = tuple[list[int], int | None]
"""A shape without the batch, and the upper bound of whole numbers."""
INTEGERS = "a SHAPE of 128:30000 is for integers below 30000"

NETWORK = '''def {name}(setting, batch_size):
    """A forward pass of {object}."""
    import torch
    from bench_lib import Workload
    from {module} import {top}{more}

    torch.manual_seed(0)
    network = {expression}.to(setting.device).eval()
    inputs = {{
{inputs}
    }}

    @torch.inference_mode()
    def step():
        return network(**inputs)

    return Workload(step, items_per_step=batch_size, item="sample")
'''


def adopted(
    target: str, name: str, arguments: dict[str, str], inputs: dict[str, Input]
) -> dict[str, Any]:
    """Return the source of a factory for an object, and what had to be guessed.

    Arguments are literals as Python writes them, or else text.
    Raises ValueError if the object does not reveal enough, and what the user's code raises.
    """
    module, _, path = target.partition(":")
    if not all(name.isidentifier() for name in (*module.split("."), *path.split("."))):
        raise ValueError("write it as package.module:Object")
    imported: Any = importlib.import_module(module)
    try:
        obj = functools.reduce(getattr, path.split("."), imported)
    except AttributeError as error:
        classes = {name: value for name, value in vars(imported).items() if isinstance(value, type)}
        networks = [f"{module}:{name}" for name in classes if issubclass(classes[name], nn.Module)]
        raise ValueError(f"{error}; its networks: {', '.join(networks) or 'none'}") from error
    values = {key: _value(text) for key, text in arguments.items()}
    args = ", ".join(f"{key}={value!r}" for key, value in values.items())
    fields = {"name": name, "module": module, "object": path, "top": path.split(".")[0], "more": ""}
    expression = f"{path}({args})" if isinstance(obj, type) else path
    if isinstance(obj, type) and issubclass(obj, nn.Module):
        network = _called(obj, values)
        needed = _needed(network.forward)
    elif hasattr(obj, "model_type") and hasattr(obj, "to_dict"):
        config = _called(obj, values) if isinstance(obj, type) else obj
        network = importlib.import_module("transformers").AutoModel.from_config(config)
        needed, expression = [network.main_input_name], f"AutoModel.from_config({expression})"
        fields["more"] = "\n    from transformers import AutoModel"
    else:
        raise ValueError(
            f"it is of type {type(obj).__name__}; it must be a subclass of torch.nn.Module, or "
            "a config of transformers"
        )
    inputs, guessed = _inputs(network, needed, inputs)
    guessed += ["real weights and data (both are random)", "training (this is a forward pass)"]
    fields["inputs"] = "\n".join(f'        "{key}": {_call(*inputs[key])},' for key in inputs)
    return {"factory": NETWORK.format(expression=expression, **fields), "guessed": guessed}


def _value(text: str) -> Any:
    with contextlib.suppress(ValueError, SyntaxError, TypeError):
        return ast.literal_eval(text)
    return text


def _call(shape: list[int], below: int | None) -> str:
    sizes = ", ".join(["batch_size", *map(str, shape)])
    if below is None:
        return f"torch.randn({sizes}, device=setting.device)"
    return f"torch.randint(0, {below}, ({sizes}{'' if shape else ','}), device=setting.device)"


def _needed(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that have no default."""
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _called(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Return what a class or function returns for arguments."""
    if missing := [name for name in _needed(function) if name not in arguments]:
        options = " ".join(f"--arg {name}=VALUE" for name in missing)
        raise ValueError(f"{function.__name__} needs {', '.join(missing)}; give {options}")
    return function(**arguments)


def _inputs(
    network: nn.Module, needed: list[str], given: dict[str, Input]
) -> tuple[dict[str, Input], list[str]]:
    """Return inputs that a network takes, and the guesses about them."""
    missing = [name for name in needed if name not in given]
    failed: Exception | None = None
    for candidate in _shapes(network) if missing else [([], None)]:
        inputs = {**given, **dict.fromkeys(missing, candidate)}
        try:
            _try(network, inputs)
        except Exception as error:  # noqa: BLE001 - the next shape may work
            failed = error
        else:
            guess = f"{'x'.join(map(str, candidate[0]))} works; set yours with --input NAME=SHAPE"
            return inputs, [f"the size of {', '.join(missing)}: {guess}"] if missing else []
    parameters = inspect.signature(network.forward).parameters
    options = " ".join(f"--input {name}=SHAPE" for name in missing or needed or parameters)
    if unknown := given.keys() - parameters.keys():
        options += f" instead of {', '.join(sorted(unknown))}"
    raise ValueError(f"no input works so far; give {options}; {INTEGERS}") from failed


def _shapes(network: nn.Module) -> Iterator[Input]:
    """Yield inputs for the first layer that reveals a shape, the likeliest first."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            yield from (([layer.in_channels, side, side], None) for side in (224, 32, 28, 64))
        elif isinstance(layer, nn.Embedding):
            yield from ((sizes, layer.num_embeddings) for sizes in ([128], [16], []))
        elif isinstance(layer, nn.Linear):
            yield from (([*before, layer.in_features], None) for before in ([], [128]))
        else:
            continue
        return


@torch.no_grad()
def _try(network: nn.Module, inputs: dict[str, Input]) -> None:
    def tensor(shape: list[int], below: int | None) -> Tensor:
        sizes = (2, *shape)
        return torch.randn(sizes) if below is None else torch.randint(0, below, sizes)

    network.eval()(**{name: tensor(*shape) for name, shape in inputs.items()})


def main(request: str) -> None:
    """Print the factory as JSON, or exit with what is missing, or where the user's code fails."""
    try:
        answer = adopted(**json.loads(request))
    except Exception as error:  # noqa: BLE001 - it is the user's to mend
        cause = error.__cause__ or error
        is_theirs = any(is_users(f.filename) for f in traceback.extract_tb(cause.__traceback__))
        frames = short_traceback(cause) if is_theirs else ""
        sys.exit(frames if frames and cause is error else frames + " ".join(str(error).split()))
    sys.stdout.write(f"{json.dumps(answer)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
