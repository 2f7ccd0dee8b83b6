"""The words of the project as types: what is measured, on which hardware, and the verdict.

Standard library only: the worker runs under any interpreter that has torch, and the
pytest process must not need torch to read these.  Every quantity carries its unit in
its name; sizes are bytes, times are seconds, rates are per second.
"""

from __future__ import annotations

import difflib
import enum
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar


class UserError(RuntimeError):
    """Something that the person in front of it can mend; says what, with which value, and how."""


def unknown(kind: str, value: object, known: Sequence[str]) -> str:
    """Say that a value is not known, with the nearest ones that are, or else with all of them."""
    near = difflib.get_close_matches(str(value), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(known)}"
    return f"unknown {kind} {value!r}; {hint}"


class MachineWarning(RuntimeWarning):
    """Something of this machine cannot be read or watched; it is never more than a warning."""


SCHEMA = 1
"""Version of everything written to disk; docs/architecture.md lists what each one changed."""

PRECISIONS = (
    "fp32",
    "tf32",
    "tf32-conv",
    "fp16",
    "fp16-bn32",
    "bf16",
    "amp-fp16",
    "amp-bf16",
    "int8",
    "fp8",
    "fp8-rows",
)
"""``int8`` and ``fp8`` compute linear layers so: ``fp8`` has a scale for each tensor, ``fp8-rows``
one for each row.
``tf32-conv`` is what torch calls FP32 on NVIDIA unless told otherwise: TF32 in convolutions.
``fp16-bn32`` keeps batch norms in FP32, as scripts that halve a network by hand do."""
QUANTIZED = ("int8", "fp8", "fp8-rows")
"""Precisions for inference, in which linear layers compute with one byte and the rest is bf16."""
COMPILE_MODES = (
    "eager",
    "graph",
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
)
"""``graph`` is the eager step in a CUDA or HIP graph."""
TASKS = ("infer", "train")
GENERATION = ("prefill", "decode")
"""Tasks of language models: all tokens of the prompts at once, and one more of each sequence."""
MEMORY_FORMATS = ("nchw", "nhwc")
TIERS = ("smoke", "gate", "nightly")

Param = str | int | float | bool


@dataclass(frozen=True)
class Sampling:
    """How long one context looks at one case."""

    warmup_s: float = 0.5
    """Least warm-up; GPU clocks need 0.4 s or more to ramp (ROCm/composable_kernel#1241)."""
    warmup_early_s: float | None = None
    """Least warm-up of a case whose blocks of steps all agree within 0.5% for so long; None: as
    of any other."""
    warmup_max_s: float = 5.0
    """Past this the case is measured as it is, with a warning that it was not steady."""
    warmup_steps: int = 0
    """Fewest untimed steps before measuring, however long they take."""
    iterations: int = 20
    """Fewest measured iterations."""
    max_iterations: int = 200
    """Most measured iterations."""
    measure_s: float = 0.25
    """Iterations are added until this much time is expected to be filled."""
    checks: bool = True
    """Whether the answer is held against FP32 eager's afterwards, and the FLOPs are counted."""


@dataclass(frozen=True)
class Bursts:
    """How long a device works at its full clock after a rest, before its power cap lowers it."""

    burst_s: float
    rest_s: float
    always: bool = False
    """Measure so whether or not the device is power-bound, as the baseline was."""


@dataclass(frozen=True)
class Calibration:
    """The result of watching a device after rests."""

    bursts: Bursts | None
    """None if it never slows down, or slows down at once."""
    spread: float
    """How much two looks at its full clock differed at most, as a fraction."""


