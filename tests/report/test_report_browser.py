"""In a real browser: no errors, the page fits a phone and follows dark mode, and its script gives Python's answers."""

import itertools
import json

import pytest
from report_browser import Browser, find_browser
from report_rows import every_kind

from matryo.report.answer import Choice, answer, subjects
from matryo.report.material import Material
from matryo.report.style import COLOURS

pytestmark = pytest.mark.skipif(find_browser() is None, reason="needs a browser")
SHOW_ALL = "document.querySelectorAll('details').forEach(details => { details.open = true })"
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
    browser.ask(SHOW_ALL)
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
    browser.ask(SHOW_ALL.replace("true", str(opened).lower()))
    assert browser.ask("innerWidth") == width   # a phone widens its view for a page that does not fit
    assert browser.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    if not opened and width == 1200:
        assert browser.ask("document.documentElement.scrollHeight") < 6000
        browser.ask(SHOW_ALL)


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
    paths = "[...document.querySelectorAll('#evaluate figure path')]"
    strokes = browser.ask(f"{paths}.map(e => getComputedStyle(e).stroke)")
    assert rgb("s1") in strokes
    fills = browser.ask("[...document.querySelectorAll('#evaluate figure text')].map(e => getComputedStyle(e).fill)")
    assert set(fills) == {rgb("ink")}


TEXTS = ("headline", "why", "warning", "other", "kept", "range", "bytes", "flops")
READ = f"""JSON.stringify(Object.fromEntries([
    ["table", [...document.getElementById("table").closest("table").rows].map(
        row => [...row.cells].map(cell => cell.textContent))],
    ...{json.dumps(TEXTS)}.map(id => [id, document.getElementById(id).textContent])]))"""


def expected(models, choice):
    facts = answer(models, choice)
    plain = {name: facts[name] for name in TEXTS} | {"table": facts["table"]}
    return json.loads(json.dumps(plain).replace("1-NN", "1\\u2011NN").replace(" %", "\\u00a0%"))


def test_the_script_and_python_give_the_same_answers(browser, whole):
    models = subjects(Material.of(every_kind()))
    url = (whole / "index.html").as_uri()
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(url, width=1200)
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert json.loads(browser.ask(READ)) == expected(models, Choice())   # what the page says without a script
    assert browser.ask("document.getElementById('controls').hidden")
    browser.open(url, width=1200)
    assert json.loads(browser.ask(READ)) == expected(models, Choice())
    seen = set()
    for index, keep in itertools.product(range(len(models)), (80, 90, 95, 97.5, 98, 99.5, 100)):
        model = models[index]
        metrics = dict.fromkeys(["all", *(curve.metric for curve in model.curves)])
        splits = dict.fromkeys(["all", *(curve.split for curve in model.curves)])
        for metric, split in itertools.product(metrics, splits):
            choice = Choice(index, metric, split, keep / 100)
            if not any(choice.covers(curve) for curve in model.curves):
                continue
            values = {"model": str(index), "keep": str(keep), "metric": metric, "split": split}
            found = json.loads(browser.ask(f"""(() => {{
                for (const [id, value] of Object.entries({json.dumps(values)})) {{
                    document.getElementById(id).value = value
                    if (id === "model") document.getElementById("controls").dispatchEvent(new Event("input"))
                }}
                document.getElementById("controls").dispatchEvent(new Event("input"))
                return {READ}
            }})()"""))
            assert found == expected(models, choice), choice
            seen.add(found["headline"])
    assert len(seen) > 5
    assert browser.complaints == []


def test_the_marker_stands_at_the_answer(browser, whole):
    browser.open((whole / "index.html").as_uri(), width=1200)

    def marker(keep):
        browser.ask(f"""document.getElementById("keep").value = {keep}
            document.getElementById("controls").dispatchEvent(new Event("input"))""")
        return browser.ask("""(() => { const box = document.getElementById("answer-mark-dim").getBoundingClientRect()
            return (box.left + box.right) / 2 })()""")

    def tick(dim):
        return browser.ask(f"""(() => {{ const box = [...document.querySelectorAll(".picture svg text")].find(
            text => text.textContent === "{dim}").getBoundingClientRect(); return (box.left + box.right) / 2 }})()""")

    models = subjects(Material.of(every_kind()))
    for keep in (80, 90, 98, 100):
        dim = answer(models, Choice(0, keep=keep / 100))["dim"]
        assert marker(keep) == pytest.approx(tick(dim), abs=1.5)
