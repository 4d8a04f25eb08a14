"""A slimmable network through the whole of training: on emoji it learns at every width, and each can be loaded."""

import json

import numpy as np
import pytest
import torch

from matryo.data import array_dataset, decode_all, open_dataset
from matryo.errors import EmbeddingsError, InputError
from matryo.inference import encode_split, load
from matryo.training import train
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override
from matryo.training.run.checkpoint import load_weights

SMALL = {
    "data.test": "train", "encoder.name": "resnet18", "head.kind": "slimmable", "augment.crop": "none",
    "augment.flip": "no", "loop.batch": "12", "loop.epochs": "8", "optim.lr": "0.02", "loop.device": "cpu",
    "loop.precision": "fp32", "loop.log_every": "1", "encoder.widths": "0.25,0.5,1",
}  # fmt: skip


@pytest.fixture(scope="module")
def emoji():
    """Three emoji that are easy to tell apart, each drawn by several vendors."""
    whole = open_dataset("emoji", None)
    names = ["red heart", "soccer ball", "evergreen tree"]
    labels = [whole.classes.index(name) for name in names]
    split = whole.splits["train"]
    rows = np.flatnonzero(np.isin(split.labels, labels))
    images = np.stack([split.image(int(row)) for row in rows])
    return array_dataset({"train": (images, np.array([labels.index(y) for y in split.labels[rows]]))}, names)


@pytest.fixture(scope="module")
def run(emoji, tmp_path_factory):
    recipe = override(Recipe(name="small"), SMALL)
    return train(recipe, emoji, tmp_path_factory.mktemp("slimmable") / "run", progress=False)


def test_it_learns_at_every_width(run):
    top1 = json.loads((run / "run.json").read_text())["row"]["figures"]["top1"]["train"]
    assert list(top1) == ["128", "256", "512"]
    first, *_, last, test = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert test["top1"] == top1
    assert all(last["loss"][dim] < 0.2 * first["loss"][dim] for dim in top1), (first, last)
    assert all(last["top1"][dim] == 1 for dim in top1)


def test_each_width_is_a_model_of_its_own(run, emoji, tmp_path):
    top1 = json.loads((run / "run.json").read_text())["row"]["figures"]["top1"]["train"]
    images = decode_all(emoji.split("train"))
    for width, dim in ((0.25, 128), (0.5, 256), (1.0, 512)):
        model = load(run, device="cpu", width=width)
        assert model.nesting.dims == (dim,)
        written = encode_split(model, emoji, "train", tmp_path / str(dim), progress=False)
        assert (written.dim, written.nesting.dims, written.head.kind) == (dim, (dim,), "tied")
        right = written.head.logits(written.vectors, dim).argmax(1) == written.labels
        assert right.mean() == pytest.approx(top1[str(dim)])
        np.testing.assert_allclose(model.encode(images, normalize=False), written.vectors, rtol=1e-5, atol=1e-5)
        weights = load_weights(run / "model.safetensors")
        np.testing.assert_array_equal(written.head.weights[dim], weights["head.weight"][:, :dim])
        assert written.manifest.model["width"] == width
        named = "small slimmable" if width == 1 else f"small slimmable at width {width}"
        assert written.manifest.title == named
    with pytest.raises(EmbeddingsError, match=r"holds other embeddings.*by small slimmable"):
        encode_split(load(run, device="cpu", width=0.5), emoji, "train", tmp_path / "512", progress=False)


def test_loading_leaves_the_random_state_alone(run):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    load(run, device="cpu", width=0.5)
    assert torch.equal(torch.get_rng_state(), before)


def test_mistakes_are_named(run, emoji, tmp_path):
    with pytest.raises(InputError, match=r"trained at \(got 0.75\): use one of 0.25, 0.5, 1"):
        load(run, device="cpu", width=0.75)
    plain = override(Recipe(), {**SMALL, "head.kind": "tied", "encoder.name": "convnet", "loop.epochs": "1"})
    other = train(plain, emoji, tmp_path / "plain", progress=False)
    with pytest.raises(InputError, match=r"only a slimmable network has several widths \(got width 0.5\): train one"):
        load(other, device="cpu", width=0.5)
    assert "width" not in load(other, device="cpu").description