@dataclass(frozen=True)
class Limits:
    """From where on a difference matters; each is a fraction unless named otherwise."""

    tolerance: float = 0.01
    """Median latency: slower by more than this is worth somebody's morning."""
    throughput: float = 0.05
    """Wall-clock throughput, which single stalls reach; the median does not see those."""
    memory: float = 0.01
    """Peak memory, on top of an allowance of 4 MiB for allocator rounding."""
    compile_time: float = 0.5
    """Compile time, on top of an allowance of 5 s."""
    spread: float = 0.10
    """Coefficient of variation inside a process; 0.10 is the most any case is allowed."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The tolerance of any other metric, by its name; a metric that is named here is judged."""


@dataclass(frozen=True)
class Launch:
    """How a case is started: one process, or several ranks that a launcher starts."""

    ranks: int = 1
    cold: bool = False
    """In a context of its own, and with empty caches of compilers and of MIOpen."""
    strong: bool = False
    """Whether ``batch_size`` is of all ranks together, and divided among them: strong scaling."""
    threads: int = 0
    """CPU threads of each rank; 0 leaves that to torch."""


@dataclass(frozen=True)
class Case:
    """One thing to measure, fully named."""

    id: str
    """Stable, readable, safe as a file name: ``resnet50-b64-fp16-max-autotune-infer``."""
    workload: str
    """A name the worker knows (``network``) or ``package.module:factory``."""
    params: dict[str, Param] = field(default_factory=dict)
    tier: str = "smoke"
    launch: Launch = field(default_factory=Launch)
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    time_limit_s: float = 300.0
    """From the order to the answer; past it the context is ended and the case is ERROR."""


def problem_of(case: object) -> str | None:
    """Say why something cannot be measured and stored as a case; None if it can."""
    if not isinstance(case, Case):
        return f"{case!r} is no Case; make one with bench_lib.Case(id, workload, params)"
    if not (is_case_id(case.id) and _is_plain(case.id)):
        return f"the case's id is {case.id!r}; it has to be {ID_RULE}"
    params: object = case.params
    if not isinstance(params, dict):
        return f"params of {case.id} is {params!r}; it has to be a dictionary"
    for name, value in params.items():
        if not _is_text(name):
            return f"params of {case.id}: the name {name!r} has to be text"
        if not is_param(value):
            return f"params of {case.id}: {name} is {value!r}; it has to be {PARAM_RULE}"
    workload: object = case.workload
    if not _is_text(workload):
        return f"the workload of {case.id} is {workload!r}; it has to be text, package.module:name"
    if not _is_text(case.tier):
        return f"tier of {case.id} is {case.tier!r}; it has to be text"
    if not _is_amount(case.time_limit_s):
        return f"time_limit_s of {case.id} is {case.time_limit_s!r}; it has to be a number"
    for group, kind in (("launch", Launch), ("sampling", Sampling), ("limits", Limits)):
        fields: object = getattr(case, group)
        if not isinstance(fields, kind):
            return f"{group} of {case.id} is {fields!r}; make one with bench_lib.{kind.__name__}()"
        for name, usual in vars(kind()).items():
            value = getattr(fields, name)
            if (rule := _broken_rule(value, usual)) is not None:
                return f"{group} of {case.id}: {name} is {value!r}; it has to be {rule}"
    problem = too_tolerant(case.limits)
    return None if problem is None else f"limits of {case.id}: {problem}"


def _broken_rule(value: object, usual: object) -> str | None:
    """Return what a field has to be whose default is ``usual``; None if its value is that."""
    if isinstance(usual, bool):
        return None if isinstance(value, bool) else "True or False"
    if isinstance(usual, dict):
        fits = isinstance(value, dict) and all(
            _is_text(name) and _is_amount(number) for name, number in value.items()
        )
        return None if fits else "a dictionary of numbers of 0 or more"
    if isinstance(usual, int):
        least = min(usual, 1)
        fits = isinstance(value, int) and _is_amount(value) and value >= least
        return None if fits else f"a whole number of {least} or more"
    fits = _is_amount(value) or (value is None and usual is None)
    return None if fits else "a number of 0 or more"


