"""Our figures beside those of other tools: the same work, in turns, on one GPU.

    python benchmarks/peers.py rocm FOLDER [--rounds 3] [--only NAME ...]
    python benchmarks/peers.py transformers [--rounds 2] [--tier gate] [--keep FOLDER]

``rocm`` compares ``bench-lib micro`` with micro_benchmarking_pytorch.py in FOLDER, a checkout of
github.com/ROCm/pytorch-micro-benchmarking.  Every run is a process of its own, forked from one that
has imported torch and opened no device.  It prints a line of JSON for each setting: each side's
images per second in every round, the median of the rounds' ratios (ours over theirs), and the
ratio's 95% interval by Student's t on the logarithms.

``transformers`` compares our prefill and decode with those of Hugging Face's transformers, at the
shape of Llama-3.1-8B with random weights in bf16.  A round is one run of the suite over
language.toml, and then one process of transformers for each row.  Transformers' time between
tokens is what ``generate`` takes for 33 tokens beyond what it takes for one, divided by 32; its
prefill computes the logits of the last position.  ``--tier smoke`` is a tiny shape, for a machine
without a GPU.  It prints a line of JSON for each row of each round, and one with our medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scipy.special import stdtrit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_lib.storage import history

HERE = Path(__file__).resolve().parent

# --- ROCm's micro benchmark ------------------------------------------------------------------

SETTINGS = {
    "train-fp32": "--network resnet50",
    "train-fp16": "--network resnet50 --fp16 1",
    "infer-fp32": "--network resnet50 --mode inference",
    "infer-fp16": "--network resnet50 --fp16 1 --mode inference",
    "train-fp16-nhwc": "--network resnet50 --batch-size 256 --fp16 1 --nhwc",
    "infer-fp16-nhwc": "--network resnet50 --fp16 1 --nhwc --mode inference",
    "densenet-train-fp16": "--network densenet121 --batch-size 256 --fp16 1",
    "train-amp": "--network resnet50 --amp",
    "infer-fp16-compiled": "--network resnet50 --fp16 1 --mode inference --compile",
    "train-fp16-compiled": "--network resnet50 --batch-size 256 --fp16 1 --compile",
    "best-fp16": (
        "--network resnet50 --fp16 1 --nhwc --mode inference "
        "--compile --compileContext {'mode':'reduce-overhead'}"
    ),
}
RATE = re.compile(r"^Throughput \[img/sec\] : ([0-9.e+]+)$", re.MULTILINE)


def forked(work: Callable[[], object]) -> str:
    """Return what a process of its own prints while it does the work."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            with log.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.chdir(folder)
            status = 1
            with contextlib.suppress(SystemExit):
                try:
                    work()
                    status = 0
                except Exception as error:  # noqa: BLE001 - told, and the others go on
                    print(repr(error))
            sys.stdout.flush()
            os._exit(status)
        os.waitpid(child, 0)
        return log.read_text(errors="replace")


def run_rocm(folder: Path, words: list[str]) -> None:
    """Run ROCm's tool."""
    sys.argv = ["micro_benchmarking_pytorch.py", *words, "--output-file", "x"]
    sys.path.insert(0, str(folder))
    runpy.run_path(str(folder / sys.argv[0]), run_name="__main__")


def rate(output: str) -> float | None:
    """Return the images per second that a run printed last."""
    found = RATE.findall(output)
    return float(found[-1]) if found else None


def interval(ratios: list[float]) -> tuple[float, float] | None:
    """Return the ratio's 95% interval; None of fewer than two."""
    if len(ratios) < 2:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    half = float(stdtrit(len(logs) - 1, 0.975)) * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.fmean(logs)
    return math.exp(mean - half), math.exp(mean + half)


def compare(folder: Path, name: str, rounds: int) -> dict[str, object]:
    """Return what both made of a setting."""
    from bench_lib.micro import program  # noqa: PLC0415 - imports torch, before the forks

    words = SETTINGS[name].split()
    rates: dict[str, list[float | None]] = {"theirs": [], "ours": []}
    failed = []
    sides = (
        ("theirs", lambda: run_rocm(folder, words)),
        ("ours", lambda: program.main(words)),
    )
    for _ in range(rounds):
        for side, run in sides:
            output = forked(run)
            seen = rate(output)
            rates[side].append(seen)
            if seen is None:
                failed.append({side: output[-1500:]})
    pairs = zip(rates["ours"], rates["theirs"], strict=True)
    ratios = [a / b for a, b in pairs if a and b]
    return {
        "setting": name,
        "words": words,
        **rates,
        "ratio": statistics.median(ratios) if ratios else None,
        "interval": interval(ratios),
        "failed": failed,
    }


# --- transformers ------------------------------------------------------------------------------

