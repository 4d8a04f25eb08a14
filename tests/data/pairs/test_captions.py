"""Images with captions: in a folder, in a packed file, in tar shards; the same pairs from each."""

import io
import json
import multiprocessing
import tarfile

import numpy as np
import pytest

from matryo.data import PairSplit, caption_folder, caption_shards, image_folder, open_dataset, pack

pytest.importorskip("PIL")

KEYS = ["a.png", "sub/b.png", "c.png", "d.png"]
SPLIT = ["train", "test", "train", "train"]
CAPTIONS = [["a cat", "ein Kätzchen"], ["a dog"], ["a bird", "a bird, singing", "wings"], ["a cat"]]
JSON = {"keys": KEYS, "split": SPLIT, "captions": CAPTIONS}
EXPECTED = {
    "train": [("a.png", "a.png#0", "a cat"), ("a.png", "a.png#1", "ein Kätzchen"), ("c.png", "c.png#0", "a bird"),
              ("c.png", "c.png#1", "a bird, singing"), ("c.png", "c.png#2", "wings"), ("d.png", "d.png#0", "a cat")],
    "test": [("sub/b.png", "sub/b.png#0", "a dog")],
}  # fmt: skip


def read(data):
    return {
        name: [
            (split.queries.name(int(q)), split.candidates.name(int(c)), split.candidates.text(int(c)))
            for q, c in split.pairs
        ]
        for name, split in data.splits.items()
    }


@pytest.fixture
def root(tmp_path, pixels, encode):
    """A folder of four images and no captions yet."""
    root = tmp_path / "pets"
    for i, key in enumerate(KEYS):
        path = root / "images" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels[i]))
    return root


def rows():
    return [
        {"image": key, "split": split, "caption": text}
        for key, split, own in zip(KEYS, SPLIT, CAPTIONS, strict=True)
        for text in own
    ]


def as_tsv(rows):
    return "\n".join(["\t".join(rows[0]), *("\t".join(row.values()) for row in rows)])


def as_lines(rows):
    return "\n".join(map(json.dumps, rows))


LISTS = [
    {"file_name": f"./{key}", "split": split, "captions": own}
    for key, split, own in zip(KEYS, SPLIT, CAPTIONS, strict=True)
]
FILES = {
    "json": {"captions.json": json.dumps(JSON)},
    "tsv": {"captions.tsv": as_tsv(rows())},
    "jsonl": {"metadata.jsonl": as_lines(LISTS)},
    "a file a split": {
        f"{split}.jsonl": as_lines(
            [{"path": row["image"], "text": row["caption"]} for row in rows() if row["split"] == split]
        )
        for split in ("train", "test")
    },
}


def write(root, files):
    for name, text in files.items():
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize("kind", FILES)
def test_every_kind_of_caption_file_gives_the_same_pairs(root, pixels, kind):
    data = open_dataset("captions", write(root, FILES[kind]))
    assert read(data) == EXPECTED
    train = data.split("train")
    assert isinstance(train, PairSplit)
    for row, image in enumerate((0, 2, 3)):
        assert np.array_equal(train.queries.image(row), pixels[image])
    assert train.queries.labels.tolist() == [-1] * 3
    assert data.classes == ()
    assert caption_folder(root, ["cat"]).classes == ("cat",)


def test_parquet(root):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(LISTS), root / "captions.parquet")
    assert read(caption_folder(root)) == EXPECTED


def test_without_splits_all_is_train(root):
    write(root, {"captions.json": json.dumps({"keys": KEYS, "captions": [own[0] for own in CAPTIONS]})})
    data = caption_folder(root)
    assert list(data.splits) == ["train"]
    assert [text for _, _, text in read(data)["train"]] == ["a cat", "a dog", "a bird", "a cat"]
    (root / "captions.json").unlink()
    write(root, {"captions.csv": "image,caption\na.png,one\n"})
    assert read(caption_folder(root)) == {"train": [("a.png", "a.png#0", "one")]}


def test_images_may_lie_in_the_root(root):
    for path in (root / "images").iterdir():
        path.rename(root / path.name)
    (root / "images").rmdir()
    assert read(caption_folder(write(root, FILES["json"]))) == EXPECTED


def packed(root, tmp_path, names):
    """The images of ``root`` in the order of KEYS in one packed file, with the ``names`` or without."""
    folder = tmp_path / "packed"
    folder.mkdir()
    arrays = {"blob": [], "off": [0]}
    for key in KEYS:
        arrays["blob"].append((root / "images" / key).read_bytes())
        arrays["off"].append(arrays["off"][-1] + len(arrays["blob"][-1]))
    extra = {"name": np.array([name.encode() for name in names])} if names else {}
    np.savez(folder / "images.npz", blob=np.frombuffer(b"".join(arrays["blob"]), np.uint8), off=arrays["off"], **extra)
    return folder


