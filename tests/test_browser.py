"""The page in a real browser: headless Chromium, from a file, as somebody opens an artifact."""

import itertools
import os
import shutil
from dataclasses import replace

import nights
import pytest
from processes import LONG_S

from bench_lib.model import COMPILE_MODES, PRECISIONS
from bench_lib.report import html as pages

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install it")

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("BENCH_LIB_CHROMIUM") or next(
    filter(None, map(shutil.which, NAMES)), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt install chromium, or name it BENCH_LIB_CHROMIUM"
)
QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
CONTRAST = 4.5
"""WCAG 2.2, success criterion 1.4.3, for text of any size here."""

PALE = """
(least) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3]));
  const luminance = (colour) => {
    const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = colour.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const layer = rgba(getComputedStyle(at).backgroundColor);
      layers.push(layer);
      if (layer[3] === 1) break;
    }
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255]);
  };
  const seen = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const pale = [];
  let count = 0;
  for (let node = seen.nextNode(); node; node = seen.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || ["SCRIPT", "STYLE", "OPTION"].includes(element.tagName)) continue;
    if (!element.getClientRects().length) continue;
    count += 1;
    const style = getComputedStyle(element);
    const under = behind(element);
    const ink = rgba(element instanceof SVGElement ? style.fill : style.color);
    const [high, low] = [luminance(over(ink, under)), luminance(under)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const told = node.data.trim().slice(0, 40);
    if (ratio < least) pale.push(`${ratio.toFixed(2)} ${element.tagName} ${told}`);
  }
  return [count, [...new Set(pale)]];
}
"""


@pytest.fixture(scope="module")
def browser():
    playwright.expect.set_options(1000 * LONG_S)
    with playwright.sync_playwright() as api:
        started = api.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {
        "night": nights.make_night(),
        "nasty": nights.make_night([*_nasty(), nights.make_entry()]),
        "empty": nights.empty_night(),
        "one": nights.year_night(),
        "example": nights.example_night(),
        "many": _many(),
        "wide": _wide(),
        "units": nights.make_night(
            [
                nights.make_entry(nights.make_case(id="a"), median_s=0.008, ratio=9.5),
                nights.make_entry(nights.make_case(id="b"), median_s=1.5, ratio=12.5),
                nights.make_entry(nights.make_case(id="c"), median_s=0.0009, ratio=1.5),
            ]
        ),
    }
    for name, night in made.items():
        (folder / f"{name}.html").write_text(pages.page(night), encoding="utf-8")
    return folder


def _nasty():
    name = f"a{nights.NASTY}<a href='https://example.org'>b</a>"
    case = nights.make_case(id=name, params={"network": nights.NASTY, "precision": "fp16"})
    other = replace(case, params={**case.params, "precision": "fp32"})
    return [nights.regressed(case), nights.make_entry(other), nights.error(case)]


def _many():
    points = nights.make_points(3)
    cases = [nights.make_case(id=f"case-{number}") for number in range(250)]
    entries = [
        nights.make_entry(case, points=points, median_s=0.001 * (1 + number * 7 % 250))
        for number, case in enumerate(cases)
    ]
    return nights.make_night(entries)


def _wide():
    names = "a-long-name", "another-long-name"
    cases = itertools.product(names, PRECISIONS, COMPILE_MODES[:4])
    return nights.make_night([nights.regressed(nights.make_case(n, 64, *c)) for n, *c in cases])


@pytest.fixture
def open_page(browser, files):
    contexts, complaints = [], []

    def opened(name, **options):
        at = options.pop("at", "")
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * LONG_S)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        address = f"{(files / name).as_uri()}.html{at}"
        page.on("request", lambda request: _only(request, address, complaints))
        page.goto(address)
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def _only(request, address, complaints):
    if request.url.partition("#")[0] != address.partition("#")[0]:
        complaints.append(f"asked for {request.url}")


def _open_all(page):
    page.evaluate("for (const it of document.querySelectorAll('details')) it.open = true")


