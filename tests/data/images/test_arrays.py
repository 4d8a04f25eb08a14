import numpy as np
import pytest

from matryo.data import ImageSplit, array_dataset
from matryo.data.images.arrays import ArrayImages


def test_array_images_are_copies_of_their_pixels(pixels):
    images = ArrayImages(pixels, np.arange(12, dtype=np.uint8))
    assert isinstance(images, ImageSplit)
    assert images.shape == (8, 8)
    assert images.labels.dtype == np.int64
    images.image(0)[:] = 0
    assert np.array_equal(images.image(0), pixels[0])
    assert pixels[0].any()


def test_gray_images_get_three_channels(pixels):
    images = ArrayImages(pixels[..., 0], range(12))
    assert images.shape == (8, 8)
    assert np.array_equal(images.image(5), np.repeat(pixels[5, ..., :1], 3, axis=-1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.bool_])
def test_other_types_are_refused(pixels, dtype, refuses):
    with refuses("val: images must be uint8, 0…255", np.dtype(dtype).name, ".astype(np.uint8)"):
        ArrayImages(pixels.astype(dtype), range(12), source="val")


def test_other_shapes_are_refused(pixels, refuses):
    with refuses("images must be [N, height, width, 3]", "got [12, 3, 8, 8]", "images.transpose(0, 2, 3, 1)"):
        ArrayImages(pixels.transpose(0, 3, 1, 2), range(12))
    with refuses("images must be [N, height, width, 3]", "got [12, 8, 8, 1]", "reshape or convert"):
        ArrayImages(pixels[..., :1], range(12))


def test_array_dataset(pixels, refuses):
    data = array_dataset({"train": (pixels[:8], [0, 1] * 4), "val": (pixels[8:], [2, 2, 0, 1])})
    assert data.name == "arrays"
    assert data.classes == ("0", "1", "2")
    assert data.split("val").name(1) == "val#1"
    assert array_dataset({"train": (pixels, [0] * 12)}, ["cat", "dog"], name="pets").classes == ("cat", "dog")
    with refuses("val: labels must be below the number of classes, 2", "got 2"):
        array_dataset({"train": (pixels[:8], [0, 1] * 4), "val": (pixels[8:], [2, 2, 0, 1])}, ["cat", "dog"])
    with refuses("train: every image needs one label", "12 images, 2 labels"):
        array_dataset({"train": (pixels, [0, 1])})
    with refuses("a dataset must have a split", "got none"):
        array_dataset({})


def test_labels_beyond_16_bits(pixels):
    data = array_dataset({"train": (pixels[:2], [65_536, 2049])})
    assert len(data.classes) == 65_537
    assert data.split("train").labels.tolist() == [65_536, 2049]
