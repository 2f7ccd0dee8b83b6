"""Everything besides the hardware that may affect speed, and how two environments differ."""

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
from bench_lib.backends.sysfs import ROOT, text
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
"""Options of the kernel that are kept; never its whole line, which may name disks and secrets."""
_MODULES = ("amdgpu.", "nvidia.")
_VERSIONS = frozenset(
    {"python", "torch", "torchvision", "cuda", "hip", "rocm", "cudnn", "triton", "torchao"}
)


def collect(
    root: Path = ROOT,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    told: Collection[str] = (),
) -> Environment:
    """Describe this machine's environment, all but the versions that only a worker knows.

    Variables named in `told` were set on purpose and are recorded whatever they are called.  `cwd`
    (the current directory unless given) is the folder whose commit git reports.  An unreadable
    value is None or left out.
    """
    cwd = Path.cwd() if cwd is None else cwd
    commit, dirty = _checkout(cwd)
    installed = [backend.software(root, environ) for backend in backends.every()]
    firmware = frozenset[str]().union(*(each.firmware for each in installed))
    return Environment(
        python=platform.python_version(),
        host=socket.gethostname(),
        driver=", ".join(each.driver for each in installed if each.driver) or None,
        rocm=next((each.rocm for each in installed if each.rocm), None),
        kernel=platform.release(),
        cpu=_cpu_model(root),
        cpu_count=len(os.sched_getaffinity(0)),
        commit=commit,
        dirty=dirty,
        firmware=", ".join(sorted(firmware)) or None,
        governor=governor(root),
        numa_balancing=numa_balancing(root),
        huge_pages=_huge_pages(root),
        kernel_options=_kernel_options(root),
        libraries={name: each.libraries[name] for each in installed for name in each.libraries},
        variables=variables.recorded(environ, told),
        caches=caches(environ, cwd),
    )


def with_versions(environment: Environment, versions: Mapping[str, str | None]) -> Environment:
    """`environment` with the versions a worker greeted with; None leaves a version as it is."""
    known = {name: version for name, version in versions.items() if version is not None}
    return replace(environment, **known)  # type: ignore[arg-type]  # all of them are str


def versions(environment: Environment) -> Environment:
    """Return an environment's versions of torch and its kin alone."""
    known = {name: getattr(environment, name) for name in _VERSIONS}
    return replace(Environment(python="", host=""), **known)


def software(environment: Environment | None) -> dict[str, str]:
    """Return the versions of torch and of the libraries that kernels are from, as far as known."""
    if environment is None:
        return {}
    kin = {name: getattr(environment, name) for name in ("torch", "triton")}
    return {**environment.libraries, **{name: value for name, value in kin.items() if value}}


def shared_changes(old: Environment, new: Environment) -> list[str]:
    """Name what changed of the things that all environments of a machine share.

    These are its driver and its firmware; a driver without a version of its own has the kernel's.
    """
    beneath = (
        Environment(
            python="",
            host="",
            driver=each.driver,
            kernel=each.kernel if each.driver is None else None,
            firmware=each.firmware,
        )
        for each in (old, new)
    )
    return difference(*beneath)


def difference(a: Environment, b: Environment) -> list[str]:
    """Say what changed from `a` to `b`, one sentence each: ``torch 2.11.0 -> 2.12.0``.

    A value unknown to either is no difference, nor is how full a warm cache is.
    """
    words = []
    for item in fields(Environment):
        old, new = getattr(a, item.name), getattr(b, item.name)
        if old == new or None in (old, new):
            continue
        name = item.name.replace("_", " ")
        if isinstance(old, dict):
            words += _changes(item.name, old, new)
        elif item.name == "dirty":
            state = {False: "clean", True: "with uncommitted changes"}
            words.append(f"checkout {state[old]} -> {state[new]}")
        elif isinstance(old, bool):
            state = {False: "off", True: "on"}
            words.append(f"{name} {state[old]} -> {state[new]}")
        else:
            short = 12 if item.name == "commit" else None
            words.append(f"{name} {str(old)[:short]} -> {str(new)[:short]}")
    return words


