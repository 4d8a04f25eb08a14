import json
import multiprocessing
import pickle

import numpy as np
import pytest

from matryo.data import ImageSplit, array_dataset, decode_all, pack, pack_dataset, packed_dataset, text_dataset
from matryo.data.images.arrays import ArrayImages
from matryo.data.images.packed import PackedImages
from matryo.errors import StorageError

pytest.importorskip("PIL")


@pytest.fixture
def parts(pixels, encode):
    """The blob, offsets and labels of the twelve images."""
    files = [encode(image, "WEBP", lossless=True) for image in pixels]
    return np.frombuffer(b"".join(files), np.uint8), np.cumsum([0, *map(len, files)]), np.arange(12) % 3


@pytest.fixture
def write(tmp_path, parts):
    """Write the twelve images, with other arrays where given, to a folder."""

    def write(name="train.npz", save=np.savez, **other):
        blob, offsets, labels = parts
        path = tmp_path / "pets" / name
        path.parent.mkdir(exist_ok=True)
        arrays = {"blob": blob, "off": offsets, "y": labels} | other
        save(path, **{key: value for key, value in arrays.items() if value is not None})
        return path

    return write


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_open_reads_what_was_written(write, pixels, save):
    images = PackedImages.open(write(save=save, y=np.arange(12, dtype=np.uint8)))
    assert isinstance(images, ImageSplit)
    assert np.array_equal(decode_all(images), pixels)
    assert images.labels.dtype == np.int64
    assert images.labels.tolist() == list(range(12))
    assert images.shape == (8, 8)
    assert images.name(3) == "train.npz#3"


def test_an_uncompressed_blob_is_mapped_and_a_subset_shares_it(write, pixels):
    images = PackedImages.open(write())
    part = images.subset([9, 2])
    assert isinstance(images._blob, np.memmap)
    assert part._blob is images._blob
    assert part.name(0) == "train.npz#9"
    assert np.array_equal(part.image(1), pixels[2])


def _mean(images):
    return float(images.image(1).mean())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_pickling_copies_no_mapped_bytes(write, save):
    padded = np.zeros(1 << 20, np.uint8)
    images = PackedImages.open(write(save=save)).subset([9, 2])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_mean, (images,)) == _mean(images)
    if save is np.savez:
        offsets = images._offsets
        blob = np.concatenate([images._blob, padded])
        big = PackedImages.open(write(blob=blob, off=np.append(offsets, len(blob)), y=np.zeros(13, int)))
        assert len(pickle.dumps(big)) < 5000


def test_pickled_arrays_are_never_loaded(write, refuses):
    evil = np.array([{"a": 1}] * 12, dtype=object)
    assert len(PackedImages.open(write(other=evil))) == 12   # other arrays are not read
    with refuses("train.npz cannot be read as a packed file", "matryo.data.pack"):
        PackedImages.open(write(y=evil))
    with refuses("train.npz cannot be read as a packed file"):
        PackedImages.open(write(blob=evil))


def test_files_that_are_no_packed_files(tmp_path, refuses):
    (tmp_path / "a.npz").write_bytes(b"not a zip file")
    (tmp_path / "b.npz").write_bytes(b"")
    for name in ("a.npz", "b.npz", "missing.npz"):
        with refuses(f"{name} cannot be read as a packed file", "check the path, or write it again"):
            PackedImages.open(tmp_path / name)


def test_a_file_cut_short(write, refuses):
    path = write()
    path.write_bytes(path.read_bytes()[:-50])
    with refuses("train.npz cannot be read as a packed file", "BadZipFile"):
        PackedImages.open(path)


def test_missing_arrays(write, refuses):
    with refuses("hold the arrays blob, off and y", "got blob, off", "matryo.data.pack"):
        PackedImages.open(write(y=None))


@pytest.mark.parametrize(
    "change",
    [
        lambda off: off + 1,
        lambda off: off[:-1],
        lambda off: off[[0, 2, 1, *range(3, 13)]],
        lambda off: off[[0, 0, *range(2, 13)]],
    ],
)
def test_offsets_must_rise_to_the_end_of_the_blob(parts, change, refuses):
    blob, offsets, labels = parts
    with refuses(f"p.npz: offsets must increase from 0 to the length of the blob, {len(blob)}", "pack it again"):
        PackedImages(blob, change(offsets), labels, source="p.npz")