def _is_amount(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_plain(value):
        return False
    return 0 <= value < (math.inf if isinstance(value, float) else 2**63)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and _is_plain(value)


def _is_plain(value: object) -> bool:
    """Whether files and processes can be given a value: not so numpy's, which is a float too."""
    return type(value) in (str, bool, int, float) or isinstance(value, enum.Enum)


def too_tolerant(limits: Limits) -> str | None:
    """Say that a tolerance stands for 100% or more; None if it does not."""
    if limits.tolerance < 1:
        return None
    return f"tolerance is {limits.tolerance:g}, which is {limits.tolerance:.0%}; write 1% as 0.01"


ID_RULE = "letters, digits, dots, dashes and underscores"
PARAM_RULE = "text, a finite number, true or false"


def is_case_id(value: object) -> bool:
    """Whether a value can name a case in files and on command lines."""
    return isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value))


def is_param(value: object) -> bool:
    """Whether a worker can receive the value and a file can hold it."""
    if not _is_plain(value):
        return False
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return isinstance(value, (str, bool)) or (isinstance(value, float) and math.isfinite(value))


@dataclass(frozen=True)
class Hardware:
    """One device as the machine itself describes it, without torch."""

    vendor: str
    """Name of its backend: ``amd``, ``nvidia``, ``cpu`` or an installed package's."""
    name: str
    key: str
    """Name of the baseline file, from ids that a marketing name cannot spoil."""
    index: int = 0
    """Position among the visible devices of this vendor."""
    arch: str | None = None
    pci_device_id: str | None = None
    """Four hexadecimal digits, from sysfs or NVML (HIP's field of that name is the slot)."""
    bdf: str | None = None
    uuid: str | None = None
    compute_units: int | None = None
    memory_bytes: int | None = None
    compute_partition: str | None = None
    memory_partition: str | None = None
    power_cap_w: float | None = None
    clock_policy: str | None = None
    """The setting that holds the clocks: AMD's performance level, or application clocks; None if
    unknown."""
    ptl: str | None = None
    """AMD's limiter of peak TOPS: ``off``, or ``on`` and its number formats; None if unknown."""
    peak_tflops: dict[str, float] = field(default_factory=dict)
    """Dense peak per precision; a precision that is not known is not there."""
    peak_gb_per_s: float | None = None


@dataclass(frozen=True)
class Device:
    """A device as a fresh context reports it."""

    type: str
    """Torch's name for it: ``cuda`` (HIP too), ``cpu``."""
    name: str
    arch: str | None = None
    compute_units: int | None = None
    memory_bytes: int | None = None
    uuid: str | None = None
    bdf: str | None = None


@dataclass(frozen=True)
class Environment:
    """Everything besides the hardware that may change speed."""

    python: str
    host: str
    torch: str | None = None
    torchvision: str | None = None
    cuda: str | None = None
    hip: str | None = None
    cudnn: str | None = None
    triton: str | None = None
    torchao: str | None = None
    driver: str | None = None
    rocm: str | None = None
    kernel: str | None = None
    cpu: str | None = None
    cpu_count: int | None = None
    threads: int | None = None
    commit: str | None = None
    dirty: bool | None = None
    firmware: str | None = None
    """Versions of the GPUs' video BIOS, each once."""
    governor: str | None = None
    """The CPU's clock governor, such as ``performance``."""
    numa_balancing: bool | None = None
    huge_pages: str | None = None
    """When the kernel makes transparent huge pages: ``always``, ``madvise`` or ``never``."""
    kernel_options: dict[str, str] | None = None
    """Options of the kernel's command line that may change speed; None if unknown."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions of ROCm's libraries as installed beside it; a torch wheel brings its own."""
    variables: dict[str, str] = field(default_factory=dict)
    caches: dict[str, str] = field(default_factory=dict)
    """``cold`` or ``warm, 41 entries``, and a hash of what chooses kernels; before the run."""


