"""Splits with gray images for damaged ones, over real image files, some of which are no images."""

import contextlib
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from matryo.data import ImageSplit, array_dataset, image_folder
from matryo.data.images.crops import crop_into
from matryo.data.images.damaged import DamagedAsGray
from matryo.data.images.decode import decode
from matryo.data.images.packed import PackedImages
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
    split_with_gray = DamagedAsGray(split, 7)
    assert isinstance(split_with_gray, ImageSplit)
    assert (len(split_with_gray), split_with_gray.shape, split_with_gray.name(3)) == (9, None, split.name(3))
    assert (split_with_gray.labels == split.labels).all()
    for index in range(9):
        if index in {2, 5}:
            with pytest.warns(UserWarning, match=rf"train/cat/000{index}\.png cannot be decoded.*gray image"):
                assert (split_with_gray.image(index) == np.full((7, 7, 3), 128, np.uint8)).all()
        else:
            assert (split_with_gray.image(index) == split.image(index)).all()


def test_it_has_the_one_shape_of_its_split(pixels, monkeypatch):
    split = array_dataset({"train": (pixels, np.zeros(12, np.int64))}).split("train")
    monkeypatch.setattr(type(split), "image", lambda self, index: decode(b"no image", self.name(index)))
    with pytest.warns(UserWarning, match="gray"):
        assert DamagedAsGray(split, 32).image(3).shape == (8, 8, 3)


def test_many_more_than_one_in_a_hundred_are_no_accident(folder, refuses):
    split_with_gray = DamagedAsGray(folder(40, set(range(40))), 8)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for index in range(11):
            split_with_gray.image(index)
    assert len(told) == 10
    with refuses("tolerates 1 % damaged images", "12 damaged of the first 12", "0011.png cannot be decoded", "remove"):
        split_with_gray.image(11)


@pytest.mark.parametrize(("share", "stops"), [(0.001, False), (0.009, False), (0.03, True), (0.2, True)])
@pytest.mark.parametrize("seed", range(10))
def test_the_share_decides_and_not_the_order(share, stops, seed):
    """Five epochs over 20,000 images, and one process of eight."""
    rng = np.random.default_rng(seed)
    bad = rng.random(20_000) < share

    class Split:
        shape = (1, 1)

        def image(self, index):
            return decode(b"", "x") if bad[index] else None

    split_with_gray = DamagedAsGray(Split(), 1)
    with warnings.catch_warnings(), pytest.raises(DataError) if stops else contextlib.nullcontext():
        warnings.simplefilter("ignore")
        for _ in range(5):
            for index in rng.permutation(20_000)[:2500]:
                split_with_gray.image(int(index))


def test_the_eleventh_of_many_is_forgiven_in_silence(folder):
    split_with_gray = DamagedAsGray(folder(12, {0}), 8)
    split_with_gray.read, split_with_gray.damaged = 1099, 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (split_with_gray.image(0) == 128).all()


def test_a_split_that_looks_at_a_damaged_image_for_its_shape_has_none(encode, pixels):
    second = encode(pixels[1])
    blob = np.frombuffer(b"wrong" + second, np.uint8)
    split_with_gray = DamagedAsGray(PackedImages(blob, [0, 5, len(blob)], [0, 0]), 9)
    assert split_with_gray.shape is None
    with pytest.warns(UserWarning, match="packed#0"):
        assert split_with_gray.image(0).shape == (9, 9, 3)
    assert (split_with_gray.image(1) == pixels[1]).all()


def test_other_errors_are_raised(folder):
    with pytest.raises(DataError, match="7"):   # an image that is not there is no damaged one
        DamagedAsGray(folder(2, ()), 8).image(7)


def test_threads_count_together(folder):
    """The eleventh damaged image is one too many, whichever thread reads it."""
    split_with_gray = DamagedAsGray(folder(40, set(range(40))), 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(4) as pool, pytest.raises(DataError, match="tolerates 1 %"):
            list(pool.map(split_with_gray.image, range(40)))
    assert split_with_gray.damaged == split_with_gray.read


def test_a_crop_of_a_damaged_image_is_gray(folder):
    split_with_gray = DamagedAsGray(folder(3, {1}), 8)
    out = np.zeros((5, 5, 3), np.uint8)
    with pytest.warns(UserWarning, match="gray"):
        crop_into(split_with_gray, 1, lambda height, width: (0, 0, width, height), out)
    assert (out == 128).all()
    crop_into(split_with_gray, 0, lambda height, width: (0, 0, width, height), out)
    assert (out != 128).any()
    assert (split_with_gray.read, split_with_gray.damaged) == (2, 1)
