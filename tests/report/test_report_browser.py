"""In a real browser: the page renders without a complaint, fits a phone, and follows dark mode."""

import pytest
from report_browser import Browser, find_browser

from matryo.report.style import COLOURS

pytestmark = pytest.mark.skipif(find_browser() is None, reason="needs a browser")
MODES = [(390, False), (390, True), (1200, False), (1200, True)]


@pytest.fixture(scope="module")
def browser():
    one = Browser(find_browser())
    yield one
    one.close()


@pytest.fixture(scope="module", params=MODES, ids=["phone", "phone-dark", "desktop", "desktop-dark"])
def shown(request, whole, browser):
    width, dark = request.param
    browser.open((whole / "index.html").as_uri(), width=width, dark=dark)
    return browser, width, dark


def test_the_page_renders_without_a_complaint(shown):
    browser, _, _ = shown
    assert browser.complaints == []
    assert browser.requests[1:] == [url for url in browser.requests[1:] if url.startswith("data:")]
    drawn = "[...document.querySelectorAll('figure > svg, img')]"
    heights = browser.ask(f"{drawn}.map(e => e.getBoundingClientRect().height)")
    assert len(heights) > 20
    assert min(heights) > 50
    assert browser.ask("[...document.images].every(image => image.naturalWidth > 0)")


@pytest.mark.parametrize("opened", [False, True])
def test_nothing_is_wider_than_the_window(shown, opened):
    browser, width, _ = shown
    browser.ask(f"document.querySelectorAll('details').forEach(details => {{ details.open = {str(opened).lower()} }})")
    assert browser.ask("innerWidth") == width   # a phone widens its view for a page that does not fit
    assert browser.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_type_is_large_enough_to_read(shown):
    browser, _, _ = shown
    sizes = browser.ask("""[...document.querySelectorAll('figure > svg text')].map(text => {
        const svg = text.ownerSVGElement
        const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width
        return scale * parseFloat(getComputedStyle(text).fontSize)
    })""")
    assert len(sizes) > 100
    assert min(sizes) >= 11
    assert browser.ask("parseFloat(getComputedStyle(document.body).fontSize)") >= 16
    assert browser.ask(
        "Math.min(...[...document.querySelectorAll('p, li, td, th, figcaption, summary')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize)))"
    ) >= 15


def test_words_in_figures_stay_inside_them(shown):
    browser, _, _ = shown
    outside = browser.ask("""[...document.querySelectorAll('figure > svg text')].filter(text => {
        const [a, b] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()]
        return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1
    }).map(text => text.textContent)""")
    assert outside == []


def test_colours_follow_the_mode(shown):
    browser, _, dark = shown

    def rgb(name):
        colour = COLOURS[name][dark]
        return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"

    assert browser.ask("getComputedStyle(document.body).backgroundColor") == rgb("paper")
    assert browser.ask("getComputedStyle(document.body).color") == rgb("ink")
    strokes = browser.ask("[...document.querySelectorAll('#accuracy svg path')].map(e => getComputedStyle(e).stroke)")
    assert rgb("s1") in strokes
    fills = browser.ask("[...document.querySelectorAll('#accuracy svg text')].map(e => getComputedStyle(e).fill)")
    assert set(fills) == {rgb("ink")}
