"""Encoding: a folder is left alone only when it holds these very embeddings, and no script is started twice."""

import json
import pkgutil
import re
import shutil
import threading
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import texts_made
import torch
from PIL import Image

from matryo import inference
from matryo.data import Dataset, Pairs, array_dataset, pair_dataset, text_dataset
from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.inference.encode import encode_pairs, encode_split
from matryo.inference.model import TrainedModel
from matryo.training.batches import open as batches
from matryo.training.model import build_model
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override


def pictures(seed, count=12, size=16):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, size, size, 3), dtype=np.uint8), rng.integers(0, 3, count)


@pytest.fixture(scope="module")
def dataset():
    return array_dataset({"one": pictures(0), "other": pictures(1)}, ["a", "b", "c"])


@pytest.fixture(scope="module")
def model():
    recipe = override(Recipe(), {"data.size": "16", "encoder.dim": "16", "loop.precision": "fp32"})
    network = build_model(recipe, classes=3)
    return TrainedModel(network, recipe, ("a", "b", "c"), torch.device("cpu"), "0" * 64)


def test_what_is_there_is_kept_only_if_it_is_the_same(model, dataset, tmp_path):
    first = encode_split(model, dataset, "one", tmp_path / "e", progress=False)
    written = (tmp_path / "e" / "vectors.npy").stat().st_mtime_ns
    again = encode_split(model, dataset, "one", tmp_path / "e", progress=False)
    assert (tmp_path / "e" / "vectors.npy").stat().st_mtime_ns == written
    assert np.array_equal(first.vectors, again.vectors)
    renamed = array_dataset({"one": pictures(0)}, ["a", "b", "c"], name="renamed")
    cases = [(dataset, "other", {}), (dataset, "one", {"dtype": "float16"}), (renamed, "one", {})]
    for source, split, options in cases:   # as many vectors of the same model, yet not these
        with pytest.raises(EmbeddingsError, match=r"holds other embeddings.*12 float32 vectors of arrays one"):
            encode_split(model, source, split, tmp_path / "e", progress=False, **options)
    other = encode_split(model, dataset, "other", tmp_path / "e", overwrite=True, progress=False)
    assert not np.array_equal(other.vectors, first.vectors)


def text_model():
    """An untrained model of texts, which is all that encoding needs."""
    pytest.importorskip("tokenizers")
    recipe = texts_made.recipe(head__dims="8,128")
    words = texts_made.tokenizer()
    network = build_model(recipe, classes=3, vocabulary=words.vocabulary)
    return TrainedModel(network, recipe, ("cat", "dog", "fish"), torch.device("cpu"), "0" * 64, tokenizer=words)


def test_data_that_has_changed_under_its_name_is_refused(model, tmp_path):
    images, labels = pictures(0)
    by = {"of pictures": (model, lambda x: array_dataset({"one": (x, labels)}, ["a", "b", "c"]), list(images))}
    texts, known = texts_made.sentences(12), np.zeros(12, int)
    by["of texts"] = text_model(), lambda x: text_dataset({"one": (x, known)}, ["cat", "dog", "fish"]), texts
    for name, (encoder, make, items) in by.items():
        out = tmp_path / name
        first = encode_split(encoder, make(items), "one", out, progress=False)
        before = (out / "vectors.npy").read_bytes()
        for changed in ([items[1], items[0], *items[2:]], [*items[:-1], items[0]]):   # same ids, labels and count
            with pytest.raises(EmbeddingsError, match=r"12 float32 vectors of .* made from other data"):
                encode_split(encoder, make(changed), "one", out, progress=False)
        assert (out / "vectors.npy").read_bytes() == before
        np.testing.assert_array_equal(encode_split(encoder, make(items), "one", out).vectors, first.vectors)


def test_a_folder_that_tells_no_content_is_taken_as_it_is(model, dataset, tmp_path):
    """Those written before content was told."""
    encode_split(model, dataset, "one", tmp_path / "e", progress=False)
    about = json.loads((tmp_path / "e" / "manifest.json").read_text())
    assert re.fullmatch("[0-9a-f]{64}", about.pop("content"))
    del about["sha256"]   # added later still
    (tmp_path / "e" / "manifest.json").write_text(json.dumps(about))
    assert len(encode_split(model, dataset, "one", tmp_path / "e", progress=False)) == 12


def test_a_name_too_long_for_an_id_is_refused_before_the_work(model, dataset, monkeypatch, tmp_path):
    monkeypatch.setattr(type(dataset.split("one")), "name", lambda _, row: f"{row}" + "x" * 600)
    monkeypatch.setattr(TrainedModel, "embed", lambda *_, **__: pytest.fail("it began to encode"))
    with pytest.raises(EmbeddingsError, match="an id must have at most 512 characters"):
        encode_split(model, dataset, "one", tmp_path / "e", progress=False)
    assert not list(tmp_path.iterdir())


