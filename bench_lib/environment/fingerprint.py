"""Describes everything besides the hardware that may affect speed, and compares descriptions."""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from bench_lib import backends
from bench_lib.backends.folders import entries, hashed, place, state, state_of
from bench_lib.backends.sysfs import ROOT, cpu_model, text
from bench_lib.environment import variables
from bench_lib.environment.commits import git
from bench_lib.model import Environment

_OPTIONS = frozenset(
    """
    iommu iommu.passthrough iommu.strict amd_iommu intel_iommu pci pcie_aspm
    mitigations isolcpus nohz_full rcu_nocbs nosmt maxcpus numa numa_balancing
    transparent_hugepage hugepages hugepagesz default_hugepagesz
    processor.max_cstate intel_idle.max_cstate intel_pstate amd_pstate cpufreq.default_governor
    idle cpuidle.off clocksource tsc
    """.split()  # noqa: SIM905 - a page of quotation marks otherwise
)
"""Kernel options that are recorded; the whole command line may have secrets and disk names."""
_MODULES = ("amdgpu.", "nvidia.")
_VERSIONS = frozenset(
    {"python", "torch", "torchvision", "cuda", "hip", "rocm", "cudnn", "triton", "torchao"}
)


def collect(
    root: Path = ROOT,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    chosen: Collection[str] = (),
) -> Environment:
    """Describe this machine's environment, except for the versions that only a worker knows.

    The user set the variables in `chosen` on purpose, so they are recorded under any name.  `cwd`,
    by default the current directory, is the folder whose commit is recorded.  A value that cannot
    be read is None or left out.
    """
    cwd = Path.cwd() if cwd is None else cwd
    commit, dirty = _checkout(cwd)
    vendors = [backend.software(root, environ) for backend in backends.every()]
    firmware = frozenset[str]().union(*(vendor.firmware for vendor in vendors))
    return Environment(
        python=platform.python_version(),
        host=socket.gethostname(),
        driver=", ".join(vendor.driver for vendor in vendors if vendor.driver) or None,
        rocm=next((vendor.rocm for vendor in vendors if vendor.rocm), None),
        kernel=platform.release(),
        cpu=cpu_model(root),
        cpu_count=len(os.sched_getaffinity(0)),
        commit=commit,
        dirty=dirty,
        firmware=", ".join(sorted(firmware)) or None,
        governor=governor(root),
        numa_balancing=numa_balancing(root),
        huge_pages=_huge_pages(root),
        kernel_options=_kernel_options(root),
        libraries={name: value for item in vendors for name, value in item.libraries.items()},
        variables=variables.recorded(environ, chosen),
        caches=caches(environ, cwd),
    )


def with_versions(environment: Environment, versions: Mapping[str, str | None]) -> Environment:
    """Return `environment` with a worker's versions; None leaves a version unchanged."""
    known = {name: version for name, version in versions.items() if version is not None}
    return replace(environment, **known)  # type: ignore[arg-type]  # all of them are str


def versions(environment: Environment) -> Environment:
    """Return an environment with only the versions of Python, torch and related packages."""
    return _only(environment, _VERSIONS)


def _only(environment: Environment, names: Iterable[str]) -> Environment:
    known = {name: getattr(environment, name) for name in names}
    return replace(Environment(python="", host=""), **known)


def software(environment: Environment | None) -> dict[str, str]:
    """Return the known versions of torch, Triton and the libraries that provide kernels."""
    if environment is None:
        return {}
    packages = {name: getattr(environment, name) for name in ("torch", "triton")}
    return {**environment.libraries, **{name: value for name, value in packages.items() if value}}


def shared_changes(old: Environment, new: Environment) -> list[str]:
    """List the changes of what all environments of a machine share: driver and firmware.

    A driver without a version of its own has the kernel's.
    """
    shared = (
        _only(environment, ("kernel" if environment.driver is None else "driver", "firmware"))
        for environment in (old, new)
    )
    return difference(*shared)


def difference(a: Environment, b: Environment) -> list[str]:
    """List the changes from `a` to `b`, such as ``torch 2.11.0 -> 2.12.0``.

    Values that one of them does not know, and how full a warm cache is, are not compared.
    """
    changes: list[str] = []
    for item in fields(Environment):
        old, new = getattr(a, item.name), getattr(b, item.name)
        if old == new or None in (old, new):
            continue
        name = item.name.replace("_", " ")
        if isinstance(old, dict):
            changes += _changes(item.name, old, new)
        elif item.name == "dirty":
            state = {False: "clean", True: "with uncommitted changes"}
            changes.append(f"checkout {state[old]} -> {state[new]}")
        elif isinstance(old, bool):
            state = {False: "off", True: "on"}
            changes.append(f"{name} {state[old]} -> {state[new]}")
        else:
            short = 12 if item.name == "commit" else None
            changes.append(f"{name} {str(old)[:short]} -> {str(new)[:short]}")
    return changes


