"""Opens and describes a device, and sets torch up for a case."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from bench_lib.formulas.arithmetic import why_no_tf32_on_amd
from bench_lib.model import QUANTIZED, Device
from bench_lib.worker.workload import Setting, UnsupportedError


def versions() -> dict[str, str | None]:
    """Return the versions of the software under test; opens no device."""
    try:
        import triton

        triton_version: str | None = str(triton.__version__)
    except ImportError:
        triton_version = None
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchvision": _torchvision(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "rocm": _rocm(),
        "triton": triton_version,
        "torchao": _installed("torchao"),
    }


def _rocm() -> str | None:
    """Return the version of ROCm that comes with AMD's wheels or with torch itself.

    None if torch loads the system's.  HIP's version differs: ROCm 10.0.0 has HIP 7.15.
    """
    if torch.version.hip is None:
        return None
    built = re.search(r"\+rocm(\d+(?:\.\d+)+)", str(torch.__version__))
    brings_hip = any(Path(str(torch.__file__)).with_name("lib").glob("libamdhip64.so*"))
    return _installed("rocm-sdk-core") or (built[1] if built and brings_hip else None)


def _torchvision() -> str | None:
    """Return torchvision's own version, without importing it, which takes 2 s.

    The installed metadata may lack the build after it, ``+cu132``.
    """
    if module := sys.modules.get("torchvision"):
        return str(getattr(module, "__version__", None) or _installed("torchvision"))
    with contextlib.suppress(OSError, ValueError):
        spec = importlib.util.find_spec("torchvision")
        if spec is not None and spec.origin is not None:
            text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
            if version := _VERSION.search(text):
                return version[1]
    return _installed("torchvision")


_VERSION = re.compile(r"""^__version__ *= *["']([^"'\n]+)["']""", re.MULTILINE)


def _installed(package: str) -> str | None:
    """Return the version of a package that takes long to import."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def open_device(index: int = 0) -> tuple[torch.device, Device]:
    """Open the process's accelerator, or its CPU if there is none.

    The runner pins a process by environment variables, so that index 0 is the right device; ranks
    of one launch see several and choose one.  Raises RuntimeError if torch was built for a GPU, one
    was promised, and it cannot be opened.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu"), Device(type="cpu", name=platform.processor() or "cpu")
    torch.cuda.set_device(index)
    device = torch.device("cuda", index)
    torch.empty(1, device=device)
    properties: Any = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    arch = getattr(properties, "gcnArchName", None)
    if torch.version.hip is None or not arch:
        arch = f"sm_{properties.major}{properties.minor}"
    return device, Device(
        type="cuda",
        name=properties.name,
        arch=arch,
        compute_units=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        uuid=None if uuid is None else str(uuid),
        bdf=_bdf(properties),
    )


def _bdf(properties: Any) -> str | None:
    try:
        domain, bus = properties.pci_domain_id, properties.pci_bus_id
        slot = properties.pci_device_id
    except AttributeError:
        return None
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def cudnn_version(device: torch.device) -> str | None:
    """Return the version of cuDNN or MIOpen once a device is open."""
    version = None
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            version = torch.backends.cudnn.version()
    return None if version is None else str(version)


_LIBRARY = re.compile(
    r"lib(MIOpen|hipblaslt|hipblas|rocblas|rccl|amdhip64|hsa-runtime64|aotriton_v2|"
    r"MIOpenCKGroupedConv(?=_)|cublas|cublasLt|cudnn|nccl)"
    r"(?:_gfx[\w-]+)?(?:-[0-9a-f]{8})?\.so((?:\.\d+)*)"
)
_HEAD_BYTES = 65_536


def libraries(maps: Path = Path("/proc/self/maps")) -> dict[str, str]:
    """Return the versions of the GPU's libraries that this process has loaded, by name.

    Torch's wheels bring their own, often without a version in the name: those are identified by
    their size and their beginning, which has an ELF file's build id.
    """
    by_name = {}
    try:
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for path in dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if ".so" in line):
        file = Path(path).resolve()
        if match := _LIBRARY.fullmatch(file.name):
            version = match[2].lstrip(".")
            by_name[match[1]] = version if "." in version else _with_build(file, version)
    return dict(sorted(by_name.items()))


def _with_build(file: Path, version: str) -> str:
    try:
        with file.open("rb") as stream:
            head, size = stream.read(_HEAD_BYTES), file.stat().st_size
    except OSError:
        return version or "unknown"
    build = hashlib.sha256(head + str(size).encode()).hexdigest()[:12]
    return f"{version} ({build})" if version else build


USABLE = 0.8
"""Share of a device's memory that tensors may take; libraries need workspaces."""