def test_a_write_that_was_stopped_goes_on_only_with_the_same_data(model, dataset, monkeypatch, tmp_path):
    images, labels = pictures(0)
    whole = TrainedModel.embed

    def stopped(self, split, **options):
        yield from islice(whole(self, split, **options), 2)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TrainedModel, "embed", stopped)
        encode_split(model, dataset, "one", tmp_path / "e", batch=4, progress=False)
    other = array_dataset({"one": (images[::-1], labels)}, ["a", "b", "c"])
    with pytest.raises(EmbeddingsError, match=r"cannot be resumed .*fingerprint\.content was"):
        encode_split(model, other, "one", tmp_path / "e", batch=4, progress=False)
    found = encode_split(model, dataset, "one", tmp_path / "e", batch=4, progress=False)
    at_once = encode_split(model, dataset, "one", tmp_path / "f", batch=4, progress=False)
    np.testing.assert_array_equal(found.vectors, at_once.vectors)


def test_many_images_are_looked_at_here_and_there(model, dataset, monkeypatch, tmp_path):
    monkeypatch.setattr("matryo.inference.encode._LOOKED_AT", 4)
    images, labels = pictures(0)
    encode_split(model, dataset, "one", tmp_path / "e", progress=False)
    with pytest.raises(EmbeddingsError, match="made from other data"):
        moved = array_dataset({"one": (np.roll(images, 1, axis=0), labels)}, ["a", "b", "c"])
        encode_split(model, moved, "one", tmp_path / "e", progress=False)


def test_relevance_is_never_that_of_other_data(tmp_path):
    encoder = text_model()
    rows = [(f"cat {i}", f"purr {i}") for i in range(6)]
    encode_pairs(encoder, pair_dataset({"one": rows}), "one", tmp_path / "e", progress=False)
    before = (tmp_path / "e" / "relevance.tsv").read_bytes()
    swapped = [*rows, (rows[0][0], rows[1][1])]   # the same texts on both sides
    other = [*rows[:-1], ("dog 5", "purr 5")]
    for changed, told in ((swapped, "relevance.tsv of other pairs"), (other, "made from other data")):
        with pytest.raises(EmbeddingsError, match=f"holds other embeddings.*{told}"):
            encode_pairs(encoder, pair_dataset({"one": changed}), "one", tmp_path / "e", progress=False)
        assert (tmp_path / "e" / "relevance.tsv").read_bytes() == before
    shutil.copytree(tmp_path / "e", tmp_path / "f")
    for side in ("queries", "candidates"):   # what is encoded anew has no old relevance beside it
        shutil.rmtree(tmp_path / "f" / side)
    encode_pairs(encoder, pair_dataset({"one": swapped}), "one", tmp_path / "f", progress=False)
    assert len((tmp_path / "f" / "relevance.tsv").read_text().splitlines()) == 8
    (tmp_path / "e" / "relevance.tsv").unlink()   # as where the first was stopped in between
    encode_pairs(encoder, pair_dataset({"one": rows}), "one", tmp_path / "e", progress=False)
    assert (tmp_path / "e" / "relevance.tsv").read_bytes() == before
    encode_pairs(encoder, pair_dataset({"one": swapped}), "one", tmp_path / "e", overwrite=True, progress=False)
    assert len((tmp_path / "e" / "relevance.tsv").read_text().splitlines()) == 8


def test_what_a_model_does_not_read_is_told_and_leaves_nothing_behind(model, dataset, tmp_path):
    texts, pairs = text_dataset({"one": ["a cat", "a dog"]}), pair_dataset({"one": [("a", "cat")]})
    with pytest.raises(InputError, match=r"this model reads images \(got 2 texts\): choose a --source of images"):
        encode_split(model, texts, "one", tmp_path / "e", progress=False)
    with pytest.raises(InputError, match=r"this model reads images \(got 1 texts\)"):
        encode_pairs(model, pairs, "one", tmp_path / "e", progress=False)
    with pytest.raises(InputError, match=r"this model reads texts \(got 12 images\): choose a --source of texts"):
        encode_split(text_model(), dataset, "one", tmp_path / "e", progress=False)
    mixed = Dataset("captions", (), {"one": Pairs(texts.split("one"), dataset.split("one"), [[0, 0]])})
    with pytest.raises(InputError, match=r"this model reads texts \(got 12 images\)"):
        encode_pairs(text_model(), mixed, "one", tmp_path / "e", progress=False)
    assert not (tmp_path / "e").exists()


