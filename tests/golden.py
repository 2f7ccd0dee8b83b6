"""Texts that commands print, whole, each held once: ``recorded/golden.txt``.

With ``RECORD_ANSWERS=1`` in the environment tests write down what they see; read the difference
aloud before it is committed.  Elsewhere tests ask for a status, a value, a key.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

FILE = Path(__file__).parent / "recorded" / "golden.txt"
HEAD = "=== "
"""At the beginning of a line."""
RUN = re.compile(r"(?<![0-9a-f])[0-9a-f]{8}\b")
DAY = re.compile(r"\b20\d\d-?\d\d-?\d\d(T[\d:]+Z)?")


def golden(text: str) -> None:
    """Hold a text against the one that is recorded for this test; ids of runs and days may differ.

    A test may ask once.
    """
    name = os.environ["PYTEST_CURRENT_TEST"].partition("::")[2].rpartition(" ")[0]
    seen = DAY.sub("DAY", RUN.sub("RUN", text)).rstrip("\n")
    texts = read()
    if os.environ.get("RECORD_ANSWERS"):
        texts[name] = seen
        FILE.write_text("\n".join(f"{HEAD}{key}\n{texts[key]}\n" for key in sorted(texts)))
    assert seen == texts[name]


def read() -> dict[str, str]:
    """Return the recorded texts by the test that each is of."""
    parts = re.split(f"^{HEAD}", FILE.read_text(), flags=re.MULTILINE)[1:] if FILE.exists() else []
    return {part.partition("\n")[0]: part.partition("\n")[2].rstrip("\n") for part in parts}
