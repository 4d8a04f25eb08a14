"""Drawings hold the numbers they were given, and their SVG can live in a page."""

import re
import sys
from xml.etree import ElementTree

import pytest

from matryo.report.draw import chart, drawing, export, inline, log_axis, sheet
from matryo.report.series import Curve, Point
from matryo.report.style import COLOURS, categories

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def line(*points, name="one"):
    return Curve("place", name, "metric", points, 3, "sd over 3 seeds")


def charted(*curves, **about):
    looks = categories(len(curves))
    return chart("accuracy, %", [(one, look, one.name) for one, look in zip(curves, looks, strict=True)], **about)


def test_lines_pass_through_the_means_and_bars_reach_one_deviation():
    with drawing():
        (axes,) = charted(line(Point(8, 0.5, 0.02), Point(16, 0.7, 0.01)), line(Point(8, 0.4), name="two")).axes
    first = next(each for each in axes.lines if each.get_label() == "one")
    assert first.get_xydata().tolist() == [[8, 0.5], [16, 0.7]]
    bars = [segment.tolist() for segment in axes.collections[0].get_segments()]
    assert bars == [[[8, 0.48], [8, 0.52]], [[16, 0.69], [16, 0.71]]]
    assert len(axes.collections) == 1   # a line without a deviation has no bars


def test_bars_go_both_ways_where_both_are_known():
    with drawing():
        (axes,) = charted(line(Point(8, 0.5, 0.02, x=12.0, x_sd=3.0)), x="expected dims").axes
    assert sorted(segment.tolist() for bars in axes.collections for segment in bars.get_segments()) == [
        [[9.0, 0.5], [15.0, 0.5]],
        [[12.0, 0.48], [12.0, 0.52]],
    ]


def test_dims_that_were_not_trained_are_hollow():
    with drawing():
        (axes,) = charted(line(Point(8, 0.5), Point(12, 0.6, trained=False), Point(16, 0.7))).axes
    whole = next(each for each in axes.lines if each.get_label() == "one")
    assert whole.get_markevery() == [0, 2]
    (hollow,) = [each for each in axes.lines if each.get_markerfacecolor() == COLOURS["paper"][0]]
    assert hollow.get_xydata().tolist() == [[12, 0.6]]


def test_the_axis_is_logarithmic_and_its_labels_do_not_touch():
    with drawing():
        _, (axes,) = sheet([2.0])
        log_axis(axes, [m for k in range(9) for m in (8 << k, 12 << k)][:-1])   # 8, 12, 16, … 2048
    assert axes.get_xscale() == "log"
    ticks = axes.xaxis.get_major_locator().locs.tolist()
    assert ticks == [8, 16, 32, 64, 128, 256, 512, 1024, 2048]


def test_an_axis_has_a_scale_even_if_one_dim_was_trained():
    own = line(*(Point(dim, dim / 400, trained=dim == 384) for dim in (12, 24, 48, 96, 192, 384)))
    with drawing():
        (axes,) = charted(own).axes
    assert axes.xaxis.get_major_locator().locs.tolist() == [12, 24, 48, 96, 192, 384]


def test_bars_of_shares_end_at_0_and_1_and_those_of_correlations_do_not():
    with drawing():
        (axes,) = charted(line(Point(8, 0.01, 0.05), Point(16, 0.98, 0.05), Point(32, -0.1, 0.05))).axes
    bars = [[y for _, y in segment] for segment in axes.collections[0].get_segments()]
    assert bars == [pytest.approx(bar) for bar in ([0.0, 0.06], [0.93, 1.0], [-0.15, -0.05])]
    assert bars[0][0] == 0
    assert bars[1][1] == 1


def test_the_legend_can_be_cut_off():
    with drawing():
        figure = export(charted(line(Point(8, 0.5), Point(16, 0.6), name="a model")))
    whole, cut = (inline(figure, "one", "label", legend=keep) for keep in (True, False))
    assert "a model" in whole
    assert "a model" not in cut
    heights = [float(re.search(r'viewBox="0 0 360 ([\d.]+)"', text)[1]) for text in (whole, cut)]
    assert heights[1] < heights[0] - 10
    ElementTree.fromstring(cut)


@pytest.fixture(scope="module")
def drawn():
    """A drawing whose names are hostile to XML, to mathematics and to layouts."""
    evil = line(Point(8, 0.5), Point(16, 0.6), name='<b>"$x^2$"</b> & 日本')
    with drawing():
        return export(charted(evil, line(Point(8, 0.4))))


def test_names_are_text_as_they_stand(drawn):
    svg = drawn.svg
    texts = ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("}text")]
    assert '<b>"$x^2$"</b> & 日本' in texts
    assert {"8", "16", "dims", "accuracy, %"} <= set(texts)
    assert svg.count("system-ui, sans-serif") == len(texts)
    assert "DejaVu" not in svg


def test_the_same_figure_gives_the_same_bytes():
    def drawn():
        with drawing():
            return export(charted(line(Point(8, 0.5, 0.1), Point(16, 0.6, 0.2))))

    one, other = drawn(), drawn()
    assert one == other
    assert "<dc:date>" not in one.svg
    assert one.png.startswith(b"\x89PNG")


def test_a_drawing_in_a_page_has_ids_of_its_own(drawn):
    one, other = (inline(drawn, name, "label") for name in ("one", "other"))
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in (one, other)]
    assert all(ids)
    assert not ids[0] & ids[1]
    for text, known in zip((one, other), ids, strict=True):
        assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) == known


def test_a_drawing_in_a_page_follows_its_mode(drawn):
    text = inline(drawn, "one", 'a "label" <b>')
    assert not re.findall(r"#[0-9a-f]{6}\b", re.sub(r">[^<]*<", "><", text))
    assert {"paper", "ink", "soft", "rule", "s1", "s2"} <= set(re.findall(r"var\(--(\w+)\)", text))
    assert 'aria-label="a &quot;label&quot; &lt;b&gt;"' in text
    assert 'viewBox="0 0 360 ' in text
    ElementTree.fromstring(text)   # still well-formed
    assert "<style" not in text
    assert "<metadata" not in text


def test_only_tags_are_changed_not_what_names_say():
    with drawing():
        said = export(charted(line(Point(8, 0.5), name='#0072b2 url(#a) id="b"')))
    assert '#0072b2 url(#a) id="b"' in inline(said, "one", "label")


def test_settings_of_the_process_come_back():
    import matplotlib

    before = dict(matplotlib.rcParams)
    with drawing():
        assert matplotlib.rcParams["svg.fonttype"] == "none"
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or before["backend"] == matplotlib.rcParams["backend"]
