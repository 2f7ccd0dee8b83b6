"""Settings of the documentation: ``sphinx-build -W --keep-going -n -b html docs FOLDER``.

Links to other sites are tried by hand, where there is a network: ``-b linkcheck``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

from bench_lib import __version__

sys.path.insert(0, str(Path(__file__).parent))
import write_schemas

project = "bench-lib"
author = "the authors of bench-lib"
release = version = __version__

extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["_build"]
myst_heading_anchors = 4  # GitHub gives every heading one

html_theme = "furo"
html_title = "bench-lib"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

linkcheck_anchors = False  # many of GitHub's are made by scripts
linkcheck_timeout = 20

LISTED = re.compile(r"^(?:- |\| )\[[^]]*]\(([^)#:]+\.md)[^)]*\)", re.MULTILINE)
"""A link to a page, at the beginning of a list's item or of a table's row."""


def add_contents(_app: Sphinx, page: str, source: list[str]) -> None:
    """Make the lists of an index the table of contents, so that they stand there once.

    Each section of an index becomes a part of the contents, and GitHub shows no directive.
    """
    if not page.endswith("index"):
        return
    for section in re.split(r"^## ", source[0], flags=re.MULTILINE):
        if pages := dict.fromkeys(LISTED.findall(section)):
            caption = section.partition("\n")[0].lstrip("# ")
            words = [":hidden:", *([f":caption: {caption}"] if page == "index" else [])]
            source[0] += "\n".join(["", "```{toctree}", *words, "", *pages, "```", ""])


def add_schemas(_app: Sphinx) -> None:
    """Write the schemas, which git does not hold."""
    write_schemas.write()


def link_schemas(_app: Sphinx, page: str, source: list[str]) -> None:
    """Make links of the schemas' names, which GitHub shows as they are."""
    if page == "json":
        for name in write_schemas.schemas():
            source[0] = source[0].replace(f"`{name}`", f"[{name}](schemas/{name})")


def setup(app: Sphinx) -> None:
    """Have it done as pages are read."""
    app.connect("builder-inited", add_schemas)
    app.connect("source-read", add_contents)
    app.connect("source-read", link_schemas)
