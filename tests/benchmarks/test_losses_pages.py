import re
from pathlib import Path

import pytest
from pages.losses import BERT, FIGURE, LARGE, PAIRS, fused_tables, sentence_tables
from pages.losses_figures import figure
from pages.losses_picture import picture
from pages.losses_rows import shapes

from matryo.results import Row, read_rows, stamp

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
RESULTS = DOCS / "results"


def row(name, group, times, *, dims=(8, 16), batch=8, columns=256, **more):
    """``times`` by variant; a variant takes as many GiB as milliseconds."""
    figures = {"group": group, "kind": name.split()[0], "batch": batch, "columns": columns, "dims": list(dims)}
    figures |= {variant: {"p20": ms * 0.9, "p50": ms, "p80": ms * 1.1, "extra_bytes": ms * 2**30, **more}
                for variant, ms in times.items()}  # fmt: skip
    if "fused" in times:
        figures |= {"product": 1.0}
        figures["fused"]["of_limit"] = 4 / times["fused"]
    return stamp("fused-losses", name, figures, seed=0, hardware="GPU")


def test_each_variant_is_read_from_its_newest_row_and_compared_within_it():
    rows = [
        row(LARGE, "main", {"single eager": 10, "nested eager": 60, "fused": 30}),
        row(LARGE, "main", {"single eager": 20, "fused": 25}),
    ]
    (shape,) = shapes(rows)
    assert shape.ratio("nested eager") == 6       # of the first run, which has it
    assert shape.ratio() == 1.25                  # of the second
    assert shape.faster("nested eager") == 4.8    # 6 and 1.25 times what is the same
    assert shape.share() == 1.25


def test_the_page_says_what_is_reached_and_what_not():
    many = [row(f"cross-entropy 8 × 256 × 64, {count} dims", "dims", {"single eager": 10, "fused": ms},
                dims=range(64 // count, 65, 64 // count)) for count, ms in ((8, 10), (16, 11), (32, 22))]  # fmt: skip
    page = "\n\n".join(fused_tables([row(BERT, "main", {"single eager": 10, "fused": 12}), *many]))
    assert "| 8 × 256 × 16: × single eager | ≤ 1.0 | 1.200 | **no** |" in page
    assert "| 8 × 256 × 64, blocks of one width: time of 16 dims over 8 | ≤ +20 % | +10 % | yes |" in page
    assert "| 8 × 256 × 64, blocks of one width: time of 32 dims over 16 | ≤ +35 % | +100 % | **no** |" in page
    assert "| fused | 10.80 | 12.00 | 13.20 | 1.20 | 12.00 | 120 % | 33 % |" in page
    assert "| 32 | 2 | 10.00 | 22.00 | 19.80–24.20 | 2.20 | 22.00 | 220 % | 18 % | +100 % |" in page


def test_sweeps_have_a_line_a_shape_and_say_what_they_hold():
    rows = [row(f"cross-entropy 8 × {n} × 16, 2 dims", "classes", {"single eager": 1, "fused": 2}, columns=n)
            for n in (1000, 256)]  # fmt: skip
    page = "\n\n".join(fused_tables(rows))
    assert "Batch 8, d = 16, 2 dims:" in page
    assert page.index("| 256 | 1.00 | 2.00 |") < page.index("| 1,000 | 1.00 | 2.00 |")
    assert "(896 of 1,000)" in page


def test_a_step_that_half_the_batch_does_not_shorten_waits_for_the_cpu():
    head = {"columns": 30_522, "dims": (384, 768)}

    def page(low):
        rows = [row(BERT, "main", {"single eager": 8, "fused": 9}, batch=8192, **head),
                row("cross-entropy, less", "batch", {"single eager": 4, "fused": low}, batch=4096, **head)]  # fmt: skip
        rows = [Row(**{**vars(one), "figures": one.figures | {"kind": "cross-entropy"}}) for one in rows]
        return "\n".join(fused_tables(rows))

    assert "takes no less (9.5 beside 9.0 ms)" in page(9.5)
    assert "waits for the CPU" not in page(4.5)


def test_sentence_losses_stand_beside_what_they_replace():
    def of(ms):
        return {"p20": ms, "p50": ms, "p80": ms, "loss": 1.5, "peak_mib": 2000.0}

    figures = {"variants": {"single": of(2.0), "matryoshka": of(12.0), "nested": of(3.0)}, "dims": [8, 16],
               "mini_batch": 4, "out_of_memory": ["matryoshka cached"], "sentence_transformers": "6.0"}  # fmt: skip
    rows = [stamp("sentence-loss", "batch 4096 d 16 float32", figures, seed=0, hardware="GPU")]
    page = "\n\n".join(sentence_tables(rows))
    assert "**d = 16, 2 dims, float32, on GPU; sentence-transformers 6.0**" in page
    assert "| 4,096 | nested | 3.00 | 3.00 | 3.00 | 1.50 | 4.0 | 2,000 | 1.500 |" in page
    assert "| 4,096 | matryoshka cached | – | – | – | – | – | out of memory | – |" in page


def test_the_figure_is_drawn():
    pytest.importorskip("matplotlib")
    rows = [row(BERT, "main", {"single eager": 10, "nested eager": 40, "fused": 12}),
            row("cross-entropy 8 × 256 × 64, 2 dims", "dims", {"single eager": 10, "fused": 15})]  # fmt: skip
    svg = figure(rows)
    assert "4.00" in svg and "limit: four products" in svg
    assert f"]({FIGURE})" in "\n".join(fused_tables(rows)) and (RESULTS / FIGURE).is_file()


def test_the_picture_is_the_one_that_the_page_shows():
    assert (DOCS / "losses.svg").read_text(encoding="utf-8") == picture()
    assert "](losses.svg)" in (DOCS / "losses.md").read_text(encoding="utf-8")


def test_the_stored_rows_are_the_ones_that_are_shown():
    stored = read_rows(RESULTS / "fused-losses.jsonl")
    page, svg = "\n".join(fused_tables(stored)), (RESULTS / FIGURE).read_text(encoding="utf-8")
    each = [shape for shape in shapes(stored) if shape.about("group") in ("main", "separate", "contrastive")]
    assert len(re.findall(r"^\| fused \|", page, re.MULTILINE)) == len(each)
    drawn = [shape for shape in each if shape.name in (BERT, LARGE, PAIRS)]
    bars = [f">{shape.ratio(name):.2f}<" for shape in drawn for name in shape.variants]
    assert [bar for bar in bars if bar not in svg] == [], "run scripts/make_docs.py --figures"
