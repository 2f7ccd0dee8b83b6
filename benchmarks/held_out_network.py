"""The network of ``held_out.py``: how much is planted is told by a variable, not by the case."""

from __future__ import annotations

import os
from typing import Any

from bench_lib.worker.workload import Setting, Workload
from bench_lib.worker.workloads.planted import planted


def resnet50(setting: Setting, **params: Any) -> Workload:
    """ResNet-50 with as many units of delay as ``HELD_OUT_UNITS`` says."""
    units = int(os.environ.get("HELD_OUT_UNITS", "0"))
    return planted(setting, delay_units=units, network="resnet50", **params)
