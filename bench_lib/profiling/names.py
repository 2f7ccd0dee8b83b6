"""Kernel names: shortened, classified by what the kernel does, and matched across versions.

A new version of a library changes the tiles and template parameters in its kernels' names, or
uses another kernel for the same work.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import cxxfilt

LONGEST_NAME = 64
"""Characters of a short name."""
REST = "(all others)"
"""The name for all kernels that a table does not name."""
OTHER = "other"
ELEMENTWISE = "elementwise"
NAMELESS = ("Kernel", "Kernel2", "device_kernel", "kernel")
"""Names of templates that run whatever their parameter is."""

_ROLES: tuple[tuple[str, str], ...] = (
    (OTHER, r"workspace"),
    ("collective", r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter"),
    ("copy", r"\bmemcpy|memcpy\b|copybuffer|copy_?kernel|copykernel|catarray|^copy_$"),
    ("fill", r"\bmemset|memset\b|fillbuffer|fillfunctor"),
    ("GEMM", r"triton_(tem|mm|bmm)"),
    ("fused reduction", r"triton_(per|red)_"),
    ("fused elementwise", r"triton_"),
    ("batch norm", r"batch_?norm|\bbn_|bn_fw|bn_bw"),
    ("layer norm", r"layer_?norm|group_?norm|rms_?norm"),
    ("attention", r"flash|fmha|attention|attn|aotriton|^bwd_(preprocess|kernel_(dk_dv|dq|fuse))"),
    ("softmax", r"softmax"),
    (
        "layout change",
        (
            r"nchwtonhwc|nhwctonchw|(?<!conv_)(?<!convolution_)transpose|tensor_?reorder"
            r"|im2d?2?col|col2im"
        ),
    ),
    ("pooling", r"pool"),
    ("conv bwd-weights", r"wgrad|wrw|bwd_?weight"),
    ("conv bwd-data", r"dgrad|bwd_?data|igemm_bwd|conv\w*bwd"),
    ("conv", r"fprop|convolve|conv(?!ert)|igemm_fwd|winograd|scudnn|fft2d|flip_filter"),
    ("GEMM", r"gemm|gemv|cijk_|cutlass|matmul|nvjet|splitk|\b(add|b|baddb)?mm\b"),
    ("optimizer", r"multi_tensor_apply|fused_?(sgd|adam)"),
    ("embedding", r"embedding|indexselect|index_select|gather|scatter|index_put"),
    ("reduction", r"reduce|reduction|cub::|^(sum|mean|max|min|argmax|argmin|norm|var|std|prod)$"),
    (
        ELEMENTWISE,
        (
            r"elementwise|subtensorop|tensorop|^(add|sub|mul|div|relu|tanh|sqrt|exp|gelu|silu|sigmoid"
            r"|clamp\w*|threshold|hard\w+)_?(_backward)?$"
        ),
    ),
)
_ROLE_PATTERNS = tuple((role, re.compile(text, re.IGNORECASE)) for role, text in _ROLES)
_MOVES = (("copy", "copy_kernel_cuda"), ("fill", "FillFunctor"))
"""Template parameters of torch's elementwise kernels that compute nothing."""
_ALIKE_BY_WORK = {
    "conv",
    "conv bwd-data",
    "conv bwd-weights",
    "GEMM",
    "attention",
    "batch norm",
    "layer norm",
    "softmax",
    "pooling",
    "optimizer",
    "collective",
}
"""Roles whose kernels can take each other's place."""


def readable(name: str) -> str:
    """Return a kernel's name as in its source: demangled, and without ``.kd`` at the end."""
    name = name.removesuffix(".kd").removesuffix(" [clone .kd]").strip()
    if not name.startswith("_Z"):
        return name
    try:
        return str(cxxfilt.demangle(name))
    except (cxxfilt.InvalidName, OSError):
        return name


def role(name: str) -> str:
    """Return a kernel's role: ``conv bwd-weights``, ``GEMM``, ``copy``; ``other`` if unknown.

    Its own name decides; if that is too general, its template's parameters.
    """
    plain, parameters = _body(name)
    own = _role(plain)
    text = " ".join(parameters)
    if own == ELEMENTWISE:
        return next((move for move, mark in _MOVES if mark in text), own)
    return own or _role(text) or OTHER


