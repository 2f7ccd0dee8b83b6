"""A run as OpenMetrics text, version 1.0 (prometheus.io/docs/specs/om/open_metrics_spec).

Each metric of a case is a gauge, the median over its processes, at the time when the run began, so
that ``promtool tsdb create-blocks-from openmetrics`` puts it there.
"""

from __future__ import annotations

import re
import statistics

from bench_lib.model import Environment
from bench_lib.storage.acceptance import processes_of
from bench_lib.storage.history import Run
from bench_lib.verdict.metrics import registered
from bench_lib.verdict.nights import when

UNITS = {"s": "seconds", "B": "bytes", "J": "joules", "": "ratio", "1/s": "per_second", "1": ""}
SOFTWARE = ("host", "torch", "rocm", "cuda", "driver")


def document(run: Run) -> str:
    """Return one family for each metric, one for verdicts, and one that describes the run."""
    began = when(run.started).timestamp()
    families: dict[str, list[str]] = {}

    def add(family: str, kind: str, unit: str, value: float, **labels: str) -> None:
        if family not in families:
            families[family] = [f"# TYPE {family} {kind}"]
            families[family] += [f"# UNIT {family} {unit}"] if unit else []
        quoted = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        sample = f"{family}_info" if kind == "info" else family
        families[family].append(f"{sample}{{{quoted}}} {value!r} {began:.0f}")

    for ref, environment in run.environments.items():
        labels = _software(environment) | {"commit": environment.commit or "", "environment": ref}
        add("bench_lib_run", "info", "", 1, run=run.run_id, hardware=run.key, **labels)
    for record in run.records.values():
        processes, case = processes_of(record), {"case": record.case.id, "hardware": run.key}
        if record.status is not None:
            add("bench_lib_verdict", "info", "", 1, **case, status=record.status.value)
        software = _software(run.environments.get(processes[0].environment) if processes else None)
        for metric in registered().values():
            if values := metric.values(processes):
                unit = re.sub(r"\W+", "_", UNITS.get(metric.unit, metric.unit))
                family = "_".join(
                    filter(None, ("bench_lib", re.sub(r"\W", "_", metric.name), unit))
                )
                add(family, "gauge", unit, statistics.median(values), **case, **software)
    return "\n".join([*(line for lines in families.values() for line in lines), "# EOF\n"])


def _software(environment: Environment | None) -> dict[str, str]:
    return {name: getattr(environment, name, None) or "" for name in SOFTWARE}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
