"""Makes the installed torch one that was built for HIP, right after it is imported.

A process that watches a device leaves word of each look at its sensors.
"""

import importlib.abc
import importlib.metadata
import importlib.util
import sys
import types
from pathlib import Path


class _After(importlib.abc.MetaPathFinder):
    """Has something done when a module's own code has run."""

    def __init__(self, name, then):
        self.name, self.then = name, then

    def find_spec(self, name, path=None, target=None):
        """Find the module as ever, once."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def and_then(module):
            run(module)
            self.then(module)

        spec.loader.exec_module = and_then
        return spec


def _without_compiler():
    """Have a compiler that does nothing: torch's own takes as long to import as torch.

    Nothing is compiled on these machines, and yet torchvision imports it, and so does the first
    call of many a function, in every process.
    """
    dynamo, utils = (types.ModuleType(f"torch._dynamo{name}") for name in ("", ".utils"))
    dynamo.__path__, dynamo.utils = [], utils
    dynamo.disable = lambda function, *_, **__: function
    dynamo.reset = lambda: None
    utils.counters = {}
    utils.is_compile_supported = lambda _device: False
    sys.modules.update({module.__name__: module for module in (dynamo, utils)})


def _for_hip(torch):
    import hip_torch

    _without_compiler()
    hip_torch.install(torch)


def _as_installed(torchvision):
    torchvision.__version__ = importlib.metadata.version("torchvision")


sys.meta_path[:0] = [_After("torch", _for_hip), _After("torchvision", _as_installed)]


if "bench_lib.engine.telemetry" in sys.orig_argv:
    from rocm.present import here

    MACHINE = here(__file__)

    def _look(event, arguments):
        if event == "open" and str(arguments[0]).endswith("/gpu_metrics"):
            MACHINE.looked(Path(arguments[0]).parent.name)

    sys.addaudithook(_look)
