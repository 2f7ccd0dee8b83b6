"""What besides the hardware may change speed, and whether a machine is fit to measure.

`collect` describes the environment of a run, `caches` how full its caches are, `difference`
says in words what two environments do not share, `checks` is what ``bench-lib env`` shows.
No torch is imported and no device opened; what cannot be read is None.
"""

from bench_lib.fingerprint.cached import TUNED, caches, state_of
from bench_lib.fingerprint.environment import collect, difference, with_versions
from bench_lib.fingerprint.readiness import Check, checks

__all__ = [
    "TUNED",
    "Check",
    "caches",
    "checks",
    "collect",
    "difference",
    "state_of",
    "with_versions",
]
