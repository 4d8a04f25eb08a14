"""`matryo report`: from folders or stored rows to a page, with pictures where they are at hand."""

import json

import numpy as np
import pytest

from matryo import EmbeddingSet, Nesting, truncate
from matryo.cli import main
from matryo.data import emoji, emoji_pairs
from matryo.embeddings import Head

pytest.importorskip("matplotlib")
pytest.importorskip("PIL")


@pytest.fixture
def run(tmp_path):
    """What looks like a run on emoji, made of their pixels: real pictures, real labels, no training."""
    data = emoji()
    rng = np.random.default_rng(0)
    projection = rng.normal(size=(32 * 32 * 3, 32)) / 50
    about = {"nesting": Nesting([8, 16, 32]), "dataset": "emoji", "classes": data.classes, "model": "pixels"}
    about |= {"superclasses": data.superclasses, "superclass_of": data.superclass_of}
    head = None
    for split in ("train", "flat", "twemoji"):
        images = data.split(split)
        count = np.flatnonzero(images.labels < 60)[-1] + 1
        pixels = np.stack([images.image(i) for i in range(count)]).reshape(count, -1) / 255.0 - 0.5
        vectors, labels, names = pixels @ projection, images.labels[:count], [images.name(i) for i in range(count)]
        if head is None:   # a class is the mean of its training drawings
            weight = np.zeros((len(data.classes), 32))
            np.add.at(weight, labels, truncate(vectors, 32) / np.bincount(labels)[labels, None])
            head = Head.tied(weight, dims=(8, 16, 32))
        EmbeddingSet.write(
            tmp_path / "mine" / "embeddings" / split, vectors, labels=labels, ids=names, head=head, split=split, **about
        )
    facts = {"recipe": {"data": {"source": "emoji"}}, "classes": list(data.classes)}
    (tmp_path / "mine" / "run.json").write_text(json.dumps(facts))
    return tmp_path / "mine"


def test_a_folder_becomes_a_page_with_pictures_and_credits(run, tmp_path, capsys):
    out = tmp_path / "page"
    assert main(["report", str(run), "--out", str(out), "--strips", "0", "--baselines", "pca", "--quiet"]) == 0
    assert f"open {out / 'index.html'}" in capsys.readouterr().out
    text = (out / "index.html").read_text(encoding="utf-8")
    assert "mine" in text
    assert "data:image/png;base64," in text
    assert "Graphics by Twemoji" in text
    kinds = {json.loads(line)["kind"] for line in (out / "rows.jsonl").read_text(encoding="utf-8").splitlines()}
    assert {"evaluate", "robustness", "superclass", "trends", "disagreement", "cascade"} <= kinds

    again, few = tmp_path / "again", tmp_path / "few.jsonl"
    lines = (out / "rows.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    few.write_text("".join(line for line in lines if json.loads(line)["kind"] == "disagreement"), encoding="utf-8")
    assert main(["report", "--rows", str(few), "--out", str(again), "--title", "Stored <rows>"]) == 0
    page = (again / "index.html").read_text(encoding="utf-8")
    assert "Stored &lt;rows&gt;" in page
    assert "Graphics by Twemoji" not in page   # no picture, no credit
    assert main(["report", "--rows", str(few), "--out", str(again)]) == 0   # an older report is replaced
    assert "Stored" not in (again / "index.html").read_text(encoding="utf-8")


def test_pairs_of_bundled_drawings_are_shown(tmp_path, capsys):
    data = emoji_pairs()
    asked = data.split("test").queries
    about = {"classes": data.classes, "dataset": data.name, "split": "test", "nesting": Nesting([8, 16])}
    vectors = np.random.default_rng(0).normal(size=(60, 16))
    names = [asked.name(i) for i in range(60)]
    inside = tmp_path / "mine" / "embeddings" / "test"
    EmbeddingSet.write(inside / "queries", vectors, labels=asked.labels[:60], ids=names, **about)
    EmbeddingSet.write(inside / "candidates", vectors[::2], labels=asked.labels[:60:2], ids=names[::2], **about)
    (inside / "relevance.tsv").write_text("".join(f"{name}\t{name}\t1\n" for name in names[::2]))
    facts = {"recipe": {"data": {"source": "emoji-names"}}, "classes": list(data.classes)}
    (tmp_path / "mine" / "run.json").write_text(json.dumps(facts))
    options = ["--protocols", "pairs,disagreement", "--baselines", "none", "--strips", "0", "--quiet"]
    assert main(["report", str(tmp_path / "mine"), "--out", str(tmp_path / "page"), *options]) == 0
    assert "no pictures" not in capsys.readouterr().err
    assert "data:image/png;base64," in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")


def test_what_cannot_be_shown(tmp_path, capsys):
    assert main(["report"]) == 1
    assert "a report needs folders or rows" in capsys.readouterr().err
    (tmp_path / "broken.jsonl").write_text("{}\n")
    assert main(["report", "--rows", str(tmp_path / "broken.jsonl")]) == 1
    assert "line 1" in capsys.readouterr().err
