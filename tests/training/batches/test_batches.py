"""Batches against the dataset they come from: every image with its own label, once an epoch, on one process or many."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from matryo.data import array_dataset, image_folder, pack, packed_dataset
from matryo.errors import DataError
from matryo.training import train
from matryo.training.batches import images, reading
from matryo.training.batches import open as batches
from matryo.training.batches.augment import augment, crop_box, draws
from matryo.training.batches.order import epoch_order
from matryo.training.distributed import Group
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import load_recipe, override

CPU = torch.device("cpu")
ALONE = Group(0, 1, CPU)
PLAIN = {
    "data.size": "8", "data.mean": "0,0,0", "data.std": "1,1,1", "data.workers": "0", "augment.crop": "none",
    "augment.flip": "false", "augment.pad": "2", "loop.batch": "4",
}  # fmt: skip


def recipe(**changes):
    fields = {name.replace("__", "."): str(value) for name, value in changes.items()}
    return override(Recipe(), {**PLAIN, **fields})


def images_and_labels(count=22, height=8, width=8, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, height, width, 3), dtype=np.uint8), rng.permutation(count)


def split(count=22, height=8, width=8):
    """Each image has a label of its own, so a label says which image it belongs to."""
    return array_dataset({"train": images_and_labels(count, height, width)}).split("train")


def epoch(source, made, number=0, start=0, group=ALONE):
    return list(batches.open_batches(source, made, group, progress=False).epoch(number, start))


def as_pixels(x):
    """Network input back to the 0…255 pixels it was made from (mean 0, std 1)."""
    return (x * 255).round().permute(0, 2, 3, 1).to(torch.uint8).numpy()


def same(a, b):
    """Whether two lists of batches hold the same bits."""
    pairs = zip(a, b, strict=True)
    return all(torch.equal(x, y) for one, other in pairs for x, y in zip(one, other, strict=True))


# --- which images, in which order ---


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_labels_follow_images_and_each_image_comes_at_most_once(resident):
    pixels, labels = images_and_labels()
    image_of = {int(label): image for label, image in zip(labels, pixels, strict=True)}
    seen = []
    for x, y in epoch(split(), recipe(data__resident=resident)):
        assert x.shape == (4, 3, 8, 8)
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert y.dtype == torch.int64
        for image, label in zip(as_pixels(x), y.tolist(), strict=True):
            assert np.array_equal(image, image_of[label])
            seen.append(label)
    assert len(seen) == 20   # 22 images fill five batches of four
    assert len(set(seen)) == 20


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_the_order_is_that_of_the_seed_and_the_epoch(resident):
    _, labels = images_and_labels()
    for seed, number in ((0, 0), (0, 1), (7, 1)):
        got = [y.tolist() for _, y in epoch(split(), recipe(data__resident=resident, loop__seed=seed), number)]
        order = epoch_order(seed, number, 22)[:20]
        assert got == labels[order].reshape(5, 4).tolist()


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_the_processes_of_a_group_share_the_batches_of_one(resident):
    options = {"data__resident": resident, "augment__crop": "pad", "augment__flip": "true"}
    alone = epoch(split(), recipe(loop__batch=6, **options), 3)
    parts = [epoch(split(), recipe(loop__batch=2, **options), 3, group=Group(rank, 3, CPU)) for rank in range(3)]
    assert [len(part) for part in parts] == [3, 3, 3] == [len(alone)] * 3
    for step, whole in enumerate(alone):
        together = [torch.cat([part[step][column] for part in parts]) for column in (0, 1)]
        assert same([whole], [together])


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_a_later_start_gives_the_rest_of_the_same_epoch(resident):
    made = recipe(data__resident=resident, augment__crop="pad", augment__flip="true", augment__colour=0.3)
    opened = batches.open_batches(split(), made, ALONE, progress=False)
    whole = list(opened.epoch(2))
    assert opened.steps == len(whole) == 5
    for start in (0, 1, 4):
        assert same(list(opened.epoch(2, start)), whole[start:])
    assert list(opened.epoch(2, 5)) == []
    assert not same(list(opened.epoch(3)), whole)


def test_labels_above_2048_survive():
    pixels, _ = images_and_labels(4)
    source = array_dataset({"train": (pixels, [2049, 2048, 69_999, 65_536])}).split("train")
    for resident in ("yes", "no"):
        ((_, labels),) = epoch(source, recipe(data__resident=resident))
        assert sorted(labels.tolist()) == [2048, 2049, 65_536, 69_999]


# --- what happens to an image ---


def test_kept_images_are_varied_by_the_draws_of_their_epoch():
    pixels, labels = images_and_labels()
    made = recipe(augment__crop="pad", augment__flip="true")
    for number in (0, 1):
        order = epoch_order(0, number, 22)[:20].reshape(5, 4)
        for rows, (x, y) in zip(order, epoch(split(), made, number), strict=True):
            u = torch.from_numpy(draws(0, number, rows))
            wanted = augment(torch.from_numpy(pixels[rows]), u, made.augment, cropped=False)
            assert np.array_equal(as_pixels(x), wanted.numpy())
            assert y.tolist() == labels[rows].tolist()


def test_streamed_images_are_cropped_by_the_box_of_their_epoch():
    pixels, labels = images_and_labels(12, 20, 30)
    source = array_dataset({"train": (pixels, labels)}).split("train")
    made = recipe(augment__crop="resized", augment__scale="0.2,0.8", data__size=16)
    for number in (0, 1):
        order = epoch_order(0, number, 12).reshape(3, 4)
        for rows, (x, y) in zip(order, epoch(source, made, number), strict=True):
            assert y.tolist() == labels[rows].tolist()
            for index, got in zip(rows, as_pixels(x), strict=True):
                box = crop_box(draws(0, number, np.array([index]))[0], 20, 30, made.augment)
                wanted = Image.fromarray(pixels[index]).resize((16, 16), Image.Resampling.BILINEAR, box=box)
                assert np.array_equal(got, np.asarray(wanted))


def test_streamed_crops_without_padding():
    pixels, labels = images_and_labels(4, 20, 30)
    source = array_dataset({"train": (pixels, labels)}).split("train")
    for crop in ("none", "pad"):
        made = recipe(augment__crop=crop, data__size=16)
        ((x, _),) = epoch(source, made)
        for index, got in zip(epoch_order(0, 0, 4), as_pixels(x), strict=True):
            u = draws(0, 0, np.array([index]))[0]
            side = 20 * (1 - 2 / 16) if crop == "pad" else 20   # the shorter side, less the share of the padding
            left, top = (float(u[0]) * (30 - side), float(u[1]) * (20 - side)) if crop == "pad" else (5, 0)
            box = (left, top, left + side, top + side)
            wanted = Image.fromarray(pixels[index]).resize((16, 16), Image.Resampling.BILINEAR, box=box)
            assert np.array_equal(got, np.asarray(wanted))


def test_threads_change_nothing(tmp_path, monkeypatch):
    """None, one, or more of them than images in a batch, over two epochs."""
    pack(split(20, 12, 10), tmp_path / "train.npz", progress=False)
    source = packed_dataset(tmp_path).split("train")
    changes = {"augment__crop": "resized", "augment__flip": "true", "augment__colour": 0.2, "loop__batch": 8}
    monkeypatch.setattr(reading, "processors", lambda: 9)
    monkeypatch.setattr(reading, "_FEW", 9)   # of threads that read small images
    none, *others = (
        batches.open_batches(source, recipe(data__workers=n, **changes), ALONE, progress=False) for n in (0, 1, 9)
    )
    for number, start in ((0, 1), (1, 0)):
        for other in others:
            assert same(list(none.epoch(number, start)), list(other.epoch(number, start)))
    assert [each.inputs.threads for each in (none, *others)] == [0, 1, 9]


def test_gray_stands_in_for_a_damaged_image_if_the_recipe_says_so(tmp_path):
    pixels, _ = images_and_labels(8)
    for i, one in enumerate(pixels):
        path = tmp_path / "train" / f"class{i}" / "0.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(one).save(path)
    source = image_folder(tmp_path).split("train")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"class7/0\.png cannot be decoded"):
        epoch(source, recipe())
    with pytest.warns(UserWarning, match=r"class7/0\.png cannot be decoded"):
        found = epoch(source, recipe(data__damaged="gray"))
    for x, labels in found:
        gray = (as_pixels(x) == 128).all(axis=(1, 2, 3))
        assert (gray == (labels == 7).numpy()).all()
    assert sum(len(labels) for _, labels in found) == 8


def test_a_training_that_a_damaged_image_stopped_goes_on_with_gray(tmp_path):
    pixels, _ = images_and_labels(16)
    for i, one in enumerate(pixels):
        path = tmp_path / "data" / "train" / f"class{i % 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(one).save(path)
    data = image_folder(tmp_path / "data")
    path.write_bytes(b"")
    made = recipe(loop__epochs=2, loop__checkpoint_seconds=0, loop__device="cpu", head__dims="8,16", encoder__dim=16)
    with pytest.raises(DataError, match=r"15\.png cannot be decoded"):
        train(made, data, tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "run.json").exists()
    with pytest.warns(UserWarning, match=r"15\.png cannot be decoded"):
        train(override(made, {"data.damaged": "gray"}), data, tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "run.json").exists()


def test_the_size_grows_as_ffcv_has_it():
    made = load_recipe("imagenet-rn50-mrl")
    sizes = [images.size_at(made, number) for number in range(40)]

    def ffcv(number):   # get_resolution of FFCV's train_imagenet.py, with its start_ramp, end_ramp, min_res, max_res
        return int(np.round(np.interp([number], [29, 34], [160, 192])[0] / 32)) * 32

    assert sizes == [ffcv(number) for number in range(40)]
    assert sizes[:29] == [160] * 29
    assert sizes[34:] == [192] * 6
    assert set(sizes) == {160, 192}
    assert images.size_at(recipe(data__size=40), 35) == 40


def test_streamed_batches_have_the_size_of_their_epoch():
    made = recipe(data__size=32, data__size_end=64, data__size_ramp="1,2")
    opened = batches.open_batches(split(8, 40, 40), made, ALONE, progress=False)
    assert [next(opened.epoch(number))[0].shape[-1] for number in range(4)] == [32, 32, 64, 64]


# --- what stays on the device ---


def test_images_of_the_training_size_stay_on_the_device_and_others_stream():
    square, wide = split(), split(8, 8, 16)
    cases = [
        (square, {}, True),
        (square, {"data__resident": "no"}, False),
        (square, {"data__size": 16}, False),
        (square, {"data__size_end": 8, "data__size_ramp": "1,2"}, True),
        (square, {"data__size_end": 16, "data__size_ramp": "1,2"}, False),
        (wide, {}, False),
        (wide, {"data__size_end": 16, "data__size_ramp": "1,2"}, False),   # both sides fit, the image does not
    ]
    for source, changes, kept in cases:
        assert images.fits_on_device(source, recipe(**changes)) is kept, changes


def test_too_many_images_stream_unless_the_recipe_insists(monkeypatch):
    monkeypatch.setattr(images, "_RESIDENT_LIMIT", 22 * 8 * 8 * 3 - 1)
    assert not images.fits_on_device(split(), recipe())
    assert images.fits_on_device(split(), recipe(data__resident="yes"))
    assert images.fits_on_device(split(21), recipe())


def test_what_cannot_be_trained_on_is_named():
    pixels, _ = images_and_labels(4)
    unknown = array_dataset({"train": (pixels, [0, 1, -1, 1])}).split("train")
    kept, grown = {"data__resident": "yes"}, {"data__size_end": 32, "data__size_ramp": "1,2"}
    cases = [
        (split(7), {}, 2, r"fill one batch \(got 7 images, a global batch of 8\): use --loop.batch 3 or less"),
        (unknown, {}, 1, "needs a known class"),
        (split(), {**kept, "data__size": 16}, 1, r"have the training size \(got images of \(8, 8\).*16 px"),
        (split(), {**kept, **grown}, 1, "trained at 8 to 32 px"),
        (split(8, 8, 12), {"augment__crop": "affine"}, 1, r"affine needs images that are kept.*\(8, 12\).*resized"),
    ]
    for source, changes, world, message in cases:
        with pytest.raises(DataError, match=message):
            batches.open_batches(source, recipe(**changes), Group(0, world, CPU), progress=False)


# --- testing and encoding ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Real files of various shapes."""
    root, rng = tmp_path_factory.mktemp("pets"), np.random.default_rng(0)
    for index, (height, width) in enumerate([(20, 30), (40, 25), (16, 16), (33, 57), (64, 48)]):
        path = root / "val" / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
    return image_folder(root, classes=("cat", "dog"))