def differences(known: Mapping[str, Environment], pairs: Iterable[tuple[str, str]]) -> list[str]:
    """List the changes from the first to the second of each pair, without duplicates.

    The pairs are keys of ``known``; pairs with other keys are ignored.
    """
    changes: dict[str, None] = {}
    for a, b in dict.fromkeys(pairs):
        if a in known and b in known:
            changes |= dict.fromkeys(difference(known[a], known[b]))
    return list(changes)


def _changes(field: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Compare a mapping by name; only a variable or option that is missing is known to be unset."""
    if field in ("variables", "kernel_options"):
        noun = "kernel option " if field == "kernel_options" else ""
        return [
            f"{noun}{name} {old.get(name, 'unset')} -> {new.get(name, 'unset')}"
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
            and (noun or not variables.is_same(name, old.get(name), new.get(name)))
        ]
    noun = " cache" if field == "caches" else ""
    return [
        f"{name}{noun} {old[name]} -> {new[name]}"
        for name in sorted(old.keys() & new.keys())
        if old[name] != new[name] and not (field == "caches" and _same_state(old[name], new[name]))
    ]


# --- the environment ---------------------------------------------------------------------


def governor(root: Path) -> str | None:
    """Read the frequency governor of the first CPU; the others rarely have a different one."""
    return text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def numa_balancing(root: Path) -> bool | None:
    """Read whether the kernel migrates pages between NUMA nodes."""
    value = text(root / "proc/sys/kernel/numa_balancing")
    return None if value is None else value != "0"


def _huge_pages(root: Path) -> str | None:
    setting = text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", setting or "")
    return chosen[1] if chosen else None


def _kernel_options(root: Path) -> dict[str, str] | None:
    """Return the options to record from the kernel's command line; without a value: ``set``."""
    line = text(root / "proc/cmdline")
    if line is None:
        return None
    options: dict[str, str] = {}
    for option in re.findall(r'(?:"[^"]*"|[^\s"])+', line):
        if option == "--":  # arguments of the init process follow
            break
        name, equals, value = option.partition("=")
        name = name.replace("-", "_")  # the kernel treats them alike
        if name in _OPTIONS or name.startswith(_MODULES):
            value = value if equals else "set"
            options[name] = f"{options[name]},{value}" if name in options else value
    return dict(sorted(options.items()))


def _checkout(cwd: Path) -> tuple[str | None, bool | None]:
    """Return the commit of the checkout around `cwd`, and whether tracked files differ."""
    commit = git(cwd, "rev-parse", "HEAD")
    if not commit:
        return None, None
    # Untracked files are often results, which would make the checkout of every run look modified.
    status = git(cwd, "status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None else bool(status)


# --- caches of compilers and tuners -------------------------------------------------------


def caches(environ: Mapping[str, str] = os.environ, cwd: Path | None = None) -> dict[str, str]:
    """Describe each cache: ``cold``, or ``warm, 41 entries`` with a hash if it chooses kernels.

    Entries are compiled graphs of ``inductor`` (or folders of generated code if it caches no
    graphs), kernels of ``triton``, those of the backends' caches (records of ``miopen``'s find and
    performance databases, files of ``miopen kernels``), and tuned operations of ``tunableop``,
    which is listed only if enabled.  TunableOp's file name is relative to `cwd`.
    """
    home = environ.get("HOME") or "/"
    triton = f"{environ.get('TRITON_HOME') or home}/.triton/cache"
    states = {
        "inductor": _inductor(place(environ, "TORCHINDUCTOR_CACHE_DIR", _inductor_at(environ))),
        "triton": state(len(entries(place(environ, "TRITON_CACHE_DIR", triton)))),
    }
    for backend in backends.every():
        states |= backend.caches(environ)
    if environ.get("PYTORCH_TUNABLEOP_ENABLED") == "1":
        name = environ.get("PYTORCH_TUNABLEOP_FILENAME") or "tunableop_results.csv"
        states["tunableop"] = _tuned((Path.cwd() if cwd is None else cwd) / name)
    return states


def _same_state(old: str, new: str) -> bool:
    """Whether two states of a cache are equal, apart from counts; a missing hash equals any."""
    if state_of(old) != state_of(new):
        return False
    hashes = [re.fullmatch(r"warm, .*, ([0-9a-f]{12})", cache) for cache in (old, new)]
    return None in hashes or len({match[1] for match in hashes if match}) == 1


def _inductor_at(environ: Mapping[str, str]) -> str:
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a user without a name, in a container
        user = ""
    return f"{environ.get('TMPDIR') or tempfile.gettempdir()}/torchinductor_{user}"


def _inductor(folder: Path) -> str:
    graphs = sum(len(entries(bucket)) for bucket in entries(folder / "fxgraph"))
    # Generated code is in folders with names of two letters, beside locks and other caches.
    return state(graphs or sum(len(entry.name) == 2 for entry in entries(folder)))


def _tuned(name: Path) -> str:
    """Describe TunableOp's results; the device's number replaces %d, or precedes the suffix."""
    before, _, after = name.stem.partition("%d")
    pattern = re.compile(rf"{re.escape(before)}\d*{re.escape(after + name.suffix)}")
    files = [file for file in entries(name.parent) if pattern.fullmatch(file.name)]
    return hashed(files, uncounted=b"Validator,")