@pytest.mark.parametrize("offsets", [[0.0, 1.0], [[0, 1]], [0], []])
def test_offsets_are_integers(parts, offsets, refuses):
    with refuses("offsets must be integers, one more than there are images", "matryo.data.pack"):
        PackedImages(parts[0], offsets, [0])


def test_labels_and_names_match_the_images(parts, refuses):
    blob, offsets, labels = parts
    with refuses("every image needs one label", "12 images, 11 labels"):
        PackedImages(blob, offsets, labels[1:])
    with refuses("every image needs one name", "12 images, 1 names", "or none"):
        PackedImages(blob, offsets, labels, names=["a"])
    with refuses("the blob must be a one-dimensional array", "float64 [2]"):
        PackedImages(np.zeros(2), [0, 2], [0])


def test_names_may_be_given(parts):
    blob, offsets, labels = parts
    names = [f"kätzchen/{i}.png" for i in range(12)]
    assert PackedImages(blob, offsets, labels, names).subset([11]).name(0) == "kätzchen/11.png"


def test_a_damaged_image_is_named(parts, refuses):
    blob, offsets, labels = parts
    blob = blob.copy()
    blob[offsets[5] : offsets[6]] = 0
    with refuses("image packed#5 cannot be decoded"):
        decode_all(PackedImages(blob, offsets, labels))


def test_pack_lossless_keeps_pixels_labels_and_names(tmp_path, pixels):
    images = ArrayImages(pixels, [-1, 70_000, *range(10)], source="train")
    packed = pack(images, tmp_path / "new" / "train.npz", lossless=True, threads=2)
    assert np.array_equal(decode_all(packed), pixels)
    assert packed.labels.tolist() == images.labels.tolist()
    assert [packed.name(i) for i in range(12)] == [images.name(i) for i in range(12)]
    assert packed.shape == (8, 8)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["train.npz"]


def test_pack_resizes_to_a_centre_square(tmp_path):
    wide = np.zeros((1, 20, 60, 3), np.uint8)
    wide[:, :, 20:40] = 200
    packed = pack(ArrayImages(wide, [0]), tmp_path / "a.npz", size=10, lossless=True)
    assert packed.shape == (10, 10)
    assert (packed.image(0) > 180).all()   # the filter reaches a little beyond the square


def test_pack_of_many_shapes_has_no_shape(tmp_path, image_tree, encode):
    from matryo.data import image_folder

    root = image_tree({"train/a/1.png": 0, "train/a/2.png": encode(np.zeros((4, 6, 3), np.uint8))})
    split = image_folder(root).split("train")
    packed = pack(split, tmp_path / "a.npz")
    assert packed.shape is None
    assert packed.image(1).shape == (4, 6, 3)
    assert pack(split, tmp_path / "a.npz", size=4).shape == (4, 4)


def test_quality_trades_bytes(tmp_path):
    smooth = np.cumsum(np.ones((1, 64, 64, 3)), axis=1).astype(np.uint8)
    low, high = (pack(ArrayImages(smooth, [0]), tmp_path / "a.npz", quality=q).encoded(0) for q in (10, 100))
    assert len(low) < len(high)


def test_a_failed_pack_leaves_the_old_file(tmp_path, image_tree):
    from matryo.data import image_folder
    from matryo.errors import DataError

    path = tmp_path / "train.npz"
    path.write_bytes(b"old")
    split = image_folder(image_tree({"train/a/1.png": 0, "train/a/2.png": b"broken"})).split("train")
    with pytest.raises(DataError, match=r"train/a/2\.png cannot be decoded"):
        pack(split, path)
    assert path.read_bytes() == b"old"
    assert not list(tmp_path.glob(".*"))


def test_pack_checks_its_arguments(tmp_path, pixels, refuses):
    images = ArrayImages(pixels, range(12))
    with refuses("packed files must end in .npz", "got a.zip", "use a.zip.npz"):
        pack(images, tmp_path / "a.zip")
    with refuses("there must be an image to pack", "an empty split"):
        pack(images.subset([]), tmp_path / "a.npz")
    with refuses("size must be a number of pixels", "got 0"):
        pack(images, tmp_path / "a.npz", size=0)
    with refuses("quality must lie in 0 … 100", "got 101"):
        pack(images, tmp_path / "a.npz", quality=101)