def differences(known: Mapping[str, Environment], pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Say what changed from the first to the second of some pairs, each change once.

    The pairs are of references; one that is not ``known`` is skipped.
    """
    words: dict[str, None] = {}
    for a, b in dict.fromkeys(pairs):
        if a in known and b in known:
            words |= dict.fromkeys(difference(known[a], known[b]))
    return list(words)


def _changes(field: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Compare one field's names; only of variables and options is a missing one known unset."""
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
    """Read what sets the clocks of the first CPU; the others are hardly ever set apart."""
    return text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def numa_balancing(root: Path) -> bool | None:
    """Read whether the kernel moves pages between NUMA nodes by itself."""
    value = text(root / "proc/sys/kernel/numa_balancing")
    return None if value is None else value != "0"


def _huge_pages(root: Path) -> str | None:
    setting = text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", setting or "")
    return chosen[1] if chosen else None


def _kernel_options(root: Path) -> dict[str, str] | None:
    """Pick the listed options out of the kernel's command line; a bare one is ``set``."""
    line = text(root / "proc/cmdline")
    if line is None:
        return None
    options: dict[str, str] = {}
    for word in re.findall(r'(?:"[^"]*"|[^\s"])+', line):
        if word == "--":  # what follows is for the first process
            break
        name, equals, value = word.partition("=")
        name = name.replace("-", "_")  # which are the same to the kernel
        if name in _OPTIONS or name.startswith(_MODULES):
            value = value if equals else "set"
            options[name] = f"{options[name]},{value}" if name in options else value
    return dict(sorted(options.items()))


def _cpu_model(root: Path) -> str | None:
    model = re.search(r"^model name\s*:\s*(\S.*)$", text(root / "proc/cpuinfo") or "", re.MULTILINE)
    return model[1].strip() if model else platform.machine() or None


def _checkout(cwd: Path) -> tuple[str | None, bool | None]:
    """Find the commit of the checkout around `cwd`, and whether tracked files differ."""
    commit = git(cwd, "rev-parse", "HEAD")
    if not commit:
        return None, None
    # Untracked files are results as often as code, and would make every run look edited.
    status = git(cwd, "status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None else bool(status)


# --- caches of compilers and tuners -------------------------------------------------------


def caches(environ: Mapping[str, str] = os.environ, cwd: Path | None = None) -> dict[str, str]:
    """Say of each cache ``cold``, or ``warm, 41 entries`` and a hash where it chooses kernels.

    Entries are compiled graphs of ``inductor`` (folders of generated code where it keeps no
    graphs), kernels of ``triton``, what the backends name (records of ``miopen``'s find and
    performance databases, files of ``miopen kernels``), and tuned operations of ``tunableop``,
    which is not there unless it is switched on; its files are looked for from `cwd`.
    """
    home = environ.get("HOME") or "/"
    triton = f"{environ.get('TRITON_HOME') or home}/.triton/cache"
    found = {
        "inductor": _inductor(place(environ, "TORCHINDUCTOR_CACHE_DIR", _inductor_at(environ))),
        "triton": state(len(entries(place(environ, "TRITON_CACHE_DIR", triton)))),
    }
    for backend in backends.every():
        found |= backend.caches(environ)
    if environ.get("PYTORCH_TUNABLEOP_ENABLED") == "1":
        name = environ.get("PYTORCH_TUNABLEOP_FILENAME") or "tunableop_results.csv"
        found["tunableop"] = _tuned((Path.cwd() if cwd is None else cwd) / name)
    return found


def _same_state(old: str, new: str) -> bool:
    """Whether two states of a cache are alike: counts and differently hashed states are not."""
    if state_of(old) != state_of(new):
        return False
    hashes = [re.fullmatch(r"warm, .*, ([0-9a-f]{12})", cache) for cache in (old, new)]
    return None in hashes or len({found[1] for found in hashes if found}) == 1


def _inductor_at(environ: Mapping[str, str]) -> str:
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a container's user without a name
        user = ""
    return f"{environ.get('TMPDIR') or tempfile.gettempdir()}/torchinductor_{user}"


def _inductor(folder: Path) -> str:
    graphs = sum(len(entries(bucket)) for bucket in entries(folder / "fxgraph"))
    # Generated code lies in folders of two letters, beside locks and caches of other kinds.
    return state(graphs or sum(len(entry.name) == 2 for entry in entries(folder)))


def _tuned(name: Path) -> str:
    """Describe TunableOp's results: a device's number is where %d is, else before the suffix."""
    before, _, after = name.stem.partition("%d")
    pattern = re.compile(rf"{re.escape(before)}\d*{re.escape(after + name.suffix)}")
    files = [file for file in entries(name.parent) if pattern.fullmatch(file.name)]
    return hashed(files, uncounted=b"Validator,")
