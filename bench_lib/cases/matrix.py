"""Reads ``matrix.toml`` and returns its cases.

A matrix has one array of tables per tier and workload, such as ``[[gate.networks]]``.  Each table
has one value or a list of values for each axis, and its cases are all combinations.  Errors name
the file, the table and the key.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from bench_lib import backends
from bench_lib.cases.axes import (
    LARGEST,
    LAUNCH,
    Axis,
    MatrixError,
    WorkloadAxes,
    clash,
    named,
    network_axes,
)
from bench_lib.cases.collectives import collective_axes
from bench_lib.cases.language import language_axes
from bench_lib.cases.operators import operator_axes
from bench_lib.cases.training import training_axes
from bench_lib.model import (
    ID_RULE,
    PARAM_RULE,
    TIERS,
    Case,
    Hardware,
    Limits,
    Sampling,
    is_case_id,
    is_param,
    too_tolerant,
    unknown,
)
from bench_lib.verdict import metrics

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST_CASES = 100_000
FACTORY = "factory"
"""The table of cases that a user's own function builds."""
SETTINGS = ("sampling", "limits", "time_limit_s")
"""Keys of a tier or a table besides its tables or axes."""


def tables(sizes: Mapping[str, int]) -> dict[str, WorkloadAxes]:
    """Return the tables that a matrix may have; ``sizes`` are the networks' inputs in pixels."""
    return {
        "networks": network_axes(sizes),
        "ops": operator_axes(),
        "collectives": collective_axes(),
        "language_models": language_axes(),
        "training": training_axes(),
    }


def usual_tier(device: Hardware) -> str:
    """Return a device's default tier."""
    return "gate" if backends.is_gpu(device) else "smoke"


def read_matrix(path: Path, workloads: Mapping[str, WorkloadAxes]) -> dict[str, list[Case]]:
    """Return the cases of each tier by its name, in the order of the file.

    A tier with ``extends = "gate"`` begins with that tier's cases.  Raises MatrixError.
    """
    return _Reader(path, workloads).tiers()


def cases_in(path: Path) -> dict[str, Case]:
    """Return the cases of all tiers by id, without asking a worker for its networks.

    Any string in the file is accepted as a network's name.  Raises MatrixError.
    """
    strings: list[str] = []
    with contextlib.suppress(OSError, ValueError):  # read_matrix reports it
        strings = re.findall(r"""["']([^"'\n]+)["']""", path.read_text(encoding="utf-8"))
    tiers = read_matrix(path, tables(dict.fromkeys(strings, 0)))
    return {case.id: case for cases in tiers.values() for case in cases}


def cases_of(
    table: str | None, cases: Iterable[Case], workloads: Mapping[str, WorkloadAxes]
) -> list[Case]:
    """Return the cases that come from the tables of a name; raises MatrixError."""
    workloads_of = {name: {axes.workload} for name, axes in workloads.items()}
    if table == FACTORY:
        return [case for case in cases if ":" in case.workload]
    if table not in workloads_of:
        names = ", ".join((*workloads_of, FACTORY))
        raise MatrixError(f"perf_cases names {table or 'no table'}; choose one of {names}")
    return [case for case in cases if case.workload in workloads_of[table]]


