"""A build of torch for HIP whose GPUs are made up: what it takes is what torch.cuda does.

Tensors "on the GPU" lie in the host's memory and the host computes them.  The GPU is a
queue with a clock of its own: each kernel makes it busy for a time that depends on the kind
of kernel alone, so that a step takes the same time on every host that issues it in time.
"""

import atexit
import contextlib
import ctypes
import importlib.metadata
import json
import os
import re
import time
import uuid
import weakref
from pathlib import Path
from types import SimpleNamespace

import torch
from rocm.present import here
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

MACHINE = here(__file__)
TINY_US = 2.0
SLEEP_HZ = 1e8
"""AMD's GPUs count cycles at 100 MHz."""
TOO_LARGE = 1 << 22
"""Numbers in a matrix that are not worth computing here: it only keeps the GPU busy."""
CONTEXT_BYTES = 512 << 20
PERIOD_S = 0.1
HEAVY = re.compile(r"convolution|addmm|^mm$|bmm|baddbmm")
NO_KERNEL = re.compile(r"^_?(empty|view|unsafe_view|detach|t|transpose|as_strided|expand|alias)")


# --- which devices there are


def visible():
    """Keep what ROCR and then HIP leave of the machine's devices, as these variables say."""
    left = MACHINE.devices
    for names in (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")):
        value = next((os.environ[name] for name in names if name in os.environ), None)
        if value is None:
            continue
        kept = []
        for word in value.split(","):
            if word.isdecimal():
                match = left[int(word) : int(word) + 1]
            else:
                match = [d for d in left if word and word == f"GPU-{d['hip_uuid']}"]
            if not match or match[0] in kept:
                break
            kept += match
        left = kept
    return left


def properties(index):
    device = visible()[index]
    domain, bus, slot = re.split("[:.]", device["bdf"])[:3]
    return SimpleNamespace(
        name=device["name"],
        major=int(device["arch"][3]),
        minor=0 if device["arch"] == "gfx90a" else int(device["arch"][4]),
        total_memory=device["memory"],
        multi_processor_count=device["units"],
        gcnArchName=f"{device['arch']}:sramecc+:xnack-",
        # HIP's uuid is the 16 digits as characters.
        uuid=uuid.UUID(bytes=device["hip_uuid"].encode("ascii")),
        pci_domain_id=int(domain, 16),
        pci_bus_id=int(bus, 16),
        pci_device_id=int(slot, 16),
    )


def index_of(device):
    """Return the index that torch's ways of naming a device mean."""
    if device is None:
        return GPU.index
    if isinstance(device, int):
        return device
    return torch.device(device).index or 0


# --- what the device does


class Gpu:
    """The process's device: a queue, and the memory of what was computed in it."""

    def __init__(self):
        self.index = 0
        self.device = None
        self.busy_until = 0.0
        self.recording = None
        self.allocated = self.peak = 0
        self.sizes = weakref.WeakValueDictionary()
        self.kernels = []
        self.noted = 0.0
        self.us_per_us = 1.0

    def open(self):
        """Take the device, as the first thing that is done on it does."""
        if self.device is not None:
            return
        found = visible()
        if self.index >= len(found):
            raise RuntimeError(f"HIP error: invalid device ordinal {self.index}")
        self.device = found[self.index]
        # At a lower clock everything takes longer.
        self.us_per_us = self.device["max_clock_mhz"] / self.device["clock_mhz"]
        names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
        opened = {
            "pid": os.getpid(),
            "bdf": self.device["bdf"],
            "hip": self.device["hip"],
            "variables": {name: os.environ[name] for name in names if name in os.environ},
        }
        with (MACHINE.state / "opened.jsonl").open("a") as file:
            file.write(json.dumps(opened) + "\n")
        MACHINE.hold(self.device, CONTEXT_BYTES)
        torch.set_num_threads(1)  # what several threads win is lost where they wait for cores
        Kernels().__enter__()

    def launch(self, name, us):
        us *= self.us_per_us
        if self.recording is not None:
            self.recording.us += us
            return
        begin = max(time.monotonic(), self.busy_until)
        self.busy_until = begin + us / 1e6
        if TRACE:
            self.kernels.append([name, round(begin * 1e9), round(begin * 1e9 + us * 1e3)])

    def synchronize(self, _device=None):
        self.open()
        while self.busy_until > time.monotonic():
            self.show()
            time.sleep(max(0.0, min(PERIOD_S, self.busy_until - time.monotonic())))
        self.show()

    def show(self):
        """Have whoever watches the device see what it does, however busy this host is."""
        self.note()
        MACHINE.wait_for_looks(self.device, self.noted)

    def note(self):
        """Let the machine's sensors see what is going on, now and then."""
        now = time.monotonic()
        if now > self.noted + PERIOD_S:
            MACHINE.work_until(self.device, max(now, self.busy_until))
            from rocm.kernel import write

            write(MACHINE, self.device["card"])
            self.noted = time.monotonic()

    def keep(self, tensor):
        """Count a tensor's memory for as long as it lives."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.sizes:
            return
        self.sizes[key] = storage
        size = storage.nbytes()
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        weakref.finalize(storage, self.free, size)

    def free(self, size):
        self.allocated -= size


GPU = Gpu()
TRACE = os.environ.get("PROFILED")


def write_trace():
    """Tell the profiler that started this process what was done."""
    if GPU.kernels:
        did = {"kernels": GPU.kernels, "copies": [], "ranges": []}
        Path(TRACE, f"{os.getpid()}.json").write_text(json.dumps(did))


class Kernels(TorchDispatchMode):
    """Counts everything that is computed as a kernel of the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            GPU.synchronize()
        is_large = isinstance(args[0] if args else None, torch.Tensor)
        is_large = is_large and args[0].numel() >= TOO_LARGE and name in ("mm", "tanh", "normal_")
        if is_large:
            out = args[0] if name == "normal_" else torch.empty_like(args[0])
        else:
            out = func(*args, **kwargs)
        first = out[0] if isinstance(out, (tuple, list)) and out else out
        if not isinstance(first, torch.Tensor) or first.device.type != "cpu":
            return out
        if not func.is_view and not NO_KERNEL.match(name):
            GPU.launch(f"at::native::{name}", MACHINE.kernel_us if HEAVY.search(name) else TINY_US)
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                GPU.keep(tensor)
        return out


def on_host(value):
    """Where a value that names the GPU really is."""
    if isinstance(value, torch.device) and value.type == "cuda":
        GPU.open()
        return torch.device("cpu")
    if isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?", value):
        GPU.open()
        return "cpu"
    return value


class OnTheGpu(TorchFunctionMode):
    """Takes every call that names the GPU to the host."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.device:  # only names the GPU
            return func(*args, **(kwargs or {}))
        args = tuple(map(on_host, args))
        kwargs = {name: on_host(value) for name, value in (kwargs or {}).items()}
        return func(*args, **kwargs)


class Event:
    def __init__(self, enable_timing=False, **_):
        self._at = 0.0

    def record(self, stream=None):
        GPU.note()
        self._at = max(time.monotonic(), GPU.busy_until)

    def query(self):
        return time.monotonic() >= self._at

    def synchronize(self):
        GPU.synchronize()

    def elapsed_time(self, other):
        if not other.query():
            raise RuntimeError("HIP error: device not ready")
        return (other._at - self._at) * 1e3


class Stream:
    """A stream; all share one queue."""

    def __init__(self, *_, cuda_stream=0, **__):
        self.cuda_stream = cuda_stream

    def wait_stream(self, _other):
        pass

    def synchronize(self):
        GPU.synchronize()


DEFAULT = Stream()


class ExternalStream(Stream):
    def __init__(self, address, device=None):
        super().__init__(cuda_stream=address)


class Graph:
    """Recorded work."""

    def __init__(self, keep_graph=False):
        self.us = 0.0

    def replay(self):
        GPU.launch("graph", self.us / GPU.us_per_us)

    def pool(self):
        return (0, 1)

    def reset(self):
        self.us = 0.0


@contextlib.contextmanager
def recording(graph, pool=None, stream=None, **_):
    GPU.synchronize()
    GPU.recording = graph
    try:
        yield
    finally:
        GPU.recording = None


class Runtime:
    """libamdhip64, under the names that torch gives it."""

    made = 0

    def cudaStreamCreate(self, pointer):  # noqa: N802 - the runtime's name
        Runtime.made += 1
        ctypes.c_uint64.from_address(pointer).value = 0x7F00_0000_0000 + 16 * Runtime.made
        return 0

    def cudaStreamDestroy(self, address):  # noqa: N802 - the runtime's name
        return 0


class Generator(torch._C.Generator):
    """A generator of the GPU's random numbers, which are the host's."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, device=on_host(device))


def mapped(kind, position):
    """Have a class take the host where it is told the GPU."""
    init = kind.__init__

    def told(self, *args, **kwargs):
        args = [on_host(a) if n == position else a for n, a in enumerate(args)]
        return init(self, *args, **{name: on_host(value) for name, value in kwargs.items()})

    kind.__init__ = told


def install(torch):  # the module whose import has just ended
    torch.version.hip, torch.version.cuda = MACHINE.hip, None
    torch.__version__ = type(torch.__version__)(importlib.metadata.version("torch"))
    torch.Generator = Generator
    mapped(DeviceContext, 0)
    mapped(torch.amp.autocast_mode.autocast, 0)
    mapped(torch.amp.grad_scaler.GradScaler, 0)
    torch.backends.cudnn.version = lambda: 3_05_001
    for name, value in {
        "is_available": lambda: bool(visible()),
        "device_count": lambda: len(visible()),
        "current_device": lambda: GPU.index,
        "set_device": lambda device: setattr(GPU, "index", index_of(device)),
        "get_device_properties": lambda device=None: properties(index_of(device)),
        "get_device_name": lambda device=None: properties(index_of(device)).name,
        "get_device_capability": lambda device=None: (
            properties(index_of(device)).major,
            properties(index_of(device)).minor,
        ),
        "is_bf16_supported": lambda *_, **__: True,
        "synchronize": GPU.synchronize,
        "empty_cache": lambda: None,
        "memory_allocated": lambda device=None: GPU.allocated,
        "max_memory_allocated": lambda device=None: GPU.peak,
        "reset_peak_memory_stats": lambda device=None: setattr(GPU, "peak", GPU.allocated),
        "memory_snapshot": list,
        "cudart": Runtime,
        "Event": Event,
        "Stream": Stream,
        "ExternalStream": ExternalStream,
        "stream": contextlib.nullcontext,
        "current_stream": lambda device=None: DEFAULT,
        "default_stream": lambda device=None: DEFAULT,
        "_sleep": lambda cycles: GPU.launch("sleep", cycles / SLEEP_HZ * 1e6 / GPU.us_per_us),
        "CUDAGraph": Graph,
        "graph": recording,
        "graph_pool_handle": lambda: (0, 1),
        "default_generators": [Generator()],
    }.items():
        assert hasattr(torch.cuda, name), name
        setattr(torch.cuda, name, value)
    OnTheGpu().__enter__()
    if TRACE:
        atexit.register(write_trace)
