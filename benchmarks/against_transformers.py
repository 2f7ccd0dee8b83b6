"""Our prefill and decode against transformers', of one shape, in turns on one GPU.

    python benchmarks/against_transformers.py [--rounds 2] [--tier gate] [-- PYTEST OPTIONS]

A round is one run of the suite over language.toml, in which each case has a process of its own,
and then one process of transformers for each of its rows.  Both sides have random weights of
Llama-3.1-8B's shape in bf16.  Transformers' time between tokens is what ``generate`` takes for 33
tokens beyond what it takes for one, divided by 32; its prefill computes the logits of the last
position.  ``--tier smoke`` is a tiny shape, for a machine without a GPU.

Prints a line of JSON for each row of each round, and one with our cases' medians over the rounds,
their spread, and their share of the peaks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench_lib.storage import history

HERE = Path(__file__).resolve().parent
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


def ours(tier: str, folder: Path, options: Iterable[str]) -> None:
    """Run the suite over language.toml; its history is in ``folder``."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "perf_tests", "--perf-tier", tier, "-q"),
            *("--perf-matrix", str(MATRIX), "--perf-history", str(folder)),
            *("-p", "no:cacheprovider", "--perf-kernels", "none", *options),
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
                "verdicts": {verdict.metric: verdict.value for verdict in record.verdicts},
                "phases_s": last.phases_s,
                "warnings": last.measurement.warnings if last.measurement else None,
            }
    return found


def theirs(tier: str, task: str, batch: int, length: int, *, static: bool) -> dict[str, Any]:
    """Measure one row of transformers, in this process."""
    import torch  # noqa: PLC0415 - only a row's process needs them
    import transformers  # noqa: PLC0415

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    begin = time.monotonic()
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
                built_s = time.monotonic() - begin
            seconds = [
                (took_s(lambda: generate(TOKENS)) - took_s(lambda: generate(1))) / (TOKENS - 1)
                for _ in range(REPEATS)
            ]
    return {
        "transformers": transformers.__version__,
        "ms": statistics.median(seconds) * 1e3,
        "all_ms": [each * 1e3 for each in seconds],
        "ready_s": built_s if task == "decode" else time.monotonic() - begin,
    }


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tier", choices=sorted(ROWS), default="gate")
    parser.add_argument("--keep", type=Path, help="folder for the runs' histories")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    if arguments.row is not None:
        task, batch, length, static = ROWS[arguments.tier][arguments.row]
        print(json.dumps(theirs(arguments.tier, task, batch, length, static=static)))
        return
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(arguments.rounds):
            folder = (arguments.keep or Path(scratch)) / f"round-{number}"
            ours(arguments.tier, folder, options)
            for case_id, found in measured(folder).items():
                print(json.dumps({"round": number, "ours": case_id, **found}), flush=True)
                if found["ms"] is not None:
                    times.setdefault(case_id, []).append(found["ms"])
            for row, about in enumerate(ROWS[arguments.tier]):
                command = [sys.executable, __file__, "--tier", arguments.tier, "--row", str(row)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                told = done.stdout.strip().rpartition("\n")[2] if done.returncode == 0 else "{}"
                failed = {} if done.returncode == 0 else {"failed": done.stderr[-1500:]}
                print(
                    json.dumps({"round": number, "theirs": about, **json.loads(told), **failed}),
                    flush=True,
                )
    summary = {
        case_id: {"ms": statistics.median(each), "spread": max(each) / min(each) - 1}
        for case_id, each in times.items()
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
