"""The project's data types: what is measured, on which hardware, and the verdict.

Standard library only: the worker runs under any interpreter that has torch, and the
pytest process must not need torch to read these.  Every quantity carries its unit in
its name; sizes are bytes, times are seconds, rates are per second.
"""

from __future__ import annotations

import datetime as dt
import difflib
import enum
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar


class UserError(RuntimeError):
    """An error that the user can fix; says what is wrong, with which value, and the remedy."""


def unknown(kind: str, value: object, known: Sequence[str]) -> str:
    """Return the message for an unknown value, with the nearest known values, or else all."""
    near = difflib.get_close_matches(str(value), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(known)}"
    return f"unknown {kind} {value!r}; {hint}"


class MachineWarning(RuntimeWarning):
    """Something on this machine cannot be read or monitored; never more than a warning."""


SCHEMA = 1
"""Version of all files; docs/architecture.md lists what each version changed."""

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
"""``int8`` and ``fp8`` apply to linear layers: ``fp8`` has a scale for each tensor, ``fp8-rows``
one for each row.
``tf32-conv`` is torch's default FP32 on NVIDIA: TF32 in convolutions.
``fp16-bn32`` keeps batch norms in FP32, as scripts that convert a network by hand do."""
QUANTIZED = ("int8", "fp8", "fp8-rows")
"""Precisions for inference: linear layers compute with one-byte values, all else in bf16."""
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
"""Tasks of language models: process whole prompts, or generate one more token a sequence."""
MEMORY_FORMATS = ("nchw", "nhwc")
TIERS = ("smoke", "gate", "nightly")

Param = str | int | float | bool


@dataclass(frozen=True)
class Sampling:
    """How long one process measures one case."""

    warmup_s: float = 0.5
    """Minimum warm-up; GPU clocks need 0.4 s or more to ramp (ROCm/composable_kernel#1241)."""
    warmup_early_s: float | None = None
    """Shorter minimum warm-up if all blocks of steps agree within 0.5% for that long; None for
    no exception."""
    warmup_max_s: float = 5.0
    """After this, the case is measured anyway, with a warning that it was not steady."""
    warmup_steps: int = 0
    """Minimum number of untimed steps before measuring, however long they take."""
    iterations: int = 10
    """Minimum number of measured iterations."""
    max_iterations: int = 200
    """Maximum number of measured iterations."""
    measure_s: float = 0.25
    """Iterations are added until they are expected to fill this time."""
    checks: bool = True
    """Whether to compare the answer with FP32 eager's afterwards, and to count FLOPs."""


@dataclass(frozen=True)
class Bursts:
    """How long a device works at its full clock after a rest, before its power cap lowers it."""

    burst_s: float
    rest_s: float
    always: bool = False
    """Whether to measure in bursts even if the case is not power-bound, as the baseline was."""


@dataclass(frozen=True)
class Calibration:
    """How a device behaves after rests."""

    bursts: Bursts | None
    """None if it never slows down, or slows down at once."""
    spread: float
    """Largest difference between two readings of its full clock, as a fraction."""


@dataclass(frozen=True)
class Limits:
    """How large a difference has to be to matter; fractions unless named otherwise."""

    tolerance: float = 0.01
    """Median latency: a slowdown above this is worth an engineer's time."""
    throughput: float = 0.05
    """Wall-clock throughput, which single stalls affect; they do not affect the median."""
    memory: float = 0.01
    """Peak memory, on top of an allowance of 4 MiB for allocator rounding."""
    compile_time: float = 0.5
    """Compile time, on top of an allowance of 5 s."""
    spread: float = 0.10
    """Coefficient of variation within a process; 0.10 is the maximum for any case."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Tolerances of other metrics by name; a metric named here is judged."""


@dataclass(frozen=True)
class Launch:
    """How a case is started: as one process, or as several ranks by a launcher."""

    ranks: int = 1
    cold: bool = False
    """Whether it gets a process of its own, with empty compiler and MIOpen caches."""
    strong: bool = False
    """Strong scaling: whether ``batch_size`` is the global one, divided among the ranks."""
    threads: int = 0
    """CPU threads of each rank; 0 for torch's default."""


