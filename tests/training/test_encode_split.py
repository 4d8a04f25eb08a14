"""Encoding: a folder is left alone only when it holds these very embeddings, and no script is started twice."""

import pkgutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from matryo import training
from matryo.data import array_dataset
from matryo.errors import EmbeddingsError, InputError
from matryo.training import batches
from matryo.training.encode import encode_split
from matryo.training.model import build_model
from matryo.training.recipe import Recipe
from matryo.training.recipes import override
from matryo.training.trained import TrainedModel


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


def test_vectors_are_exact_however_the_model_was_trained_unless_asked_otherwise(dataset, tmp_path):
    recipe = override(Recipe(), {"data.size": "16", "encoder.dim": "16", "loop.precision": "bf16"})
    network = build_model(recipe, classes=3).eval()
    exact = TrainedModel(network, recipe, ("a", "b", "c"), torch.device("cpu"), "0" * 64)
    quick = replace(exact, precision="bf16")
    split = dataset.split("one")
    with torch.no_grad():
        parts = [network.embed(inputs) for inputs in batches.test_inputs(split, recipe, exact.device)]
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


def test_encode_starts_no_processes_however_many_images(model, monkeypatch):
    """A worker would import the caller's script, which calls encode, which would start workers."""
    started = []
    before = DataLoader.__init__

    def watched(self, *args, num_workers=0, **options):
        started.append(num_workers)
        before(self, *args, num_workers=num_workers, **options)

    monkeypatch.setattr(DataLoader, "__init__", watched)
    images, _ = pictures(0, count=600)
    assert model.encode(images).shape == (600, 16)
    assert started == [0]


def test_no_module_hides_a_public_name():
    """Importing a module puts it under its name in the package, where it would hide a lazy function of that name."""
    modules = {info.name for info in pkgutil.iter_modules(training.__path__)}
    assert not modules & set(training.__all__)
    assert callable(training.load)


def test_a_transparent_picture_is_laid_over_white_however_it_comes(model, tmp_path):
    picture = Image.new("RGBA", (16, 16), (0, 0, 0, 0))
    picture.paste((255, 0, 0, 255), (4, 4, 12, 12))
    picture.save(tmp_path / "t.png")
    np.testing.assert_array_equal(model.encode([picture]), model.encode([tmp_path / "t.png"]))
    with pytest.raises(InputError, match=r"cannot read an image.*nowhere\.png"):
        model.encode(["nowhere.png"])