_LIBRARIES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("hipBLASLt or rocBLAS (Tensile)", r"\b(?:Custom_)?Cijk_", ("hipblaslt", "rocblas")),
    ("AOTriton", r"\battn_fwd|\bbwd_(preprocess|kernel_(dk_dv|dq|fuse))", ("aotriton_v2",)),
    ("Inductor", r"\btriton_", ("torch", "triton")),
    ("RCCL or NCCL", r"\bncclDevKernel|\brccl_main_kernel", ("rccl", "nccl")),
    # Either a library that MIOpen loads, or compiled into MIOpen and torch.
    ("CK", r"\bck(?:_tile)?::", ("MIOpenCKGroupedConv", "MIOpen", "torch")),
    ("MIOpen", r"\bmiopen|\bMIOpen|\bigemm_", ("MIOpen",)),
    ("cuDNN", r"\bcudnn|__5x_cudnn|xmma_(?:fprop|dgrad|wgrad)", ("cudnn",)),
    ("cuBLAS", r"\bnvjet_|\bcublas", ("cublasLt", "cublas")),
)


def library(name: str) -> tuple[str, Sequence[str]] | None:
    """Return the library that a kernel is from, and the software whose versions matter to it.

    The library shows in the beginning of the kernel's name; None if that is not known.  The
    software is named as in an Environment.
    """
    full = readable(name)
    matches = ((label, keys) for label, begin, keys in _LIBRARIES if re.search(begin, full))
    return next(matches, None)


@functools.lru_cache(maxsize=4096)
def is_convolution(name: str) -> bool:
    """Whether a kernel, or an operation of torch, is a convolution or a gradient of one."""
    return role(name).startswith("conv")


def _role(text: str) -> str | None:
    return next((name for name, pattern in _ROLE_PATTERNS if pattern.search(text)), None)


def _split(text: str, separator: str = ",") -> list[str]:
    """Split at separators outside of brackets."""
    parts, depth, begin = [], 0, 0
    for i, letter in enumerate(text):
        if letter in "<([{":
            depth += 1
        elif letter in ">)]}" and depth:
            depth -= 1
        elif letter == separator and not depth:
            parts.append(text[begin:i])
            begin = i + 1
    return [part.strip() for part in [*parts, text[begin:]]]


def _body(name: str) -> tuple[str, list[str]]:
    """Return a kernel's own name, and its template's parameters.

    The name is without return type, namespaces and arguments; if it only says that it is a kernel,
    it is that of the first parameter.
    """
    name = re.sub(r"\(anonymous namespace\)", "anonymous", readable(name))
    if memory := re.match(r"Mem(?:cpy|set)[ \w]*", name):
        return memory[0].strip(), []
    if name == REST:
        return REST, []
    depth, cut = 0, len(name)
    for i, letter in enumerate(name):
        if letter == "<":
            depth += 1
        elif letter == ">" and depth:
            depth -= 1
        elif letter == "(" and not depth:
            cut = i
            break
    path, _, inside = name[:cut].strip().partition("<")
    plain = re.split(r"\s|::", path.strip())[-1]
    parts = _split(inside.rpartition(">")[0]) if inside else []
    return _body(parts[0]) if plain in NAMELESS and parts else (plain, parts)


_OPERATION = re.compile(
    r"CUDAFunctor\w*?_(\w+)<"
    r"|(\w+?)(?:_kernel)?(?:_cuda|_impl)?\(at::TensorIterator"
    r"|\b(?!(?:[AB]?Unary|Binary|Opaque\w*)Functor)(\w+)Functor\b"
    r"|\b(?!Reduce)(\w+)Ops?<"
    r"|\b(\w+?)_functor\b"
)
"""The operation of an elementwise kernel or a reduction, among its parameters."""
_VAGUE = {"gpu_kernel_impl_nocast", "gpu_kernel_impl", "gpu_kernel", "launch"}
_DTYPES = (
    ("bf16", r"BFloat16|bfloat16|hip_bfloat16"),
    ("fp16", r"\bHalf|__half"),
    ("fp64", r"\bdouble\b"),
    ("fp32", r"\bfloat\b"),
)
_LONG = (
    (r"(cudnn_generated_\w+?_[fb]prop)\w*", r"\1"),
    (r"(Cijk_\w+?)_MT(\d+x\d+x\d+)", r"\1_MT\2"),
    (r"(igemm_\w+?)_bx\d+\w*?_bt(\d+x\d+x\d+)", r"\1_\2"),
    (r"(\w+?xmma_\w+?)_[a-z]+_tilesize(\d+x\d+x\d+)", r"\1_\2"),
    (r"(\w+?xmma_\w+?)_tilesize(\d+x\d+x\d+)", r"\1_\2"),
)
"""Names with dozens of parameters in them, and a sufficient part of each."""