@dataclass(frozen=True)
class Case:
    """One thing to measure, fully named."""

    id: str
    """Stable, readable, safe as a file name: ``resnet50-b64-fp16-max-autotune-infer``."""
    workload: str
    """A built-in name such as ``network``, or ``package.module:factory``."""
    params: dict[str, Param] = field(default_factory=dict)
    tier: str = "smoke"
    launch: Launch = field(default_factory=Launch)
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    time_limit_s: float = 300.0
    """From request to answer; after it, the process is ended and the case is ERROR."""


def problem_of(case: object) -> str | None:
    """Return why an object cannot be measured and stored as a case; None if it can."""
    if not isinstance(case, Case):
        return f"{case!r} is not a Case; make one with bench_lib.Case(id, workload, params)"
    if not (is_case_id(case.id) and _is_plain(case.id)):
        return f"the case's id is {case.id!r}; it must be {ID_RULE}"
    params: object = case.params
    if not isinstance(params, dict):
        return f"params of {case.id} is {params!r}; it must be a dictionary"
    for name, value in params.items():
        if not _is_text(name):
            return f"params of {case.id}: the name {name!r} must be text"
        if not is_param(value):
            return f"params of {case.id}: {name} is {value!r}; it must be {PARAM_RULE}"
    workload: object = case.workload
    if not _is_text(workload):
        return f"the workload of {case.id} is {workload!r}; it must be text, package.module:name"
    if not _is_text(case.tier):
        return f"tier of {case.id} is {case.tier!r}; it must be text"
    if not _is_amount(case.time_limit_s):
        return f"time_limit_s of {case.id} is {case.time_limit_s!r}; it must be a number"
    for group, kind in (("launch", Launch), ("sampling", Sampling), ("limits", Limits)):
        fields: object = getattr(case, group)
        if not isinstance(fields, kind):
            return f"{group} of {case.id} is {fields!r}; make one with bench_lib.{kind.__name__}()"
        for name, usual in vars(kind()).items():
            value = getattr(fields, name)
            if (rule := _broken_rule(value, usual)) is not None:
                return f"{group} of {case.id}: {name} is {value!r}; it must be {rule}"
    problem = too_tolerant(case.limits)
    return None if problem is None else f"limits of {case.id}: {problem}"


def _broken_rule(value: object, usual: object) -> str | None:
    """Return what a field with the default ``usual`` has to be; None if the value is valid."""
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
    """Whether a value is of a plain type; numpy's floats, for example, are not."""
    return type(value) in (str, bool, int, float) or isinstance(value, enum.Enum)


def too_tolerant(limits: Limits) -> str | None:
    """Return the complaint about a tolerance of 100% or more; None if it is below that."""
    if limits.tolerance < 1:
        return None
    return f"tolerance is {limits.tolerance:g}, which is {limits.tolerance:.0%}; write 1% as 0.01"


ID_RULE = "letters, digits, dots, dashes and underscores"
PARAM_RULE = "text, a finite number, true or false"


def is_case_id(value: object) -> bool:
    """Whether a value can name a case in files and on command lines."""
    return isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value))


def is_param(value: object) -> bool:
    """Whether a value can be sent to a worker and stored in a file."""
    if not _is_plain(value):
        return False
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return isinstance(value, (str, bool)) or (isinstance(value, float) and math.isfinite(value))


@dataclass(frozen=True)
class Hardware:
    """A device as the operating system and drivers describe it, without torch."""

    vendor: str
    """Its backend's name: ``amd``, ``nvidia``, ``cpu`` or that of an installed package."""
    name: str
    key: str
    """Name of the baseline file, made of ids rather than the marketing name."""
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
    """Dense peak by precision; unknown ones are missing."""
    peak_gb_per_s: float | None = None


@dataclass(frozen=True)
class Device:
    """A device as a new process sees it through torch."""

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
    """Everything besides the hardware that may affect speed."""

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
    """Options of the kernel's command line that may affect speed; None if unknown."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions of ROCm's installed libraries; a torch wheel brings its own."""
    variables: dict[str, str] = field(default_factory=dict)
    caches: dict[str, str] = field(default_factory=dict)
    """State before the run: ``cold`` or ``warm, 41 entries``, and a hash of kernel choices."""


