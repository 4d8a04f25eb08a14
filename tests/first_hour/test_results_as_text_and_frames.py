"""Any result prints as a table, shows as HTML in a notebook, and becomes a data frame."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from matryo import EmbeddingSet, Nesting
from matryo.embeddings import Head
from matryo.errors import MissingExtra
from matryo.evaluation import PROTOCOLS, Relevance, Subject, measure

CLASSES = 4
NESTING = Nesting([4, 8])


def made(seed: int, **about: Any) -> EmbeddingSet:
    labels = np.arange(80) % CLASSES
    centres = np.random.default_rng(9).normal(size=(CLASSES, 8))
    vectors = centres[labels] + np.random.default_rng(seed).normal(size=(80, 8))
    return EmbeddingSet.of(vectors, labels=labels, nesting=NESTING, classes=list("<bcd"), dataset="toy", **about)


@pytest.fixture(scope="module")
def subjects() -> dict[bool, Subject]:
    head = Head.tied(np.random.default_rng(9).normal(size=(CLASSES, 8)), dims=NESTING.dims)
    kinds = {"superclasses": ["x", "y"], "superclass_of": [0, 0, 1, 1]}
    queries = {name: made(seed, head=head, split=name, **kinds) for name, seed in (("near", 2), ("far", 3))}
    labelled = Subject("a <model>", 0, made(1), queries, texts=made(4), progress=False)
    related = Relevance.of([[i, i] for i in range(80)], np.arange(80) % 3)
    return {False: labelled, True: Subject("a <model>", 0, made(1), queries, relevance=related, progress=False)}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_has_text_html_and_a_frame(
    name: str, subjects: dict[bool, Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "probe":
        pytest.importorskip("scipy")
    result = measure(subjects[name in ("pairs", "sts")], name)[0]
    text, html = str(result), result._repr_html_()
    heading, titles, *rows = text.splitlines()
    assert heading.startswith("a <model>, toy")
    assert len(rows) >= 2 and titles.strip()
    assert "a &lt;model&gt;, toy" in html and "<model>" not in html
    for cell in rows[0].split():
        assert cell.strip("*") in html

    pandas: Any = ModuleType("pandas")   # a stand-in that keeps what it is given; pandas itself need not be here
    pandas.DataFrame = lambda columns: SimpleNamespace(rename_axis=lambda axis: (axis, columns))
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    axis, columns = result.to_frame()
    assert axis in titles
    blocks = result.blocks()
    assert len(columns) == sum(len(block.metrics) for block in blocks), "no column replaces another"
    values = [value for metric in blocks[0].metrics for value in metric.values.values()]
    assert [value for column in columns.values() for value in column.values()][: len(values)] == values


def test_a_frame_of_real_pandas(subjects: dict[bool, Subject]) -> None:
    pandas = pytest.importorskip("pandas")
    result = measure(subjects[False], "evaluate")[0]
    frame = result.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert (frame.index.name, frame.loc[8, "1-NN"]) == ("dim", result.at(8).top1)


def test_a_frame_needs_pandas(subjects: dict[bool, Subject], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"this needs pandas: pip install 'matryo\[frames\]'"):
        measure(subjects[False], "evaluate")[0].to_frame()
