"""Tables of evaluations: aligned, at most 100 columns wide, and the same figures in Markdown."""

from __future__ import annotations

import re

import pytest

from matryo.errors import InputError
from matryo.evaluation import DimRow, Evaluation, table

KS = (10, 25, 50, 100)


def made(
    model: str = "nested",
    split: str = "test",
    dims: tuple[int, ...] = (8, 12, 2048),
    head: bool = True,
    ks: tuple[int, ...] = KS,
    shift: float = 0.0,
    voters: tuple[int, ...] = (),
) -> Evaluation:
    rows = tuple(
        DimRow(
            dim=dim,
            trained=dim != 12,
            top1=0.5 + shift,
            top5=0.75,
            top10=1.0,
            map_at={k: 0.4 + k / 1000 for k in ks},
            precision_at={k: 0.6 - k / 1000 for k in ks},
            mflops=1.281167 * dim,
            head_top1=0.6125 + shift if head else None,
            head_top5=0.9 if head else None,
            recall_at={k: k / 1000 for k in ks} if voters else {},
            knn={k: 0.5 + k / 100 for k in voters},
        )
        for dim in dims
    )
    return Evaluation(model, "imagenet", split, 1_281_167, 50_000, 12, rows)


def test_one_evaluation_with_every_metric() -> None:
    expected = """
nested, imagenet / test: 50,000 queries (12 excluded) in a database of 1,281,167
 dim  MFLOPs head head-5 1-NN top-5 top-10 mAP@10 mAP@25 mAP@50 mAP@100 P@10 P@25 P@50 P@100
   8    10.2 61.3   90.0 50.0  75.0  100.0   41.0   42.5   45.0    50.0 59.0 57.5 55.0  50.0
  12*   15.4 61.3   90.0 50.0  75.0  100.0   41.0   42.5   45.0    50.0 59.0 57.5 55.0  50.0
2048    2624 61.3   90.0 50.0  75.0  100.0   41.0   42.5   45.0    50.0 59.0 57.5 55.0  50.0
* no model here was trained at this dim
"""
    assert table(made(), show=[]) == expected.strip("\n")


def test_recall_and_votes() -> None:
    found = [("nested", made(dims=(8,), ks=(10, 25), voters=(5, 10)))]
    expected = """
nested, imagenet / test: 50,000 queries (12 excluded) in a database of 1,281,167
dim 1-NN 5-NN 10-NN P@25 recall@10 recall@25
  8 50.0 55.0  60.0 57.5       1.0       2.5
"""
    show = ("1-NN", "5-NN", "10-NN", "P@25", "recall@10", "recall@25")
    assert table(found, show=show) == expected.strip("\n")


def test_models_side_by_side_a_part_a_split() -> None:
    found = [
        ("nested", made()),
        ("fixed", made(dims=(8,), head=False, shift=0.01)),
        ("fixed", made(dims=(2048,), head=False, shift=-0.01)),
        ("nested", made(split="sketch", dims=(8,))),
    ]
    expected = """
imagenet / test: 50,000 queries (12 excluded) in a database of 1,281,167
                nested       fixed
 dim  head 1-NN mAP@10 1-NN mAP@10
   8  61.3 50.0   41.0 51.0   41.0
  12* 61.3 50.0   41.0    –      –
2048  61.3 50.0   41.0 49.0   41.0
* no model here was trained at this dim

nested, imagenet / sketch: 50,000 queries (12 excluded) in a database of 1,281,167
dim head 1-NN mAP@10
  8 61.3 50.0   41.0
"""
    assert table(found) == expected.strip("\n")


def test_markdown() -> None:
    expected = r"""
**imagenet / test: 50,000 queries (12 excluded) in a database of 1,281,167**

| dim | nested head | nested 1-NN | fixed 1-NN |
| ---: | ---: | ---: | ---: |
| 8 | 61.3 | 50.0 | 51.0 |
| 12\* | 61.3 | 50.0 | – |

\* no model here was trained at this dim
"""
    found = [("nested", made(dims=(8, 12))), ("fixed", made(dims=(8,), head=False, shift=0.01))]
    assert table(found, show=("head", "1-NN"), markdown=True) == expected.strip("\n")
    assert "| dim | MFLOPs | head |" in table(made(), show=[], markdown=True)


def test_wide_tables_go_on_below_within_the_width() -> None:
    many = [(f"model number {n}", made(shift=n / 100)) for n in range(9)]
    for width in (40, 60, 100):
        text = table(many, width=width)
        lines = text.splitlines()[1:]
        assert max(map(len, lines)) <= max(width, 60)
        assert all(text.count(name) == 1 for name, _ in many)
        assert text.count("dim") >= 3
    for n in range(9):
        assert f" {50 + n}.0 " in table(many)


def test_one_model_too_wide_is_cut_between_its_columns() -> None:
    text = table(made(ks=tuple(range(10, 200, 10))), show=[])
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert re.findall(r"mAP@(\d+)", text) == [str(k) for k in range(10, 200, 10)]


def test_every_line_of_a_part_is_aligned() -> None:
    text = table([("a", made()), ("a model with a rather long name", made(shift=0.1))])
    _, names, titles, *rows = text.splitlines()[:-1]
    assert names.endswith("long name")
    assert {len(row) for row in rows} == {len(titles), len(names)}


def test_without_heads_and_with_small_databases() -> None:
    text = table(made(head=False, ks=()), show=[])
    assert text.splitlines()[1].split() == ["dim", "MFLOPs", "1-NN", "top-5", "top-10"]
    both = table([("a", made(head=False, ks=())), ("b", made(head=False, ks=()))])
    assert both.splitlines()[2].split() == ["dim", "1-NN", "1-NN"]


def test_a_metric_that_does_not_exist() -> None:
    with pytest.raises(InputError, match=r"must name metrics \(got \['mAP@11'\]\): choose from MFLOPs, head"):
        table(made(), show=("mAP@11",))
    with pytest.raises(InputError, match="must be a result to show"):
        table([])


def test_unnamed_sets_have_a_heading_too() -> None:
    bare = Evaluation("", "", "", 10, 5, 0, made(dims=(8,)).rows)
    assert table(bare).splitlines()[0] == "5 queries in a database of 10"