def short(name: str) -> str:
    """Return a kernel's name, short enough for a line of a table."""
    plain, parameters = _body(name)
    if memory := re.match(r"Memcpy \w+ \((Pageable|Pinned)", name):
        return f"{plain} {memory[1].lower()}"
    for pattern, replacement in _LONG:
        if match := re.match(pattern, plain):
            split = re.search(r"segment_k_on|split_k|splitK", plain[match.end() :])
            plain = match.expand(replacement) + (f"_{split[0]}" if split else "")
            break
    text = ", ".join(parameters)
    dtype = next((dtype for dtype, pattern in _DTYPES if re.search(pattern, text)), "")
    return _cut(" ".join(filter(None, (plain, _operation(parameters), dtype))))


def _operation(parameters: Sequence[str]) -> str:
    """Return a template's operation, such as ``add``; empty if its parameters name none."""
    operations = [next(filter(None, g)) for g in _OPERATION.findall(", ".join(parameters))]
    return next((operation for operation in reversed(operations) if operation not in _VAGUE), "")


def _cut(text: str) -> str:
    if len(text) <= LONGEST_NAME:
        return text
    keep = LONGEST_NAME - 1
    return f"{text[: keep * 2 // 3]}…{text[-(keep - keep * 2 // 3) :]}"


_TILES = re.compile(
    r"_?(?:tilesize|warpgroupsize|cluster|tile|warp|wave|stages?|split_?k|align|MT|MI|bt|wt)?"
    r"\d+x\d+(?:x\d+)*"
    r"|_?(?:stages?|align|ldg|unroll|vec|kpack|warps?)_?\d+"
)
_ARCHITECTURES = re.compile(r"(?:cutlass_?|sm_?|gfx|gtc)\d*x?\d*_?|ampere_|hopper_|volta_|turing_")


def family(name: str) -> str:
    """Return the part of a kernel's name that stays if tiles or template parameters change."""
    plain, parameters = _body(name)
    for pattern in (r"(Cijk_\w+?)_MT\d", r"(igemm_\w+?)_bx\d"):
        if match := re.match(pattern, plain):
            plain = match[1]
    kinds = [_kinds(part) for part in parameters]
    plain = _ARCHITECTURES.sub("", _TILES.sub("", plain))
    plain = re.sub(r"_?\d+$", "", plain)
    return " ".join([plain, *filter(None, kinds)])


def _kinds(part: str) -> str:
    """Return the types in a template's parameter, without its numbers and kinds of array."""
    if re.fullmatch(r"(\(\w+\))?-?\w*\d\w*|true|false", part) and not re.search(r"[A-Z]", part):
        return ""
    if re.match(r"(std::array|at::detail::Array)\b", part):
        return "array"
    part = re.sub(r",\s*(\(\w+\))?-?\d+\w*(?=[,>])", "", part)
    return re.sub(r"\b\d+\w*\b|\s|_+\d+\b", "", _TILES.sub("", part))


def called(name: str) -> str:
    """Return a kernel's own name and its operation, whatever its types."""
    plain, parameters = _body(name)
    return "" if name == REST else f"{re.sub(r'_?[0-9]+$', '', plain)} {_operation(parameters)}"


def work(name: str) -> str:
    """Return a kernel's role if kernels of that role can replace each other; else nothing."""
    kind = role(name)
    return kind if kind in _ALIKE_BY_WORK else ""