def memory_bytes(device: torch.device) -> int:
    """Return how much memory a device has."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory(what: str, needed: int, setting: Setting) -> None:
    """Raise UnsupportedError if each rank needs so many bytes for ``what``, and has fewer.

    Ranks on a CPU share the host's memory.
    """
    total = memory_bytes(setting.device)
    sharers = 1 if setting.device.type == "cuda" else setting.ranks
    if sharers * needed > USABLE * total:
        raise UnsupportedError(
            f"{what} need {needed / 2**30:.1f} GiB on each rank, but only {USABLE:.0%} of "
            f"{total / 2**30:.1f} GiB of memory may be used"
        )


AUTOCAST = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}
STORED = {
    "fp16": torch.float16,
    "fp16-bn32": torch.float16,
    "bf16": torch.bfloat16,
    **dict.fromkeys(QUANTIZED, torch.bfloat16),
}
"""The dtype of stored weights and images; quantized linear layers store theirs in one byte."""


def set_precision(precision: str, device: torch.device, *, products: bool = False) -> None:
    """Set torch's process-wide switches for a precision: TF32 on for ``tf32``, else off.

    ``tf32-conv`` has it on only in convolutions, which is torch's default on NVIDIA GPUs.
    With ``products`` the work is only matrix products.  Raises UnsupportedError if the device has
    no such arithmetic.
    """
    if precision in ("tf32", "tf32-conv"):
        if device.type != "cuda":
            raise UnsupportedError("TF32 exists on GPUs only; use fp32 on a CPU")
        properties: Any = torch.cuda.get_device_properties(device)
        if torch.version.hip is not None:
            arch, version = str(getattr(properties, "gcnArchName", "")), str(torch.__version__)
            if reason := why_no_tf32_on_amd(arch, os.environ, version, products=products):
                raise UnsupportedError(reason)
        elif properties.major < 8:
            raise UnsupportedError("TF32 needs an NVIDIA GPU of compute capability 8.0 or later")
    if precision in ("bf16", "amp-bf16") and device.type == "cuda":
        with contextlib.suppress(AssertionError):
            if not torch.cuda.is_bf16_supported():
                raise UnsupportedError("this GPU has no bf16 arithmetic")
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision in ("tf32", "tf32-conv")


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return the context of a precision's forward passes: torch's autocast, or none."""
    dtype = AUTOCAST.get(precision)
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def layout_of(memory_format: str) -> torch.memory_format:
    """Return torch's name for ``nchw`` or ``nhwc``."""
    return torch.channels_last if memory_format == "nhwc" else torch.contiguous_format


def require_compile(mode: str, device: torch.device) -> None:
    """Raise UnsupportedError if torch.compile in this mode is impossible here."""
    if device.type != "cuda" and mode.startswith(("graph", "reduce-overhead")):
        raise UnsupportedError(f"{mode} records CUDA graphs, which a CPU does not have")
    if mode in ("eager", "graph"):
        return
    if device.type == "cpu":
        from torch._inductor import cpp_builder, exc

        try:
            cpp_builder.get_cpp_compiler()
        except (exc.InvalidCxxCompiler, RuntimeError, OSError) as error:
            raise UnsupportedError(
                "torch.compile needs a C++ compiler on a CPU; install g++"
            ) from error


def forget_compiled() -> None:
    """Drop everything that torch.compile remembers, if it was ever used.

    Dynamo counts what it does, but no frames of whole graphs.  An unnecessary reset would import
    the compiler.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is not None and any(utils.counters.values()):
        import torch._dynamo

        torch._dynamo.reset()  # noqa: SLF001 - torch.compiler.reset() leaves the counters
        utils.counters.clear()


def compile_cache_state() -> str | None:
    """Return ``cold``, ``warm`` or ``mixed``, from the compiler's hit and miss counters."""
    import torch._dynamo

    counters = torch._dynamo.utils.counters  # noqa: SLF001 - no public name
    hits = misses = 0
    for group, prefix in (("inductor", "fxgraph_cache"), ("aot_autograd", "autograd_cache")):
        hits += counters[group][f"{prefix}_hit"]
        misses += counters[group][f"{prefix}_miss"]
    if hits and misses:
        return "mixed"
    return "warm" if hits else "cold" if misses else None


def compiler_counts() -> dict[str, int]:
    """Return Dynamo's graph breaks and recompilations since its reset; empty if it is unused.

    ``torch._dynamo`` is private: counts that a version stores elsewhere are left out.
    """
    counts: dict[str, int] = {}
    utils: Any = sys.modules.get("torch._dynamo.utils")
    frames: Any = sys.modules.get("torch._dynamo.convert_frame")
    with contextlib.suppress(AttributeError, TypeError):
        compilations = frames.FRAME_COMPILE_COUNTER.values()
        counts["recompilations"] = sum(count - 1 for count in compilations)
        counts["graph_breaks"] = sum(utils.counters["graph_break"].values())
    return counts
