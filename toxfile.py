"""Tells tox's environments which Python runs tox: it may be the one that has torch."""

import os
import sys

os.environ.setdefault("BENCH_LIB_TOX_PYTHON", sys.executable)
