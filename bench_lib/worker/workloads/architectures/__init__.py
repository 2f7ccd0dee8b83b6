"""Networks that torchvision lacks, one a module: random weights, 1000 classes.

A module that has a function of its own name is a network: the function constructs it, and
``IMAGE_SIZE`` is the height and width of its input in pixels.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from bench_lib.worker.workloads.architectures.layers import CLASSES

__all__ = ["CLASSES", "architectures"]


def architectures() -> dict[str, ModuleType]:
    """Return every network's module by name; AttributeError without an IMAGE_SIZE."""
    found = {}
    for about in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{about.name}")
        if hasattr(module, about.name):
            size = getattr(module, "IMAGE_SIZE", None)
            if not isinstance(size, int):
                raise AttributeError(
                    f"{module.__file__}: IMAGE_SIZE is {size!r}; it has to be the height and width "
                    "of the input in pixels"
                )
            found[about.name] = module
    return found