@dataclass(frozen=True)
class Numerics:
    """The case's answer beside FP32 eager's on the same weights and input."""

    finite: bool
    max_abs_diff: float | None = None
    """Inference: worst absolute difference of any output element, in its own unit."""
    cosine: float | None = None
    """Inference: cosine of the flattened outputs."""
    reference_batch: int | None = None
    """Images the reference could hold; less than the case's batch where memory was short."""
    loss: float | None = None
    """Training: loss of the first step."""
    reference_loss: float | None = None
    agreement: float | None = None
    """Decoding: share of the first tokens on which FP32, given those before, agrees."""
    grad_norm: float | None = None
    """Training: 2-norm of all gradients after the first backward pass."""
    reference_grad_norm: float | None = None


@dataclass(frozen=True)
class RankSample:
    """The times of one rank of several; the measurement itself holds the slowest step of each."""

    rank: int
    local_rank: int
    device_uuid: str | None
    iteration_s: list[float]
    peak_memory_bytes: int | None
    pid: int | None = None
    own_s: list[float] = field(default_factory=list)
    """Time of each timed pass through the parts of a step but for those that wait for others."""


@dataclass(frozen=True)
class Training:
    """Results of a training while it was measured; figures of several ranks are their means."""

    data: str
    """The training data: ``generated``, or the data set's files."""
    samples: int
    """In an epoch, of all ranks together."""
    steps_per_epoch: int
    losses: list[float]
    """By step; by epoch where there are more than ``MOST_STEPS_TOLD``."""
    accuracies: list[float]
    """Share of the training samples, 0 to 1, that were right when they were learnt from; as
    ``losses``."""
    test_accuracy: float | None = None
    """Afterwards, of samples that it did not learn from."""
    test_samples: int | None = None


MOST_STEPS_TOLD = 1000
IN_BURSTS = "bursts"
"""The state of values that were measured below the power cap."""


@dataclass(frozen=True)
class Choice:
    """The configuration of one compiled kernel."""

    source: str
    """Hash of the kernel's sizes and its source without its name, as torch's own lookup has it."""
    config: dict[str, int | str]
    """Tile sizes, warps and stages, by name."""
    template: bool = False
    """Whether the tiles stand in the source, as in a GEMM's: no lookup chooses these."""
    resources: dict[str, int] = field(default_factory=dict, compare=False)
    """What the compiler made of it: ``registers`` and ``spills`` of a thread, ``shared`` bytes of
    a block (LDS); what it does not tell is left out."""


@dataclass(frozen=True)
class Draw:
    """A compiler's autotuner's choices for a case; with other caches it may choose otherwise."""

    kernels: dict[str, Choice]
    """By the kernel's name, sorted."""
    unknown: str = ""
    """Why the choices are unknown; then there are no kernels."""

    @property
    def by_source(self) -> dict[str, Choice]:
        """The choices by their kernel's source; a kernel may have another name in another graph."""
        return {choice.source: choice for choice in self.kernels.values()}

    def chooses_as(self, other: Draw) -> bool:
        """Whether both have the same kernels, each with the same choice."""
        return self is other or self.by_source == other.by_source

    @property
    def table(self) -> dict[str, dict[str, int | str]]:
        """The configurations that make a compiler choose the same, by source.

        torch's lookup knows blocks, warps and stages; it would drop the rest of a configuration.
        """
        return {
            choice.source: choice.config
            for choice in self.kernels.values()
            if not choice.template
            and all("BLOCK" in name or name.startswith("num_") for name in choice.config)
        }


NOTHING_CHOSEN = ("the compiler is not Inductor", "no kernel is Triton's")
"""Why a draw has no kernels if nothing was there to choose."""


NUMERICS, COUNTS = "numerics", "counts"
"""Results that need not be computed again for a case: its answer beside FP32's, and its
``StepCounts``."""


