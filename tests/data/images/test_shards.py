import gzip
import io
import json
import multiprocessing
import os
import pickle
import tarfile

import numpy as np
import pytest

from matryo.data import ImageSplit, shard_dataset
from matryo.data.images import shards as shards_module

pytest.importorskip("PIL")


def write_tar(path, members):
    """A tar file with these (name, bytes) members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def root(tmp_path, pixels, encode):
    """Two shards of train and one of val, labels 0, 1, 2 in turn."""
    shards = {"train-0000.tar": range(5), "train-0001.tar": range(5, 10), "val-0000.tar": (10, 11)}
    for name, rows in shards.items():
        members = []
        for i in rows:
            members += [(f"dir/{i:05d}.png", encode(pixels[i])), (f"dir/{i:05d}.cls", f"{i % 3}\n".encode())]
        write_tar(tmp_path / "pets" / name, members)
    return tmp_path / "pets"


def test_shards_give_images_labels_and_names(root, pixels):
    data = shard_dataset(root)
    train = data.split("train")
    assert isinstance(train, ImageSplit)
    assert list(data.splits) == ["train", "val"]
    assert data.classes == ("0", "1", "2")
    assert train.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert train.labels.dtype == np.int64
    assert train.shape is None
    order = np.random.default_rng(0).permutation(10)
    for i in order:
        assert np.array_equal(train.image(i), pixels[i])
    assert train.name(7) == "train-0001.tar/dir/00007"
    assert train.subset([7, 0]).name(1) == "train-0000.tar/dir/00000"


def test_classes_txt_or_json_names_classes_and_aligns(root, refuses):
    (root / "classes.json").write_text(json.dumps(["ant", "bee", "cat"]))
    assert shard_dataset(root).classes == ("ant", "bee", "cat")
    (root / "classes.txt").write_text("cat\ndog\neel\n")
    assert shard_dataset(root).classes == ("cat", "dog", "eel")
    aligned = shard_dataset(root, classes=["eel", "cat"])
    assert aligned.split("val").labels.tolist() == [-1, 0]
    (root / "classes.txt").write_text("cat\ndog\n")
    with refuses("labels must be below the number of classes, 2", "got 2", "list every class"):
        shard_dataset(root)
    (root / "classes.txt").unlink()
    (root / "classes.json").write_text('{"a": 1}')
    with refuses("classes.json must hold a list", "got dict"):
        shard_dataset(root)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train/0.tar", "train"),
        ("imagenet-a/x.tar", "imagenet-a"),
        ("val-00-of-10.tar", "val"),
        ("test.tar", "test"),
        ("000123.tar", "train"),
        ("00000-of-00010.tar", "train"),
        ("cc12m-train-0000.tar", "cc12m-train"),   # beside which cc12m-validation-0000.tar is another split
        ("imagenet-a.tar", "imagenet-a"),
    ],
)
def test_names_tell_splits(tmp_path, pixels, encode, name, split):
    write_tar(tmp_path / name, [("a.png", encode(pixels[0])), ("a.cls", b"0")])
    write_tar(tmp_path / ".hidden.tar", [])
    assert list(shard_dataset(tmp_path).splits) == [split]


@pytest.mark.parametrize("name", ["val_0001.tar", "my-val_0001.tar"])
def test_names_that_tell_no_split_are_refused(tmp_path, refuses, name):
    write_tar(tmp_path / name, [])
    with refuses("the name of a shard must show its split", name, "train-0000.tar"):
        shard_dataset(tmp_path)


def test_a_split_in_two_places(root, refuses):
    write_tar(root / "train" / "0.tar", [])
    with refuses("split 'train' must be a folder of shards or", "train/ and train-0000.tar", "move them"):
        shard_dataset(root)


def test_no_shards(tmp_path, refuses):
    with refuses("a folder with .tar files", "none in", "train/0000.tar"):
        shard_dataset(tmp_path)
    with refuses("a folder with .tar files", "which does not exist"):
        shard_dataset(tmp_path / "nowhere")


def sample(*files):
    return [(name, data if isinstance(data, bytes) else json.dumps(data).encode()) for name, data in files]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (("a.cls", b" 70000\n"), 70_000),
        (("a.cls", b"-1"), -1),
        (("a.json", {"label": 5}), 5),
        (("a.json", {"cls": 6, "caption": "x"}), 6),
        (("a.json", {"label": "7"}), 7),
        (("a.JSON", {"label": 65_537}), 65_537),
    ],
)
def test_where_a_label_may_be(tmp_path, pixels, encode, label, expected):
    others = [("a.txt", b"a caption"), ("a.seg.png", b"ignored"), ("README", b"hi"), ("./._a.png", b"")]
    write_tar(tmp_path / "0.tar", sample(("./a.JPG", encode(pixels[0])), label, *others))
    split = shard_dataset(tmp_path).split("train")
    assert split.labels.tolist() == [expected]
    assert np.array_equal(split.image(0), pixels[0])
    assert split.name(0) == "0.tar/a"


def test_cls_comes_before_json_and_files_need_not_be_neighbours(tmp_path, pixels, encode):
    first, second = encode(pixels[0]), encode(pixels[1])
    files = [("a.png", first), ("b.cls", b"1"), ("a.json", {"label": 9}), ("b.png", second), ("a.cls", b"3")]
    write_tar(tmp_path / "0.tar", sample(*files))
    split = shard_dataset(tmp_path).split("train")
    assert split.labels.tolist() == [3, 1]
    assert np.array_equal(split.image(1), pixels[1])


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([("a.png", b"x")], ["sample 0.tar/a must have one image and a label", "got .png", "add a .cls"]),
        ([("a.png", b"x"), ("a.json", {"x": 1})], ["sample 0.tar/a must have", "got .png, .json"]),
        ([("d/a.cls", b"1")], ["sample 0.tar/d/a must have", "got .cls", "add the image"]),
        ([("a.png", b""), ("a.jpg", b""), ("a.cls", b"1")], ["must have one image", "got .png, .jpg, .cls"]),
        ([("a.png", b""), ("a.cls", b"cat")], ["of sample 0.tar/a must be an integer", "cat", ".cls file"]),
        ([("a.png", b""), ("a.json", {"label": 1.5})], ["must be an integer", "1.5", ".json file"]),
        ([("a.png", b""), ("a.json", {"label": [1]})], ["label of sample 0.tar/a must be an integer"]),
        ([("a.png", b""), ("a.json", b"{")], ["label of sample 0.tar/a must be an integer"]),
        ([("a.png", b""), ("a.cls", b"-7")], ["labels must be class indices", "got -7"]),
        ([("a.png", b""), ("a.png", b"")], ["the keys of shard 0.tar must be unique", "a.png more than once"]),
        ([("README.md", b"")], ["shard 0.tar must hold a sample", "got none"]),
    ],
)
def test_samples_that_are_not_whole(tmp_path, refuses, files, words):
    write_tar(tmp_path / "0.tar", sample(*files))
    with refuses(*words):
        shard_dataset(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "gzip"])
def test_damaged_shards(root, refuses, damage):
    path = root / "train-0001.tar"
    whole = path.read_bytes()
    damaged = {"cut": whole[:700], "empty": b"", "text": b"hello", "gzip": gzip.compress(whole)}
    path.write_bytes(damaged[damage])
    with refuses("shard train-0001.tar cannot be read as a tar file", "if it is compressed"):
        shard_dataset(root)


@pytest.mark.parametrize("rest", [b"", b"x" * 100, b"x" * 2000])
def test_a_shard_that_is_cut_between_two_files(root, refuses, rest):
    """Or whose rest is no tar file any more: what comes before it is not taken for all."""
    path = root / "train-0001.tar"
    with tarfile.open(path) as tar:
        member = tar.getmembers()[2]
    path.write_bytes(path.read_bytes()[: member.offset] + rest)
    with refuses("shard train-0001.tar cannot be read as a tar file", "no end of the archive after 2 files", "copy it"):
        shard_dataset(root)


def test_the_index_is_kept_and_rebuilt_when_the_shard_changes(root, monkeypatch, pixels, encode):
    from matryo.data.images import tar_index

    shard_dataset(root)
    kept = root / ".train-0000.tar.index.npz"
    assert kept.exists()
    with monkeypatch.context() as patch:
        patch.setattr(tar_index, "_build", None)   # not called
        assert shard_dataset(root).split("train").labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    write_tar(root / "train-0000.tar", [("z.png", encode(pixels[9])), ("z.cls", b"2")])
    split = shard_dataset(root).split("train")
    assert split.labels.tolist() == [2, 2, 0, 1, 2, 0]
    assert np.array_equal(split.image(0), pixels[9])
    kept.write_bytes(b"damaged")
    assert len(shard_dataset(root).split("train")) == 6


def test_a_folder_that_cannot_be_written_does_without_an_index(root, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "no")

    monkeypatch.setattr("matryo.files.secrets.token_hex", refuse)
    assert len(shard_dataset(root).split("train")) == 10
    assert not list(root.glob(".*"))


def test_a_shard_that_changes_after_opening(root, refuses):
    train = shard_dataset(root).split("train")
    os.truncate(root / "train-0001.tar", 600)
    with refuses("image train-0001.tar/dir/00006 cannot be read", "0 of", "open the dataset again"):
        train.image(6)
    (root / "train-0000.tar").unlink()
    with refuses("image train-0000.tar/dir/00001 cannot be read", "No such file"):
        train.image(1)


def _means(split):
    return [float(split.image(i).mean()) for i in range(len(split))]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_worker_processes_read_the_same_images(root, method):
    split = shard_dataset(root).split("train").subset([9, 4, 2])
    expected = _means(split)   # opens files before the workers start
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(_means, [split, split]) == [expected, expected]
    assert pickle.loads(pickle.dumps(split))._files._open == {}


@pytest.mark.parametrize("limit", [0, 1, 128])
def test_open_files_are_limited_and_closed(root, monkeypatch, limit):
    monkeypatch.setattr(shards_module, "_MOST_OPEN", limit)
    opened, closed = [], []
    real_open, real_close = os.open, os.close
    split = shard_dataset(root).split("train")
    monkeypatch.setattr(os, "open", lambda *a: opened.append(real_open(*a)) or opened[-1])
    monkeypatch.setattr(os, "close", lambda handle: (closed.append(handle), real_close(handle)))
    _means(split)
    assert len(opened) - len(closed) == min(limit, 2)
    del split
    assert sorted(closed) == sorted(opened)


def test_a_damaged_image_is_named(tmp_path, refuses):
    write_tar(tmp_path / "0.tar", [("k.jpg", b"broken"), ("k.cls", b"0")])
    with refuses("image 0.tar/k cannot be decoded"):
        shard_dataset(tmp_path).split("train").image(0)
