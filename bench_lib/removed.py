"""What earlier versions had, and what to use instead.

Nothing here runs unless somebody uses an old name.  A row may go two minor versions later.
"""

from __future__ import annotations

from collections.abc import Sequence

COMMANDS: dict[str, str] = {
    "baseline diff": "bench-lib baseline accept --dry-run",
    "exercise sheet": "each exercise prints its own table",
    "upgrade": "use bench-lib ab --markdown; docs/rocm-upgrade.md has the steps",
    "history compact": "nothing is to be done: a run's file is compressed when it has ended",
    "history fsck": "bench-lib history list names every file that it cannot read",
    "history import": "bench-lib judge reads other tools' files (docs/engines.md)",
    "history pull": "aws s3 sync s3://BUCKET/RUNS history (docs/history.md)",
    "history push": "aws s3 sync history s3://BUCKET/RUNS (docs/history.md)",
    "history restore": "docs/history.md has the lines that unpack a compacted month",
    "submit": "sbatch and the batch script of docs/slurm.md",
    "incident": "bench-lib report groups failures by cause; acknowledge in your issue tracker",
}
"""Commands by what was typed after ``bench-lib``."""

_COMMENT = "--markdown FILE and a workflow step that comments (docs/ci.md)"
_POST = "--json and a workflow step that posts (docs/ci.md)"
_IMAGES = "compare two images with --prefix-a and --prefix-b of bench-lib ab"
_FETCH = "python -c \"import torchvision.datasets as d; d.CIFAR100('DIR', download=True)\""
_ADD = "declare the case in the matrix; pytest judges it (docs/adding-a-case.md)"
_JUDGING = ("--judge", "--baselines", "--matrix", "--reference")
OPTIONS: dict[tuple[str, str], str] = {
    **{
        (command, option): _ADD
        for command in ("collectives", "exercise", "ops", "scaling", "train")
        for option in _JUDGING
    },
    ("history query", "--limit"): "--csv prints all rows; SQL has LIMIT",
    ("adopt", "--output"): "its cases are in perf_tests; move them by hand",
    ("baseline quarantine", "--history"): "leave it out: any case can be in quarantine",
    ("baseline show", "--case"): "--json, and any reader of JSON",
    ("exercise", "--image-size"): "image_size in the matrix",
    ("exercise", "--memory-format"): "memory_format in the matrix",
    ("train", "--memory-format"): "memory_format in the matrix",
    ("train", "--mode"): "compile_mode in the matrix",
    ("train", "--torch-profile"): "bench-lib profile CASE, by the case's id",
    ("exercise", "--compile-options"): "compile_options in the matrix",
    ("exercise", "--price-per-hour"): "divide the price by the throughput",
    ("exercise", "--resolution"): "the largest batch is known to 1%",
    ("compare", "--case"): "compare judges all cases; --json has a row for each",
    ("exercise depth", "--networks"): "bench-lib exercise depth NETWORK,NETWORK",
    ("history export", "--csv"): "--format csv",
    ("history query", "--schema"): "docs/history.md has the tables",
    ("history export", "--github-action-benchmark"): (
        "--format pytest-benchmark, which github-action-benchmark reads with tool: pytest"
    ),
    ("history export", "--parquet"): "--format csv, or DuckDB's COPY from that (docs/history.md)",
    ("history export", "--pytest-benchmark"): "--format pytest-benchmark",
    ("history export", "--table"): "bench-lib history query --csv 'SELECT * FROM verdicts'",
    ("profile", "--counters"): (
        "rocprof-compute profile -- $(bench-lib profile CASE --tool ranges) (docs/profiling.md)"
    ),
    ("ops", "--pinned"): "pinned = true in the matrix",
    ("ops", "--scaling"): "scaling in the matrix",
    ("ops", "--stride"): "stride in the matrix",
    ("pytest", "--perf-any-clock"): "remove the baseline of the higher clock, and record it anew",
    ("pytest", "--perf-budget"): "-o perf_budget=SECONDS",
    ("pytest", "--perf-cold"): "cold = true in the matrix",
    ("pytest", "--perf-confirm"): "-o perf_confirm=N",
    (
        "pytest",
        "--perf-cool",
    ): "what the hardware spoilt is measured again, without a wait",
    ("pytest", "--perf-kernels"): "-o perf_kernels=all, none or auto",
    ("pytest", "--perf-launcher"): "-o perf_launcher=WORDS, or BENCH_LIB_LAUNCHER",
    ("pytest", "--perf-lock-wait"): "-o perf_lock_wait=SECONDS",
    ("pytest", "--perf-over-nights"): "-o perf_over_nights=tell, fail or off",
    ("pytest", "--perf-tune"): "MIOPEN_FIND_ENFORCE=3 pytest ..., once",
    ("profile", "--stacks"): "py-spy record --format flamegraph, or torch.profiler with with_stack",
    ("profile", "--baselines"): "bench-lib compare baseline RUN names the kernels that changed",
    ("report", "--comment"): _COMMENT,
    ("report", "--on-change"): _COMMENT,
    ("report", "--notify"): _POST,
    ("report", "--notify-as"): _POST,
    ("scaling", "--both"): "one call with --strong, one with --weak",
    ("scaling", "--plot"): "--json, and any plotting tool (docs/scaling.md)",
    ("scaling", "--batch-sizes"): "one --batch-size a call",
    ("scaling", "--losses"): "bench-lib profile shows a rank's kernels",
    ("scaling", "--networks"): "one --network a call",
    ("ab", "--bisect"): "bench-lib bisect (docs/bisect.md)",
    ("ab", "--folder-a"): "--env-a PYTHONPATH=DIR",
    ("ab", "--folder-b"): "--env-b PYTHONPATH=DIR",
    ("bisect", "--env"): "set the variable for bench-lib itself: NAME=VALUE bench-lib bisect ...",
    ("bisect", "--fresh"): "delete the folder in HISTORY/bisections that the command names",
    ("bisect", "--image"): _IMAGES,
    ("bisect", "--keep-candidates"): "a search that did not end keeps what it made",
    ("bisect", "--most-pairs"): "the same command goes on where a search gave up",
    ("bisect", "--pip"): "set pip's variables: PIP_INDEX_URL, PIP_FIND_LINKS, PIP_NO_INDEX",
    ("bisect", "--prefix"): _IMAGES,
    ("bisect", "--python"): "--build makes .venv in the worktree, or start bench-lib with it",
    ("bisect", "--wheels"): "set pip's variables: PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR",
    ("selfcheck", "--candidates"): "four are judged against five others at a time",
    ("selfcheck", "--components"): "nothing replaces it; each verdict names what it would detect",
    ("selfcheck", "--contexts"): "nothing replaces it; selfcheck says how far processes differ",
    ("selfcheck", "--output"): "nothing replaces it; --json has what is found of each effect",
    ("selfcheck", "--history"): "selfcheck reads no history; leave it out",
    ("collectives", "--both"): "rccl-tests measures both forms; leave it out",
    ("collectives", "--in-place"): "rccl-tests measures both forms; leave it out",
    ("collectives", "--no-graph"): "leave it out; short calls are replayed as a graph",
    ("collectives", "--stepbytes"): "--stepfactor, or one call of the command for each size",
    ("ops", "--no-rotate"): "operands always take turns; leave it out",
    ("ops", "--rotate"): "operands always take turns; leave it out",
    ("train", "--download"): _FETCH,
    ("train", "--download-only"): _FETCH,
    ("train", "--seed"): "the seed is 1337; leave it out",
    ("train", "--strong"): "strong = true in the matrix",
}
"""Options by command and name; pytest's are those of ``pytest``."""


def replacement(words: Sequence[str]) -> str | None:
    """Return what to use instead of a command line of an earlier version; None if it is not one.

    ``words`` follow ``bench-lib``.
    """
    for command in (" ".join(words[:2]), " ".join(words[:1])):
        if command in COMMANDS:
            return f"bench-lib {command} was removed in 0.3: {COMMANDS[command]}"
        for word in words:
            name = word.partition("=")[0]
            if (command, name) in OPTIONS:
                return f"{name} was removed in 0.3: {OPTIONS[command, name]}"
    return None
