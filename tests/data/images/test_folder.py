import json
import pickle

import numpy as np
import pytest

from matryo.data import UNKNOWN, ImageSplit, image_folder
from matryo.data.images.folder import FolderImages

pytest.importorskip("PIL")

PETS = {
    "train/dog/a.png": 0,
    "train/cat/b.png": 1,
    "train/cat/a.JPEG": 2,
    "val/cat/1.png": 3,
    "val/dog/1.png": 4,
}


def names(split):
    return [split.name(i) for i in range(len(split))]


def test_the_imagenet_layout(image_tree, pixels):
    data = image_folder(image_tree(PETS))
    train = data.split("train")
    assert isinstance(train, ImageSplit)
    assert data.name == "pets"
    assert data.classes == ("cat", "dog")
    assert names(train) == ["train/cat/a.JPEG", "train/cat/b.png", "train/dog/a.png"]
    assert train.labels.tolist() == [0, 0, 1]
    assert train.labels.dtype == np.int64
    assert train.shape is None
    assert np.array_equal(train.image(0), pixels[2])
    assert train.encoded(0).startswith(b"\x89PNG")
    assert data.split("val").labels.tolist() == [0, 1]


def test_splits_pickle_and_follow_no_working_folder(image_tree, pixels, monkeypatch, tmp_path):
    root = image_tree(PETS)
    monkeypatch.chdir(root.parent)
    split = pickle.loads(pickle.dumps(image_folder("pets").split("train").subset([2])))
    monkeypatch.chdir(tmp_path.parent)
    assert np.array_equal(split.image(0), pixels[0])
    assert split.name(0) == "train/dog/a.png"


def test_images_lie_at_any_depth_and_hidden_or_other_files_are_ignored(image_tree):
    files = {"train/cat/images/deep/1.png": 0, "train/cat/2.webp": 1}
    hidden = {".git/a/1.png": 0, "train/.trash/1.png": 0, "train/cat/.cache/1.png": 0, "train/cat/.3.png": 0}
    others = {"train/cat/x.txt": b"x", "train/notes.md": b""}
    data = image_folder(image_tree(files | hidden | others))
    assert names(data.split("train")) == ["train/cat/2.webp", "train/cat/images/deep/1.png"]
    assert list(data.splits) == ["train"]


def test_a_test_split_with_fewer_classes_is_labelled_by_name(image_tree):
    data = image_folder(image_tree(PETS | {"sketch/dog/1.png": 0}))
    assert data.split("sketch").labels.tolist() == [1]


def test_without_train_the_classes_are_the_union(image_tree):
    data = image_folder(image_tree({"a/dog/1.png": 0, "b/cat/1.png": 1}))
    assert data.classes == ("cat", "dog")
    assert data.split("a").labels.tolist() == [1]


def test_number_folders_are_class_indices_when_the_classes_are_not_numbers(image_tree, refuses):
    data = image_folder(image_tree(PETS | {"v2/1/a.png": 0, "v2/0/a.png": 1}))
    assert data.split("v2").labels.tolist() == [0, 1]
    with refuses("v2: folders named by numbers must be class indices", "got '2'", "use 0…1"):
        image_folder(image_tree({"v2/2/a.png": 0}))


def test_number_classes_are_sorted_by_value(image_tree):
    data = image_folder(image_tree({f"train/{i}/a.png": 0 for i in range(12)} | {"val/10/a.png": 0}))
    assert data.classes == tuple(map(str, range(12)))
    assert data.split("val").labels.tolist() == [10]


def test_a_class_that_train_lacks(image_tree, refuses):
    with refuses("val: every class must also be in train", "got 'eel' and 1 more", "val/class_map.json"):
        image_folder(image_tree(PETS | {"val/eel/1.png": 0, "val/yak/1.png": 0}))


def test_classes_of_a_model_make_other_classes_unknown(image_tree):
    data = image_folder(image_tree(PETS), classes=["dog", "eel"])
    assert data.classes == ("dog", "eel")
    assert data.split("train").labels.tolist() == [UNKNOWN, UNKNOWN, 0]
    numbers = image_folder(image_tree({"v2/1/a.png": 0}), classes=["dog", "eel"])
    assert numbers.split("v2").labels.tolist() == [1]


def test_many_classes_keep_their_labels(tmp_path):
    labels = [2047, 2048, 2049, 65_535, 65_537]
    split = FolderImages(tmp_path, ["x.png"] * 5, np.array(labels, np.uint32))
    assert split.labels.tolist() == labels


def test_class_map_renames_and_skips(image_tree, refuses):
    root = image_tree(PETS | {"objects/hound/1.png": 0, "objects/chair/1.png": 1, "objects/cat/1.png": 2})
    (root / "objects" / "class_map.json").write_text(json.dumps({"hound": "dog", "chair": None}))
    split = image_folder(root).split("objects")
    assert names(split) == ["objects/cat/1.png", "objects/hound/1.png"]
    assert split.labels.tolist() == [0, 1]
    (root / "objects" / "class_map.json").write_text(json.dumps({"hound": None, "chair": None, "cat": None}))
    with refuses("objects/class_map.json must keep at least one class", "null for every folder"):
        image_folder(root)
    (root / "objects" / "class_map.json").write_text("[]")
    with refuses("class_map.json must hold an object"):
        image_folder(root)


