"""Texts on the device against the tokenizer called on each batch; the figures of a run against loops."""

import numpy as np
import pytest
import torch

pytest.importorskip("tokenizers")

import texts_made as made
from texts_made import recipe

from matryo.data import text_dataset
from matryo.encoders import Tokens
from matryo.errors import DataError
from matryo.training.batches import open as module
from matryo.training.batches.open import open_batches
from matryo.training.batches.order import epoch_order
from matryo.training.distributed import Group
from matryo.training.measure import Measured, measure
from matryo.training.model import build_model

CPU = torch.device("cpu")
ALONE = Group(0, 1, CPU)


@pytest.mark.parametrize("length", [16, 11])
@pytest.mark.parametrize("limit", [4_000_000, 0])
def test_batches_are_what_the_tokenizer_says(monkeypatch, length, limit):
    """Kept on the device, or (above the limit) numbered as they come."""
    monkeypatch.setattr(module, "_RESIDENT_TEXTS", limit)
    split, words = made.labelled().split("train"), made.tokenizer()
    batches = open_batches(split, recipe(text__length=length), ALONE, progress=False, tokenizer=words)
    order = epoch_order(0, 3, 48).reshape(6, 8)
    found = list(batches.epoch(3))
    assert len(found) == batches.steps == 6
    for rows, (inputs, target) in zip(order, found, strict=True):
        ids, mask = words.encode([split.text(int(i)) for i in rows], length)
        assert np.array_equal(inputs.ids.numpy(), ids)
        assert inputs.ids.dtype == torch.int64
        assert np.array_equal(mask if inputs.mask is None else inputs.mask.numpy(), mask)
        assert (inputs.mask is None) == mask.all()
        assert target.tolist() == split.labels[rows].tolist()
    for (a, _), (b, _) in zip(batches.epoch(3, 4), found[4:], strict=True):
        assert torch.equal(a.ids, b.ids)


def test_what_cannot_be_read_is_named():
    words = made.tokenizer()
    unknown = text_dataset({"train": (["a", "b"], [0, -1])}, ["x"]).split("train")
    with pytest.raises(DataError, match="every training text needs a known class"):
        open_batches(unknown, recipe(loop__batch=1), ALONE, progress=False, tokenizer=words)
    with pytest.raises(DataError, match=r"fill one batch \(got 48 texts"):
        open_batches(made.labelled().split("train"), recipe(loop__batch=64), ALONE, progress=False, tokenizer=words)


def test_testing_goes_on_from_any_text():
    split, words = made.labelled().split("train"), made.tokenizer()
    rest = list(module.ordered_batches(split, recipe(), CPU, start=20, batch=10, tokenizer=words))
    assert torch.cat([labels for _, labels in rest]).tolist() == split.labels[20:].tolist()
    assert np.array_equal(rest[0][0].ids.numpy(), words.encode([split.text(i) for i in range(20, 30)], 16)[0])


# --- the figures ---


def vectors(model, split, words):
    ids, mask = words.encode([split.text(i) for i in range(len(split))], 16)
    with torch.no_grad():
        return model.embed(Tokens(torch.from_numpy(ids).long(), torch.from_numpy(mask))).numpy()


def test_hits_are_those_of_a_loop():
    split, words = made.pairs().split("test"), made.tokenizer()
    split = split.subset(np.r_[np.arange(10), np.arange(4)])   # some pairs twice: a query still counts once
    split.pairs[10:, 1] = (split.pairs[10:, 1] + 3) % 10   # and has a second candidate
    split.grades[13] = 0   # or one that was judged not to belong to it
    made_recipe = recipe(objective__kind="pairs", loop__precision="fp32", encoder__dropout=0)
    model = build_model(made_recipe, vocabulary=words.vocabulary).eval()
    found = measure(Measured(model, made_recipe, CPU, words), split)
    sides = [vectors(model, side, words) for side in (split.queries, split.candidates)]
    related = split.pairs[split.grades > 0].tolist()
    for way, (a, b) in (("", (0, 1)), ("reverse ", (1, 0))):
        for dim in (8, 32, 128):
            for depth in (1, 10):
                hits = []
                for query in sorted({pair[a] for pair in related}):
                    left = sides[a][query, :dim] / np.linalg.norm(sides[a][query, :dim])
                    right = sides[b][:, :dim] / np.linalg.norm(sides[b][:, :dim], axis=1, keepdims=True)
                    own = {pair[b] for pair in related if pair[a] == query}
                    hits.append(bool(own & set(np.argsort(-(right @ left))[:depth].tolist())))
                assert found[f"{way}hit@{depth}"][dim] == pytest.approx(np.mean(hits))
    assert found["hit@10"] == {8: 1.0, 32: 1.0, 128: 1.0}   # there are only ten


def test_hits_by_label_are_those_of_a_loop():
    labels = np.array([0, 0, 1, 1, 1, 2, -1, -1, 0, 1, 3, 3, 3, 2, 4, -1])   # of label 4 there is one alone
    split = text_dataset({"test": (made.sentences(16), labels)}, list("abcde")).split("test")
    words, made_recipe = made.tokenizer(), recipe(objective__kind="pairs", loop__precision="fp32", encoder__dropout=0)
    model = build_model(made_recipe, vocabulary=words.vocabulary).eval()
    found = measure(Measured(model, made_recipe, CPU, words), split)
    z = vectors(model, split, words)
    for dim in (8, 32, 128):
        unit = z[:, :dim] / np.linalg.norm(z[:, :dim], axis=1, keepdims=True)
        for depth in (1, 10):
            hits = []
            for i in (i for i, label in enumerate(labels) if label >= 0 and (labels == label).sum() > 1):
                others = sorted((j for j in range(16) if j != i), key=lambda j: -unit[i] @ unit[j])
                hits.append(labels[i] in labels[others[:depth]])
            assert found[f"hit@{depth}"][dim] == pytest.approx(np.mean(hits))
    assert found.keys() == {"hit@1", "hit@10"}
    assert measure(Measured(model, made_recipe, CPU, words), split.subset(labels < 0)) == {}


def test_masked_figures_are_the_mean_over_all_hidden_words(monkeypatch):
    from matryo.training import measure as measuring

    words, split = made.tokenizer(), made.corpus().split("test")
    made_recipe = recipe(objective__kind="masked", head__kind="tied", loop__precision="fp32", text__length=12)
    model = build_model(made_recipe, vocabulary=words.vocabulary)
    at_once = measure(Measured(model, made_recipe, CPU, words), split)
    monkeypatch.setattr(measuring, "_BATCH", 3)   # of unequal size at the end
    parts = measure(Measured(model, made_recipe, CPU, words), split)
    for name in ("masked_top1", "masked_loss"):
        assert parts[name] == pytest.approx(at_once[name], rel=1e-5)
    seeded = recipe(objective__kind="masked", head__kind="tied", loop__precision="fp32", text__length=12, loop__seed=3)
    assert measure(Measured(model, seeded, CPU, words), split) == parts   # the same words, whatever the seed of the run
