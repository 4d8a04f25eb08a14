"""Small real images, and one way to check a whole error message."""

import contextlib
import io

import numpy as np
import pytest

from matryo.errors import DataError


@pytest.fixture
def pixels():
    """Twelve different 8 × 8 images."""
    return np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def encode():
    """``encode(pixels, "PNG", **options)``: an image file, as bytes."""
    image = pytest.importorskip("PIL.Image")

    def encode(pixels, form="PNG", **options):
        file = io.BytesIO()
        image.fromarray(pixels).save(file, form, **options)
        return file.getvalue()

    return encode


@pytest.fixture
def refuses():
    """``with refuses("words", …)``: a DataError is raised whose message holds all the words."""

    @contextlib.contextmanager
    def refuses(*words):
        with pytest.raises(DataError) as caught:
            yield
        message = str(caught.value)
        for word in words:
            assert word in message, message
        assert " (got " in message, f"no value: {message}"
        assert message.split("): ")[-1] != message, f"no cure: {message}"

    return refuses


@pytest.fixture
def image_tree(tmp_path, pixels, encode):
    """``image_tree({"train/cat/1.png": 0, …})``: those files, each one of the twelve images; the root."""

    def image_tree(files):
        root = tmp_path / "pets"
        for name, which in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(pixels[which]) if isinstance(which, int) else which)
        root.mkdir(exist_ok=True)
        return root

    return image_tree
