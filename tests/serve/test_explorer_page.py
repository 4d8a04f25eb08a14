"""The explorer in a real browser: what a person sees, with a mouse, a phone or keys alone."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from emoji_index import DIMS, write
from report_browser import Browser, find_browser

from conftest import Served
from matryo import Index

pytestmark = pytest.mark.skipif(find_browser() is None, reason="needs a browser")
CARDS = "document.querySelectorAll('#hits .card').length"
READY = f"{CARDS} === 10 && document.querySelector('#facts dd')?.textContent !== '…'"
SUBMIT = "document.getElementById('form').requestSubmit()"
TYPED = "document.getElementById('typed').value"
DIM = "document.querySelector('#dim .number').textContent"
WRONG = "document.querySelectorAll('#hits .wrong').length"
TITLES = "[...document.querySelectorAll('#hits .title')].map(each => each.textContent)"
HOSTILE = "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script>"
KEY = "k" * 20


@pytest.fixture(scope="module")
def browser():
    one = Browser(find_browser(), 120)
    yield one
    one.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    nested, fixed = write(tmp_path_factory.mktemp("emoji"))
    with serving("--index", nested, "--index", fixed, "--show", "name,style,image") as one:
        yield one


@pytest.fixture
def page(browser, server):
    browser.open(server.url, width=1280)
    browser.wait(READY)
    return browser


class serving(SimpleNamespace):
    """A server until the end of a block."""

    def __init__(self, *words, env=None):
        self.served = Served(*words, "--quiet", env=env)

    def __enter__(self):
        return self.served

    def __exit__(self, *_):
        self.served.stop()


def search(page, words):
    page.ask(f"{TYPED} = {json.dumps(words)}; {SUBMIT}")
    page.wait(f"document.querySelector('#choices [aria-pressed=true]')?.title.includes({json.dumps(words)})")


def rows(page):
    """For each dim of the table, the titles and how many of them are marked."""
    return page.ask("""[...document.querySelectorAll('#rows .row')].map(row => [
        [...row.querySelectorAll('.cell')].map(cell => cell.title), row.querySelectorAll('.wrong').length])""")


def test_words_find_cats_at_every_dim_and_marks_say_what_differs(page, server):
    search(page, "cat")
    table = rows(page)
    assert len(table) == len(DIMS)
    for titles, wrong in table:
        assert any("cat" in title for title in titles)
        best = table[-1][0]
        assert len(titles) == len(best) == 10
        assert wrong >= sum(title not in best for title in titles)   # titles repeat, rows do not
    assert table[0][1] > 0 == table[-1][1]
    page.wait("[...document.images].every(image => image.naturalWidth > 0)")   # they load after they are placed
    assert page.complaints == []
    assert {url.split("/")[2] for url in page.requests if not url.startswith("data:")} == {server.url.split("/")[2]}
    page.ask(f"{TYPED} = 'qqqq'; {SUBMIT}")
    page.wait("document.getElementById('trouble').textContent.includes('No row has the words')")


def test_keys_alone_move_the_slider_search_and_walk_over_the_map(page):
    page.ask("document.getElementById('typed').focus()")
    page.press(*"cat", "Enter")
    page.wait("document.querySelector('#choices [aria-pressed=true]')?.title.startsWith('cat')")
    for _ in range(30):   # to the slider
        page.press("Tab")
        if page.ask("document.activeElement.id") == "slider":
            break
    assert page.ask("document.activeElement.matches(':focus-visible')")
    page.press("ArrowLeft")
    assert page.ask(DIM) == str(DIMS[0])
    seen = [page.ask(WRONG)]
    for dim in DIMS[1:]:
        page.press("ArrowRight")
        assert page.ask(DIM) == str(dim)
        seen.append(page.ask(WRONG))
    assert seen[0] > seen[-1] == 0
    assert "Nothing is missing" in page.ask("document.getElementById('missed').textContent")
    page.press("Tab", "Tab")   # the second card
    wanted = page.ask("document.activeElement.querySelector('.title').textContent")
    page.press("Enter")
    page.wait(f"document.querySelector('#hits .title').textContent !== {json.dumps(wanted)}")
    page.wait("document.getElementById('map').getAttribute('aria-label')")
    page.ask("document.getElementById('map').focus()")
    page.press("ArrowRight", "ArrowUp")
    page.wait("document.getElementById('pointed').textContent.includes('·')")
    page.ask(f"window.before = {TITLES}.join()")
    page.press("Enter")
    page.wait(f"{TITLES}.join() !== window.before")


def test_neighbours_glide_unless_a_person_wants_no_motion(page, browser, server):
    move = "slider.value = '0'; slider.oninput(); document.querySelectorAll('#hits .card').length"
    running = "document.getAnimations().filter(each => each.effect.target.matches('.card')).length"
    search(page, "cat")
    page.ask(move)
    assert page.ask(running) > 0
    browser.open(server.url, width=1280, still=True)
    browser.wait(READY)
    browser.ask(move)
    assert browser.ask(running) == 0


def test_the_switch_shows_that_a_truncated_model_finds_less(page):
    recall = "Number.parseFloat(document.querySelector('#facts dd').textContent)"
    search(page, "cat")
    assert page.ask(DIM) == str(DIMS[1])
    best, nested = rows(page)[-1][0], page.ask(recall)
    page.ask("document.querySelector('[value=fixed]').click()")
    page.wait(f"{recall} < {nested}")
    page.wait(f"document.querySelector('#choices [aria-pressed=true]')?.title.startsWith('cat') && {READY}")
    assert page.ask(DIM) == str(DIMS[1])   # the dim and the query stay
    assert [titles for titles, _ in rows(page)][-1] == best   # a rotation changes no score at the full dim


def test_a_plan_is_made_and_searched_with(page):
    page.ask("document.querySelector('#frontier .primary').click()")
    page.wait("document.querySelector('[data-plan]')", 20)
    page.ask("document.querySelector('[data-plan]').click()")
    page.wait("document.querySelector('#dim .plan') && document.querySelector('.row[data-row=plan]')")
    assert page.ask("document.querySelector('#dim').textContent") == f"all rows at {DIMS[-1]} dims"
    assert page.ask(WRONG) == 0   # the first plan is exact search
    assert "found by this plan" in page.ask("document.getElementById('verdict').textContent")
    page.ask("slider.value = '0'; slider.oninput()")
    assert page.ask(DIM) == str(DIMS[0])


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_in_light_and_dark(browser, server, dark):
    browser.open(server.url, width=360, dark=dark)
    browser.wait(READY)
    assert browser.ask("[innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    small = """[...document.querySelectorAll('button, input:not(.unseen):not([type=radio]), .switch label')]
        .filter(each => each.checkVisibility()).map(each => each.getBoundingClientRect())
        .filter(box => box.height < 40 || box.width < 40).length"""
    assert browser.ask(small) == 0   # targets of a finger
    colours = browser.ask("""['body', '.soft', '.primary', '.verdict'].map(name => {
        let element = document.querySelector(name), own = getComputedStyle(element), back = own.backgroundColor
        while (back === 'rgba(0, 0, 0, 0)') back = getComputedStyle(element = element.parentElement).backgroundColor
        return [own.color, back].map(text => text.match(/[\\d.]+/g).slice(0, 3).map(Number))})""")
    assert all(contrast(*pair) >= 4.5 for pair in colours), colours
    assert (luminance(colours[0][1]) < 0.1) == dark
    unnamed = """[...document.querySelectorAll('button, input')].filter(each =>
        !(each.getAttribute('aria-label') || each.textContent.trim() || each.labels?.length)).length"""
    assert browser.ask(unnamed) == 0


def test_hostile_payloads_are_text_and_the_key_stays_in_memory(browser, tmp_path):
    with Index.create(tmp_path / "bad", nesting=[2, 4]) as index:
        payload = [{"title": f"{HOSTILE} {n}", "image": "javascript:alert(1)", "kind": HOSTILE[: 9 + n % 2]}
                   for n in range(12)]  # fmt: skip
        index.add(np.random.default_rng(0).normal(size=(12, 4)), payload=payload)
    with serving("--index", tmp_path / "bad", "--show", "title,image", env={"MATRYO_API_KEYS": KEY}) as server:
        browser.open(server.url, width=800)
        browser.wait("document.getElementById('door').open")
        browser.ask("document.getElementById('key').focus()")
        browser.press(*KEY, "Enter")
        browser.wait(READY)
        assert browser.ask("document.querySelector('#hits .title').textContent").startswith(HOSTILE)
        assert browser.ask("document.querySelectorAll('main img, main script').length") == 0
        assert browser.ask("window.hacked") is None
        assert browser.ask("localStorage.length + sessionStorage.length + document.cookie.length") == 0
        assert KEY not in " ".join(browser.requests)
        raises = "(() => { try { document.body.innerHTML = '<b>x</b>' } catch { return true } })()"
        assert browser.ask(raises)   # nothing on the page can turn text into HTML


def test_text_fits_without_pictures_and_an_empty_index_says_so(browser, tmp_path):
    with Index.create(tmp_path / "notes", nesting=[2, 4]) as index:
        payload = [{"text": f"a sentence that is as long as a sentence {'may be ' * 20}{n}"} for n in range(30)]
        index.add(np.random.default_rng(0).normal(size=(30, 4)), payload=payload)
    Index.create(tmp_path / "empty", nesting=[2, 4]).close()
    with Index.create(tmp_path / "one", nesting=[4]) as index:
        index.add(np.random.default_rng(0).normal(size=(30, 4)))
    folders = [word for name in ("notes", "empty", "one") for word in ("--index", tmp_path / name)]
    with serving(*folders) as server:
        browser.open(server.url, width=360)
        browser.wait(READY)
        assert browser.ask("document.documentElement.scrollWidth") == 360
        browser.ask("document.querySelector('[value=empty]').click()")
        browser.wait("document.getElementById('trouble').textContent.includes('This index is empty')")
        assert not browser.ask("document.getElementById('hero').checkVisibility()")
        browser.ask("document.querySelector('[value=one]').click()")   # one dim: the page says how to have more
        browser.wait("document.querySelector('#verdict code')?.textContent.includes('--dims 1,2,4')")
        for hidden in ("#slider", "#every", "#frontier button"):
            assert not browser.ask(f"document.querySelector('{hidden}')?.checkVisibility()"), hidden
        assert "30 rows needs no plan" in browser.ask("document.getElementById('promise').textContent")
        assert browser.complaints == []


def luminance(colour):
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted([luminance(one), luminance(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)
