"""In a profiling worker's place: leaves what a test has laid out, and runs nothing.

``profiled.py FOLDER [RANGES]`` copies the files of ``$STANDIN`` into FOLDER; its
``told.json`` goes to the profiler around it, which is one of `rocm_profilers`.
"""

import os
import shutil
import sys
from pathlib import Path

if __name__ == "__main__":
    laid_out = Path(os.environ["STANDIN"])
    for path in laid_out.iterdir():
        if path.name == "told.json":
            if "PROFILED" in os.environ:
                shutil.copy(path, Path(os.environ["PROFILED"], "4000.json"))
        elif path.name == "output":
            sys.stdout.write(path.read_text())
        else:
            shutil.copy(path, Path(sys.argv[1], path.name))
    sys.exit(int(os.environ.get("STANDIN_STATUS", "0")))