@dataclass(frozen=True)
class StepCounts:
    """Figures of a case's step that follow from arithmetic alone; fields as in ``Measurement``."""

    flops_per_step: float | None = None
    traffic_bytes_per_step: float | None = None
    reduced_flops_share: float | None = None


@dataclass(frozen=True)
class Measurement:
    """The results of one device context for one case."""

    case_id: str
    context_id: str
    device_uuid: str | None
    iteration_s: list[float]
    """Device time of every measured step, in order; for a power-bound case, those of its bursts."""
    window_s: tuple[float, float]
    """Begin and end of the sustained stretch on the machine's monotonic clock."""
    wall_s: float
    """The same stretch from outside, synchronised at both ends; for bursts, their steps' sum."""
    warmup_s: float
    warmup_iterations: int
    steady: bool
    first_step_s: float
    enqueue_s: float | None
    """Host time to issue one step on an idle device; None if the host is the device."""
    host_bound: bool
    items_per_step: int
    item: str
    """The unit of the items: ``img``, ``token``, ``step``."""
    device_s: float | None = None
    """Median device time of a step without the host in its way; for host-bound cases only."""
    device_source: str | None = None
    """The source of ``device_s``: a replayed ``graph``, or a profiled pass's sum of ``kernels``."""
    sustained_s: float | None = None
    """Median device time of a step under the power cap; for power-bound cases only."""
    burst_window_s: tuple[float, float] | None = None
    """Begin and end of the bursts, as ``window_s``; for power-bound cases only."""
    compile_s: float | None = None
    """First call of the compiled step less a steady step; None for eager."""
    compile_cache: str | None = None
    """``cold``, ``warm`` or ``mixed`` as the compiler's own cache counters tell; else None."""
    draw: Draw | None = None
    """The compiler's choices; None for eager."""
    peak_memory_bytes: int | None = None
    """Most memory the allocator held during the measured stretch, less what it held before."""
    parameters: int | None = None
    flops_per_step: float | None = None
    """Two per multiply-accumulate; as torch.utils.flop_counter counts an eager twin."""
    least_bytes_per_step: int | None = None
    """Traffic no implementation can avoid: each weight and input read, each output written."""
    traffic_bytes_per_step: float | None = None
    """Bytes that the eager twin's operations read and write in all; fused operations skip some of
    them."""
    reduced_flops_share: float | None = None
    """Share of the FLOPs, 0 to 1, in the arithmetic that names a mixed precision: TF32 of
    ``tf32-conv``, INT8 of ``int8``, FP8 of ``fp8`` and ``fp8-rows``; None for all others."""
    numerics: Numerics | None = None
    per_rank: list[RankSample] = field(default_factory=list)
    portions_s: dict[str, float] = field(default_factory=dict)
    """Median time of each part of a step when each is waited for, in their order: ``load``,
    ``forward``, ``backward``, ``optimizer``."""
    own_s: list[float] = field(default_factory=list)
    """With several ranks, this rank's own times as in ``RankSample``; empty if every part may
    wait."""
    training: Training | None = None
    peak_host_bytes: int | None = None
    """Most memory that the process and those that it started held, since the case began; pages
    that they share count for each."""
    cpu_s: float | None = None
    """CPU time that they all used during the measured stretch."""
    waited_s: float | None = None
    """How long a thread of the process, the one that waited longest, was ready to run in that
    stretch and had no CPU; with several ranks, the longest of any."""
    exact: dict[str, int] = field(default_factory=dict)
    """Counts of a step that neither chance nor the clock moves, as far as known: ``kernels`` (with
    copies and fills) of a recorded step, ``graph_breaks`` and ``recompilations``."""
    documents: list[str] = field(default_factory=list)
    """What a program reported of each step; the engine reads its times there, and keeps none."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the worker by phase; empty if the attempt has them."""
    warnings: list[str] = field(default_factory=list)
    arithmetic: dict[str, float] = field(default_factory=dict)
    """Errors against FP64, as fractions, of a product (``gemm``) and a convolution (``conv``) in
    the case's precision; only the first case of a precision in a run has them."""

    @property
    def counts(self) -> StepCounts:
        """The step's figures that follow from arithmetic alone."""
        traffic, share = self.traffic_bytes_per_step, self.reduced_flops_share
        return StepCounts(self.flops_per_step, traffic, share)

    @property
    def state(self) -> str | None:
        """Under what the iterations were measured: ``bursts``, or None for sustained work."""
        return None if self.sustained_s is None else IN_BURSTS