def _cases(page):
    return page.locator("#table tbody tr:visible th").all_inner_texts()


def test_a_cell_leads_to_its_case_wherever_that_is_folded(open_page) -> None:
    page = open_page("night")
    first = page.locator(".strip a").first
    assert first.inner_text() == "\N{MULTIPLICATION X}"
    assert first.get_attribute("aria-label") == "vit_b_16-b64-bf16-eager-train, mi300x: error"
    page.locator(".strip .s-improved").click()
    opened = page.locator(".case[open]")
    playwright.expect(opened.locator("svg").first).to_be_visible()
    assert page.url.endswith("#case/mi300x/resnet50-b64-bf16-eager-infer")
    assert "5.0% faster than 5 baseline processes" in opened.inner_text()


def test_a_case_s_address_opens_it(open_page) -> None:
    page = open_page("night", at="#case/mi300x/resnet50-b64-bf16-eager-infer")
    assert page.locator(".case[open] svg").first.is_visible()
    page = open_page("example", at="#case/mi300x/resnet50-b64-fp16-max-autotune-infer")
    top = page.evaluate("document.querySelector('.cause .case:target').getBoundingClientRect().top")
    assert -1 < top < 900


def test_the_address_of_a_case_without_details_leads_to_its_row(open_page) -> None:
    page = open_page("many", at="#case/mi300x/case-249")
    assert page.locator(".case").count() < 100
    assert _cases(page) == ["case-249"]


def test_a_cause_has_its_cases_inside(open_page) -> None:
    page = open_page("example", at="#cause/00000005-GEMM")
    shown = page.locator(".cause:target")
    shown.locator(".case summary").first.click()
    assert shown.locator(".case[open] svg").first.is_visible()


@pytest.mark.parametrize(
    ("name", "size"), [("example", (1440, 900)), ("example", (390, 844)), ("night", (390, 844))]
)
def test_the_first_screen_answers(open_page, name: str, size: tuple[int, int]) -> None:
    page = open_page(name, viewport={"width": size[0], "height": size[1]})
    for wanted in ("h1", ".cause", ".strip a:not(.s-improved)"):
        for each in page.locator(wanted).all():
            box = each.bounding_box()
            assert box is not None, wanted
            assert box["y"] + box["height"] <= size[1], wanted
            assert box["x"] + box["width"] <= size[0], wanted


@pytest.mark.parametrize("width", [1440, 390])
def test_a_strip_of_many_precisions_scrolls_by_itself(open_page, width: int) -> None:
    page = open_page("wide", viewport={"width": width, "height": 900})
    assert page.locator(".strip a").count() == 8 * len(PRECISIONS)
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_all_is_there_without_scripts(open_page) -> None:
    page = open_page("example", java_script_enabled=False)
    page.locator(".cause .case summary").first.click()
    assert page.locator(".cause svg").first.is_visible()
    assert page.locator("#table tbody tr").count() == 86
    assert not page.locator("#filters").is_visible()
    page.get_by_text("Details of the worst").click()
    page.locator("main .case summary").first.click()
    assert page.locator("main .case svg").first.is_visible()


def test_words_are_searched_for_in_any_order(open_page) -> None:
    page = open_page("night")
    page.fill("input", "fp16 REGRESSED max")
    assert _cases(page) == ["resnet50-b64-fp16-max-autotune-infer"]
    assert page.inner_text("#count") == "1 of 9 cases"
    page.fill("input", "nothing is called so")
    assert _cases(page) == []


def test_a_count_leads_to_its_cases(open_page) -> None:
    page = open_page("night")
    page.click(".counts .s-invalid")
    playwright.expect(page.locator("input")).not_to_have_value("")  # the address changes first
    assert _cases(page) == ["densenet121-b64-fp16-eager-infer"]
    assert page.url.endswith("#q=status:invalid")