def test_vectors_are_exact_however_the_model_was_trained_unless_asked_otherwise(dataset, tmp_path):
    recipe = override(Recipe(), {"data.size": "16", "encoder.dim": "16", "loop.precision": "bf16"})
    network = build_model(recipe, classes=3).eval()
    exact = TrainedModel(network, recipe, ("a", "b", "c"), torch.device("cpu"), "0" * 64)
    quick = replace(exact, precision="bf16")
    split = dataset.split("one")
    with torch.no_grad():
        parts = [network.embed(inputs) for inputs, _ in batches.ordered_batches(split, recipe, exact.device)]
        wanted = torch.cat(parts).numpy()
    found = encode_split(exact, dataset, "one", tmp_path / "e", progress=False)
    np.testing.assert_array_equal(np.asarray(found.vectors), wanted)
    rough = np.concatenate([part for part, _ in quick.embed(split)])
    assert 0 < np.abs(rough - wanted).max() < 0.05 * np.abs(wanted).max()
    with pytest.raises(EmbeddingsError, match="holds other embeddings"):
        encode_split(quick, dataset, "one", tmp_path / "e", progress=False)


def test_encode_gives_the_vectors_of_the_split_at_any_dim(model, dataset):
    images, _ = pictures(0)
    whole = np.concatenate([part for part, _ in model.embed(dataset.split("one"), batch=5)])
    np.testing.assert_allclose(model.encode(images, normalize=False), whole, rtol=1e-5, atol=1e-5)
    short = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(model.encode(list(images), dim=8), short, rtol=1e-4, atol=1e-5)


def test_texts_are_embedded_by_length_and_come_back_in_order():
    """Each as alone, whatever is beside it, and with equal bits if encoding starts within a sorted span."""
    model, texts = text_model(), [" ".join(["cat"] * (1 + 7 * row % 13)) for row in range(70)]
    split = text_dataset({"one": (texts, np.arange(70) % 3)}, ["a", "b", "c"]).split("one")
    found = list(model.embed(split, batch=2))
    assert [len(vectors) for vectors, _ in found] == [2] * 35
    assert np.concatenate([labels for _, labels in found]).tolist() == (np.arange(70) % 3).tolist()
    together = np.concatenate([vectors for vectors, _ in found])
    alone = np.concatenate([vectors for text in texts[:9] for vectors, _ in model.embed(model._split([text], None))])
    np.testing.assert_allclose(together[:9], alone, rtol=1e-4, atol=1e-5)
    for start in (2, 30, 32, 34, 69):
        rest = np.concatenate([vectors for vectors, _ in model.embed(split, start=start, batch=2)])
        np.testing.assert_array_equal(rest, together[start:])
    assert list(model.embed(split, start=70, batch=2)) == []


def test_encode_names_the_item_or_the_dim_that_is_wrong(model, monkeypatch):
    texts = text_model()
    with pytest.raises(InputError, match=r"this model reads texts \(got NoneType at position 1\): pass a list of str"):
        texts.encode(["a", None])
    assert texts.encode([], dim=8).shape == (0, 8)
    monkeypatch.setattr(TrainedModel, "embed", None)   # not called
    images, _ = pictures(0)
    for wrong, rule in (("8", "an integer"), (8.0, "an integer"), (True, "an integer"), (17, "1 … 16"), (0, "1 … 16")):
        for items in (images, []):
            with pytest.raises(NestingError, match=f"dim must .*{rule}"):
                model.encode(items, dim=wrong)


def test_encode_leaves_no_threads_however_many_images(model):
    images, _ = pictures(0, count=600)
    assert model.encode(images).shape == (600, 16)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("matryo-reader")]


def test_no_module_hides_a_public_name():
    """Importing a module puts it under its name in the package, where it would hide a lazy function of that name."""
    modules = {info.name for info in pkgutil.iter_modules(inference.__path__)}
    assert not modules & set(inference.__all__)
    assert callable(inference.load)


def test_a_transparent_picture_is_laid_over_white_however_it_comes(model, tmp_path):
    picture = Image.new("RGBA", (16, 16), (0, 0, 0, 0))
    picture.paste((255, 0, 0, 255), (4, 4, 12, 12))
    picture.save(tmp_path / "t.png")
    np.testing.assert_array_equal(model.encode([picture]), model.encode([tmp_path / "t.png"]))
    with pytest.raises(InputError, match=r"cannot read an image.*nowhere\.png"):
        model.encode(["nowhere.png"])
