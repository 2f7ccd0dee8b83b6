"""``python -m bench_lib.micro``."""

import sys

from bench_lib.micro.program import main

if __name__ == "__main__":
    sys.exit(main())