@dataclass(frozen=True)
class Kernel:
    """One kernel in a step, or a copy or fill of memory: how often it runs, and how long."""

    name: str
    calls: float
    total_s: float
    resources: dict[str, int] = field(default_factory=dict)
    """What it takes of the device, if the profiler tells: ``registers`` of a thread, and bytes of
    ``scratch`` of a thread and of ``shared`` memory (LDS) of a block."""


class KernelCall(NamedTuple):
    """One kernel, copy or fill on the device; seconds since the first of its process began."""

    name: str
    begin_s: float
    end_s: float
    operation: str | None = None
    """The operation of torch that launched it; None if unknown."""


@dataclass(frozen=True)
class KernelTable:
    """The device's work in one step, by kernel."""

    source: str
    """The profiler: ``torch.profiler``, ``rocprofv3``."""
    steps: int
    """From how many the means are."""
    kernels: list[Kernel]
    """The longest first; the short ones at the end are one line."""
    busy_s: float | None = None
    """How long at least one kernel ran; less than their sum where some ran side by side."""


@dataclass(frozen=True)
class Fault:
    """Why a case has no measurement."""

    kind: str
    """``out of memory``, ``no room``, ``arithmetic``, ``exception``, ``died``,
    ``time limit``, ``protocol``."""
    message: str
    phase: str
    last_output: str = ""

    @property
    def in_words(self) -> str:
        """Kind, phase and message; that may have several lines."""
        return f"{self.kind} in {self.phase}: {self.message}"


@dataclass(frozen=True)
class Telemetry:
    """Readings of the device during the measured stretch, by a process beside the worker."""

    source: str
    samples: int
    utilization: float | None = None
    """Mean, 0 to 1."""
    clock_mhz: float | None = None
    """Median compute clock; with several dies, that of the slowest."""
    clock_max_mhz: float | None = None
    power_w: float | None = None
    """Mean."""
    temperature_c: float | None = None
    """Highest."""
    steal: float | None = None
    """Share of the CPUs' time that a hypervisor gave to others, 0 to 1; the worst look left out."""
    throttle: list[str] = field(default_factory=list)
    """Why the device was held back, at any time."""
    throttled: dict[str, float] = field(default_factory=dict)
    """Share of the stretch, 0 to 1, by reason; unknown reasons are left out."""
    foreign_processes: list[int] = field(default_factory=list)
    """Processes that had the device open and are not ours."""
    idle_processes: list[int] = field(default_factory=list)
    """Those of them that surely ran nothing on it meanwhile."""
    foreign_names: dict[str, str] = field(default_factory=dict)
    """Their descriptions by pid, if known: ``python3, 512 MiB``."""


@dataclass(frozen=True)
class Attempt:
    """One try at one case: a measurement, or the reason why there is none."""

    case_id: str
    process: int
    """Number of the run's fresh context, from 0."""
    time: str
    """UTC, ISO 8601."""
    hardware_key: str
    device_uuid: str | None
    environment: str
    """Reference into the run's environments."""
    measurement: Measurement | None = None
    fault: Fault | None = None
    skipped: str | None = None
    telemetry: Telemetry | None = None
    """With several ranks, that of the first one's device."""
    accepted: bool = False
    discarded: str | None = None
    invalid: bool = False
    """Whether it was discarded for what the hardware did: it tells nothing of the software."""
    confirms: bool = False
    """Whether the case was measured again because it had looked different."""
    replays: bool = False
    """Whether 0.2.0 measured it besides, with the baseline's autotuning choices, unaccepted."""
    took_s: float = 0.0
    telemetry_of_ranks: dict[str, Telemetry] = field(default_factory=dict)
    """Telemetry of the other ranks' devices, by rank and device: ``rank 3 on GPU 3 at
    0000:c3:00.0``."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, in order: ``fork``, ``build``, ``compile`` and so on.  The rest is
    ``other``."""