def test_paths_may_begin_with_the_folder_of_images(root, refuses):
    """As Hugging Face writes them: relative to the table, which lies beside images/."""
    rows = "".join(f"images/{key},one\n" for key in KEYS)
    told = caption_folder(write(root, {"metadata.csv": f"file_name,text\n{rows}"})).split("train").queries
    assert [told.encoded(i) for i in range(len(told))] == [(root / "images" / key).read_bytes() for key in KEYS]
    write(root, {"metadata.csv": f"file_name,text\n{rows}none.png,two\n"})
    with refuses("every listed image must exist", "relative to images/"):
        caption_folder(root)


def test_a_byte_order_mark_is_no_part_of_captions_json(root):
    given = FILES["json"]["captions.json"]
    assert read(caption_folder(write(root, {"captions.json": f"\ufeff{given}"}))) == EXPECTED


def test_a_packed_file_without_names_is_in_the_order_of_the_keys(root, tmp_path, pixels, refuses):
    folder = packed(root, tmp_path, None)
    data = caption_folder(write(folder, FILES["json"]))
    assert read(data) == EXPECTED
    assert np.array_equal(data.split("test").queries.image(0), pixels[1])
    assert isinstance(data.split("train").queries._blob, np.memmap)
    short = {key: values[:3] for key, values in JSON.items()}
    with refuses("images.npz has no names", "4 images, 3 keys in captions.json", "matryo.data.pack"):
        caption_folder(write(folder, {"captions.json": json.dumps(short)}))
    (folder / "captions.json").unlink()
    with refuses("images.npz has no names", "4 keys in captions.tsv"):
        caption_folder(write(folder, FILES["tsv"]))


def test_a_packed_file_with_names_may_be_in_any_order(root, tmp_path, pixels, refuses):
    names = ["d.png", "a.png", "x.png", "c.png"]
    folder = packed(root, tmp_path, names)
    write(folder, {"captions.tsv": "image\tcaption\nc.png\ttwo\nd.png\tone\n"})
    data = caption_folder(folder)
    assert [name for name, _, _ in read(data)["train"]] == ["c.png", "d.png"]
    assert np.array_equal(data.split("train").queries.image(0), pixels[3])
    write(folder, {"captions.tsv": "image\tcaption\nc.png\ttwo\nsub/b.png\tone\n"})
    with refuses("captions.tsv: every listed image must be in images.npz", "1 of 2 missing, the first sub/b.png"):
        caption_folder(folder)


def test_what_pack_writes_is_read(tmp_path, image_tree):
    source = image_folder(image_tree({"train/cat/1.png": 0, "train/dog/2.png": 1}))
    folder = tmp_path / "out"
    pack(source.split("train"), folder / "images.npz", lossless=True, progress=False)
    write(folder, {"captions.tsv": "image\tcaption\ntrain/dog/2.png\ta dog\n"})
    assert read(caption_folder(folder)) == {"train": [("train/dog/2.png", "train/dog/2.png#0", "a dog")]}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"captions.json": "[]"}, ["captions.json must hold an object"]),
        ({"captions.json": '{"keys": ["a.png"]}'}, ["captions.json must hold the lists keys and captions", "got keys"]),
        ({"captions.json": '{"keys": [], "captions": []}'}, ["captions.json must hold the lists keys and captions"]),
        ({"captions.json": '{"keys": ["a.png"], "captions": []}'}, ["one entry per image", "1 keys, 0 captions"]),
        ({"captions.json": json.dumps({**JSON, "split": "train"})}, ["one entry per image", "split: 'train'"]),
        ({"captions.json": json.dumps({**JSON, "captions": [[], *CAPTIONS[1:]]})}, ["a split and", "for 'a.png'"]),
        ({"captions.json": json.dumps({**JSON, "captions": [[1], *CAPTIONS[1:]]})}, ["a split and", "[1] for"]),
        ({"captions.json": json.dumps({**JSON, "keys": ["a.png"] * 4})}, ["each key once", "'a.png' twice"]),
        ({"captions.json": json.dumps({**JSON, "keys": ["z.png", *KEYS[1:]]})},
         ["captions.json: every listed image must exist", "1 of 4 missing, the first z.png"]),
        ({"captions.tsv": "image\tcaption\n../a.png\tx\n"}, ["an image must be a path below images/", "'../a.png'"]),
        ({"captions.tsv": "image\tcaption\n/a.png\tx\n"}, ["an image must be a path below images/", "'/a.png'"]),
        ({"captions.tsv": "image\tcaption\na.doc\tx\n"}, ["an image must be a path below images/", "'a.doc'"]),
        ({"captions.tsv": "image\tcaption\na.png\t \n"}, ["captions.tsv, line 2: caption must be a text"]),
        ({"captions.tsv": "image\twords\na.png\tx\n"}, ["line 2: a row needs a text in the column caption"]),
        ({"captions.tsv": "photo\tcaption\na.png\tx\n"}, ["captions.tsv, line 2", "image or file_name or path"]),
        ({"train.tsv": "image\tcaption\na.png\tx", "test.tsv": "image\tcaption\na.png\tx"},
         ["train.tsv, line 2: an image must belong to one split", "a.png in test and in train"]),
        ({}, ["a folder with one file per split"]),
    ],
)  # fmt: skip
def test_what_is_refused(root, refuses, files, words):
    with refuses(*words):
        caption_folder(write(root, files))


