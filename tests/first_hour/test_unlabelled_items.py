"""Images and texts without labels open as one split: flat folders, lists of files, text files and tables."""

from pathlib import Path

import numpy as np
import pytest

from matryo.data import UNKNOWN, ImageSplit, TextSplit, open_unlabelled, text_dataset
from matryo.errors import DataError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    for number, name in enumerate(["b.png", "a.jpg", "trip/c.png", ".hidden.png", "notes.md"]):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("md"):
            (tmp_path / "photos" / name).write_text("not an image")
        else:
            image.new("RGB", (4, 4), (40 * number, 0, 0)).save(tmp_path / "photos" / name)
    return tmp_path / "photos"


def test_a_flat_folder_and_a_list_of_images(photos: Path) -> None:
    folder = open_unlabelled(photos)
    assert isinstance(folder, ImageSplit)
    assert [folder.name(i) for i in range(len(folder))] == ["a.jpg", "b.png", "trip/c.png"]
    assert folder.labels.tolist() == [UNKNOWN] * 3
    listed = open_unlabelled([photos / "trip" / "c.png", str(photos / "b.png")])
    assert isinstance(listed, ImageSplit)
    assert [listed.name(i) for i in range(len(listed))] == ["trip/c.png", "b.png"]
    np.testing.assert_array_equal(listed.image(0), folder.image(2))
    single = open_unlabelled(photos / "b.png")
    assert (len(single), single.name(0)) == (1, "b.png")


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("mine.txt", "one text\n\nanother\n", ["mine#0", "mine#1"]),
        ("mine.jsonl", '{"text": "one text"}\n{"text": "another"}\n', ["mine#0", "mine#1"]),
        ("mine.csv", "id,text,label\nx,one text,spam\ny,another,\n", ["x", "y"]),
        ("mine.tsv", "sentence\none text\nanother\n", ["mine#0", "mine#1"]),
    ],
)
def test_texts_without_labels(tmp_path: Path, name: str, content: str, names: list[str]) -> None:
    (tmp_path / name).write_text(content)
    for paths in (tmp_path / name, [tmp_path / name], tmp_path):
        texts = open_unlabelled(paths)
        assert isinstance(texts, TextSplit)
        assert [texts.text(i) for i in range(len(texts))] == ["one text", "another"]
        assert [texts.name(i) for i in range(len(texts))] == names
        assert texts.labels.tolist() == [UNKNOWN] * 2


def test_a_parquet_file_of_texts(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": ["one", "two"]}), tmp_path / "mine.parquet")
    texts = open_unlabelled(tmp_path / "mine.parquet")
    assert isinstance(texts, TextSplit)
    assert texts.text(1) == "two"


def test_what_cannot_be_opened(photos: Path) -> None:
    (photos / "mine.txt").write_text("a text\n")
    for paths, message in (
        (photos / "*.jpg", r"file or folder at each path \(got .*\*\.jpg\): check the path"),
        ([], r"all images, all \.txt files or all tables \(got no path\): pass a folder"),
        ([photos / "a.jpg", photos / "mine.txt"], r"\(got \.txt files, images\): pass one kind at a time"),
        (photos / "notes.md", r"must be an image or hold texts \(got notes\.md\): use one of \.bmp"),
    ):
        with pytest.raises(DataError, match=message):
            open_unlabelled(paths)


def test_a_wrong_split_gets_a_suggestion() -> None:
    data = text_dataset({"train": ["a"], "validation": ["b"]})
    assert data.split("validation").text(0) == "b"
    with pytest.raises(DataError, match=r"\(got 'valdation'\): did you mean 'validation'\? choose one of train, val"):
        data.split("valdation")
