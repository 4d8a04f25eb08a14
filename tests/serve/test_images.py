"""Images come as data URLs, for models that read images; other URLs are never fetched."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from conftest import call
from matryo import load, train
from matryo.data import array_dataset
from matryo.serve import app
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    images = np.random.default_rng(0).integers(0, 255, (16, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(16) % 2
    changes = {
        "data.size": "8",
        "encoder.dim": "16",
        "head.dims": "8,16",
        "loop.steps": "1",
        "loop.batch": "8",
        "data.test": "test",
        "loop.device": "cpu",
    }
    data = array_dataset({"train": (images, labels), "test": (images[:8], labels[:8])}, ["a", "b"])
    folder = tmp_path_factory.mktemp("runs") / "pics"
    train(override(Recipe(name="pics"), changes), data, folder, progress=False)
    return folder, images


def url(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def test_an_image_model_embeds_data_urls(run):
    folder, images = run
    service = app(folder)
    try:
        body = {"model": "pics", "input": [url(image) for image in images[:5]], "dimensions": 8}
        answer = call(service, "POST", "/v1/embeddings", body)
        wanted = load(folder, device="cpu").encode(images[:5], dim=8)
        np.testing.assert_allclose([entry["embedding"] for entry in answer.json["data"]], wanted, atol=2e-6)
        listed = call(service, "GET", "/v1/models").json["data"][0]
        assert listed["reads"] == ["images"] and [row["dim"] for row in listed["by_dim"]] == [8, 16]
        assert len(listed["by_dim"][0]) > 1  # the measurements of the run
        for wrong in (
            "a text",
            "http://127.0.0.1/cat.png",
            "data:image/png;base64,!!",
            "data:image/png;base64,AAAA",
            "data:text/html;base64,AAAA",
        ):
            refused = call(service, "POST", "/v1/embeddings", {"model": "pics", "input": wrong})
            assert (refused.status, refused.json["error"]["code"]) == (400, "not_an_image"), wrong
    finally:
        service.close()