@dataclass(frozen=True)
class Numerics:
    """The case's answer compared with FP32 eager's on the same weights and input."""

    finite: bool
    max_abs_diff: float | None = None
    """Inference: largest absolute difference of any output element, in its own unit."""
    cosine: float | None = None
    """Inference: cosine of the flattened outputs."""
    reference_batch: int | None = None
    """Batch size of the reference; smaller than the case's if memory was short."""
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
    """One rank's times; the measurement itself holds the slowest rank's time of each step."""

    rank: int
    local_rank: int
    device_uuid: str | None
    iteration_s: list[float]
    peak_memory_bytes: int | None
    pid: int | None = None
    own_s: list[float] = field(default_factory=list)
    """Time of each pass through a step's parts, without those that wait for other ranks."""


@dataclass(frozen=True)
class Training:
    """Results of a measured training; with several ranks, their means."""

    data: str
    """The training data: ``generated``, or the data set's files."""
    samples: int
    """Per epoch, over all ranks."""
    steps_per_epoch: int
    losses: list[float]
    """By step; by epoch if there are more steps than ``MOST_STEPS_TOLD``."""
    accuracies: list[float]
    """Training accuracy, 0 to 1, by step or epoch like ``losses``."""
    test_accuracy: float | None = None
    """Accuracy on held-out samples after the training."""
    test_samples: int | None = None


MOST_STEPS_TOLD = 1000
IN_BURSTS = "bursts"
"""The state of values that were measured below the power cap."""


@dataclass(frozen=True)
class Choice:
    """The configuration of one compiled kernel."""

    source: str
    """Hash of the kernel's sizes and its source without its name, as in torch's own lookup."""
    config: dict[str, int | str]
    """Tile sizes, warps and stages, by name."""
    template: bool = False
    """Whether the source fixes the tiles, as for a GEMM; no lookup chooses these."""
    resources: dict[str, int] = field(default_factory=dict, compare=False)
    """What the compiled kernel uses, if known: ``registers`` and ``spills`` per thread, ``shared``
    bytes per block (LDS)."""


@dataclass(frozen=True)
class Choices:
    """The autotuning choices for a case; they may differ with other caches."""

    kernels: dict[str, Choice]
    """By kernel name, sorted."""
    unknown: str = ""
    """Why the choices are unknown; then there are no kernels."""

    @property
    def by_source(self) -> dict[str, Choice]:
        """The choices by source; a kernel's name depends on its graph."""
        return {choice.source: choice for choice in self.kernels.values()}

    def chooses_as(self, other: Choices) -> bool:
        """Whether both have the same kernels with the same choices."""
        return self is other or self.by_source == other.by_source

    @property
    def table(self) -> dict[str, dict[str, int | str]]:
        """The configurations that reproduce these choices, by source.

        torch's lookup supports blocks, warps and stages; it would drop other settings.
        """
        return {
            choice.source: choice.config
            for choice in self.kernels.values()
            if not choice.template
            and all("BLOCK" in name or name.startswith("num_") for name in choice.config)
        }


NOTHING_CHOSEN = ("the compiler is not Inductor", "no kernel is Triton's")
"""Values of ``Choices.unknown`` if there was nothing to choose."""


NUMERICS, COUNTS = "numerics", "counts"
"""Results that are computed once for a case: its ``Numerics`` and ``StepCounts``."""


@dataclass(frozen=True)
class StepCounts:
    """Figures that depend on a step's arithmetic alone; fields as in ``Measurement``."""

    flops_per_step: float | None = None
    traffic_bytes_per_step: float | None = None
    reduced_flops_share: float | None = None