@pytest.mark.parametrize("crop", [1.0, 0.875])
def test_test_images_are_cropped_in_the_middle_and_resized_as_pillow_does(folder, crop):
    source = folder.split("val")
    made = recipe(data__test_size=16, data__test_crop=crop)
    found = list(batches.ordered_batches(source, made, CPU, batch=2))
    assert [len(y) for _, y in found] == [2, 2, 1]
    got = np.concatenate([as_pixels(x) for x, _ in found])
    for index in range(5):
        pixels = source.image(index)
        height, width = pixels.shape[:2]
        side = crop * min(height, width)
        left, top = (width - side) / 2, (height - side) / 2
        image = Image.fromarray(pixels)
        wanted = image.resize((16, 16), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        # Pillow 13 resizes the rows of some tall images before the columns, which rounds other intermediate values.
        assert np.abs(got[index] - np.asarray(wanted, np.int16)).max() <= 1
    assert torch.cat([y for _, y in found]).tolist() == source.labels.tolist()


def test_testing_keeps_the_order_and_goes_on_from_any_image():
    source = split()
    whole = list(batches.ordered_batches(source, recipe(), CPU, batch=5))
    assert torch.cat([y for _, y in whole]).tolist() == source.labels.tolist()
    assert np.array_equal(np.concatenate([as_pixels(x) for x, _ in whole]), images_and_labels()[0])
    assert same(list(batches.ordered_batches(source, recipe(), CPU, start=10, batch=5)), whole[2:])
    assert list(batches.ordered_batches(source, recipe(), CPU, start=22, batch=5)) == []


def test_testing_takes_images_of_unknown_classes_and_never_varies_them():
    pixels, _ = images_and_labels(4)
    source = array_dataset({"test": (pixels, [0, -1, 1, -1])}, ["cat", "dog"]).split("test")
    varied = recipe(augment__crop="pad", augment__flip="true", augment__colour=0.5, augment__invert=1.0)
    ((x, y),) = batches.ordered_batches(source, varied, CPU)
    assert np.array_equal(as_pixels(x), pixels)
    assert y.tolist() == [0, -1, 1, -1]


def test_the_test_size_is_its_own_or_that_at_the_end_of_training():
    growing = {"data__size_end": 64, "data__size_ramp": "1,2"}
    for changes, size in (({}, 8), (growing, 64), ({**growing, "data__test_size": 24}, 24)):
        ((x, _),) = batches.ordered_batches(split(4), recipe(**changes), CPU)
        assert x.shape == (4, 3, size, size), changes


def test_normalisation_is_the_recipes():
    made = recipe(data__mean="0.4,0.5,0.6", data__std="0.2,0.3,0.4")
    plain = dataclasses.replace(made, data=dataclasses.replace(made.data, mean=(0.0,) * 3, std=(1.0,) * 3))
    mean, std = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
    training = (epoch(split(), made), epoch(split(), plain))
    testing = tuple(list(batches.ordered_batches(split(), each, CPU)) for each in (made, plain))
    for ours, raw in (training, testing):
        for (x, _), (unit, _) in zip(ours, raw, strict=True):
            torch.testing.assert_close(x, (unit - mean) / std, atol=1e-5, rtol=1e-5)
