"""Mended splits over real image files, some of which are no images."""

import pickle
import warnings

import numpy as np
import pytest

from matryo.data import ImageSplit, array_dataset, image_folder
from matryo.data.decode import decode
from matryo.data.mended import Mended
from matryo.errors import DataError


@pytest.fixture
def folder(tmp_path, encode):
    """``folder(count, damaged)``: images of many sizes, those at the indices ``damaged`` cut in half."""

    def made(count, damaged):
        (tmp_path / "train" / "cat").mkdir(parents=True)
        rng = np.random.default_rng(0)
        for i in range(count):
            side = 4 + i % 5
            data = encode(rng.integers(0, 256, (side, side, 3), dtype=np.uint8))
            (tmp_path / "train" / "cat" / f"{i:04}.png").write_bytes(data[: len(data) // 2] if i in damaged else data)
        return image_folder(tmp_path).split("train")

    return made


def test_gray_stands_in_for_what_cannot_be_decoded(folder):
    split = folder(9, {2, 5})
    mended = Mended(split, 7)
    assert isinstance(mended, ImageSplit)
    assert (len(mended), mended.shape, mended.name(3)) == (9, None, split.name(3))
    assert (mended.labels == split.labels).all()
    for index in range(9):
        if index in {2, 5}:
            with pytest.warns(UserWarning, match=rf"train/cat/000{index}\.png cannot be decoded.*gray image"):
                assert (mended.image(index) == np.full((7, 7, 3), 128, np.uint8)).all()
        else:
            assert (mended.image(index) == split.image(index)).all()


def test_it_has_the_one_shape_of_its_split(pixels, monkeypatch):
    split = array_dataset({"train": (pixels, np.zeros(12, np.int64))}).split("train")
    monkeypatch.setattr(type(split), "image", lambda self, index: decode(b"no image", self.name(index)))
    with pytest.warns(UserWarning, match="gray"):
        assert Mended(split, 32).image(3).shape == (8, 8, 3)


def test_more_than_one_in_a_hundred_are_no_accident(folder, refuses):
    mended = Mended(folder(40, set(range(40))), 8)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for index in range(10):
            mended.image(index)
    assert len(told) == 10
    with refuses("forgives 1 image in 100", "11 damaged of the first 11", "0010.png cannot be decoded", "leave those"):
        mended.image(10)


def test_the_eleventh_of_many_is_forgiven_in_silence(folder):
    mended = Mended(folder(12, {0}), 8)
    mended.read, mended.damaged = 1099, 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (mended.image(0) == 128).all()


def test_other_errors_are_raised(folder):
    with pytest.raises(DataError, match="7"):   # an image that is not there is no damaged one
        Mended(folder(2, ()), 8).image(7)


def test_it_goes_to_worker_processes(folder):
    mended = pickle.loads(pickle.dumps(Mended(folder(3, {1}), 8)))
    with pytest.warns(UserWarning, match="gray"):
        assert (mended.image(1) == 128).all()