@dataclass(frozen=True)
class Measurement:
    """The results of one process for one case."""

    case_id: str
    context_id: str
    device_uuid: str | None
    iteration_s: list[float]
    """Device time of each measured step, in order; for a power-bound case, of the bursts' steps."""
    window_s: tuple[float, float]
    """Begin and end of the sustained measurement on the machine's monotonic clock."""
    wall_s: float
    """Its wall-clock time, synchronized at both ends; for bursts, the sum of their steps."""
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
    """Median device time of a step without host delays, for cases that are or may be host-bound."""
    device_source: str | None = None
    """How ``device_s`` was measured: a replayed ``graph``, or the sum of profiled ``kernels``."""
    sustained_s: float | None = None
    """Median device time of a step under the power cap; for power-bound cases only."""
    burst_window_s: tuple[float, float] | None = None
    """Begin and end of the bursts, as ``window_s``; for power-bound cases only."""
    compile_s: float | None = None
    """First call of the compiled step minus a steady step; None for eager."""
    compile_cache: str | None = None
    """``cold``, ``warm`` or ``mixed`` by the compiler's cache counters; None if unknown."""
    draw: Choices | None = None
    """The compiler's choices; None for eager."""
    peak_memory_bytes: int | None = None
    """Peak of the allocator while measuring, minus what it held before."""
    parameters: int | None = None
    flops_per_step: float | None = None
    """Two per multiply-accumulate, counted by torch.utils.flop_counter on an eager copy."""
    least_bytes_per_step: int | None = None
    """Unavoidable traffic: each weight and input read once, each output written once."""
    traffic_bytes_per_step: float | None = None
    """Bytes that the eager copy's operations read and write; fusion avoids some of them."""
    reduced_flops_share: float | None = None
    """Share of the FLOPs, 0 to 1, in a mixed precision's reduced arithmetic: TF32 for
    ``tf32-conv``, INT8 for ``int8``, FP8 for ``fp8`` and ``fp8-rows``; otherwise None."""
    numerics: Numerics | None = None
    per_rank: list[RankSample] = field(default_factory=list)
    portions_s: dict[str, float] = field(default_factory=dict)
    """Median time of each part of a step, synchronized after each, in order: ``load``,
    ``forward``, ``backward``, ``optimizer``."""
    own_s: list[float] = field(default_factory=list)
    """With several ranks, this rank's times as in ``RankSample``; empty if every part may wait
    for other ranks."""
    training: Training | None = None
    peak_host_bytes: int | None = None
    """Peak memory of the process and its children since the case began; shared pages count for
    each process."""
    cpu_s: float | None = None
    """CPU time of the same processes while measuring."""
    waited_s: float | None = None
    """How long a thread was ready to run but had no CPU while measuring: the maximum over the
    process's threads, and over all ranks."""
    exact: dict[str, int] = field(default_factory=dict)
    """Counts of a step that neither chance nor the clock affects, if known: ``kernels`` (including
    copies and fills) of a recorded step, ``graph_breaks`` and ``recompilations``."""
    documents: list[str] = field(default_factory=list)
    """A program's reports, one a step; the engine reads times from them and discards them."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """The worker's seconds by phase; empty once the attempt has them."""
    warnings: list[str] = field(default_factory=list)
    code: dict[str, str] = field(default_factory=dict)
    """In another environment than our own: the file of each module or package of the user's that it
    had imported by then, except for installed ones."""
    arithmetic: dict[str, float] = field(default_factory=dict)
    """Relative errors against FP64 of a product (``gemm``) and a convolution (``conv``) in the
    case's precision; only on a run's first case of each precision."""

    @property
    def counts(self) -> StepCounts:
        """The figures that depend on the step's arithmetic alone."""
        traffic, share = self.traffic_bytes_per_step, self.reduced_flops_share
        return StepCounts(self.flops_per_step, traffic, share)

    @property
    def state(self) -> str | None:
        """How the iterations were measured: in ``bursts``, or None for sustained work."""
        return None if self.sustained_s is None else IN_BURSTS


@dataclass(frozen=True)
class Kernel:
    """A kernel, copy or fill in a step: how often it runs, and for how long."""

    name: str
    calls: float
    total_s: float
    resources: dict[str, int] = field(default_factory=dict)
    """What it uses, if the profiler reports it: ``registers`` and bytes of ``scratch`` per thread,
    and bytes of ``shared`` memory (LDS) per block."""


class KernelCall(NamedTuple):
    """One kernel, copy or fill on the device; times are since the process's first call began."""

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
    """How many steps were averaged."""
    kernels: list[Kernel]
    """Longest first; the last entry combines the short ones."""
    busy_s: float | None = None
    """How long at least one kernel ran; less than the sum if kernels ran concurrently."""


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
        """Kind, phase and message, which may have several lines."""
        return f"{self.kind} in {self.phase}: {self.message}"


