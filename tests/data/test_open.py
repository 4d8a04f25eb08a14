import importlib
import io
import tarfile

import numpy as np
import pytest

import matryo.data
from matryo.data import UNKNOWN, array_dataset, image_folder, open_dataset, pack_dataset
from matryo.data.open import BUNDLED, SOURCES

pytest.importorskip("PIL")

CLASSES = ["ant", "bee", "cat"]


@pytest.fixture
def roots(tmp_path, pixels, encode):
    """The same nine images through each source that lies in a folder."""
    for name in ("folder/train", "packed", "shards"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "shards" / "classes.txt").write_text("\n".join(CLASSES))
    with tarfile.open(tmp_path / "shards" / "train-0.tar", "w") as tar:
        for i in range(9):
            name, data = CLASSES[i // 3], encode(pixels[i])
            path = tmp_path / "folder" / "train" / name / f"{i}.png"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            for ending, content in (("png", data), ("cls", str(i // 3).encode())):
                info = tarfile.TarInfo(f"{i}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    pack_dataset(image_folder(tmp_path / "folder"), tmp_path / "packed", lossless=True)
    return {name: tmp_path / name for name in ("folder", "packed", "shards")}


def test_every_source_gives_the_same_dataset(roots, pixels):
    expected = array_dataset({"train": (pixels[:9], np.repeat([0, 1, 2], 3))}, CLASSES)
    for source, root in roots.items():
        data = open_dataset(source, root)
        split = data.split("train")
        assert data.classes == expected.classes, source
        assert np.array_equal(split.labels, expected.split("train").labels), source
        assert len(split) == 9
        for i in range(9):
            assert np.array_equal(split.image(i), pixels[i]), source
            assert "/" in split.name(i)
            assert not split.name(i).startswith("/")


def test_every_source_aligns_to_the_classes_of_a_model(roots):
    for source, root in roots.items():
        data = open_dataset(source, str(root), classes=["cat", "dog", "ant"])
        assert data.classes == ("cat", "dog", "ant"), source
        labels = data.split("train").labels
        assert labels.dtype == np.int64
        assert labels.tolist() == [2] * 3 + [UNKNOWN] * 3 + [0] * 3, source


@pytest.mark.parametrize("source", ["imagenet", "Emoji", "", "emoji ", "FOLDER"])
def test_an_unknown_source_never_falls_through_to_another(source, tmp_path, refuses):
    with refuses("no such kind of dataset", repr(source), "choose one of emoji, folder, packed, shards"):
        open_dataset(source, tmp_path)


@pytest.mark.parametrize("source", [source for source in SOURCES if source not in BUNDLED])
def test_sources_on_disk_need_a_root(source, refuses):
    with refuses(f"a dataset of kind {source!r} needs a folder", "got none", "--data DIR"):
        open_dataset(source, None)


def test_emoji_needs_no_root_and_minds_none(tmp_path):
    data = open_dataset("emoji", None)
    assert data.name == "emoji"
    assert open_dataset("emoji", tmp_path).classes == data.classes
    aligned = open_dataset("emoji", None, classes=data.classes[5::-1])
    split = data.split("train")
    changed = aligned.split("train").labels
    assert np.array_equal(changed, np.where(split.labels < 6, 5 - split.labels, UNKNOWN))


def test_all_is_what_the_package_exports():
    assert matryo.data.__all__ == sorted(matryo.data.__all__, key=lambda name: (not name.isupper(), name))
    for name in matryo.data.__all__:
        assert getattr(matryo.data, name) is not None
    importlib.import_module("matryo.data.bundled.emoji")
    assert callable(matryo.data.emoji), "the function, not the module of the same name"
