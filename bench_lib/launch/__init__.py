"""Starting workers and speaking with them; nothing here imports torch."""

from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError
from bench_lib.launch.ranks import run_ranks
from bench_lib.launch.zygote import Context, Zygote

__all__ = ["CaseFault", "CaseSkipped", "Context", "LaunchError", "Zygote", "run_ranks"]