MATRIX = HERE / "language.toml"
REPEATS = 5
"""Measured repetitions of transformers' steps, behind two that are not measured."""
TOKENS = 33
SHAPES = {
    "gate": {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rope_theta": 500_000.0,
    },
    "smoke": {
        "vocab_size": 1024,
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    },
}
"""As transformers' LlamaConfig names them; Llama-3.1-8B's (Grattafiori et al. 2024, table 3)."""
ROWS = {
    "gate": (
        ("prefill", 1, 2048, False),
        ("prefill", 8, 2048, False),
        ("decode", 1, 1024, False),
        ("decode", 1, 1024, True),
        ("decode", 64, 1024, True),
    ),
    "smoke": (("prefill", 2, 16, False), ("decode", 2, 16, False)),
}
"""Task, sequences, tokens of each, and whether the cache is static, which has it compiled."""


def run_suite(tier: str, folder: Path) -> None:
    """Run the suite over language.toml; its history is in ``folder``."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "perf_tests", "--perf-tier", tier, "-q"),
            *("--perf-matrix", str(MATRIX), "--perf-history", str(folder)),
            *("-p", "no:cacheprovider", "-o", "perf_kernels=none"),
        ],
        cwd=HERE.parent,
        check=False,
        stdout=sys.stderr,
    )


def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what a run measured, by case."""
    found: dict[str, dict[str, Any]] = {}
    for path in history.files(folder):
        for case_id, record in history.read(path).records.items():
            last = record.attempts[-1]
            median_s = statistics.median(last.measurement.iteration_s) if last.measurement else None
            found[case_id] = {
                "ms": median_s and median_s * 1e3,
                "status": record.status,
                "why": last.skipped or (last.fault and last.fault.message),
            }
    return found


def run_transformers(
    tier: str, task: str, batch: int, length: int, *, static: bool
) -> dict[str, Any]:
    """Measure one row of transformers, in this process."""
    import torch  # noqa: PLC0415 - only a row's process needs them
    import transformers  # noqa: PLC0415

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with device, torch.no_grad():
        config = transformers.LlamaConfig(**SHAPES[tier])
        model = transformers.LlamaForCausalLM(config).eval()
        prompts = torch.randint(config.vocab_size, (batch, length))
        mask = torch.ones_like(prompts)

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def generate(tokens: int) -> None:
        more = {"cache_implementation": "static"} if static else {}
        model.generate(
            prompts,
            attention_mask=mask,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            **more,
        )

    def took_s(step: Callable[[], object]) -> float:
        finish()
        before = time.perf_counter()
        step()
        finish()
        return time.perf_counter() - before

    with torch.inference_mode():
        if task == "prefill":

            def prefill() -> None:
                model(prompts, attention_mask=mask, logits_to_keep=1, use_cache=True)

            seconds = [took_s(prefill) for _ in range(2 + REPEATS)][2:]
        else:
            for _ in range(2):
                took_s(lambda: generate(TOKENS))
            seconds = [
                (took_s(lambda: generate(TOKENS)) - took_s(lambda: generate(1))) / (TOKENS - 1)
                for _ in range(REPEATS)
            ]
    return {
        "transformers": transformers.__version__,
        "ms": statistics.median(seconds) * 1e3,
        "all_ms": [each * 1e3 for each in seconds],
    }


def compare_transformers(rounds: int, tier: str, keep: Path | None) -> None:
    """Run the rounds, and print a line for each row and a summary."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(rounds):
            folder = (keep or Path(scratch)) / f"round-{number}"
            run_suite(tier, folder)
            for case_id, found in measured(folder).items():
                print(json.dumps({"round": number, "ours": case_id, **found}), flush=True)
                if found["ms"] is not None:
                    times.setdefault(case_id, []).append(found["ms"])
            for row, about in enumerate(ROWS[tier]):
                command = [sys.executable, __file__, "transformers", "--tier", tier]
                command += ["--row", str(row)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                line: dict[str, Any] = {"round": number, "theirs": about}
                if done.returncode == 0:
                    line |= json.loads(done.stdout.strip().rpartition("\n")[2])
                else:
                    line["failed"] = done.stderr[-1500:]
                print(json.dumps(line), flush=True)
    summary = {
        case_id: {"ms": statistics.median(each), "spread": max(each) / min(each) - 1}
        for case_id, each in times.items()
    }
    print(json.dumps(summary))


# --- the command -----------------------------------------------------------------------------


def main() -> None:
    """Compare with one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    peers = parser.add_subparsers(dest="peer", required=True)
    rocm = peers.add_parser("rocm")
    rocm.add_argument("folder", type=Path)
    rocm.add_argument("--rounds", type=int, default=3)
    rocm.add_argument("--only", nargs="*", default=list(SETTINGS), choices=[*SETTINGS])
    language = peers.add_parser("transformers")
    language.add_argument("--rounds", type=int, default=2)
    language.add_argument("--tier", choices=sorted(ROWS), default="gate")
    language.add_argument("--keep", type=Path, help="folder for the runs' histories")
    language.add_argument("--row", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer == "rocm":
        for name in arguments.only:
            line = json.dumps(compare(arguments.folder.resolve(), name, arguments.rounds))
            print(line, flush=True)
    elif arguments.row is not None:
        task, batch, length, static = ROWS[arguments.tier][arguments.row]
        print(json.dumps(run_transformers(arguments.tier, task, batch, length, static=static)))
    else:
        compare_transformers(arguments.rounds, arguments.tier, arguments.keep)


if __name__ == "__main__":
    main()