@dataclass(frozen=True)
class Telemetry:
    """Readings of the device while measuring, taken by another process than the worker."""

    source: str
    samples: int
    utilization: float | None = None
    """Mean, 0 to 1."""
    clock_mhz: float | None = None
    """Median compute clock; with several dies, the slowest one's."""
    clock_max_mhz: float | None = None
    power_w: float | None = None
    """Mean."""
    temperature_c: float | None = None
    """Highest."""
    steal: float | None = None
    """Share of CPU time, 0 to 1, that a hypervisor gave to others, without the worst reading."""
    throttle: list[str] = field(default_factory=list)
    """Reasons why the device was throttled at any time."""
    throttled: dict[str, float] = field(default_factory=dict)
    """Share of the measured time, 0 to 1, by reason; unknown reasons are left out."""
    foreign_processes: list[int] = field(default_factory=list)
    """Processes of others that had the device open."""
    idle_processes: list[int] = field(default_factory=list)
    """Those of them that certainly ran nothing on it meanwhile."""
    foreign_names: dict[str, str] = field(default_factory=dict)
    """Their descriptions by pid, if known: ``python3, 512 MiB``."""


@dataclass(frozen=True)
class Attempt:
    """One try at one case: a measurement, or the reason why there is none."""

    case_id: str
    process: int
    """Number of the process within the run, from 0."""
    time: str
    """UTC, ISO 8601."""
    hardware_key: str
    device_uuid: str | None
    environment: str
    """Key in the run's environments."""
    measurement: Measurement | None = None
    fault: Fault | None = None
    skipped: str | None = None
    telemetry: Telemetry | None = None
    """With several ranks, that of the first rank's device."""
    accepted: bool = False
    discarded: str | None = None
    invalid: bool = False
    """Whether it was discarded because of the hardware, so it says nothing about the software."""
    confirms: bool = False
    """Whether this is a re-run that checks whether a change is real."""
    replays: bool = False
    """Whether 0.2.0 measured it additionally with the baseline's autotuning choices."""
    took_s: float = 0.0
    telemetry_of_ranks: dict[str, Telemetry] = field(default_factory=dict)
    """Telemetry of the other ranks' devices, by rank and device: ``rank 3 on GPU 3 at
    0000:c3:00.0``."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, in order: ``fork``, ``build``, ``compile`` and so on.  The rest is
    ``other``."""


class Status(str, enum.Enum):
    """A case's result, worst first; docs/baselines.md gives the exit status of each."""

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
    """A fact that decides or explains a verdict; ``findings`` has the kinds."""

    kind: str


_Found = TypeVar("_Found", bound=Finding)


@dataclass(frozen=True)
class Verdict:
    """One metric of one case against its baseline."""

    status: Status
    metric: str
    reason: str = ""
    """A sentence; for judged metrics, ``reasons`` writes it from the findings."""
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
    """Minimum detectable slowdown: found nine times in ten, as a fraction."""
    against: str = "pinned"
    """The baseline: ``pinned`` (accepted by a person), ``rolling`` (the nights that passed against
    that), ``reference`` (the accepted environment, interleaved with this run), ``a`` (the
    other side of ``ab``) or ``published`` (a figure shown for information)."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def more_s(self) -> float | None:
        """How much longer a step takes than the baseline's, in seconds; None if not a time."""
        if self.unit != "s" or self.value is None or self.baseline is None:
            return None
        return self.value - self.baseline

    def found(self, kind: type[_Found]) -> _Found | None:
        """Return the first finding of a kind, if there is one."""
        return next((finding for finding in self.findings if isinstance(finding, kind)), None)

    def finding(self, *findings: Finding) -> Verdict:
        """Return the verdict with further findings."""
        return replace(self, findings=[*self.findings, *findings])


@dataclass(frozen=True)
class SlowDown:
    """A slowdown that only several nights together show; each is reported as new once."""

    since: str
    """When the first slower night began: UTC, ISO 8601."""
    run: str
    """Id of the first slower night's run."""
    cases: list[str]
    """Ids, largest slowdown first."""
    ratio: float
    """New level over old level, averaged over the cases."""
    interval: tuple[float, float]
    """95% confidence interval of the ratio."""
    nights: int
    """How many nights at the new level it took to detect it."""
    told_by: str
    """The first run that reported it."""
    changes: list[str] = field(default_factory=list)
    """Descriptions of the environment's changes at the first slower night."""


