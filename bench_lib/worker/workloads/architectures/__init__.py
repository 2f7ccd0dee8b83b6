"""Networks that torchvision lacks, one a module: random weights, 1000 classes.

A module that has a function of its own name is a network: the function constructs it, and
``IMAGE_SIZE`` is the height and width of its input in pixels.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench_lib.worker.workloads.architectures.layers import CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["CLASSES", "Architecture", "architectures"]


@dataclass(frozen=True)
class Architecture:
    """A network of this package."""

    construct: Callable[[], nn.Module]
    image_size: int
    """Height and width of its input in pixels."""


def architectures() -> dict[str, Architecture]:
    """Return every network of this package by name; AttributeError without an IMAGE_SIZE."""
    found = {}
    for about in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{about.name}")
        if construct := getattr(module, about.name, None):
            size = getattr(module, "IMAGE_SIZE", None)
            if not isinstance(size, int):
                raise AttributeError(
                    f"{module.__file__}: IMAGE_SIZE is {size!r}; it has to be the height and width "
                    "of the input in pixels"
                )
            found[about.name] = Architecture(construct, size)
    return found