def test_an_address_brings_back_what_was_searched_for(open_page) -> None:
    page = open_page("night", at="#q=b64%20bf16")
    assert page.input_value("input") == "b64 bf16"
    assert len(_cases(page)) == 2


def test_columns_sort_up_and_down_and_back(open_page) -> None:
    page = open_page("many")
    median, case = (page.locator("#table thead th").nth(at) for at in (3, 0))
    first = _cases(page)[0]
    median.get_by_role("button").click()
    assert median.get_attribute("aria-sort") == "descending"
    assert _cases(page)[:2] == ["case-107", "case-214"]
    median.get_by_role("button").click()
    assert _cases(page)[0] == "case-0"
    median.get_by_role("button").click()
    assert _cases(page)[0] == first
    case.get_by_role("button").click()
    assert _cases(page)[:3] == ["case-0", "case-1", "case-2"]


def test_columns_sort_by_the_value_whatever_its_unit(open_page) -> None:
    page = open_page("units")
    for heading, fewest in (("Median", "c a b"), ("Change", "c a b"), ("Rate", "b a c")):
        button = page.get_by_role("button", name=heading)
        button.click()
        button.click()
        assert _cases(page) == fewest.split(), heading


def test_what_has_no_number_sorts_last_both_ways(open_page) -> None:
    page = open_page("night")
    change = page.locator("#table thead th").nth(4)
    for _ in range(2):
        change.get_by_role("button").click()
        assert page.locator("#table tbody tr td:nth-child(5)").last.inner_text() == ""


def test_keys_are_enough(open_page) -> None:
    page = open_page("night")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.focus("#table .sort >> nth=0")
    page.keyboard.press("Enter")
    assert page.locator("#table thead th").first.get_attribute("aria-sort") == "ascending"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_a_name_that_is_a_script_stays_text(open_page) -> None:
    page = open_page("nasty")
    page.on("dialog", lambda dialog: pytest.fail(f"it said {dialog.message}"))
    _open_all(page)
    name = f"a{nights.NASTY}<a href='https://example.org'>b</a>"
    assert name in page.locator(".cause .case summary").first.inner_text()
    assert name in _cases(page)
    assert page.locator("a:not([href^='#'])").count() == 0
    assert page.locator("svg a").count() == 0
    assert page.evaluate("document.querySelectorAll('script').length") == 1


@pytest.mark.parametrize("name", ["empty", "one"])
def test_little_to_show_is_a_page_too(open_page, name: str) -> None:
    page = open_page(name)
    assert page.locator("h1").is_visible()


@pytest.mark.parametrize(
    ("scheme", "width", "is_open"), [("light", 1440, False), ("dark", 390, True)]
)
def test_axe_finds_nothing_wrong(open_page, scheme: str, width: int, is_open: bool) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="needs axe-playwright-python: pip install"
    )
    # What axe itself runs is not the page's script, and its policy would refuse it.
    page = open_page(
        "example",
        color_scheme=scheme,
        viewport={"width": width, "height": 900},
        bypass_csp=True,
    )
    if is_open:
        _open_all(page)
    found = axe.Axe().run(page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_text_is_pale(open_page, scheme: str) -> None:
    page = open_page("night", color_scheme=scheme)
    _open_all(page)
    count, pale = page.evaluate(PALE, CONTRAST)
    assert count > 300
    assert pale == []


def test_the_dark_theme_is_the_systems(open_page) -> None:
    page = open_page("night", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    fill = page.locator("svg text").first.evaluate("it => getComputedStyle(it).fill")
    assert fill == "rgb(165, 175, 185)"


def test_a_phone_does_not_scroll_sideways(open_page) -> None:
    page = open_page("night", viewport={"width": 360, "height": 740}, has_touch=True)
    _open_all(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_paper_is_white_and_has_every_row_but_no_controls(open_page) -> None:
    page = open_page("many", color_scheme="dark")
    page.emulate_media(media="print")
    assert len(_cases(page)) == 250
    assert not page.locator("#filters").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(page.pdf(format="A4")) > 20_000
