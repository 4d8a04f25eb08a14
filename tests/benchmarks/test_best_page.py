"""The page compares the best nested recipe with the better of all fixed models, and says where it is behind."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")   # the pages import the report

from make_docs import results_page
from pages.best import best_tables, comparisons, difference, verdict

from matryo.results import Row, read_rows

DOCS = Path(__file__).resolve().parents[2] / "docs"
STORED = [row for row in read_rows(DOCS / "results" / "tiny-imagenet.jsonl") if row.kind == "evaluate"]


def evaluated(model: str, seed: int, top1: dict[int, float], trained: bool = True) -> Row:
    """A row with these 1-NN accuracies, else like a stored one."""
    like = next(row for row in STORED if "fixed-512" in row.subject and "+" not in row.subject)
    line = next(iter(like.figures["dims"].values()))
    dims = {f"{dim}": {**line, "trained": trained, "head_top1": None, "top1": value} for dim, value in top1.items()}
    figures = {**like.figures, "model": model, "split": "val", "dims": dims}
    return replace(like, subject=f"{model} tiny_imagenet val", seed=seed, figures=figures)


def series(nested: dict[int, float]) -> list[Row]:
    """Three seeds of a nested model, of plain fixed models, of their PCA, and of fixed ones with map or neck."""
    rows = []
    for seed, shift in enumerate((-0.01, 0.0, 0.01)):
        moved = {dim: value + shift for dim, value in nested.items()}
        rows += [
            evaluated("r-best-separate", seed, moved),
            evaluated("r-fixed-8", seed, {8: 0.40}),
            evaluated("r-fixed-16", seed, {8: 0.10, 16: 0.50}),
            evaluated("r-fixed-16 + PCA", seed, {8: 0.45, 16: 0.51}, trained=False),
            evaluated("r-best-fixed-16", seed, {16: 0.55 + shift}),
            evaluated("r-neck-fixed-16", seed, {16: 0.52}),
        ]
    return rows


def table_of(nested):
    [(_, _, _, values, rivals)] = [one for one in comparisons(series(nested)) if one[2] == "1-NN"]
    return values, rivals


def test_the_rival_is_the_best_of_fixed_with_and_without_the_map_and_the_neck():
    values, rivals = table_of({8: 0.50, 16: 0.50})
    assert list(rivals) == ["fixed", "PCA", "fixed, with map", "fixed, with neck"]
    gap, error, name = difference(values[8], rivals, 8)
    assert (round(gap, 6), name) == (5.0, "PCA")
    assert error == pytest.approx(1 / 3**0.5)          # one deviation of 1 point over 3 seeds, the other of 0
    gap, error, name = difference(values[16], rivals, 16)
    assert (round(gap, 6), name) == (-5.0, "fixed, with map")
    assert error == pytest.approx((2 / 3) ** 0.5)


def test_the_verdict_says_where_it_is_behind():
    assert verdict(*table_of({8: 0.50, 16: 0.545})).endswith("at every dim, within one standard error.")
    assert verdict(*table_of({8: 0.50, 16: 0.54})).startswith("The nested model is behind by more than one standard")
    assert "16 (-1.00)" in verdict(*table_of({8: 0.50, 16: 0.54}))


def test_the_page_has_the_table_only_where_the_best_recipe_was_run():
    assert best_tables([row for row in STORED if "-best" not in row.subject]) == []
    page = results_page("tiny-imagenet", series({8: 0.50, 16: 0.54}))
    assert "| 8 | 50.0 ± 1.0 (3) | 40.0 ± 0.0 (3) | 45.0 ± 0.0 (3) | – | – | +5.00 ± 0.58 (PCA) |" in page


def test_the_page_shows_how_the_settings_were_chosen():
    from pages.maps import COLUMNS, map_tables

    maps = {name: {"8": 0.5, "512": 0.25} for name in dict.fromkeys(name for _, name, _ in COLUMNS)}
    figures = {
        "changed": {"head.weights": "1,2"}, "validate": 0.1, "top1": {"8": 0.4, "512": 0.6}, "1-NN": maps,
        "map@10": maps, "averaged heads": {"half own": {"8": 0.41, "512": 0.61}},
    }  # fmt: skip
    about, title, table = map_tables([replace(STORED[0], kind="maps", figures=figures)])
    assert "on 10 % of the training images" in about
    assert title.startswith("head.weights = 1,2, seed")
    assert "| 512 | 60.0 | 61.0 | 25.0 |" in table
