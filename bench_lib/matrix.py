"""Reading ``matrix.toml``: tables of parameters in, cases out.

A matrix has one array of tables per tier and workload, ``[[gate.networks]]``.  Each table
names one value or a list of values for every axis and stands for their product.  Whatever
contradicts itself is refused with the file, the table and the key.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from bench_lib.model import (
    COMPILE_MODES,
    ID_RULE,
    MEMORY_FORMATS,
    PARAM_RULE,
    PRECISIONS,
    TASKS,
    TIERS,
    Case,
    Launch,
    Limits,
    Param,
    Sampling,
    UserError,
    is_case_id,
    is_param,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST_CASES = 100_000
LARGEST = 10**9
"""No count, size or time in a matrix is above this; a longer one is a slip of the keyboard."""


class MatrixError(UserError):
    """The matrix says something that cannot be meant; names the file, the table, the key."""


@dataclass(frozen=True)
class Axis:
    """One parameter of a workload: what it may be, and how it shows in the case's id."""

    name: str
    check: Callable[[Any], str | None]
    """Says what is wrong with a value, or returns None."""
    default: Param | None = None
    """Taken where a table does not name the axis; without one it has to."""
    in_id: Callable[[Any], str] = str
    """The value's part of the id; empty leaves it out."""
    told: bool = True
    """Whether the workload is told its default too; one that came later is not, so that what
    was recorded before it stays the same case."""


@dataclass(frozen=True)
class WorkloadAxes:
    """The axes of one workload, in the order of the id."""

    workload: str
    axes: tuple[Axis, ...]
    clash: Callable[[Mapping[str, Any]], str | None] = lambda _chosen: None
    """Says which of the values chosen, one for every axis, cannot go together, or returns None."""


def one_of(kind: str, allowed: Sequence[str]) -> Callable[[Any], str | None]:
    """Return a check that a value is one of ``allowed``, naming the nearest ones if not."""

    def check(value: Any) -> str | None:
        if value in allowed and isinstance(value, str):
            return None
        near = difflib.get_close_matches(str(value), allowed, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(allowed)}"
        return f"unknown {kind} {value!r}; {hint}"

    return check


def positive(kind: str) -> Callable[[Any], str | None]:
    """Return a check that a value is a whole number of 1 or more."""

    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            return f"{kind} is {value!r}; it has to be a whole number of 1 or more"
        return f"{kind} is {value}; at most {LARGEST} is taken" if value > LARGEST else None

    return check


def network_axes(sizes: Mapping[str, int]) -> WorkloadAxes:
    """Return the axes of ``networks`` for the networks at hand and their input sizes."""
    return WorkloadAxes(
        "network",
        (
            Axis("network", one_of("network", sorted(sizes))),
            Axis("batch_size", positive("batch_size"), in_id=lambda n: f"b{n}"),
            Axis("precision", one_of("precision", PRECISIONS), "fp32"),
            Axis(
                "memory_format",
                one_of("memory_format", MEMORY_FORMATS),
                "nchw",
                in_id=lambda layout: "" if layout == "nchw" else layout,
            ),
            Axis(
                "image_size",
                lambda n: None if type(n) is int and n == 0 else positive("image_size")(n),
                0,
                in_id=lambda n: f"{n}px" if n else "",
                told=False,
            ),
            Axis("compile_mode", one_of("compile_mode", COMPILE_MODES), "eager"),
            Axis("compile_options", _options, "", in_id=_options_in_id, told=False),
            Axis("task", one_of("task", TASKS), "infer"),
            Axis(
                "optimizer_every",
                positive("optimizer_every"),
                1,
                in_id=lambda n: f"opt{n}" if n > 1 else "",
                told=False,
            ),
        ),
        _network_clash,
    )