class Status(str, enum.Enum):
    """How a case stands, the worst first; docs/baselines.md has what each does to the status."""

    ERROR = "ERROR"
    REGRESSED = "REGRESSED"
    INVALID = "INVALID"
    INCOMPARABLE = "INCOMPARABLE"
    NO_BASELINE = "NO_BASELINE"
    SUSPECT = "SUSPECT"
    NOISY = "NOISY"
    REDRAWN = "REDRAWN"
    IMPROVED = "IMPROVED"
    OK = "OK"
    SKIPPED = "SKIPPED"


class Finding:
    """What a verdict rests on, or what explains it; ``findings`` has the kinds."""

    kind: str


_Found = TypeVar("_Found", bound=Finding)


@dataclass(frozen=True)
class Verdict:
    """One metric of one case against its baseline."""

    status: Status
    metric: str
    reason: str = ""
    """In words; of what was judged, ``reasons`` makes them of the findings."""
    value: float | None = None
    """The candidate's, in ``unit``."""
    baseline: float | None = None
    """The baseline's, in ``unit``."""
    unit: str = ""
    ratio: float | None = None
    """Candidate over baseline; above 1 is worse for every metric."""
    interval: tuple[float, float] | None = None
    """95% interval of the ratio."""
    tolerance: float | None = None
    detectable_effect: float | None = None
    """Smallest slow-down this comparison would have called nine times in ten, as a fraction."""
    against: str = "pinned"
    """The baseline: ``pinned`` (accepted by somebody), ``rolling`` (the nights fine by that),
    ``reference`` (the accepted environment, measured in turns tonight), ``a`` (the other side of
    ``ab``) or ``published`` (a figure shown beside a case)."""
    findings: list[Finding] = field(default_factory=list)

    def found(self, kind: type[_Found]) -> _Found | None:
        """Return the first finding of a kind, if there is one."""
        return next((each for each in self.findings if isinstance(each, kind)), None)

    def finding(self, *found: Finding) -> Verdict:
        """Return the verdict with further findings."""
        return replace(self, findings=[*self.findings, *found])


@dataclass(frozen=True)
class SlowDown:
    """A slow-down that several nights show together; each is reported once as new."""

    since: str
    """When the first slower night began: UTC, ISO 8601."""
    run: str
    """Id of the first slower night's run."""
    cases: list[str]
    """Their ids, those that slowed down most first."""
    ratio: float
    """New level over old one, in the mean of the cases."""
    interval: tuple[float, float]
    """95% confidence interval of the ratio."""
    nights: int
    """How many nights of the new level showed it."""
    told_by: str
    """The run that told it first."""
    changes: list[str] = field(default_factory=list)
    """Changes in the environment with the first slower night, in words."""


class Origin(NamedTuple):
    """The run and the device of a process; each is empty if unknown."""

    run: str = ""
    device: str = ""


