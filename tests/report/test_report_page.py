"""The page shows what there are rows for, traces each figure to them, and runs nothing that a name says."""

import base64
import csv
import dataclasses
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from statistics import fmean, stdev

import pytest
from report_rows import DIMS, evaluate_row, every_kind, of, pictures, png, row, strips

from matryo.errors import InputError
from matryo.evaluation.protocols.disagreement import Disagreement
from matryo.report import build_report
from matryo.report.figures.evaluate import compare
from matryo.report.material import Material
from matryo.report.page import page
from matryo.results import Row, read_rows

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
VOID = {"meta", "img", "br", "link", "input"}


class Page(HTMLParser):
    """Every element with its attributes and text, and a complaint about each that is not closed as it was opened."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.wrong = [], [], []
        self.feed(text)
        self.wrong += self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def parsed(whole):
    return Page((whole / "index.html").read_text(encoding="utf-8"))


def test_every_kind_has_its_section_in_order(parsed):
    keys = ["evaluate", "probe", "few-shot", "stream", "robustness", "superclass", "classes", "disagreement",
            "similarity", "cascade", "zero-shot", "pairs", "gradcam", "training", "rows"]  # fmt: skip
    assert [attrs["id"] for attrs in parsed.all("section")] == ["answer", *keys]
    assert [attrs["href"] for attrs in parsed.all("a") if attrs["href"][0] == "#"] == [f"#{key}" for key in keys]
    assert len(parsed.all("h2")) == 1 + len(keys)


def test_the_page_is_sound(parsed):
    assert parsed.wrong == []
    assert parsed.all("html") == [{"lang": "en"}]
    assert len(parsed.all("main")) == len(parsed.all("h1")) == 1
    ids = [attrs["id"] for _, attrs in parsed.elements if "id" in attrs]
    assert len(set(ids)) == len(ids)
    for attrs in parsed.all("img"):
        assert attrs["alt"]
    for attrs in parsed.all("svg"):
        assert attrs.get("aria-hidden") == "true" or (attrs["role"] == "img" and attrs["aria-label"])


def test_the_page_needs_nothing_but_itself(parsed, whole):
    assert not parsed.all("link")
    assert all(attrs["src"].startswith("data:image/") for attrs in parsed.all("img"))
    text = (whole / "index.html").read_text(encoding="utf-8")
    assert "://" not in text
    assert "default-src 'none'" in html.unescape(text)


def test_only_the_page_s_own_script_and_style_may_run(parsed, whole):
    assert parsed.all("script") == [{"type": "application/json", "id": "data"}, {}]
    text = (whole / "index.html").read_text(encoding="utf-8")
    (policy,) = [html.unescape(attrs["content"]) for attrs in parsed.all("meta") if "http-equiv" in attrs]
    for tag in ("script", "style"):
        inside = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src{'-elem' if tag == 'style' else ''} 'sha256-{digest}'" in policy


def test_links_lead_to_what_lies_beside_it(parsed, whole):
    links = {attrs["href"] for attrs in parsed.all("a")}
    for link in links:
        assert (whole / link).is_file() if not link.startswith("#") else link[1:] in str(parsed.elements), link
    files = {f"{path.parent.name}/{path.name}" for path in whole.rglob("*.*") if path.parent != whole}
    assert files <= links
    assert any(name.endswith(".png") for name in files)


def test_rows_are_kept_and_each_figure_says_where_it_comes_from(whole):
    assert read_rows(whole / "rows.jsonl") == [
        Row(**json.loads(json.dumps(dataclasses.asdict(one)))) for one in every_kind()
    ]
    text = (whole / "index.html").read_text(encoding="utf-8")
    section = text.partition('id="probe"')[2].partition("</section>")[0]
    number = next(place for place, one in enumerate(every_kind(), start=1) if one.kind == "probe")
    assert f'<a href="rows.jsonl">line {number} of rows.jsonl</a>' in section
    for part in ("matryo evaluate runs/demo-nested", "commit 0123456789ab", "2 × CPU", "numpy 2.4", "2026-01-02"):
        assert part in section
    assert "a kind of its own" in text   # no figure shows it, the table of rows does
    assert "Art: CC-BY 4.0" in text.partition("<footer")[2]


def test_tables_hold_what_the_rows_say(whole):
    with (whole / "tables/evaluate.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    rows = [one.figures for one in every_kind() if one.kind == "evaluate"]
    wanted = {}
    for figures in rows:
        for dim, at in figures["dims"].items():
            wanted.setdefault((figures["split"], figures["model"], int(dim)), []).append(at["top1"])
    found = [line for line in lines if line["metric"] == "1-NN accuracy"]
    assert len(found) == len(wanted)
    for line in found:
        name = line["series"]
        values = wanted[line["place"].removeprefix("emoji / "), name, int(line["dim"])]
        assert float(line["mean"]) == pytest.approx(fmean(values), rel=1e-12)
        assert float(line["bar"]) == pytest.approx(stdev(values), rel=1e-9)
        assert line["seeds"] == "3"
        assert line["trained"] == str(int(int(line["dim"]) in (DIMS if "separate" in name else (256,))))


def test_other_tables_hold_what_their_rows_say(whole):
    def lines(key):
        with (whole / f"tables/{key}.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    kinds = {one.kind: one.figures for one in every_kind()}
    shots = kinds["few-shot"]
    found = [(line["metric"], *(float(line[name]) for name in ("dim", "mean", "bar"))) for line in lines("few-shot")]
    assert found == [
        (f"{n} shot{'s' * (n > 1)}", dim, shots["accuracy"][i][j], shots["margin"][i][j])
        for i, n in enumerate(shots["shots"])
        for j, dim in enumerate(shots["dims"])
    ]
    assert {line["place"] for line in lines("few-shot")} == {"emoji / flat: 20-way, classes never trained"}
    missing = [line for line in lines("stream") if line["metric"] == "pretrain-head"]
    assert missing == []   # a group without examples has no accuracy
    by_last = [line for line in lines("cascade") if line["metric"] == "last dim used"]
    risk = [line for line in by_last if line["series"] == "demo separate, risk"]
    assert [float(line["expected dim"]) for line in risk] == list(kinds["cascade"]["expected_dim"])
    assert [float(line["mean"]) for line in risk] == list(kinds["cascade"]["accuracy"])
    classes = lines("classes")
    assert len(classes) == 40 * len(DIMS)
    assert [float(line["accuracy"]) for line in classes[: len(DIMS)]] == list(kinds["trends"]["class_accuracy"][0])


def test_the_same_shots_of_other_classes_are_other_tables(tmp_path):
    (shots,) = [one for one in every_kind() if one.kind == "few-shot"]
    every = dataclasses.replace(shots, figures={**shots.figures, "classes": "all"})
    build_report([shots, every], tmp_path / "out", title="t")
    text = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    for which in ("all classes", "classes never trained"):
        assert f"<caption>demo separate on emoji / flat: 20-way, {which},\u00a0%</caption>" in text
    assert len(list((tmp_path / "out/figures").glob("*.svg"))) == 2


CLAIMS = {
    "evaluate": "By 1‑NN accuracy, demo separate is better than every other model at 8 dims on each of 2 splits",
    "cascade": "A cascade of demo separate stops at 27 of 256 dims on average (54 computed in total) and reaches "
    "93.7 %; the full dim reaches 94.0 %",
    "superclass": "At 8 dims, demo separate predicts the class of 30.0 % and the superclass of 44.0 % of the examples",
    "classes": "Perfect routing among its dims would bring demo separate to 97.0 %, 3.0 points above its full dim",
    "disagreement": "8 dims are right and 256 wrong on 7 of 400 examples; the reverse on 300",
    "robustness": "From flat to high-contrast, the head top-1 of demo separate falls from 94.0 % to 59.0 % at 256 "
    "dims; perfect routing among its dims would gain 11.0 points",
    "gradcam": "On 1 of these 2 pictures the prediction changes with the dim",
    "training": "A training run of demo separate takes 89 seconds on 2 × CPU",
}


@pytest.mark.parametrize("key", CLAIMS)
def test_each_heading_states_a_claim(whole, key):
    text = (whole / "index.html").read_text(encoding="utf-8").replace("\u00a0", " ")
    assert CLAIMS[key] in text.partition(f'<section id="{key}"')[2].partition("<h2>")[2].partition("</h2>")[0]


def test_no_table_repeats_a_column(whole):
    for path in (whole / "tables").glob("*.csv"):
        heads = path.read_text(encoding="utf-8").splitlines()[0].split(",")
        assert len(heads) == len({*heads}), path.name


def test_a_model_has_one_name_and_one_colour(tmp_path):
    heads = {8: 0.3, 16: 0.5}
    rows = [evaluate_row({8: 0.4, 16: 0.6}, model="demo-nested", head=heads), evaluate_row(heads, model="b", name="b")]
    run = {"top1": {"flat": {"8": 0.3, "16": 0.5}}, "seconds": 3.0, "images_per_second": 1.0}
    build_report([*rows, row("train", run, subject="demo separate")], tmp_path / "out", title="t")
    text = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    assert "A training run of demo-nested takes 3 seconds" in text
    assert not list((tmp_path / "out/figures").glob("training*"))   # its accuracy is in another section already
    strokes = re.findall(r'stroke="(var\(--s\d\))"[^<]*<text[^<]*</text></svg>demo-nested', text.replace("\n", " "))
    assert len({*strokes}) == 1


def test_figures_without_rows_do_not_appear(tmp_path):
    build_report([row("step-cost", {}, seed=None)], tmp_path / "out", title="Nothing known")
    parsed = Page((tmp_path / "out/index.html").read_text(encoding="utf-8"))
    assert [attrs["id"] for attrs in parsed.all("section")] == ["rows"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["index.html", "matryo.json", "rows.jsonl"]


def test_one_dim_and_one_class_are_enough_for_a_page(tmp_path):
    build_report([evaluate_row({8: 1.0}, trained=(8,), map10={8: 0.0})], tmp_path / "out", title="One dim")
    text = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    assert "demo separate reaches 100.0\u00a0% at 8 dims" in text
    assert 'id="answer"' not in text   # there is nothing to choose


EVIL = "</svg></td><script>alert(1)</script><img src=x onerror=alert(1)>\"'&$x_"


def test_names_from_outside_are_text_wherever_they_stand(tmp_path):
    told = Disagreement(
        EVIL, EVIL, EVIL, EVIL, (8, 256), 1, 1, 1, 1, (EVIL,), (3,), (EVIL,), ((EVIL, EVIL),), ((0.5, 0.6),)
    )
    rows = [
        evaluate_row({8: 0.4, 16: 0.6}, model=EVIL, split=EVIL),
        of(told, subject=EVIL, command=EVIL),
        Row(EVIL, EVIL, {}, 0, EVIL, EVIL, EVIL, {EVIL: EVIL}, EVIL),
    ]
    strip = dataclasses.replace(strips()[0], label=EVIL, said=(EVIL,) * 4)
    shown = {f"{EVIL}/{EVIL}/3": png(1, 2, 3)}
    build_report(rows, tmp_path / "out", title=EVIL, credits=[EVIL], pictures=shown, strips=[strip])
    parsed = Page((tmp_path / "out/index.html").read_text(encoding="utf-8"))
    assert parsed.wrong == []
    assert len(parsed.all("script")) == 2
    assert not [attrs for _, attrs in parsed.elements if any(name.startswith("on") for name in attrs)]
    assert all(attrs["src"].startswith("data:image/png;base64,") for attrs in parsed.all("img"))
    assert len(parsed.all("img")) == 6
    assert all(path.resolve().is_relative_to(tmp_path) for path in tmp_path.rglob("*"))


def test_pictures_must_be_pictures(tmp_path):
    rows = [one for one in every_kind() if one.kind == "disagreement"]
    with pytest.raises(InputError, match=r"picture must be PNG, WebP or JPEG \(got b'<svg>'\): encode it as PNG"):
        build_report(rows, tmp_path / "out", title="t", pictures={"emoji/flat/3": b"<svg>"})
    for kind, data in (("webp", b"RIFF\0\0\0\0WEBP"), ("jpeg", b"\xff\xd8\xff\xe0"), ("png", png(0, 0, 0))):
        build_report(rows, tmp_path / kind, title="t", pictures={"emoji/flat/3": data})
        assert f"data:image/{kind};base64," in (tmp_path / kind / "index.html").read_text(encoding="utf-8")


def test_a_strip_must_be_whole(tmp_path):
    torn = dataclasses.replace(strips()[0], overlays=())
    with pytest.raises(InputError, match=r"an overlay, a class and .*'cat': 4 dims, 0 overlays.*one of each"):
        build_report(every_kind()[-1:], tmp_path / "out", title="t", strips=[torn])


def test_training_rows_need_their_figures(tmp_path):
    with pytest.raises(InputError, match=r"kind 'train' must have the figures.*'demo': loss.*remove that row"):
        build_report([row("train", {"loss": 1.0}, subject="demo")], tmp_path / "out", title="t")


@pytest.mark.parametrize(
    ("share", "unit", "told"),
    [("hit@1", "pairs", "30.0\u00a0% hit@1"), ("masked_top1", "windows", "30.0\u00a0% masked words")],
)
def test_runs_of_pairs_and_masked_words_are_drawn(tmp_path, share, unit, told):
    figures = {share: {"test": {"8": 0.1, "32": 0.3}}, "seconds": 12.0, f"{unit}_per_second": 345.0}
    build_report([row("train", figures, subject="words nested")], tmp_path / "out", title="t")
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert f"takes 12 seconds on 2 × CPU; words nested ends with {told} at 32 dims" in text
    assert f"345 {unit}" in text


def test_a_page_without_anything_is_still_a_page():
    text = page(title="t", sections=[], rows=[])
    assert Page(text).wrong == []


def test_the_gallery_shows_pictures_where_they_are_known(whole):
    text = (whole / "index.html").read_text(encoding="utf-8")
    text = text.partition('id="disagreement"')[2].partition("</section>")[0]
    assert text.count("<img ") == len(pictures()) == 2
    assert '<span class="right">✓ cat</span> 0.80' in text
    assert '<span class="wrong">✗ tiger</span> 0.60' in text


def test_models_differ_only_beyond_the_error():
    def said(*others):
        mine = evaluate_row({8: 0.60, 16: 0.80}, model="a", name="a", trained=(8, 16))
        rows = [evaluate_row(top1, model=name, name=name, trained=(16,)) for name, top1 in others]
        return compare(Material.of([mine, *rows]).lines)

    # 400 queries: the 95 % interval of the difference at 60 % is 1.96 · sqrt(2 · 0.6 · 0.4 / 400) = 6.8 points.
    assert said(("b", {8: 0.55, 16: 0.79})).startswith("By 1-NN accuracy, a is neither better nor worse than the best")
    assert said(("b", {8: 0.50, 16: 0.79})) == "By 1-NN accuracy, a is better than every other model at 8 dims"
    assert said(("b", {8: 0.5, 16: 0.9}), ("c", {8: 0.59, 16: 0.8})) == "By 1-NN accuracy, a is worse than b at 16 dims"
    assert said() == "a reaches 60.0\u00a0% at 8 dims and 80.0\u00a0% at 16"
