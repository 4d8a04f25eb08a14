"""Packing a dataset into files: what they hold, resuming, machines that share the work, damage."""

import io
import os

import numpy as np
import pytest

pytest.importorskip("PIL")
from PIL import Image

from matryo.data import array_dataset, decode_all, image_folder, pack_dataset, packed_dataset
from matryo.data.images import pack_files
from matryo.data.images.npz import verify_npz


@pytest.fixture
def photos(tmp_path):
    """A folder of seven JPEG files: four wide ones of 60 × 40 pixels, three small ones of 12 × 16."""
    rng = np.random.default_rng(0)
    for index in range(7):
        width, height = (60, 40) if index < 4 else (12, 16)
        image = Image.fromarray(rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)).resize((width, height))
        path = tmp_path / "photos" / ("train" if index != 3 else "val") / ("cat", "dog")[index % 2] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=95)
    return image_folder(tmp_path / "photos", ("cat", "dog"))


def test_a_side_is_the_most_pixels_and_smaller_jpegs_keep_their_file(photos, tmp_path):
    pack_dataset(photos, tmp_path / "packed", side=30, format="jpeg", progress=False)
    packed = packed_dataset(tmp_path / "packed")
    assert packed.classes == ("cat", "dog")
    for name in ("train", "val"):
        split, source = packed.split(name), photos.split(name)
        assert split.labels.tolist() == source.labels.tolist()
        for index in range(len(source)):
            assert split.name(index) == source.name(index)
            width = source.image(index).shape[1]
            found = split.image(index)
            if width <= 30:
                assert split.encoded(index) == source.encoded(index)
            else:
                assert found.shape == (20, 30, 3)
                wanted = Image.fromarray(source.image(index)).resize((30, 20), Image.Resampling.BILINEAR)
                assert np.abs(found.astype(int) - np.asarray(wanted)).mean() < 6


def test_a_share_is_stored_raw(photos, tmp_path):
    pack_dataset(photos, tmp_path / "packed", side=500, raw=0.5, format="jpeg", progress=False)
    split = packed_dataset(tmp_path / "packed").split("train")
    raw = [split.encoded(index).startswith(b"P6") for index in range(len(split))]
    assert raw == [False, True] * 3
    assert all(np.array_equal(split.image(i), photos.split("train").image(i)) for i in range(6))


def test_several_files_read_as_one_split(pixels, tmp_path):
    source = array_dataset({"train": (pixels, np.arange(12) % 3)}, ["a", "b", "c"])
    pack_dataset(source, tmp_path, lossless=True, images_per_file=5, progress=False)
    assert sorted(path.name for path in tmp_path.glob("*.npz")) == [
        f"train_{number:04}-of-0003.npz" for number in (1, 2, 3)
    ]
    split = packed_dataset(tmp_path).split("train")
    assert np.array_equal(decode_all(split), pixels)
    assert split.shape == (8, 8)
    assert split.labels.tolist() == [0, 1, 2] * 4
    part = split.subset([11, 0, 5])
    assert np.array_equal(decode_all(part), pixels[[11, 0, 5]])
    assert [part.name(row) for row in range(3)] == ["train#11", "train#0", "train#5"]


def test_machines_share_the_files(pixels, tmp_path, refuses):
    source = array_dataset({"train": (pixels, np.arange(12))})
    options = {"lossless": True, "images_per_file": 3, "machines": 2, "progress": False}
    pack_dataset(source, tmp_path, machine=2, **options)
    with refuses("every file of split 'train'", "2 of 4", "matryo pack"):
        packed_dataset(tmp_path)
    pack_dataset(source, tmp_path, machine=1, **options)
    assert np.array_equal(decode_all(packed_dataset(tmp_path).split("train")), pixels)
    with refuses("machine must be a number in 1 … machines", "3"):
        pack_dataset(source, tmp_path, machine=3, **options)


def test_an_interrupted_call_resumes_after_the_complete_files(pixels, tmp_path, monkeypatch):
    source = array_dataset({"train": (pixels, np.arange(12))})
    written, real = [], pack_files.write_packed

    def stops_at_the_third(split, path, *rest, **arrays):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path.name)
        real(split, path, *rest, **arrays)

    options = {"lossless": True, "images_per_file": 3, "progress": False}
    monkeypatch.setattr(pack_files, "write_packed", stops_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        pack_dataset(source, tmp_path, **options)
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    assert sorted(kept) == written
    monkeypatch.setattr(pack_files, "write_packed", real)
    pack_dataset(source, tmp_path, **options)
    assert np.array_equal(decode_all(packed_dataset(tmp_path).split("train")), pixels)
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in kept} == kept


def test_files_of_other_images_or_of_another_form_are_not_replaced_unasked(pixels, tmp_path, refuses):
    pack_dataset(array_dataset({"train": (pixels, np.arange(12))}), tmp_path, quality=90, progress=False)
    before = (tmp_path / "train.npz").read_bytes()
    other = array_dataset({"train": (pixels, np.zeros(12, int))})
    for source, quality in ((other, 90), (array_dataset({"train": (pixels, np.arange(12))}), 80)):
        with refuses("train.npz holds other images, or images in another form", "--force"):
            pack_dataset(source, tmp_path, quality=quality, progress=False)
        assert (tmp_path / "train.npz").read_bytes() == before
    pack_dataset(other, tmp_path, overwrite=True, progress=False)
    assert packed_dataset(tmp_path).split("train").labels.tolist() == [0] * 12


def test_damage_is_found(pixels, tmp_path, refuses):
    pack_dataset(array_dataset({"train": (pixels, np.arange(12))}), tmp_path, progress=False)
    path = tmp_path / "train.npz"
    verify_npz(path)
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with refuses("train.npz is damaged", "blob", "copy it again"):
        verify_npz(path)
    os.truncate(path, 100)
    with refuses("train.npz cannot be read", "BadZipFile"):
        verify_npz(path)


@pytest.mark.parametrize(("options", "words"), [
    ({"side": 0}, ("side must be a number of pixels", "0")),
    ({"side": 8, "size": 8}, ("size crops to a square and side keeps the shape", "give one")),
    ({"raw": 1.5}, ("raw must be a share", "1.5")),
    ({"lossless": True, "format": "jpeg"}, ("lossless images need the format webp",)),
])  # fmt: skip
def test_a_form_that_makes_no_sense_is_refused(pixels, tmp_path, refuses, options, words):
    with refuses(*words):
        pack_dataset(array_dataset({"train": (pixels, np.arange(12))}), tmp_path, progress=False, **options)
    assert not list(tmp_path.iterdir())


def test_a_webp_of_a_reduced_side(photos, tmp_path):
    pack_dataset(photos, tmp_path / "packed", side=30, format="webp", progress=False)
    data = packed_dataset(tmp_path / "packed").split("val").encoded(0)
    image = Image.open(io.BytesIO(data))
    assert (image.format, image.size) == ("WEBP", (30, 20))
