"""Everything besides the hardware that may change speed, and what two such lists do not share."""

from __future__ import annotations

import getpass
import glob
import hashlib
import os
import platform
import re
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from bench_lib.model import Environment

GIT_TIMEOUT_S = 5.0
_FAMILIES = (
    "MIOPEN_",
    "PYTORCH_TUNABLEOP_",
    "TORCHINDUCTOR_",
    "TORCHDYNAMO_",
    "TRITON_",
    "NCCL_",
    "RCCL_",
    "HSA_",
    "MKL_",
    "KMP_",
    "GOMP_",
)
_NAMES = frozenset(
    """
    OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES OMP_WAIT_POLICY OPENBLAS_NUM_THREADS
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF
    PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_NO_HIP_MEMORY_CACHING
    PYTORCH_MIOPEN_SUGGEST_NHWC PYTORCH_MIOPEN_SUGGEST_NHWC_BATCHNORM
    TORCH_BLAS_PREFER_HIPBLASLT TORCH_BLAS_PREFER_CUBLASLT DISABLE_ADDMM_CUDA_LT
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_COMPILE_DISABLE TORCH_NCCL_BLOCKING_WAIT
    HIPBLASLT_TENSILE_LIBPATH ROCBLAS_TENSILE_LIBPATH ROCBLAS_INTERNAL_FP16_ALT_IMPL
    CUBLAS_WORKSPACE_CONFIG NVIDIA_TF32_OVERRIDE ATEN_CPU_CAPABILITY ONEDNN_MAX_CPU_ISA
    HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER
    HIP_FORCE_DEV_KERNARG HIP_LAUNCH_BLOCKING CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING
    CUDA_DEVICE_MAX_CONNECTIONS GPU_MAX_HW_QUEUES ROC_GLOBAL_CU_MASK
    AMD_SERIALIZE_KERNEL AMD_SERIALIZE_COPY AMD_LOG_LEVEL LD_PRELOAD MALLOC_CONF
    BENCH_LIB_CONTEXTS
    """.split()  # noqa: SIM905 - a page of quotation marks otherwise
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH|COOKIE|KEY$")

_VERSIONS = frozenset({"python", "torch", "torchvision", "cuda", "hip", "cudnn", "triton"})


def collect(
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> Environment:
    """Describe this machine's environment, all but the versions that only a worker knows.

    `cwd` (the current directory unless given) is where git is asked for the commit.
    """
    cwd = Path.cwd() if cwd is None else cwd
    commit, dirty = _checkout(cwd)
    affinity = getattr(os, "sched_getaffinity", None)
    return Environment(
        python=platform.python_version(),
        host=socket.gethostname(),
        driver=driver(root),
        rocm=rocm(root, environ),
        kernel=platform.release(),
        cpu=_cpu_model(root),
        cpu_count=len(affinity(0)) if affinity else os.cpu_count(),
        commit=commit,
        dirty=dirty,
        variables=_variables(environ),
        caches=_caches(environ, cwd),
    )


def with_versions(environment: Environment, versions: Mapping[str, str | None]) -> Environment:
    """`environment` with the versions a worker greeted with; None leaves what is there.

    ValueError for a name that is not one of python, torch, torchvision, cuda, hip, cudnn
    and triton.
    """
    unknown = sorted(set(versions) - _VERSIONS)
    if unknown:
        raise ValueError(
            f"{unknown[0]!r} is no version of an environment; known: {', '.join(sorted(_VERSIONS))}"
        )
    known = {name: version for name, version in versions.items() if version is not None}
    return replace(environment, **known)  # type: ignore[arg-type]  # all of them are str


def difference(a: Environment, b: Environment) -> list[str]:
    """Say what changed from `a` to `b`, one sentence each: ``torch 2.11.0 -> 2.12.0``."""
    words = []
    for item in fields(Environment):
        old, new = getattr(a, item.name), getattr(b, item.name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            noun = " cache" if item.name == "caches" else ""
            words += [
                f"{key}{noun} {old.get(key, 'unset')} -> {new.get(key, 'unset')}"
                for key in sorted(old.keys() | new.keys())
                if old.get(key) != new.get(key)
            ]
        elif item.name == "dirty":
            state = {None: "unknown", False: "clean", True: "with uncommitted changes"}
            words.append(f"checkout {state[old]} -> {state[new]}")
        else:
            short = 12 if item.name == "commit" else None
            old, new = (str("unknown" if v is None else v)[:short] for v in (old, new))
            words.append(f"{item.name.replace('_', ' ')} {old} -> {new}")
    return words


# --- the environment ---------------------------------------------------------------------


def text(path: Path) -> str | None:
    """Read a file without surrounding space; None where unreadable or empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def driver(root: Path) -> str | None:
    """Name the GPU kernel drivers that are loaded, with their versions."""
    found = []
    amdgpu = text(root / "sys/module/amdgpu/version")
    if amdgpu or (root / "sys/module/amdgpu").is_dir():
        # The driver of the kernel itself has no version but the kernel's.
        found.append(f"amdgpu {amdgpu or 'of the kernel'}")
    banner = text(root / "proc/driver/nvidia/version") or ""
    nvidia = re.search(r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)\s", banner)
    version = nvidia[1] if nvidia else text(root / "sys/module/nvidia/version")
    if version:
        found.append(f"nvidia {version}")
    return ", ".join(found) or None


def rocm(root: Path, environ: Mapping[str, str]) -> str | None:
    """Read the version of the ROCm that ROCM_PATH or the usual place holds."""
    prefix = Path(environ.get("ROCM_PATH") or "/opt/rocm")
    return text(root / prefix.relative_to(prefix.anchor) / ".info/version")


def _cpu_model(root: Path) -> str | None:
    model = re.search(r"^model name\s*:\s*(\S.*)$", text(root / "proc/cpuinfo") or "", re.MULTILINE)
    return model[1].strip() if model else platform.machine() or None


def _checkout(cwd: Path) -> tuple[str | None, bool | None]:
    """Find the commit of the checkout around `cwd`, and whether tracked files differ."""
    # Asking for the status must not write to the checkout.
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}

    def git(*arguments: str) -> str | None:
        try:
            answer = subprocess.run(
                ["git", "-C", str(cwd), *arguments],  # noqa: S607 - whichever git the user has
                capture_output=True,
                check=True,
                encoding="utf-8",
                errors="replace",
                env=environ,
                stdin=subprocess.DEVNULL,
                timeout=GIT_TIMEOUT_S,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return answer.stdout.strip()

    commit = git("rev-parse", "HEAD")
    if not commit:
        return None, None
    # Untracked files are results as often as code, and would make every run look edited.
    status = git("status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None else bool(status)


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Keep the listed variables and families, less what may be a secret."""
    return {
        name: re.sub(r"://[^/@\s]*@", "://***@", value)
        for name, value in sorted(environ.items())
        if (name in _NAMES or name.startswith(_FAMILIES)) and not _SECRET.search(name.upper())
    }


def _caches(environ: Mapping[str, str], cwd: Path) -> dict[str, str]:
    """Say how full the compilers' and tuners' caches are: a cold one slows first steps.

    Counted at the top level only; TunableOp's results choose kernels, so they are hashed.
    """
    home = Path(environ.get("HOME") or "/")
    temp = Path(environ.get("TMPDIR") or tempfile.gettempdir())
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a container's user without a name
        user = ""
    places = {
        "inductor": environ.get("TORCHINDUCTOR_CACHE_DIR") or temp / f"torchinductor_{user}",
        "triton": environ.get("TRITON_CACHE_DIR")
        or Path(environ.get("TRITON_HOME") or home) / ".triton/cache",
        "miopen": environ.get("MIOPEN_USER_DB_PATH") or home / ".config/miopen",
    }
    caches = {name: _entries(Path(place)) for name, place in places.items()}
    if environ.get("PYTORCH_TUNABLEOP_ENABLED") == "1":
        pattern = environ.get("PYTORCH_TUNABLEOP_FILENAME") or "tunableop_results.csv"
        caches["tunableop"] = _results_hash(cwd / pattern)
    return caches


def _entries(folder: Path) -> str:
    try:
        count = sum(1 for _ in os.scandir(folder))
    except OSError:
        return "none"
    return f"{count} entries" if count else "none"


def _results_hash(name: Path) -> str:
    """Hash TunableOp's files: a device's number goes where %d is, else before the suffix."""
    parts = name.stem.split("%d") if "%d" in name.stem else [name.stem, ""]
    pattern = "*".join(map(glob.escape, parts)) + glob.escape(name.suffix)
    digest, count = hashlib.sha256(), 0
    for path in sorted(name.parent.glob(pattern)):
        content = text(path)
        if content is not None:
            digest.update(content.encode())
            count += 1
    return f"{count} files, {digest.hexdigest()[:12]}" if count else "none"
