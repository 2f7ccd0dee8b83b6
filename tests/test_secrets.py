"""Workers' words are kept and shown to anybody: what looks secret in them is replaced."""

import random
import string

import pytest
from builders import make_fault

from bench_lib.launch import faults
from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError, without_secrets

TOKEN = "".join(random.Random(3).choices(string.ascii_letters + string.digits, k=40))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("https://user:PASS@host/x?token=tr0ub4dor&3", "https://[hidden]@host/x?token=[hidden]&3"),
        ("ssh://git@host", "ssh://[hidden]@host"),
        ("HF_TOKEN=hf_abcdefghijklmnopqrst", "HF_TOKEN=[hidden]"),
        ("{'WANDB_API_KEY': 'correct-horse', 'A': 1}", "{'WANDB_API_KEY': '[hidden]', 'A': 1}"),
        ("Authorization: Bearer abcdefghijkl", "Authorization: Bearer [hidden]"),
        ("it said ghp_abcdefghijklmnopqrst.", "it said [hidden]"),
        (f"a {TOKEN} b", "a [hidden] b"),
        (f"key-{TOKEN}_2", "[hidden]"),
        ("d41d8cd98f00b204e9800998ecf8427e", "[hidden]"),
    ],
)
def test_what_looks_secret_is_hidden(said, shown):
    assert without_secrets(said) == shown


@pytest.mark.parametrize(
    "said",
    [
        "max_tokens=2048, next_token: 17, token_count = 123456789",
        "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN_1LDSB0_APM1_ABV0_ACED0_AF0EM1",
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEE",
        "/tmp/torchinductor_root/5u/c5uqxlmnkgnbvcxyzasdfghjklqwertyuiop.py:12",
        "GPU-5fa7b3c8-4d1e-9b11-1234-abcdefabcdef at 0x00007f3a2c000000",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopyAlignedVectorized",
    ],
)
def test_what_a_crash_is_understood_by_stays(said):
    assert without_secrets(said) == said


def test_values_of_variables_with_secret_names_are_hidden_wherever_they_stand(monkeypatch):
    monkeypatch.setenv("MY_DB_PASSWORD", "correct horse")
    monkeypatch.setenv("SHORT_TOKEN", "on")
    said = "login with 'correct horse' is on"
    hidden = "login with '[MY_DB_PASSWORD]' is on"
    assert str(LaunchError(said)) == str(CaseSkipped(said)) == hidden
    fault = CaseFault(make_fault(message=said, last_output=f"x\n{said}")).fault
    assert (fault.message, fault.last_output) == (hidden, f"x\n{hidden}")


def test_one_cases_words_cannot_fill_the_history(tmp_path):
    (tmp_path / "log").write_bytes(b"x" * 2**24 + b"\nlast\n")
    output = faults.last_output(tmp_path / "log")
    assert output.endswith("…\nlast")
    assert len(output) < 2 * faults.LONGEST_LINE
    fault = CaseFault(make_fault(message="y" * 2**24)).fault
    assert len(fault.message) == faults.LAST_BYTES


def test_an_output_is_read_from_where_the_case_began(tmp_path):
    (tmp_path / "log").write_text("of another case\nof this one\n")
    assert faults.last_output(tmp_path / "log", len("of another case\n")) == "of this one"
