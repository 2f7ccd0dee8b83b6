"""Draws the pictures of the report's page: ``python docs/write_pictures.py``, with Chromium.

The night is an invented one of the tests, with playwright (``pip install playwright``).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "tests"))

import nights  # noqa: E402 - which the line above finds

from bench_lib.report import html  # noqa: E402

FAILED = "case/mi300x/resnet50-b64-fp16-max-autotune-infer"


def main() -> None:
    """Draw the first screen, a case that failed, and the first screen of a phone in the dark."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder, "night.html")
        path.write_text(html.page(nights.example_night()), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 600})
        page.goto(path.as_uri())
        page.screenshot(path=FOLDER / "report.png")
        page.goto(f"{path.as_uri()}#{FAILED}")
        page.locator(f'[id="{FAILED}"]').screenshot(path=FOLDER / "report-case.png")
        phone = browser.new_page(viewport={"width": 390, "height": 700}, color_scheme="dark")
        phone.goto(path.as_uri())
        phone.screenshot(path=FOLDER / "report-phone.png")
        browser.close()


if __name__ == "__main__":
    main()