def test_classes_json_gives_readable_names(image_tree, refuses):
    root = image_tree({"train/n01/1.png": 0, "train/n02/1.png": 1, "val/n02/1.png": 2})
    (root / "classes.json").write_text(json.dumps({"n01": "zebra", "n02": "ant"}))
    data = image_folder(root)
    assert data.classes == ("zebra", "ant")
    assert data.split("val").labels.tolist() == [1]
    assert image_folder(root, classes=["ant", "n01"]).split("train").labels.tolist() == [1, 0]
    (root / "classes.json").write_text(json.dumps({"n01": "crane", "n02": "crane"}))
    with refuses("names must be unique", "'crane' more than once", "crane (bird)"):
        image_folder(root)


def test_superclasses(image_tree, refuses):
    root = image_tree(PETS)
    (root / "superclasses.json").write_text(json.dumps({"cat": "feline", "dog": "canine"}))
    data = image_folder(root)
    assert (data.superclasses, data.superclass_of) == (("canine", "feline"), (1, 0))
    assert image_folder(root, classes=["dog"]).superclass_of == (0,)
    assert image_folder(root, classes=["dog", "eel"]).superclass_of == ()
    (root / "superclasses.json").write_text(json.dumps({"cat": "feline"}))
    with refuses("must give every class a superclass", "none for 'dog'", "add it, or remove the file"):
        image_folder(root)


def test_list_files_choose_images_and_classes(image_tree):
    root = image_tree({"n01/a.png": 0, "n01/b.png": 1, "n02/c d.png": 2, "n03/e.png": 3, "flat.png": 4})
    (root / "train.txt").write_text("n02/c d.png\n\n./n01/a.png\n")
    (root / "val.txt").write_text("flat.png n02\nn03/e.png\tn01\nn01/b.png\n")
    (root / "words.txt").write_text("n01\tcat\nn02\tdog\n")
    (root / "README.txt").write_bytes(b"caf\xe9 pictures\n")
    data = image_folder(root)
    assert data.classes == ("n01", "n02")
    assert names(data.split("train")) == ["n02/c d.png", "n01/a.png"]
    assert data.split("train").labels.tolist() == [1, 0]
    assert names(data.split("val")) == ["flat.png", "n03/e.png", "n01/b.png"]
    assert data.split("val").labels.tolist() == [1, 0, 0]
    assert list(data.splits) == ["train", "val"]


def test_a_list_stands_in_for_its_folder_beside_other_split_folders(image_tree):
    root = image_tree(PETS | {"test/1.png": 0, "test/2.png": 1})
    (root / "test.txt").write_text("test/2.png dog\n")
    data = image_folder(root)
    assert list(data.splits) == ["test", "train", "val"]
    assert names(data.split("test")) == ["test/2.png"]
    (root / "train.txt").write_text("train/cat/b.png\n")
    (root / "val.txt").write_text("val/cat/1.png\n")
    assert names(image_folder(root, classes=["cat", "dog"]).split("train")) == ["train/cat/b.png"]


def test_listed_files_must_exist(image_tree, refuses):
    root = image_tree({"n01/a.png": 0})
    (root / "train.txt").write_text("n01/a.png\nn01/b.png\nn09/c.png\n")
    with refuses("every listed image must exist", "2 of 3 missing, the first n01/b.png", "relative to"):
        image_folder(root)


@pytest.mark.parametrize("line", ["n01/notes.md", "/abs/a.png n01", "a.png", "n01/.a.png"])
def test_lines_that_name_no_image(image_tree, refuses, line):
    root = image_tree({"n01/a.png": 0})
    (root / "train.txt").write_text(f"n01/a.png\n{line}\n")
    with refuses("train.txt: a line must be a path below", f"{line!r}, entry 2", "write folder/"):
        image_folder(root)


def test_a_missing_or_empty_folder(tmp_path, image_tree, refuses):
    with refuses("an image folder must exist", "nowhere", "<split>/<class>/"):
        image_folder(tmp_path / "nowhere")
    with refuses("an image folder must hold a split", "none in", "train/cat/1.jpg"):
        image_folder(image_tree({"1.png": 0}))


def test_class_folders_without_a_split_are_refused_not_guessed(image_tree, refuses):
    with refuses("a split folder holds class folders, not images", "got cat/1.png", "move it to train/cat"):
        image_folder(image_tree({"cat/1.png": 0, "dog/1.png": 1}))


def test_a_split_folder_without_class_folders(image_tree, refuses):
    with refuses("a split folder holds class folders, not images", "val/1.png", "list them in val.txt"):
        image_folder(image_tree(PETS | {"val/1.png": 0}))
    (image_tree({}) / "val" / "1.png").unlink()
    with refuses("a split folder must hold class folders", "none in extra"):
        image_folder(image_tree({"extra/notes.md": b""}))


def test_an_empty_class_is_named(image_tree, refuses):
    with refuses("a class folder must hold an image", "none in train/eel", "remove the folder"):
        image_folder(image_tree(PETS | {"train/eel/notes.md": b""}))


def test_an_image_that_vanished_or_broke(image_tree, refuses):
    root = image_tree(PETS | {"train/eel/1.png": b"broken"})
    train = image_folder(root).split("train")
    with refuses("image train/eel/1.png cannot be decoded"):
        train.image(3)
    (root / "train/cat/b.png").unlink()
    with refuses("image train/cat/b.png cannot be read", "No such file", "restore it"):
        train.image(1)


def test_linked_files_and_class_folders_count(image_tree):
    root = image_tree(PETS)
    (root / "train" / "eel").symlink_to(root / "val" / "dog")
    (root / "train" / "cat" / "c.png").symlink_to(root / "val" / "cat" / "1.png")
    train = image_folder(root).split("train")
    assert names(train)[2:] == ["train/cat/c.png", "train/dog/a.png", "train/eel/1.png"]