@dataclass(frozen=True)
class ProcessSummary:
    """One process of a case: enough to judge by, small enough to review."""

    values: dict[str, float]
    """Every known value by its metric's name, in the metric's unit."""
    n: int
    """Measured iterations."""
    environment: str
    time: str
    states: dict[str, str] = field(default_factory=dict)
    """By metric, under what its value was measured, such as ``cold`` caches or a replayed
    ``graph``; values of different states are not compared."""
    device_uuid: str | None = None
    host_bound: bool = False
    clock_mhz: float | None = None
    clock_source: str | None = None
    """The source of the clock and the power; different sources may mean different clocks."""
    power_w: float | None = None
    worker: str = ""
    """Names the device context; cases that share one share its luck.  Begins with the run's id and
    a slash, if the run is known."""
    draw: Draw | None = None
    """As in ``Measurement``."""

    @property
    def run(self) -> str:
        """The id of the run that it is of; empty if unknown."""
        return self.worker.rpartition("/")[0]

    @cached_property
    def origin(self) -> Origin:
        """Where it ran; the device without the prefix that NVML writes and torch does not."""
        return Origin(self.run, (self.device_uuid or "").removeprefix("GPU-"))

    @property
    def log_median(self) -> float:
        """Natural logarithm of the median iteration time in seconds."""
        return math.log(self.values["latency"])

    @property
    def in_bursts(self) -> bool:
        """Whether the latency is of bursts, below the power cap."""
        return self.states.get("latency") == IN_BURSTS


@dataclass(frozen=True)
class Accepted:
    """Who says that these values are the ones to hold against, and why."""

    run_id: str
    reason: str
    date: str
    by: str | None = None
    in_spite_of: str | None = None
    """Objections against it, if it was accepted in spite of them."""


@dataclass(frozen=True)
class Quarantine:
    """A known failure of a case, reported without failing up to and including a day."""

    reason: str
    until: str
    """ISO 8601 date, UTC."""
    date: str
    by: str | None = None


@dataclass(frozen=True)
class Published:
    """A published figure for a case on this hardware; shown beside it, never judged by."""

    rate: float
    """Items a second of all ranks together; the middle where a range was published."""
    source: str
    caveat: str
    """Why it may not be what a run here should reach."""
    item: str = "img"
    low: float | None = None
    """The least of a range, in the unit of ``rate``."""
    high: float | None = None
    """The most of it, in the same unit."""


@dataclass(frozen=True)
class Baseline:
    """The accepted distribution of one case on one hardware."""

    case_id: str
    processes: list[ProcessSummary]
    accepted: Accepted
    limits: Limits = field(default_factory=Limits)
    provenance: str = "measured"
    conditions: dict[str, Any] = field(default_factory=dict)
    """Conditions that have to be equal for a comparison to mean anything: power cap, partition,
    ranks."""
    published: Published | None = None
    """The figure, where the provenance is ``published``; then there are no processes."""
    kernels: KernelTable | None = None
    """The device's kernels in a step, if it was profiled."""
    began: dict[str, float] = field(default_factory=dict)
    """By metric, in its unit, the value from which slow-downs that were accepted one after the
    other add up."""
    earlier: list[Accepted] = field(default_factory=list)
    """The last acceptances before this one, oldest first."""


@dataclass(frozen=True)
class Record:
    """All that one run knows of one case."""

    case: Case
    nodeid: str | None = None
    attempts: list[Attempt] = field(default_factory=list)
    status: Status | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    """Changes in the environment since the baseline, in words."""
    quarantine: Quarantine | None = None
    baseline_accepted: str | None = None
    """The date of the acceptance that it was judged by; None if nothing was accepted."""
    kernels: KernelTable | None = None
    """The device's kernels in a step, if it was profiled."""
    blamed: list[str] = field(default_factory=list)
    """The kernels that made it slower, as ``profiling.kernels.blamed`` has them."""

    @property
    def measurements(self) -> list[Measurement]:
        """The accepted measurements, in order."""
        return [a.measurement for a in self.attempts if a.accepted and a.measurement]

    @property
    def is_of_sides(self) -> bool:
        """Whether only another side judged it, as ``ab`` has it: that is no night's verdict."""
        return any(verdict.against == "a" for verdict in self.verdicts) or (
            bool(self.verdicts) and all(v.against == "reference" for v in self.verdicts)
        )