def test_a_disk_that_refuses_is_a_storage_error(tmp_path, pixels, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(StorageError, match="free some space"):
        pack(ArrayImages(pixels, range(12)), tmp_path / "a.npz")


def test_packed_dataset_names_splits_by_their_files(write):
    write("train_32px_webp.npz")
    write("val_32px_webp.npz")
    data = packed_dataset(write("test.npz").parent)
    assert list(data.splits) == ["test", "train", "val"]
    assert data.name == "pets"
    assert data.classes == ("0", "1", "2")


@pytest.mark.parametrize("key", ["names", "classes", "label"])
def test_meta_names_classes_and_superclasses(write, key):
    root = write().parent
    meta = {key: ["cat", "dog", "eel"], "superclass_names": ["fish", "mammal"], "superclass": [1, 1, 0]}
    (root / "meta.json").write_text(json.dumps(meta))
    data = packed_dataset(root)
    assert data.classes == ("cat", "dog", "eel")
    assert (data.superclasses, data.superclass_of) == (("fish", "mammal"), (1, 1, 0))
    aligned = packed_dataset(root, classes=["eel", "cat"])
    assert aligned.split("train").labels[:3].tolist() == [1, -1, 0]


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ("{", ["meta.json must be JSON", "correct it or remove it"]),
        ("[1]", ["meta.json must hold an object", "got list"]),
        ('{"names": {"a": 1}}', ["meta.json: names must be a list of strings"]),
        ('{"names": [1, 2, 3]}', ["meta.json: names must be a list of strings", "[1, 2, 3]"]),
        ('{"names": ["cat"]}', ["train.npz: labels must be below the number of classes, 1", "got 2"]),
        ('{"superclass": [0, 0, 0]}', ["superclass must be a list of indices into superclass_names"]),
        ('{"superclass_names": ["a"], "superclass": [0, -1, 0]}', ["superclass must be a list of indices"]),
        ('{"superclass_names": ["a"], "superclass": [0]}', ["every class needs one superclass"]),
    ],
)
def test_a_wrong_meta(write, refuses, meta, words):
    root = write().parent
    (root / "meta.json").write_text(meta)
    with refuses(*words):
        packed_dataset(root)


def test_two_files_for_one_split(write, refuses):
    write("train_32px.npz")
    with refuses("split 'train' must be one file", "train_32px.npz and train_64px.npz", "keep one"):
        packed_dataset(write("train_64px.npz").parent)


def test_no_packed_files(tmp_path, refuses):
    with refuses("a folder with one .npz file per split", "which does not exist", "train.npz"):
        packed_dataset(tmp_path / "nowhere")
    with refuses("a folder with one .npz file per split", str(tmp_path)):
        packed_dataset(tmp_path)


def test_pack_dataset_and_back(tmp_path, pixels, refuses):
    data = array_dataset({"train": (pixels[:8], [0, 1] * 4), "val": (pixels[8:], [1] * 4)}, ["cat", "dog"])
    pack_dataset(data, tmp_path / "out", lossless=True)
    again = packed_dataset(tmp_path / "out")
    assert again.classes == data.classes
    for split in ("train", "val"):
        assert np.array_equal(decode_all(again.split(split)), decode_all(data.split(split)))
        assert np.array_equal(again.split(split).labels, data.split(split).labels)
    with refuses("the name of a packed split ends at the first underscore", "val_b", "rename"):
        pack_dataset(array_dataset({"val_b": (pixels, [0] * 12)}), tmp_path / "out")


def test_many_classes_survive_packing(tmp_path):
    labels = [2048, 2049, 65_535, 65_536, 70_001]
    images = ArrayImages(np.zeros((5, 2, 2, 3), np.uint8), labels)
    pack(images, tmp_path / "train.npz")
    data = packed_dataset(tmp_path)
    assert len(data.classes) == 70_002
    assert data.split("train").labels.tolist() == labels


def test_only_images_are_packed(tmp_path, refuses):
    with refuses("only images can be packed", "split 'train'"):
        pack_dataset(text_dataset({"train": ["a text"]}), tmp_path)
