"""The page in a real browser: headless Chromium, from a file, as somebody opens an artifact."""

import itertools
import os
import shutil
from dataclasses import replace

import nights
import pytest

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

EARLY = """
new MutationObserver((_seen, watcher) => {
  const found = document.querySelector("%s:enabled");
  if (!found) return;
  watcher.disconnect();
  found.click();
}).observe(document, { subtree: true, childList: true, attributes: true });
"""
"""Presses a button as soon as it can be pressed."""

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
    """One browser for the whole file."""
    with playwright.sync_playwright() as api:
        started = api.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pages as files, each made once."""
    folder = tmp_path_factory.mktemp("pages")
    made = {
        "night": nights.make_night(),
        "hardware": nights.hardware_night(),
        "nasty": nights.make_night([*_nasty(), nights.make_entry()]),
        "empty": nights.empty_night(),
        "one": nights.year_night(),
        "example": nights.example_night(),
        "many": _many(),
        "wide": _wide(4),
        "wider": _wide(8),
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


def _wide(modes):
    names = "a-long-name", "another-long-name"
    if modes == 4:
        cases = itertools.product(names, PRECISIONS[:9], COMPILE_MODES[:4])
    else:
        cases = itertools.product(names[:1], PRECISIONS, COMPILE_MODES[:modes])
    return nights.make_night([nights.regressed(nights.make_case(n, 64, *c)) for n, *c in cases])


@pytest.fixture
def open_page(browser, files):
    """Open a page; whatever it complains of fails the test, and so does a request."""
    contexts, complaints = [], []

    def opened(name, **options):
        at, early = options.pop("at", ""), options.pop("early", None)
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        if early:
            page.add_init_script(EARLY % early)
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
    """Open every row and whatever else is folded."""
    page.evaluate("for (const it of document.querySelectorAll('#table .open')) it.click()")
    page.evaluate("for (const it of document.querySelectorAll('details')) it.open = true")


def _cases(page):
    return page.locator("#table tbody tr:not(.detail) th").all_inner_texts()


def test_a_page_opens_with_every_history_drawn(open_page) -> None:
    page = open_page("night")
    plot = page.locator("article .plot").last
    rounds = plot.locator(".dots.run path").get_attribute("d")
    assert rounds.count("M") + plot.locator(".dots.odd path, .dots.bad path").count() == 30
    assert plot.locator(".band, .rule.middle-of-band").count() == 2
    assert plot.locator("text.bad").text_content() == "+8.0%"
    assert "change point" in page.locator("article .legend").last.inner_text()


def test_every_comparison_is_drawn(open_page) -> None:
    page = open_page("hardware")
    plots = page.locator(".compared .plot").all()
    assert len(plots) == 3
    assert all(plot.locator(".dots path").count() > 0 for plot in plots)


def test_the_point_under_the_pointer_is_named(open_page) -> None:
    page = open_page("night")
    page.locator("article .plot .dots.bad path").last.hover()
    told = page.locator("article .plot .told:visible").inner_text()
    assert told.startswith("8.6")
    assert told.endswith(f"ms, regressed\n2026-11-20 02:00\nrun {nights.RUN}")


def test_every_case_is_a_cell_that_is_named_and_leads_to_it(open_page) -> None:
    page = open_page("night")
    cells = page.locator(".strip a")
    assert cells.count() == 9
    first = cells.first
    assert first.inner_text() == "\N{MULTIPLICATION X}"
    assert first.get_attribute("aria-label") == ("vit_b_16-b64-bf16-eager-train, mi300x: error")
    page.locator(".strip .s-improved").click()
    assert page.url.endswith("#case/mi300x/resnet50-b64-bf16-eager-infer")
    page.locator(".detail").wait_for()
    opened = page.locator("#table .open[aria-expanded=true]")
    assert opened.inner_text() == "resnet50-b64-bf16-eager-infer"
    assert page.evaluate("document.activeElement.textContent") == "resnet50-b64-bf16-eager-infer"


def test_the_strip_is_one_stop_and_arrows_go_through_it(open_page) -> None:
    page = open_page("many")
    assert page.locator(".strip a[tabindex='0']").count() == 1
    page.focus(".strip a[tabindex='0']")
    page.keyboard.press("ArrowRight")
    name = "document.activeElement.getAttribute('aria-label').split(',')[0]"
    assert page.evaluate(name) == "case-1"
    page.keyboard.press("End")
    assert page.evaluate(name) == "case-249"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(name) == "case-249"


def test_a_case_s_address_opens_it_wherever_it_is(open_page) -> None:
    page = open_page("many", at="#case/mi300x/case-249")
    assert page.locator("#table .open[aria-expanded=true]").inner_text() == "case-249"
    assert page.locator(".detail .plot .dots.run path").get_attribute("d").count("M") == 3
    page = open_page("example", at="#case/mi300x/resnet50-b64-fp16-max-autotune-infer")
    top = page.evaluate("document.querySelector('article:target').getBoundingClientRect().top")
    assert -1 < top < 900


def test_a_cause_s_address_unfolds_it(open_page) -> None:
    page = open_page("example", at="#cause/00000005-GEMM")
    shown = page.locator(".cause:target")
    assert shown.locator("code").first.is_visible()
    shown.locator(".members a").first.click()
    assert page.evaluate("document.querySelector(':target').tagName") == "ARTICLE"


@pytest.mark.parametrize(
    ("name", "size"), [("example", (1440, 900)), ("example", (390, 844)), ("night", (390, 844))]
)
def test_the_first_screen_answers(open_page, name: str, size: tuple[int, int]) -> None:
    page = open_page(name, viewport={"width": size[0], "height": size[1]})
    for wanted in ("h1", ".since", ".cause", ".strip a[class]:not(.s-improved)"):
        for each in page.locator(wanted).all():
            box = each.bounding_box()
            assert box is not None, wanted
            assert box["y"] + box["height"] <= size[1], wanted
            assert box["x"] + box["width"] <= size[0], wanted


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("name", ["wide", "wider"])
def test_the_strip_is_no_wider_than_the_screen(open_page, name: str, width: int) -> None:
    page = open_page(name, viewport={"width": width, "height": 900})
    assert page.locator(".strip a").count() == {"wide": 72, "wider": 104}[name]
    room = page.locator(".strip-room")
    assert room.evaluate("it => it.scrollWidth <= it.clientWidth")
    right = page.locator(".strip a").last.bounding_box()
    assert right["x"] + right["width"] <= width


def test_a_row_that_was_asked_for_early_opens_with_the_data(open_page) -> None:
    page = open_page("night", java_script_enabled=False)
    openers = page.locator("#table .open")
    assert openers.count() == page.locator("#table .open:disabled").count() == 9
    page = open_page("night", early="#table .open")
    opened = page.locator("#table .open[aria-expanded=true]")
    assert opened.count() == page.locator(".detail").count() == 1
    assert page.locator("#table tbody tr").nth(1).get_attribute("class") == "detail"


@pytest.mark.parametrize("has_scripts", [True, False])
def test_nothing_stays_out_of_the_layout(open_page, has_scripts: bool) -> None:
    page = open_page("example", java_script_enabled=has_scripts)
    skipped = page.locator(".failure, .comparison, .cases")
    assert skipped.count() > 2
    for each in skipped.all():
        assert each.evaluate("it => getComputedStyle(it).contentVisibility") == "visible"
    assert page.locator("#table tbody th").last.inner_text()


def test_a_command_is_copied(open_page) -> None:
    page = open_page("night", permissions=["clipboard-read", "clipboard-write"])
    page.locator("article").last.get_by_label("Copy: Find the change").click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == (
        "bench-lib bisect resnet50-b64-fp16-max-autotune-infer --good last-ok"
    )


def test_a_hardware_s_comparison_is_chosen(open_page) -> None:
    page = open_page("hardware")
    group = page.locator(".comparison").filter(has_text="Roofline")
    group.locator("select").select_option("mi250x")
    shown = group.locator(".compared:visible")
    assert shown.count() == 1
    assert shown.locator(".plot svg").bounding_box() is not None
    assert shown.get_attribute("data-group") == "mi250x"


def test_words_are_searched_for_in_any_order(open_page) -> None:
    page = open_page("night")
    page.fill("[name=q]", "fp16 REGRESSED max")
    assert _cases(page) == ["resnet50-b64-fp16-max-autotune-infer"]
    assert page.inner_text("#told") == "1 of 9 cases"
    page.fill("[name=q]", "nothing is called so")
    assert _cases(page) == []


def test_filters_narrow_and_are_cleared(open_page) -> None:
    page = open_page("night")
    page.select_option("[name=precision]", "bf16")
    assert len(_cases(page)) == 3
    page.select_option("[name=status]", "IMPROVED")
    assert _cases(page) == ["resnet50-b64-bf16-eager-infer"]
    page.click("#filters [type=reset]")
    page.locator("#table tbody tr").nth(8).wait_for(state="attached")
    assert len(_cases(page)) == 9


def test_a_count_leads_to_its_cases(open_page) -> None:
    page = open_page("night")
    page.click(".counts .s-invalid")
    assert _cases(page) == ["densenet121-b64-fp16-eager-infer"]
    assert page.url.endswith("#status=INVALID")


def test_an_address_brings_back_what_was_chosen(open_page) -> None:
    page = open_page("night", at="#q=b64&precision=bf16&sort=-median")
    assert page.input_value("[name=precision]") == "bf16"
    assert len(_cases(page)) == 2
    assert page.locator("[data-column=median]").get_attribute("aria-sort") == "descending"


def test_columns_sort_up_and_down_and_back(open_page) -> None:
    page = open_page("many")
    first = _cases(page)[0]
    page.click("[data-column=median] button")
    assert _cases(page)[:2] == ["case-107", "case-214"]
    page.click("[data-column=median] button")
    assert _cases(page)[0] == "case-0"
    page.click("[data-column=median] button")
    assert _cases(page)[0] == first
    page.click("[data-column=case] button")
    assert _cases(page)[:3] == ["case-0", "case-1", "case-2"]


def test_a_long_table_has_pages(open_page) -> None:
    page = open_page("many")
    assert len(_cases(page)) == 100
    assert page.inner_text("#told") == "250 cases, 1\N{EN DASH}100 shown"
    page.click("#pages [data-by='1']")
    page.click("#pages [data-by='1']")
    assert len(_cases(page)) == 50
    assert page.locator("#pages [data-by='1']").is_disabled()


def test_a_row_opens_into_its_plot_and_its_verdicts(open_page) -> None:
    page = open_page("one")
    opener = page.locator("#table .open").first
    opener.click()
    assert page.locator(".detail .dots.run path").get_attribute("d").count("M") == 365
    assert "0.1% slower than 5 baseline processes" in page.inner_text(".detail")
    opener.click()
    assert page.locator(".detail").count() == 0


def test_keys_are_enough(open_page) -> None:
    page = open_page("night")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.focus("[data-column=case] button")
    page.keyboard.press("Enter")
    assert page.locator("[data-column=case]").get_attribute("aria-sort") == "ascending"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) != "none"
    page.focus("#table .open >> nth=0")
    page.keyboard.press("Space")
    assert page.locator("#table .open >> nth=0").get_attribute("aria-expanded") == "true"
    page.focus("#theme")
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_name_that_is_a_script_stays_text(open_page) -> None:
    page = open_page("nasty")
    page.on("dialog", lambda dialog: pytest.fail(f"it said {dialog.message}"))
    _open_all(page)
    name = f"a{nights.NASTY}<a href='https://example.org'>b</a>"
    assert name in page.locator("article h3").first.inner_text()
    assert name in _cases(page)
    assert page.locator("a:not([href^='#'])").count() == 0
    assert page.locator("svg a").count() == 0
    assert page.evaluate("document.querySelectorAll('script').length") == 2  # ours, and the data


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


def test_the_button_changes_plots_too(open_page) -> None:
    page = open_page("one")
    page.locator("#table .open").first.click()
    tick = page.locator(".detail text.tick").first
    tick.wait_for()
    before = tick.evaluate("it => getComputedStyle(it).fill")
    page.click("#theme")
    assert tick.evaluate("it => getComputedStyle(it).fill") != before
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"


def test_a_phone_does_not_scroll_sideways(open_page) -> None:
    page = open_page("night", viewport={"width": 360, "height": 740}, has_touch=True)
    _open_all(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_paper_has_failures_plots_and_every_row_but_no_controls(open_page) -> None:
    page = open_page("many", color_scheme="dark")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert len(_cases(page)) == 250
    for hidden in ("#filters", "#theme", "#pages"):
        assert not page.locator(hidden).is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert len(_cases(page)) == 100


def test_printing_draws_what_was_not_looked_at(open_page) -> None:
    page = open_page("night")
    assert len(page.pdf(format="A4")) > 20_000
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    for plot in page.locator("article .plot").all():
        assert plot.locator("svg").get_attribute("width") == "660"
