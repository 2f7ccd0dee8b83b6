"""What besides the hardware may change speed, and whether a machine is fit to measure.

`collect` describes the environment of a run, `difference` says in words what two of them
do not share, `checks` is what ``bench-lib env`` shows.  No torch is imported and no device
opened; what cannot be read is None.
"""

from bench_lib.fingerprint.environment import collect, difference, with_versions
from bench_lib.fingerprint.readiness import Check, checks

__all__ = ["Check", "checks", "collect", "difference", "with_versions"]
