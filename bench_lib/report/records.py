"""A run as PyTorch's benchmark records, version 3: one per case and metric.

Fields and their types are those of ``clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql`` of
pytorch/test-infra at 3c0eb5c3ab14.  Its uploader (``.github/scripts/upload_benchmark_results.py``)
adds the repository, the workflow and the time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from bench_lib import backends
from bench_lib.model import Environment, Hardware, Record
from bench_lib.storage.acceptance import CONDITIONS, processes_of
from bench_lib.storage.history import Run
from bench_lib.verdict.metrics import registered

REPOSITORIES = {
    "torch": "pytorch/pytorch",
    "torchvision": "pytorch/vision",
    "torchao": "pytorch/ao",
    "triton": "triton-lang/triton",
}
VERSIONS = (*REPOSITORIES, "python", "rocm", "hip", "cuda", "cudnn", "driver", "kernel")
BUILT_FROM = re.compile(r"(?:\+git|-)([0-9a-f]{7,40})$")
"""The commit at the end of a development build's version, such as ``2.9.0a0+git1234abc``."""
MODES = {"train": "training", "infer": "inference", "prefill": "inference", "decode": "inference"}


def document(run: Run) -> str:
    """Return a run's records, a line each, as ``upload_benchmark_results.py`` reads them."""
    rows = (row for record in run.records.values() for row in _records(run, record))
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _records(run: Run, record: Record) -> Iterator[dict[str, Any]]:
    processes, case = processes_of(record), record.case
    if not processes:
        return
    params = {name: str(value) for name, value in case.params.items()}
    attempt = next(a for a in record.attempts if a.accepted)
    environment = run.environments.get(processes[0].environment)
    device = run.device_of(attempt)
    verdicts = {v.metric: v for v in reversed(record.verdicts)}
    for metric in registered().values():
        values = metric.values(processes)
        verdict = verdicts.get(metric.name)
        if not values:
            continue
        yield {
            "benchmark": {
                "name": "bench-lib",
                "mode": MODES.get(params.get("task", ""), ""),
                "dtype": params.get("precision", ""),
                "extra_info": {"case": case.id, "tier": case.tier, "run": run.run_id, **params},
            },
            "model": {
                "name": params.get("network") or params.get("op") or case.id,
                "type": case.workload,
                "backend": params.get("compile_mode", ""),
                "origins": [],
                "extra_info": {},
            },
            "metric": {
                "name": metric.name,
                "benchmark_values": values,
                "target_value": (verdict.baseline if verdict else None) or 0.0,
                "extra_info": {
                    "values": "processes",
                    "unit": metric.unit,
                    "more_is_better": str(metric.more_is_better),
                    "status": verdict.status.value if verdict else "",
                },
            },
            "inputs": {},
            "dependencies": _dependencies(environment),
            "runners": [_runner(device, environment, case.launch.ranks)],
        }


def _dependencies(environment: Environment | None) -> dict[str, Any]:
    """Return what was installed, by name, and the commit of the tests, as ``tests``."""
    if environment is None:
        return {}
    versions = {name: getattr(environment, name) for name in VERSIONS} | environment.libraries
    dependencies = {
        name: _dependency(REPOSITORIES.get(name, ""), version, BUILT_FROM.search(version))
        for name, version in versions.items()
        if version
    }
    if environment.commit:
        tests = {"sha": environment.commit, "extra_info": {"dirty": str(environment.dirty)}}
        dependencies["tests"] = _dependency("", "", None) | tests
    return dependencies


def _dependency(repo: str, version: str, built: re.Match[str] | None) -> dict[str, Any]:
    sha = built[1] if built else ""
    return {"repo": repo, "branch": "", "sha": sha, "version": version, "extra_info": {}}


def _runner(device: Hardware, environment: Environment | None, ranks: int) -> dict[str, Any]:
    """Return the machine with the device; memory in GB of 2^30 bytes."""
    names = ("arch", "pci_device_id", "uuid", *CONDITIONS)
    details = {name: getattr(device, name) for name in names}
    is_gpu = backends.is_gpu(device)
    gb = int((device.memory_bytes or 0) / 2**30)
    return {
        "name": environment.host if environment else "",
        "type": device.key,
        "cpu_info": (environment.cpu if environment else None) or "",
        "cpu_count": (environment.cpu_count if environment else None) or 0,
        "mem_info": "",
        "avail_mem_in_gb": 0 if is_gpu else gb,
        "gpu_info": device.name if is_gpu else "",
        "gpu_count": ranks if is_gpu else 0,
        "gpu_mem_info": "",
        "avail_gpu_mem_in_gb": gb if is_gpu else 0,
        "extra_info": {name: str(value) for name, value in details.items() if value is not None},
    }