class _Reader:
    def __init__(self, path: Path, workloads: Mapping[str, WorkloadAxes]) -> None:
        self.path = path
        self.workloads = workloads
        try:
            self.document = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            hint = "name a matrix with --perf-matrix FILE or the ini setting perf_matrix"
            hint += " (for bench-lib: --matrix FILE)"
            raise MatrixError(f"{path}: {error.strerror}; {hint}") from error
        except (ValueError, RecursionError) as error:
            raise MatrixError(f"{path}: not TOML: {error}") from error

    def wrong(self, where: str, problem: str) -> MatrixError:
        return MatrixError(f"{self.path}: {where}: {problem}")

    def tiers(self) -> dict[str, list[Case]]:
        self._check_keys("the top level", self.document, TIERS)
        own = {tier: self._tier(tier) for tier in TIERS if tier in self.document}
        return {tier: self._extended(tier, own) for tier in TIERS}

    def _extended(self, tier: str, own: Mapping[str, list[Case]]) -> list[Case]:
        cases: dict[str, Case] = {}
        chain = [tier]
        while (parent := self.document.get(chain[-1], {}).get("extends")) is not None:
            where = f"{chain[-1]}.extends"
            if not isinstance(parent, str) or parent not in self.document:
                raise self.wrong(where, f"there is no tier {parent!r}")
            if parent in chain:
                raise self.wrong(where, f"{' → '.join([*chain, parent])} is a cycle")
            chain.append(parent)
        for name in reversed(chain):
            for case in own.get(name, []):
                if case.id in cases:
                    where = f"{name}, case {case.id}"
                    raise self.wrong(where, f"is already declared in tier {cases[case.id].tier}")
                cases[case.id] = case
        return list(cases.values())

    def _tier(self, tier: str) -> list[Case]:
        body = self.document[tier]
        if not isinstance(body, dict):
            raise self.wrong(tier, "must be a table")
        self._check_keys(tier, body, ("extends", *SETTINGS, FACTORY, *self.workloads))
        base = self._settings(tier, ".", body, Case(id="", workload="", tier=tier))
        cases: dict[str, Case] = {}
        for name in (*self.workloads, FACTORY):
            tables = body.get(name, [])
            if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
                raise self.wrong(f"{tier}.{name}", f"must be written [[{tier}.{name}]]")
            for number, table in enumerate(tables, 1):
                where = f"{tier}.{name}, table {number}"
                for case in self._table(where, name, table, base):
                    if case.id in cases:
                        raise self.wrong(where, f"declares {case.id} a second time")
                    cases[case.id] = case
        return list(cases.values())

    def _table(self, where: str, name: str, table: Mapping[str, Any], base: Case) -> Iterable[Case]:
        base = self._settings(where, ", ", table, base)
        if name == FACTORY:
            return [self._factory(where, table, base)]
        return self._product(where, self.workloads[name], table, base)

    def _settings(self, where: str, dot: str, table: Mapping[str, Any], base: Case) -> Case:
        seconds = table.get("time_limit_s", base.time_limit_s)
        if not _is_above_zero(seconds):
            problem = "it must be a number of seconds above 0"
            raise self.wrong(where, f"time_limit_s is {seconds!r}; {problem}")
        sampling, limits = table.get("sampling", {}), table.get("limits", {})
        return replace(
            base,
            sampling=self._fields(f"{where}{dot}sampling", base.sampling, sampling),
            limits=self._fields(f"{where}{dot}limits", base.limits, limits),
            time_limit_s=float(seconds),
        )

    def _factory(self, where: str, table: Mapping[str, Any], base: Case) -> Case:
        """Return a case whose step a user's function builds: ``package.module:factory``."""
        self._check_keys(where, table, (*SETTINGS, "id", "target", "params"))
        target, case_id = table.get("target"), table.get("id")
        module, _, function = str(target).partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), function)):
            raise self.wrong(where, f"target is {target!r}; it must be package.module:factory")
        if not isinstance(case_id, str) or not is_case_id(case_id):
            raise self.wrong(where, f"id is {case_id!r}; it must be {ID_RULE}")
        params = table.get("params", {})
        if not isinstance(params, dict):
            raise self.wrong(f"{where}, params", "must be a table")
        for key, value in params.items():
            if not is_param(value):
                problem = f"{key} is {value!r}; it must be {PARAM_RULE}"
                raise self.wrong(f"{where}, params", problem)
        return replace(base, id=case_id, workload=f"{module}:{function}", params=params)

    def _product(
        self, where: str, workload: WorkloadAxes, table: Mapping[str, Any], base: Case
    ) -> Iterable[Case]:
        axes = (*workload.axes, *LAUNCH)
        names = [axis.name for axis in axes]
        self._check_keys(where, table, (*SETTINGS, "exclude", *names))
        choices = [self._choices(where, axis, table) for axis in axes]
        count = math.prod(map(len, choices))
        if count > MOST_CASES:
            raise self.wrong(where, f"has {count} cases; the limit is {MOST_CASES}")
        excludes = self._excludes(where, table, axes)
        unused = set(range(len(excludes)))
        remaining = count
        for combination in itertools.product(*choices):
            chosen = dict(zip(names, combination, strict=True))
            hits = {i for i, rule in enumerate(excludes) if _matches(rule, chosen)}
            unused -= hits
            if hits:
                remaining -= 1
                continue
            if problem := clash(workload, chosen):
                raise self.wrong(where, f"{problem}; use exclude to leave it out")
            yield named(workload, chosen, base)
        for i in sorted(unused):
            raise self.wrong(f"{where}, exclude {i + 1}", f"{excludes[i]} matches no case")
        if not remaining:
            raise self.wrong(f"{where}, exclude", "leaves no cases")

    def _choices(self, where: str, axis: Axis, table: Mapping[str, Any]) -> list[Any]:
        if axis.name not in table:
            if axis.default is None:
                raise self.wrong(where, f"{axis.name} is missing")
            return [axis.default]
        value = table[axis.name]
        values: list[Any] = value if isinstance(value, list) else [value]
        if not values:
            raise self.wrong(where, f"{axis.name} is an empty list")
        for item in values:
            if problem := axis.check(item):
                raise self.wrong(f"{where}, {axis.name}", problem)
        if len(set(values)) != len(values):
            raise self.wrong(f"{where}, {axis.name}", f"has a value twice: {values}")
        return values

    def _excludes(
        self, where: str, table: Mapping[str, Any], axes: Sequence[Axis]
    ) -> list[dict[str, Any]]:
        rules = table.get("exclude", [])
        if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
            raise self.wrong(f"{where}, exclude", "must be a list of tables")
        for rule in rules:
            self._check_keys(f"{where}, exclude", rule, [axis.name for axis in axes])
        return rules

    def _check_keys(self, where: str, table: Mapping[str, Any], allowed: Iterable[str]) -> None:
        allowed = list(allowed)
        for key in table:
            if key not in allowed:
                raise self.wrong(where, unknown("key", key, allowed))

    def _fields(self, where: str, defaults: Any, values: Any) -> Any:
        if not isinstance(values, dict):
            raise self.wrong(where, "must be a table")
        allowed = {field.name: getattr(defaults, field.name) for field in fields(defaults)}
        if isinstance(defaults, Limits):
            inherited = allowed.pop("metrics")
            allowed |= {} if values.keys() <= allowed.keys() else metrics.limited_by_name()
        self._check_keys(where, values, allowed)
        for key, value in values.items():
            if isinstance(allowed[key], bool):
                if not isinstance(value, bool):
                    raise self.wrong(where, f"{key} is {value!r}; it must be true or false")
                continue
            is_whole = isinstance(allowed[key], int)
            if not _is_above_zero(value) or (is_whole and not isinstance(value, int)):
                kind = "a whole number" if is_whole else "a number"
                rule = f"{kind} above 0" + (", 0.01 for 1%" if isinstance(defaults, Limits) else "")
                raise self.wrong(where, f"{key} is {value!r}; it must be {rule}")
        if values.get("spread", 0) > Limits().spread:
            raise self.wrong(where, f"spread is {values['spread']}; the limit is {Limits().spread}")
        if isinstance(defaults, Limits):
            own = {field.name for field in fields(defaults)}
            of_metrics = {name: float(value) for name, value in values.items() if name not in own}
            values = {name: value for name, value in values.items() if name in own}
            values["metrics"] = {**inherited, **of_metrics}
        new = replace(defaults, **values)
        if isinstance(new, Limits) and (problem := too_tolerant(new)):
            raise self.wrong(where, problem)
        if isinstance(new, Sampling) and new.iterations > new.max_iterations:
            problem = f"iterations is {new.iterations}, above max_iterations {new.max_iterations}"
            raise self.wrong(where, problem)
        if isinstance(new, Sampling) and new.warmup_s > new.warmup_max_s:
            problem = f"warmup_s is {new.warmup_s:g}, above warmup_max_s {new.warmup_max_s:g}"
            raise self.wrong(where, problem)
        return new


def _matches(rule: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    return all(
        chosen[key] in value if isinstance(value, list) else chosen[key] == value
        for key, value in rule.items()
    )


def _is_above_zero(value: Any) -> bool:
    """Whether a value is a number above 0, and not NaN, infinite or above `LARGEST`."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= LARGEST
