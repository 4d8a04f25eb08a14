"""Series of trainings that are compared: they run, store a row each, and differ in what they should alone."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("PIL")

import image_text  # noqa: E402
import mlm  # noqa: E402
import vit  # noqa: E402

from matryo.data import open_dataset  # noqa: E402
from matryo.results import read_rows  # noqa: E402
from matryo.training import load_recipe  # noqa: E402


def run(monkeypatch, program, *words):
    monkeypatch.setattr(sys, "argv", [f"{program.__name__}.py", *map(str, words)])
    program.main()


def test_masked_words_of_a_nested_and_a_fixed_model(tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.jsonl"
    run(monkeypatch, mlm, "--quick", "--models", "nested", "fixed:16", "--set", "loop.batch=4", "--out", out)
    nested, fixed = read_rows(out)
    assert (nested.kind, nested.figures["model"], fixed.figures["model"]) == ("mlm", "nested", "fixed:16")
    assert [*nested.figures["masked_top1"]["test"]] == ["16", "64", "128"]
    assert [*fixed.figures["masked_top1"]["test"]] == ["16"]
    assert nested.figures["changed"] == fixed.figures["changed"]
    assert nested.figures["changed"]["loop.steps"] == "6"
    capsys.readouterr()


def test_images_and_texts_are_measured_in_every_way(tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.jsonl"
    words = ["--quick", "--seeds", "0", "--models", "fixed", "--set", "data.test=test", "--out", out]
    run(monkeypatch, image_text, *words)
    rows = read_rows(out)
    assert [row.kind for row in rows] == ["image-text", "pairs", "similarity", "zero-shot", "zero-shot"]
    (trained, found, span, *told) = (row.figures for row in rows)
    assert (trained["model"], found["model"]) == ("fixed", "emoji-pairs fixed")
    assert found["sides"] == ["images", "texts"]
    assert found["dims"] == span["dims"] == [8, 16, 32]   # truncated, though it was trained at 32 alone
    assert [one["split"] for one in told] == ["test, groups by their names", "test, groups by the names in them"]
    capsys.readouterr()


def test_texts_about_groups_are_those_of_their_classes():
    dataset = open_dataset("emoji-names")
    heard = []

    def encode(texts, side):
        assert side == "candidates"
        heard.append(texts)
        return np.ones((len(texts), 4), np.float32)

    names, inside = dict(image_text.groups(SimpleNamespace(encode=encode), dataset, "train")).values()
    assert names.classes == inside.classes == dataset.superclasses
    assert all(word in dataset.superclasses[label] for word, label in zip(heard[0], names.labels, strict=True))
    texts = dataset.split("train").candidates
    assert [dataset.superclass_of[texts.labels[i]] for i in range(50)] == inside.labels[:50].tolist()
    assert heard[1][:3] == [texts.text(i) for i in range(3)]


def test_a_vision_transformer_is_fixed_at_every_dim():
    recipe = load_recipe("tiny-imagenet-vit", {"encoder.name": "vit-ti4", "head.dims": "12,24,48,96,192"})
    assert vit.models_of(recipe) == ["separate", "tied", *(f"fixed:{dim}" for dim in (12, 24, 48, 96, 192))]
    assert vit.fields_of("tied") == {"head.kind": "tied"}
    assert vit.fields_of("fixed:12") == {"head.kind": "fixed", "head.dims": "12"}


def test_no_training_begins_after_the_last_minute(tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.jsonl"
    run(monkeypatch, vit, "--quick", "--minutes", "-1", "--models", "tied", "--out", out)
    assert "skipped tied, seed 0" in capsys.readouterr().out
    assert not out.exists()


def test_a_quick_try_is_no_result(monkeypatch):
    for quick, folder in ((True, "tmp"), (False, "docs/results")):
        args = SimpleNamespace(quick=quick, rows=None, set=["a=1"])
        monkeypatch.setattr("tempfile.gettempdir", lambda: "tmp")
        sys.modules["support.series"].settle(args, "x.jsonl", ("b=2",))
        assert str(args.rows) == f"{folder}/x.jsonl"
        assert args.set == (["a=1", "b=2"] if quick else ["a=1"])