def test_folders_that_are_not_right(root, tmp_path, refuses):
    with refuses("a caption folder must exist", "nowhere"):
        caption_folder(tmp_path / "nowhere")
    write(root, FILES["json"])
    for name in ("one.npz", "two.npz"):
        np.savez(root / name, x=1)
    with refuses("packed images with captions must be one .npz file", "one.npz, two.npz"):
        caption_folder(root)
    (root / "two.npz").unlink()
    with refuses("one.npz must hold the arrays blob and off", "got x"):
        caption_folder(root)


def write_tar(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.fixture
def shards(tmp_path, pixels, encode):
    """Two shards of train and one of test: captions as text, as JSON, or as both."""
    images = [encode(image) for image in pixels]
    root = tmp_path / "web"
    write_tar(root / "train-0.tar", [
        ("a.jpg", images[0]), ("a.txt", "\ufeffein Kätzchen\n".encode()), ("a.json", b'{"caption": "another"}'),
        ("d/b.png", images[1]), ("d/b.json", json.dumps({"captions": ["a dog", " ", "ein Hündchen"]}).encode()),
    ])  # fmt: skip
    write_tar(root / "train-1.tar", [("c.json", b'{"text": "a bird", "caption": null}'), ("c.png", images[2])])
    write_tar(root / "test-0.tar", [("a.png", images[3]), ("a.txt", b"a cat"), ("a.cls", b"nonsense")])
    return root


def test_shards_of_captions(shards, pixels):
    data = open_dataset("caption-shards", shards)
    assert read(data) == {
        "test": [("test-0.tar/a", "test-0.tar/a#0", "a cat")],
        "train": [
            ("train-0.tar/a", "train-0.tar/a#0", "ein Kätzchen"),
            ("train-0.tar/d/b", "train-0.tar/d/b#0", "a dog"),
            ("train-0.tar/d/b", "train-0.tar/d/b#1", "ein Hündchen"),
            ("train-1.tar/c", "train-1.tar/c#0", "a bird"),
        ],
    }
    train = data.split("train")
    for i in range(3):
        assert np.array_equal(train.queries.image(i), pixels[i])
    assert train.queries.labels.tolist() == [-1] * 3


def test_the_index_is_kept_apart_from_that_of_labels_and_gives_the_same(shards, monkeypatch):
    from matryo.data.images import tar_index

    first = read(caption_shards(shards))
    assert (shards / ".train-0.tar.captions.npz").exists()
    assert not (shards / ".train-0.tar.index.npz").exists()
    monkeypatch.setattr(tar_index, "_build_captions", None)   # not called
    assert read(caption_shards(shards)) == first


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("a.png", b"")], ["sample train-0.tar/a must have one image and a caption", "got .png", "add a .txt"]),
        ([("a.png", b""), ("a.txt", b" \n")], ["one image and a caption", "got .png, .txt", "its .txt file is empty"]),
        ([("a.png", b""), ("a.json", b'{"caption": " "}')], ["one image and a caption", "or an empty one: add it"]),
        ([("a.png", b""), ("a.json", b'{"url": 1}')], ["one image and a caption", ".png, .json", 'has no "caption"']),
        ([("a.png", b""), ("a.json", b"[1]")], ["must have one image and a caption"]),
        ([("a.txt", b"x")], ["must have one image and a caption", "got .txt", "add the image"]),
        ([("a.png", b""), ("a.txt", b"\xff")], ["the caption of sample train-0.tar/a must be UTF-8 text", ".txt file"]),
        ([("a.png", b""), ("a.json", b"{")], ["the caption of sample train-0.tar/a must be UTF-8 text", ".json file"]),
        ([("a.png", b""), ("a.json", b'{"caption": 7}')], ["sample train-0.tar/a must be UTF-8 text", "7"]),
        ([("a.png", b""), ("a.json", b'{"caption": "\\ud800"}')], ["must be UTF-8 text"]),
        ([("a.png", b""), ("a.txt", b"x"), ("a.txt", b"x")], ["shard train-0.tar must be unique", "a.txt more"]),
        ([], ["shard train-0.tar must hold a sample"]),
    ],
)
def test_shards_that_are_not_whole(tmp_path, refuses, members, words):
    write_tar(tmp_path / "train-0.tar", members)
    with refuses(*words):
        caption_shards(tmp_path)


def _read_all(split):
    return [float(split.queries.image(int(q)).mean()) for q, _ in split.pairs], list(split.candidates)


@pytest.mark.parametrize("source", ["captions", "caption-shards"])
def test_worker_processes_read_the_same_pairs(root, shards, source):
    write(root, FILES["json"])
    split = open_dataset(source, root if source == "captions" else shards).split("train")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_read_all, [split]) == [_read_all(split)]
