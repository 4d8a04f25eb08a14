import pickle

import numpy as np
import pytest

from matryo.data import UNKNOWN, Dataset, array_dataset
from matryo.data.images.arrays import ArrayImages
from matryo.data.split import align, as_labels, class_names
from matryo.data.texts.rows import TextRows


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_labels_become_int64_whatever_came_in(dtype):
    labels = as_labels(np.array([0, 7], dtype), 2, "here")
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 7]


def test_labels_above_65535_survive():
    high = [2047, 2048, 2049, 65_535, 65_536, 65_537, 100_000]
    assert as_labels(high, len(high), "here").tolist() == high


@pytest.mark.parametrize("bad", [[0.0, 1.0], ["cat", "x"], [[0, 1]], np.zeros(2, np.float16), [True, False]])
def test_labels_are_integers(bad, refuses):
    with refuses("here: labels must be a list of integers", "convert them to class indices"):
        as_labels(bad, 2, "here")


def test_every_image_needs_one_label(refuses):
    with refuses("here: every image needs one label", "3 images, 2 labels", "the same length"):
        as_labels([0, 1], 3, "here")


def test_labels_below_unknown(refuses):
    with refuses("-1 for an unknown class", "got -2", "number the classes from 0"):
        as_labels([0, -2], 2, "here")


def test_labels_beyond_the_classes(refuses):
    assert class_names({"val": TextRows(["a", "b"], [1, -1])}, ["cat", "dog"]) == ("cat", "dog")
    assert class_names({"val": TextRows(["a", "b"], [1, -1])}, None) == ("0", "1")
    with refuses("val: labels must be below the number of classes, 2", "got 2", "list every class"):
        class_names({"val": TextRows(["a"], [2])}, ["cat", "dog"])


def test_subset_keeps_names_and_copies_nothing(pixels):
    images = ArrayImages(pixels, range(12), source="train")
    part = images.subset([7, 3]).subset([1])
    assert part.name(0) == "train#3"
    assert part.labels.tolist() == [3]
    assert np.array_equal(part.image(0), pixels[3])
    assert part._images is images._images
    assert repr(part) == "ArrayImages(1 images)"


def test_subset_by_mask_and_empty_subset(pixels):
    images = ArrayImages(pixels, range(12))
    assert images.subset(images.labels % 5 == 0).labels.tolist() == [0, 5, 10]
    assert len(images.subset([])) == 0
    assert images.subset(range(2)).labels.tolist() == [0, 1]


@pytest.mark.parametrize("bad", [[0.5], [[0]], [True, False], "x"])
def test_subset_wants_integers_or_a_mask(pixels, bad, refuses):
    with refuses("given by integers", "a mask of length 12"):
        ArrayImages(pixels, range(12)).subset(bad)


@pytest.mark.parametrize("bad", [-1, 12, 1.0, "1", None])
def test_indices_are_checked(pixels, bad, refuses):
    images = ArrayImages(pixels, range(12))
    for read in (images.image, images.name):
        with refuses("no image has this index", repr(bad), "0…11"):
            read(bad)
    with refuses("this split has no images"):
        images.subset([]).image(0)
    with refuses("no image has this index", "got 12"):
        images.subset([3, 12])


def test_numpy_integers_are_indices(pixels):
    assert ArrayImages(pixels, range(12)).name(np.int64(3)) == "images#3"


def test_splits_pickle(pixels):
    images = ArrayImages(pixels, range(12)).subset([4, 5])
    again = pickle.loads(pickle.dumps(images))
    assert np.array_equal(again.image(1), images.image(1))
    assert again.name(1) == images.name(1)


@pytest.fixture
def pets(pixels):
    made = array_dataset({"train": (pixels[:4], [0, 1, 2, -1])}, ["cat", "dog", "eel"])
    return Dataset("pets", made.classes, made.splits, ("fish", "mammal"), (1, 1, 0), {"train": "training"})


def test_align_goes_by_name(pets):
    aligned = align(pets, ["eel", "ant", "cat"])
    assert aligned.classes == ("eel", "ant", "cat")
    assert aligned.split("train").labels.tolist() == [2, UNKNOWN, 0, UNKNOWN]
    assert aligned.split("train").labels.dtype == np.int64
    assert aligned.roles == {"train": "training"}
    assert pets.split("train").labels.tolist() == [0, 1, 2, -1]


def test_align_keeps_superclasses_only_if_all_are_known(pets):
    assert align(pets, ["eel", "cat"]).superclass_of == (0, 1)
    assert align(pets, ["eel", "ant"]).superclass_of == ()
    assert align(pets, ["eel", "ant"]).superclasses == ()


def test_align_to_the_same_classes_or_none_is_the_dataset_itself(pets):
    assert align(pets, None) is pets
    assert align(pets, list(pets.classes)) is pets


def test_align_refuses_two_classes_of_one_name(pets, refuses):
    with refuses("so their names must be unique", "'cat' more than once", "rename them"):
        align(pets, ["cat", "cat"])
