"""Records environment variables that may affect speed, without secrets: histories may be public.

The values of variables that are listed here are recorded.  Others' values are recorded only if they
are switches; otherwise the record only says that the variable is set.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from bench_lib import backends
from bench_lib.launch.faults import SECRET_NAME

FAMILIES = (
    "MIOPEN_",
    "PYTORCH_TUNABLEOP_",
    "TORCHINDUCTOR_",
    "TORCHDYNAMO_",
    "TRITON_",
    "AMDGCN_",  # how Triton's kernels access memory (triton/knobs.py)
    "TORCH_NCCL_",
    "TORCH_SYMM_MEM_",  # whether symmetric memory uses NVLink's multicast
    "TORCH_ROCM_",  # which library computes attention (ATen/Context.h)
    "NCCL_",
    "NVSHMEM_",
    "RCCL_",
    "HIPBLASLT_",
    "ROCBLAS_",
    "TENSILE_",
    "HSA_",
    "ROC_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "AITER_",
    "VLLM_",
    "SGLANG_",
)
KNOWN = frozenset(
    """
    OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES OMP_WAIT_POLICY OPENBLAS_NUM_THREADS
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF
    PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_NO_HIP_MEMORY_CACHING
    PYTORCH_MIOPEN_SUGGEST_NHWC PYTORCH_MIOPEN_SUGGEST_NHWC_BATCHNORM
    TORCH_BLAS_PREFER_HIPBLASLT TORCH_BLAS_PREFER_CUBLASLT DISABLE_ADDMM_CUDA_LT
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_COMPILE_DISABLE
    CUBLAS_WORKSPACE_CONFIG NVIDIA_TF32_OVERRIDE ATEN_CPU_CAPABILITY ONEDNN_MAX_CPU_ISA
    HIP_FORCE_DEV_KERNARG HIP_LAUNCH_BLOCKING CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING
    CUDA_DEVICE_MAX_CONNECTIONS GPU_MAX_HW_QUEUES
    AMD_SERIALIZE_KERNEL AMD_SERIALIZE_COPY AMD_LOG_LEVEL LD_PRELOAD MALLOC_CONF
    AMD_DIRECT_DISPATCH DEBUG_CLR_GRAPH_PACKET_CAPTURE FLASH_ATTENTION_TRITON_AMD_ENABLE
    """.split()  # noqa: SIM905 - a page of quotation marks otherwise
)
_HARMLESS = frozenset(
    """
    MIOPEN_FIND_MODE MIOPEN_FIND_ENFORCE MIOPEN_USER_DB_PATH MIOPEN_SYSTEM_DB_PATH
    MIOPEN_CUSTOM_CACHE_DIR MIOPEN_SEARCH_CUTOFF MIOPEN_GEMM_ENFORCE_BACKEND
    MIOPEN_COMPILE_PARALLEL_LEVEL MIOPEN_LOG_LEVEL
    PYTORCH_TUNABLEOP_FILENAME PYTORCH_TUNABLEOP_MAX_TUNING_DURATION_MS
    PYTORCH_TUNABLEOP_MAX_TUNING_ITERATIONS
    TORCHINDUCTOR_CACHE_DIR TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS
    TORCHINDUCTOR_MAX_AUTOTUNE_CONV_BACKENDS TORCHINDUCTOR_AUTOTUNE_FALLBACK_TO_ATEN
    TORCHINDUCTOR_COMPILE_THREADS
    TRITON_CACHE_DIR TRITON_HOME TRITON_DUMP_DIR TRITON_PTXAS_PATH
    NCCL_ALGO NCCL_PROTO NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_BUFFSIZE NCCL_NTHREADS
    NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MAX_CTAS NCCL_P2P_LEVEL
    NCCL_NET_GDR_LEVEL NCCL_SOCKET_IFNAME NCCL_IB_HCA NCCL_TOPO_FILE NCCL_GRAPH_FILE NCCL_NET
    HIPBLASLT_TENSILE_LIBPATH HIPBLASLT_LOG_LEVEL ROCBLAS_TENSILE_LIBPATH ROCBLAS_LAYER
    HSA_OVERRIDE_GFX_VERSION HSA_CU_MASK HSA_TOOLS_LIB ROC_GLOBAL_CU_MASK
    MKL_NUM_THREADS MKL_ENABLE_INSTRUCTIONS MKL_DEBUG_CPU_TYPE MKL_THREADING_LAYER
    KMP_AFFINITY KMP_BLOCKTIME KMP_HW_SUBSET KMP_TEAMS_THREAD_LIMIT GOMP_CPU_AFFINITY
    GOMP_SPINCOUNT
    """.split()  # noqa: SIM905 - as above
)
"""Variables of the families whose values are numbers, the library's keywords, or paths."""
_SWITCH = re.compile(r"-?\d{0,3}|true|false|yes|no|on|off", re.IGNORECASE)
"""Values that cannot be secrets."""
_ADDRESS = re.compile(r"://|@")
"""Characters of values that may contain a password or a webhook."""
SET = "set"
"""Stands for a value that is not recorded."""


def recorded(environ: Mapping[str, str], chosen: Collection[str] = ()) -> dict[str, str]:
    """Return the recorded values of the variables that may affect speed, by name.

    The user set those in `chosen` on purpose, so they are recorded under any name.
    """
    known = KNOWN.union(backends.variables())
    return {
        name: value if _is_public(name, value, known) else SET
        for name, value in sorted(environ.items())
        if name in chosen
        or ((name in known or name.startswith(FAMILIES)) and not SECRET_NAME.search(name.upper()))
    }


CACHE_FOLDERS = (
    *("AMD_COMGR_CACHE_DIR", "MIOPEN_CUSTOM_CACHE_DIR", "MIOPEN_USER_DB_PATH"),
    *("PYTORCH_KERNEL_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
)
"""Variables with the path of a cache; the caches' own record describes the content."""


def is_same(name: str, old: str | None, new: str | None) -> bool:
    """Whether two recorded values are or may be equal; None stands for unset."""
    if old == new or name in CACHE_FOLDERS:
        return True
    if old is None or new is None:
        return False
    # 0.2.0 recorded hashes with this prefix.
    return any(value == SET or value.startswith("hidden ") for value in (old, new))


def _is_public(name: str, value: str, known: frozenset[str]) -> bool:
    if _SWITCH.fullmatch(value):
        return True
    return (name in known or name in _HARMLESS) and not _ADDRESS.search(value)