class Origin(NamedTuple):
    """The run and the device of a process; each is empty if unknown."""

    run: str = ""
    device: str = ""


@dataclass(frozen=True)
class ProcessSummary:
    """One process of a case, summarized for judging and for review in a baseline file."""

    values: dict[str, float]
    """Values by the metric's name, in the metric's unit."""
    n: int
    """Measured iterations."""
    environment: str
    time: str
    states: dict[str, str] = field(default_factory=dict)
    """By metric, the state in which it was measured, such as ``cold`` caches or a replayed
    ``graph``; values of different states are not compared."""
    device_uuid: str | None = None
    host_bound: bool = False
    clock_mhz: float | None = None
    clock_source: str | None = None
    """The source of the clock and the power; different sources may mean different clocks."""
    power_w: float | None = None
    worker: str = ""
    """Id of the process; results of cases in the same process are not independent.  Begins with
    the run's id and a slash, if the run is known."""
    draw: Choices | None = None
    """As in ``Measurement``."""

    @property
    def run(self) -> str:
        """The run's id; empty if unknown."""
        return self.worker.rpartition("/")[0]

    @cached_property
    def origin(self) -> Origin:
        """Where it ran; without NVML's prefix of the device's UUID, which torch does not use."""
        return Origin(self.run, (self.device_uuid or "").removeprefix("GPU-"))

    @property
    def log_median(self) -> float:
        """Natural logarithm of the median iteration time in seconds."""
        return math.log(self.values["latency"])

    @property
    def in_bursts(self) -> bool:
        """Whether the latency was measured in bursts, below the power cap."""
        return self.states.get("latency") == IN_BURSTS


@dataclass(frozen=True)
class Accepted:
    """Who accepted these values as a baseline, and why."""

    run_id: str
    reason: str
    date: str
    by: str | None = None
    in_spite_of: str | None = None
    """Objections that ``--force`` overruled."""


@dataclass(frozen=True)
class Quarantine:
    """A known failure that is reported without failing the run, up to and including a day."""

    reason: str
    until: dt.date
    """In UTC."""
    date: str
    by: str | None = None


@dataclass(frozen=True)
class Published:
    """A published figure for a case on this hardware, for information only."""

    rate: float
    """Items a second over all ranks; the middle of a published range."""
    source: str
    caveat: str
    """Why a run on this machine may not reach it."""
    item: str = "img"
    low: float | None = None
    """Lower end of a published range, in the unit of ``rate``."""
    high: float | None = None
    """Upper end, in the same unit."""


@dataclass(frozen=True)
class Baseline:
    """The accepted distribution of one case on one hardware."""

    case_id: str
    processes: list[ProcessSummary]
    accepted: Accepted
    limits: Limits = field(default_factory=Limits)
    provenance: str = "measured"
    conditions: dict[str, Any] = field(default_factory=dict)
    """Conditions that have to be equal for a valid comparison: power cap, partition, ranks."""
    published: Published | None = None
    """The figure, if the provenance is ``published``; then there are no processes."""
    kernels: KernelTable | None = None
    """The device's kernels in a step, if it was profiled."""
    began: dict[str, float] = field(default_factory=dict)
    """By metric, in its unit, the value from which consecutively accepted slowdowns add up."""


@dataclass(frozen=True)
class Record:
    """Everything that a run recorded about a case."""

    case: Case
    nodeid: str | None = None
    attempts: list[Attempt] = field(default_factory=list)
    status: Status | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    """What differs from the environment of the reference or, without one, of the baseline."""
    quarantine: Quarantine | None = None
    baseline_accepted: str | None = None
    """When the baseline was accepted; None without a baseline."""
    kernels: KernelTable | None = None
    """The device's kernels in a step, if it was profiled."""
    blamed: list[str] = field(default_factory=list)
    """The kernels that made it slower, as ``profiling.kernels.blamed`` returns them."""

    @property
    def measurements(self) -> list[Measurement]:
        """The accepted measurements, in order."""
        return [a.measurement for a in self.attempts if a.accepted and a.measurement]

    @property
    def is_of_sides(self) -> bool:
        """Whether it was judged only against another side, as by ``ab``, not against a baseline."""
        return any(verdict.against == "a" for verdict in self.verdicts) or (
            bool(self.verdicts) and all(v.against == "reference" for v in self.verdicts)
        )