def _network_clash(chosen: Mapping[str, Any]) -> str | None:
    mode, task = chosen["compile_mode"], chosen["task"]
    if chosen["compile_options"] and mode in ("eager", "graph"):
        return f"compile_options is {chosen['compile_options']!r}, and {mode} compiles nothing"
    if task == "train" and mode.endswith("folded"):
        return f"compile_mode {mode} merges batch norms into weights, and training needs them"
    if task == "train" and chosen["precision"] == "int8":
        return "precision int8 is for inference, and the task is train"
    if task == "infer" and chosen["optimizer_every"] > 1:
        return f"optimizer_every is {chosen['optimizer_every']}, and inference has no optimizer"
    if mode == "graph" and chosen["optimizer_every"] > 1:
        return "compile_mode graph repeats one step, and optimizer_every asks for different ones"
    if mode == "graph" and chosen["ranks"] > 1:
        return f"compile_mode graph records one device's step, and ranks is {chosen['ranks']}"
    return None


_OPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(=[A-Za-z0-9_.+-]+)?")
LONGEST_OPTIONS = 40


def _options(value: Any) -> str | None:
    if value == "" or (isinstance(value, str) and all(map(_OPTION.fullmatch, value.split(",")))):
        return None
    example = "freezing,max_autotune_gemm=False"
    return f"compile_options is {value!r}; it has to be names and values such as {example}"


def _options_in_id(value: str) -> str:
    """Return the options as they can stand in a file's name; long ones as their hash."""
    words = re.sub(r"[^A-Za-z0-9._-]+", ".", value)
    if len(words) <= LONGEST_OPTIONS:
        return words
    return f"options.{hashlib.sha256(value.encode()).hexdigest()[:8]}"


def case_of(workload: WorkloadAxes, values: Mapping[str, Any], base: Case | None = None) -> Case:
    """Return the case that has these values, and the defaults of the axes they leave out.

    ``ranks`` is an axis of every workload; ``base`` has what is no axis: tier, sampling,
    limits, time limit.  Raises UserError, naming the value.
    """
    base = base or Case(id="", workload="")
    axes = (*workload.axes, _RANKS)
    if unknown := sorted(values.keys() - {axis.name for axis in axes}):
        raise UserError(f"{workload.workload} has no {', '.join(unknown)}")
    chosen = {axis.name: values.get(axis.name, axis.default) for axis in axes}
    problems = [axis.check(chosen[axis.name]) for axis in axes]
    if problem := next(filter(None, problems), None) or workload.clash(chosen):
        raise UserError(problem)
    return _case(workload, chosen, base)


def _case(workload: WorkloadAxes, chosen: Mapping[str, Any], base: Case) -> Case:
    axes = (*workload.axes, _RANKS)
    parts = [axis.in_id(chosen[axis.name]) for axis in axes]
    return replace(
        base,
        id="-".join(part for part in parts if part),
        workload=workload.workload,
        params={
            axis.name: chosen[axis.name]
            for axis in workload.axes
            if axis.told or chosen[axis.name] != axis.default
        },
        launch=Launch(ranks=chosen["ranks"]),
    )


def read_matrix(path: Path, workloads: Mapping[str, WorkloadAxes]) -> dict[str, list[Case]]:
    """Return the cases of each tier, by the tier's name, in the order of the file.

    A tier that says ``extends = "gate"`` holds that tier's cases first.  Raises MatrixError.
    """
    return _Reader(path, workloads).tiers()


