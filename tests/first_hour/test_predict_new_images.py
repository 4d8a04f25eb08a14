"""`model.predict` classifies new images or texts in whatever form they come, with the confidence of the head."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from PIL import Image

from matryo.data import Tokenizer
from matryo.errors import InputError, NestingError
from matryo.inference.items import as_list
from matryo.inference.model import TrainedModel
from matryo.training.model import build_model
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override


def model(classes=("cat", "dog", "owl"), **changes):
    fields = {"data.size": "8", "encoder.dim": "16", "head.dims": "8,16"}
    made = override(Recipe(name="small"), {**fields, **{k.replace("__", "."): str(v) for k, v in changes.items()}})
    return TrainedModel(build_model(made, len(classes)).eval(), made, classes, torch.device("cpu"), "0" * 64)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 255, (5, 8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize("dim", [None, 8])
@pytest.mark.parametrize("kind", ["separate", "tied"])
def test_it_equals_the_softmax_of_the_head(images, kind, dim):
    made = model(head__kind=kind)
    predicted = made.predict(images, dim=dim)
    z = torch.from_numpy(made.encode(images, normalize=False))
    logits = made.head.logits(z)[made.nesting.dims.index(dim or 16)]
    best = logits.softmax(-1).max(-1)
    assert predicted.labels == tuple(made.classes[i] for i in best.indices)
    np.testing.assert_allclose(predicted.confidence, best.values.detach(), rtol=1e-5)
    assert predicted.dim == (dim or 16)


def test_images_come_as_paths_folders_pillow_images_arrays_and_columns(images, tmp_path):
    made, wanted = model(), None
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    paths = sorted(tmp_path.glob("*.png"))
    wanted = made.predict(images).confidence
    forms = [tmp_path, str(tmp_path), paths, [str(path) for path in paths], [Image.open(path) for path in paths],
             list(images), np.array([str(path) for path in paths])]  # fmt: skip
    for items in forms:
        np.testing.assert_allclose(made.predict(items).confidence, wanted, rtol=1e-5)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"image": [str(path) for path in paths]})
    np.testing.assert_allclose(made.predict(frame["image"]).confidence, wanted, rtol=1e-5)
    with pytest.raises(InputError, match=r"a table has several columns \(got columns image\): pass one"):
        made.predict(frame)


@pytest.mark.parametrize("library", ["polars", "datasets", "pyarrow"])
def test_columns_of_other_libraries_are_lists(library):
    module = pytest.importorskip(library)
    table = {"polars": lambda: module.DataFrame({"text": ["a", "b"]}),
             "datasets": lambda: module.Dataset.from_dict({"text": ["a", "b"]}),
             "pyarrow": lambda: module.table({"text": ["a", "b"]})}[library]()  # fmt: skip
    assert as_list(table["text"]) == ["a", "b"]


def test_texts_come_as_lists_or_files(tmp_path):
    pytest.importorskip("tokenizers")
    tokenizer = Tokenizer.train(["good film", "bad film"] * 8, 40)
    made = override(Recipe(), {"encoder.name": "bert-tiny", "head.dims": "8,128"})
    network = build_model(made, 2, vocabulary=tokenizer.vocabulary).eval()
    reader = TrainedModel(network, made, ("bad", "good"), torch.device("cpu"), "0" * 64, tokenizer=tokenizer)
    (tmp_path / "new.txt").write_text("good film\nbad film\n")
    listed, read = reader.predict(["good film", "bad film"]), reader.predict(Path(tmp_path / "new.txt"))
    assert listed.labels == read.labels
    np.testing.assert_array_equal(listed.confidence, read.confidence)
    assert len(reader.predict("good film").labels) == 1


def test_nothing_is_predicted_of_nothing_and_errors_name_the_cure(images):
    assert model().predict([]).labels == ()
    assert model().predict([]).confidence.shape == (0,)
    with pytest.raises(NestingError, match=r"dims it was trained for \(got 4\): choose one of 8, 16"):
        model().predict(images, dim=4)
    pairs = model(objective__kind="pairs")
    with pytest.raises(InputError, match=r"classify predicts classes \(got objective.kind pairs\): use encode"):
        pairs.predict(images)