class _Reader:
    def __init__(self, path: Path, workloads: Mapping[str, WorkloadAxes]) -> None:
        self.path = path
        self.workloads = workloads
        try:
            self.document = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            hint = "name a matrix with --perf-matrix FILE or the ini setting perf_matrix"
            raise MatrixError(f"{path}: {error.strerror}; {hint}") from error
        except (ValueError, RecursionError) as error:
            raise MatrixError(f"{path}: not TOML: {error}") from error

    def wrong(self, where: str, what: str) -> MatrixError:
        return MatrixError(f"{self.path}: {where}: {what}")

    def tiers(self) -> dict[str, list[Case]]:
        self._known("the top level", self.document, TIERS)
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
                raise self.wrong(where, f"{' → '.join([*chain, parent])} goes in a circle")
            chain.append(parent)
        for name in reversed(chain):
            for case in own.get(name, []):
                if case.id in cases:
                    where = f"{name}, case {case.id}"
                    raise self.wrong(where, f"is declared in tier {cases[case.id].tier} already")
                cases[case.id] = case
        return list(cases.values())

    def _tier(self, tier: str) -> list[Case]:
        body = self.document[tier]
        if not isinstance(body, dict):
            raise self.wrong(tier, "has to be a table")
        settings = ("extends", "sampling", "limits", "time_limit_s")
        self._known(tier, body, (*settings, "factory", *self.workloads))
        base = Case(
            id="",
            workload="",
            params={},
            tier=tier,
            sampling=self._fields(f"{tier}.sampling", Sampling(), body.get("sampling", {})),
            limits=self._fields(f"{tier}.limits", Limits(), body.get("limits", {})),
            time_limit_s=self._seconds(tier, body.get("time_limit_s", 300.0)),
        )
        cases: dict[str, Case] = {}
        for name in (*self.workloads, "factory"):
            tables = body.get(name, [])
            if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
                raise self.wrong(f"{tier}.{name}", f"has to be written [[{tier}.{name}]]")
            for number, table in enumerate(tables, 1):
                where = f"{tier}.{name}, table {number}"
                for case in self._table(where, name, table, base):
                    if case.id in cases:
                        raise self.wrong(where, f"declares {case.id} a second time")
                    cases[case.id] = case
        return list(cases.values())

    def _table(self, where: str, name: str, table: Mapping[str, Any], base: Case) -> Iterable[Case]:
        base = replace(
            base,
            sampling=self._fields(f"{where}, sampling", base.sampling, table.get("sampling", {})),
            limits=self._fields(f"{where}, limits", base.limits, table.get("limits", {})),
            time_limit_s=self._seconds(where, table.get("time_limit_s", base.time_limit_s)),
        )
        if name == "factory":
            return [self._factory(where, table, base)]
        return self._product(where, self.workloads[name], table, base)

    def _factory(self, where: str, table: Mapping[str, Any], base: Case) -> Case:
        """One case whose step a user's own function builds: ``package.module:factory``."""
        self._known(where, table, (*_TABLE_KEYS, "id", "target", "params"))
        target, case_id = table.get("target"), table.get("id")
        if not isinstance(target, str) or not _names_a_function(target):
            raise self.wrong(where, f"target is {target!r}; it has to be package.module:factory")
        if not isinstance(case_id, str) or not is_case_id(case_id):
            raise self.wrong(where, f"id is {case_id!r}; it has to be {ID_RULE}")
        params = table.get("params", {})
        if not isinstance(params, dict):
            raise self.wrong(f"{where}, params", "has to be a table")
        for key, value in params.items():
            if not is_param(value):
                problem = f"{key} is {value!r}; it has to be {PARAM_RULE}"
                raise self.wrong(f"{where}, params", problem)
        return replace(base, id=case_id, workload=target, params=params)

    def _product(
        self, where: str, workload: WorkloadAxes, table: Mapping[str, Any], base: Case
    ) -> Iterable[Case]:
        axes = (*workload.axes, _RANKS)
        names = [axis.name for axis in axes]
        self._known(where, table, (*_TABLE_KEYS, "exclude", *names))
        choices = [self._choices(where, axis, table) for axis in axes]
        count = 1
        for values in choices:
            count *= len(values)
        if count > MOST_CASES:
            raise self.wrong(where, f"stands for {count} cases; at most {MOST_CASES} are taken")
        excludes = self._excludes(where, table, axes)
        unused = set(range(len(excludes)))
        left = count
        for combination in itertools.product(*choices):
            chosen = dict(zip(names, combination, strict=True))
            hits = {i for i, rule in enumerate(excludes) if _matches(rule, chosen)}
            unused -= hits
            if hits:
                left -= 1
                continue
            if clash := workload.clash(chosen):
                raise self.wrong(where, f"{clash}; leave it out with exclude")
            yield _case(workload, chosen, base)
        for i in sorted(unused):
            raise self.wrong(f"{where}, exclude {i + 1}", f"{excludes[i]} leaves out no case")
        if not left:
            raise self.wrong(f"{where}, exclude", "leaves no case")

    def _choices(self, where: str, axis: Axis, table: Mapping[str, Any]) -> list[Any]:
        if axis.name not in table:
            if axis.default is None:
                raise self.wrong(where, f"{axis.name} is missing")
            return [axis.default]
        value = table[axis.name]
        values: list[Any] = value if isinstance(value, list) else [value]
        if not values:
            raise self.wrong(where, f"{axis.name} is an empty list")
        for one in values:
            if problem := axis.check(one):
                raise self.wrong(f"{where}, {axis.name}", problem)
        if len(set(values)) != len(values):
            raise self.wrong(f"{where}, {axis.name}", f"names a value twice: {values}")
        return values

    def _excludes(
        self, where: str, table: Mapping[str, Any], axes: Sequence[Axis]
    ) -> list[dict[str, Any]]:
        rules = table.get("exclude", [])
        if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
            raise self.wrong(f"{where}, exclude", "has to be a list of tables")
        for rule in rules:
            self._known(f"{where}, exclude", rule, [axis.name for axis in axes])
        return rules

    def _known(self, where: str, table: Mapping[str, Any], allowed: Iterable[str]) -> None:
        allowed = list(allowed)
        for key in table:
            if key not in allowed:
                near = difflib.get_close_matches(key, allowed, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(allowed)}"
                raise self.wrong(where, f"unknown key {key!r}; {hint}")

    def _fields(self, where: str, defaults: Any, values: Any) -> Any:
        if not isinstance(values, dict):
            raise self.wrong(where, "has to be a table")
        self._known(where, values, [field.name for field in fields(defaults)])
        for key, value in values.items():
            whole = isinstance(getattr(defaults, key), int)
            if not _is_above_zero(value) or (whole and not isinstance(value, int)):
                kind = "a whole number" if whole else "a number"
                raise self.wrong(where, f"{key} is {value!r}; it has to be {kind} above 0")
        if values.get("spread", 0) > Limits().spread:
            raise self.wrong(where, f"spread is {values['spread']}; at most {Limits().spread}")
        made = replace(defaults, **values)
        if isinstance(made, Sampling) and made.iterations > made.max_iterations:
            clash = f"iterations is {made.iterations}, above max_iterations {made.max_iterations}"
            raise self.wrong(where, clash)
        if isinstance(made, Sampling) and made.warmup_s > made.warmup_max_s:
            clash = f"warmup_s is {made.warmup_s:g}, above warmup_max_s {made.warmup_max_s:g}"
            raise self.wrong(where, clash)
        return made

    def _seconds(self, where: str, value: Any) -> float:
        if not _is_above_zero(value):
            problem = "it has to be a number of seconds above 0"
            raise self.wrong(where, f"time_limit_s is {value!r}; {problem}")
        return float(value)


_TABLE_KEYS = ("sampling", "limits", "time_limit_s")
_RANKS = Axis("ranks", positive("ranks"), 1, in_id=lambda n: f"x{n}" if n > 1 else "")


def _matches(rule: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    return all(
        chosen[key] in value if isinstance(value, list) else chosen[key] == value
        for key, value in rule.items()
    )


def _is_above_zero(value: Any) -> bool:
    """Whether a value is a number that a limit or a time can be; NaN and infinity are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= LARGEST


def _names_a_function(target: str) -> bool:
    module, _, function = target.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), function))
