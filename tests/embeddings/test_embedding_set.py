"""The embeddings folder: what goes in comes out, and what is wrong is refused before anything is written."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.embeddings import EmbeddingSet, Head, Manifest
from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.mapped import is_mapped
from matryo.nesting import Nesting, truncate

if TYPE_CHECKING:
    from pathlib import Path

rng = np.random.default_rng(0)
VECTORS = rng.standard_normal((10, 16)).astype(np.float32)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_everything_written_is_read_back(tmp_path: Path) -> None:
    nesting = Nesting([4, 16], weights=[2, 1])
    head = Head.tied(rng.standard_normal((3, 16)), rng.standard_normal(3), dims=(4, 16))
    labels = np.arange(10) % 3
    ids = [f"bild-{n}-é" for n in range(10)]
    EmbeddingSet.write(
        tmp_path / "mine", VECTORS, ids=ids, labels=labels, nesting=nesting, head=head,
        model={"name": "rn18", "seed": 3}, dataset="emoji", split="test",
        classes=["a", "b", "c"], superclasses=["x", "y"], superclass_of=[0, 1, 1],
    )   # fmt: skip
    mine = EmbeddingSet.open(tmp_path / "mine")
    np.testing.assert_array_equal(mine.vectors, VECTORS)
    np.testing.assert_array_equal(mine.labels, labels)
    assert mine.ids.tolist() == ids
    assert mine.nesting == nesting
    assert (len(mine), mine.count, mine.dim, mine.classes) == (10, 10, 16, ("a", "b", "c"))
    about = mine.manifest
    assert (about.model, about.title) == ({"name": "rn18", "seed": 3}, "rn18")
    assert (about.dataset, about.split, about.normalized, about.dtype) == ("emoji", "test", False, "float32")
    assert (about.superclasses, about.superclass_of) == (("x", "y"), (0, 1, 1))
    assert mine.head is not None
    np.testing.assert_array_equal(mine.head.logits(VECTORS, 4), head.logits(VECTORS, 4))
    mine.verify()
    expected = ["head.safetensors", "ids.npy", "labels.npy", "manifest.json", "vectors.npy"]
    assert names(tmp_path / "mine") == expected
    assert names(tmp_path) == ["mine"]
    assert "10 × 16 float32" in repr(mine)


def test_defaults(tmp_path: Path) -> None:
    mine = EmbeddingSet.write(tmp_path / "mine", VECTORS.tolist())
    assert mine.labels is None
    assert mine.head is None
    assert mine.ids.tolist() == list(range(10))
    assert mine.nesting.dims == (16,)   # nobody said that its prefixes were trained
    assert mine.manifest.title == ""
    assert names(tmp_path / "mine") == ["manifest.json", "vectors.npy"]
    assert EmbeddingSet.write(tmp_path / "thin", [[1, 2, 3]]).nesting.dims == (3,)
    assert EmbeddingSet.write(tmp_path / "four", [[1, 2, 3, 4]]).nesting.dims == (4,)


def test_vectors_are_mapped_not_read(tmp_path: Path) -> None:
    mine = EmbeddingSet.write(tmp_path / "mine", VECTORS, labels=[0] * 10)
    assert is_mapped(mine.vectors)
    with pytest.raises(ValueError, match="read-only"):
        mine.vectors[0, 0] = 1


def test_labels_above_2048_survive_half_precision(tmp_path: Path) -> None:
    labels = np.array([2047, 2048, 2049, 2051, 4201, 10**12, -1, 0, 1, 2])
    mine = EmbeddingSet.write(tmp_path / "mine", VECTORS, labels=labels, dtype="float16")
    assert mine.labels is not None
    assert mine.labels.dtype == np.int64
    assert mine.labels.tolist() == labels.tolist()
    assert mine.vectors.dtype == np.float16


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dim", [1, 5, 16])
def test_at_is_truncation_in_float32(tmp_path: Path, dtype: str, dim: int) -> None:
    mine = EmbeddingSet.write(tmp_path / "mine", VECTORS, dtype=dtype)
    wide = VECTORS.astype(dtype).astype(np.float32)
    assert mine.at(dim).dtype == np.float32
    np.testing.assert_array_equal(mine.at(dim), truncate(wide, dim))
    np.testing.assert_array_equal(mine.at(dim, normalize=False), wide[:, :dim])


def test_at_gives_an_array_of_its_own(tmp_path: Path) -> None:
    mine = EmbeddingSet.write(tmp_path / "mine", VECTORS)
    mine.at(4, normalize=False)[:] = 0
    np.testing.assert_array_equal(mine.vectors, VECTORS)
    for dim in (0, -1, 17):
        with pytest.raises(NestingError, match="1 … 16"):
            mine.at(dim)


@pytest.mark.parametrize("rows", [1, 3, 10, 99, None])
def test_batches_cover_every_row_once(tmp_path: Path, rows: int | None) -> None:
    mine = EmbeddingSet.write(tmp_path / "mine", VECTORS, dtype="float16")
    parts = list(mine.batches(rows))
    assert [start for start, _ in parts] == list(range(0, 10, rows or 10))
    assert all(part.dtype == np.float32 for _, part in parts)
    np.testing.assert_array_equal(np.concatenate([part for _, part in parts]), mine.vectors)


@settings(deadline=None, max_examples=25)
@given(
    count=st.integers(1, 5),
    dim=st.integers(1, 9),
    kind=st.sampled_from(["none", "int", "text"]),
    labelled=st.booleans(),
    data=st.data(),
)
def test_any_set_round_trips(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    dim: int,
    kind: str,
    labelled: bool,
    data: st.DataObject,
) -> None:
    one = {"int": st.integers(-(2**63), 2**63 - 1), "text": st.text(st.characters(exclude_characters="\0"))}
    size = {"min_size": count, "max_size": count}
    ids = None if kind == "none" else data.draw(st.lists(one[kind], unique=True, **size))
    labels = data.draw(st.lists(st.integers(-1, 2**60), **size)) if labelled else None
    vectors = np.random.default_rng(count).standard_normal((count, dim)).astype(np.float32)
    path = tmp_path_factory.mktemp("any") / "set"
    mine = EmbeddingSet.write(path, vectors, ids=ids, labels=labels)
    np.testing.assert_array_equal(mine.vectors, vectors)
    assert mine.ids.tolist() == (ids if ids is not None else list(range(count)))
    assert (mine.labels.tolist() if mine.labels is not None else None) == labels
    mine.verify()


def test_normalized_is_measured_unless_promised(tmp_path: Path) -> None:
    unit = truncate(VECTORS, 16)
    assert EmbeddingSet.write(tmp_path / "a", VECTORS).manifest.normalized is False
    assert EmbeddingSet.write(tmp_path / "b", unit).manifest.normalized is True
    assert EmbeddingSet.write(tmp_path / "c", unit, dtype="float16").manifest.normalized is True
    assert EmbeddingSet.write(tmp_path / "d", unit, normalized=False).manifest.normalized is False
    with_zero = np.vstack([unit, np.zeros((1, 16))])
    assert EmbeddingSet.write(tmp_path / "e", with_zero, normalized=True).manifest.normalized is True


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("one vector", {"vectors": [1.0, 2.0]}, "two-dimensional array of real numbers"),
    ("three axes", {"vectors": np.zeros((2, 2, 2))}, "two-dimensional"),
    ("no columns", {"vectors": np.zeros((2, 0))}, "two-dimensional"),
    ("no rows", {"vectors": np.zeros((0, 4))}, "at least one row"),
    ("ragged", {"vectors": [[1.0], [1.0, 2.0]]}, "lists of equal length"),
    ("text", {"vectors": [["a", "b"]]}, "real numbers"),
    ("complex", {"vectors": np.zeros((2, 2), complex)}, "real numbers"),
    ("NaN", {"vectors": [[1.0], [np.nan], [np.inf]]}, r"finite \(got 2 bad rows, the first is row 1\): drop"),
    ("overflow", {"vectors": [[7e4]], "dtype": "float16"}, r"finite in float16 .*use float32"),
    ("overflow", {"vectors": [[1e39]]}, "finite in float32"),
    ("dtype", {"vectors": [[1.0]], "dtype": "float64"}, "dtype must be float32 or float16"),
    ("few labels", {"labels": [1] * 9}, r"labels must have one entry for each of the 10 vectors \(got 9\)"),
    ("float labels", {"labels": [1.0] * 10}, "labels must be one-dimensional: one integer"),
    ("2-d labels", {"labels": np.zeros((10, 1), int)}, "one-dimensional"),
    ("label −2", {"labels": [0] * 9 + [-2]}, r"labels must lie in −1 … .*got -2 in row 9"),
    ("label beyond", {"labels": [0] * 9 + [2], "classes": ["a", "b"]}, r"−1 … 1, the last of the classes"),
    ("few ids", {"ids": ["a"]}, "ids must have one entry for each of the 10"),
    ("twice", {"ids": [0, 1, 2, 3, 4, 5, 6, 7, 8, 3]}, r"ids must be unique \(got 3 twice\)"),
    ("text twice", {"ids": list("abcdefghia")}, r"unique \(got 'a' twice\)"),
    ("mixed ids", {"ids": [1, "a", *range(8)]}, "all integers or all strings"),
    ("float ids", {"ids": [0.5] * 10}, "all integers or all strings"),
    ("NUL", {"ids": ["a\0", *map(str, range(9))]}, "without NUL"),
    ("large ids", {"ids": np.arange(10, dtype=np.uint64) + np.uint64(2**63)}, "64 signed bits"),
    ("huge ids", {"ids": [2**70, *range(9)]}, "ids must be"),
    ("promise", {"normalized": True}, "must have norm 1"),
    ("beyond", {"classes": ["a"], "superclasses": ["x"], "superclass_of": [1]}, "index of its superclass"),
    ("superclass", {"classes": ["a"], "superclasses": ["x"]}, "index of its superclass"),
    ("model", {"model": {"a": object()}}, "plain JSON values"),
    ("model", {"model": {"a": float("nan")}}, "plain JSON values"),
    ("head", {"head": Head.tied(np.ones((2, 17)), dims=(17,))}, "read at most 16 columns"),
    ("head", {"head": Head.tied(np.ones((2, 16)), dims=(16,)), "classes": ["a"]}, "have 1 classes"),
]


@pytest.mark.parametrize(("what", "given", "message"), BAD, ids=[bad[0] for bad in BAD])
def test_bad_input_is_refused_and_leaves_nothing(
    tmp_path: Path, what: str, given: dict[str, Any], message: str
) -> None:
    del what
    with pytest.raises(EmbeddingsError, match=message):
        EmbeddingSet.write(tmp_path / "deep" / "mine", **{"vectors": VECTORS, **given})
    assert not names(tmp_path) or names(tmp_path / "deep") == []


def test_a_nesting_that_does_not_fit_and_an_unknown_field(tmp_path: Path) -> None:
    with pytest.raises(NestingError, match="must not exceed the 16"):
        EmbeddingSet.write(tmp_path / "mine", VECTORS, nesting=Nesting([32]))
    with pytest.raises(TypeError, match="modle"):
        EmbeddingSet.write(tmp_path / "mine", VECTORS, modle="x")   # type: ignore[call-arg]
    assert names(tmp_path) == []


def test_embeddings_are_not_replaced_unasked(tmp_path: Path) -> None:
    EmbeddingSet.write(tmp_path / "mine", VECTORS, labels=[1] * 10)
    with pytest.raises(EmbeddingsError, match="pass overwrite=True"):
        EmbeddingSet.write(tmp_path / "mine", VECTORS[:3])
    assert len(EmbeddingSet.open(tmp_path / "mine")) == 10
    new = EmbeddingSet.write(tmp_path / "mine", VECTORS[:3], overwrite=True)
    assert (len(new), new.labels) == (3, None)
    assert names(tmp_path) == ["mine"]
    assert names(tmp_path / "mine") == ["manifest.json", "vectors.npy"]


def test_a_refused_overwrite_keeps_the_old(tmp_path: Path) -> None:
    EmbeddingSet.write(tmp_path / "mine", VECTORS)
    with pytest.raises(EmbeddingsError, match="norm 1"):
        EmbeddingSet.write(tmp_path / "mine", VECTORS[:3], normalized=True, overwrite=True)
    assert len(EmbeddingSet.open(tmp_path / "mine")) == 10
    assert names(tmp_path) == ["mine"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_not_ours_is_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work", encoding="utf-8")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    EmbeddingSet.write(tmp_path / "ours", VECTORS)
    (tmp_path / "ours" / "notes.txt").write_text("mine", encoding="utf-8")
    for name in ("home", "file", "ours"):
        with pytest.raises(EmbeddingsError, match=r"be free, or hold embeddings and nothing else .*choose"):
            EmbeddingSet.write(tmp_path / name, VECTORS, overwrite=overwrite)
    assert (home / "thesis.tex").read_text(encoding="utf-8") == "years of work"
    assert names(tmp_path) == ["file", "home", "ours"]


def test_an_empty_folder_and_a_link_are_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    EmbeddingSet.write(tmp_path / "link", VECTORS)
    EmbeddingSet.write(tmp_path / "link", VECTORS[:2], overwrite=True)
    assert len(EmbeddingSet.open(tmp_path / "empty")) == 2
    assert names(tmp_path) == ["empty", "link"]


def test_missing_and_unfinished_folders(tmp_path: Path) -> None:
    with pytest.raises(EmbeddingsError, match=r"must be an embeddings folder \(got .*nowhere"):
        EmbeddingSet.open(tmp_path / "nowhere")
    (tmp_path / "half.partial").mkdir()
    with pytest.raises(EmbeddingsError, match=r"not finished .*half\.partial\): run the command"):
        EmbeddingSet.open(tmp_path / "half")
    with pytest.raises(EmbeddingsError, match=r"must have a manifest\.json"):
        EmbeddingSet.open(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(EmbeddingsError, match="must be an embeddings folder"):
        EmbeddingSet.open(tmp_path / "file")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    head = Head.separate({8: np.ones((3, 8)), 16: np.ones((3, 16))})
    EmbeddingSet.write(tmp_path / "set", VECTORS, labels=[0] * 10, ids=list("abcdefghij"), head=head)
    return tmp_path / "set"


FILES = ["vectors.npy", "labels.npy", "ids.npy", "head.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_cut_file_is_named_on_opening(whole: Path, name: str) -> None:
    data = (whole / name).read_bytes()
    (whole / name).write_bytes(data[:-1])
    with pytest.raises(EmbeddingsError, match=rf"{name} is damaged \(got {len(data) - 1} bytes instead of"):
        EmbeddingSet.open(whole)
    (whole / name).unlink()
    with pytest.raises(EmbeddingsError, match=rf"{name} is damaged \(got no such file\): restore it"):
        EmbeddingSet.open(whole)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_named_by_verify(whole: Path, name: str) -> None:
    data = bytearray((whole / name).read_bytes())
    data[-3] ^= 4
    (whole / name).write_bytes(data)
    opened = EmbeddingSet.open(whole)
    with pytest.raises(EmbeddingsError, match=rf"{name} is damaged \(got other bytes"):
        opened.verify()


@pytest.mark.parametrize("name", FILES[:3])
def test_a_damaged_header_is_an_error_of_ours_or_none(whole: Path, name: str) -> None:
    sound = (whole / name).read_bytes()
    for place in range(0, 128, 3):
        for bit in (1, 16, 128):
            data = bytearray(sound)
            data[place] ^= bit
            (whole / name).write_bytes(data)
            try:
                EmbeddingSet.open(whole)
            except EmbeddingsError as error:
                assert name in str(error)


def test_an_array_that_contradicts_the_manifest(whole: Path) -> None:
    for array in (np.zeros((10, 16), np.float64), np.zeros((10, 8), np.float32), np.array([object()])):
        np.save(whole / "vectors.npy", array, allow_pickle=True)
        manifest = Manifest.load(whole)
        record = dataclasses.replace(manifest.files["vectors.npy"], size=(whole / "vectors.npy").stat().st_size)
        dataclasses.replace(manifest, files={**manifest.files, "vectors.npy": record}).save(whole)
        with pytest.raises(EmbeddingsError, match=r"vectors\.npy is damaged"):
            EmbeddingSet.open(whole)


def test_a_full_disk_leaves_the_old_embeddings(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
import numpy as np
from matryo.embeddings import EmbeddingSet
from matryo.errors import StorageError

disk = Path(sys.argv[1])
EmbeddingSet.write(disk / "mine", np.ones((10, 16)))
try:
    EmbeddingSet.write(disk / "mine", np.ones((10_000, 16)), overwrite=True)
except StorageError as error:
    print(error)
EmbeddingSet.open(disk / "mine").verify()
print(len(EmbeddingSet.open(disk / "mine")), [entry.name for entry in disk.iterdir()])
"""
    apart = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    mount = 'mount -t tmpfs -o size=256k tmpfs "$1"'
    if subprocess.run([*apart, mount, "sh", str(tmp_path)], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let tests mount a small disk")
    command = [*apart, f'{mount} && exec "$2" -c "$3" "$1"', "sh", str(tmp_path), sys.executable, script]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "No space left" in told[0]
    assert "free some space" in told[0]
    assert told[1] == "10 ['mine']"


def test_errors_are_input_errors() -> None:
    assert issubclass(EmbeddingsError, InputError)


def test_a_set_in_memory_is_checked_like_one_on_disk_and_reads_alike(tmp_path):
    vectors, labels = rng.normal(size=(5, 6)), [0, 1, 2, 1, 0]
    about = {"classes": ["a", "b", "c"], "nesting": Nesting([2, 6]), "model": "by hand"}
    head = Head.tied(rng.normal(size=(3, 6)), dims=(2, 6))
    memory = EmbeddingSet.of(vectors, labels=labels, head=head, **about)
    disk = EmbeddingSet.write(tmp_path / "disk", vectors, labels=labels, head=head, **about)
    for dim in (1, 2, 6):
        np.testing.assert_array_equal(memory.at(dim), disk.at(dim))
        np.testing.assert_array_equal(memory.head.logits(vectors, dim), disk.head.logits(vectors, dim))
    np.testing.assert_array_equal(memory.labels, disk.labels)
    np.testing.assert_array_equal(memory.ids, disk.ids)
    assert (memory.count, memory.nesting, memory.classes) == (disk.count, disk.nesting, disk.classes)
    with pytest.raises(EmbeddingsError, match="one entry for each"):
        EmbeddingSet.of(vectors, labels=[0])
    with pytest.raises(EmbeddingsError, match="finite"):
        EmbeddingSet.of(vectors * np.inf)
    with pytest.raises(EmbeddingsError, match="norm 1"):
        EmbeddingSet.of(vectors, normalized=True)
    wide = Head.tied(rng.normal(size=(3, 7)), dims=(7,))
    with pytest.raises(EmbeddingsError, match="the head must read at most 6"):
        EmbeddingSet.of(vectors, head=wide)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_select_keeps_rows_with_all_that_belongs_to_them(tmp_path, where):
    vectors = np.arange(12.0).reshape(4, 3)
    head = Head.tied(np.eye(3), dims=(3,))
    about = {"labels": [3, 1, 2, 0], "ids": list("abcd"), "head": head}
    make = EmbeddingSet.of if where == "memory" else lambda *a, **k: EmbeddingSet.write(tmp_path / "set", *a, **k)
    whole = make(vectors, **about)
    for rows, kept in (([2, 0], [2, 0]), (np.array([False, True, True, False]), [1, 2])):
        part = whole.select(rows)
        np.testing.assert_array_equal(part.vectors, vectors[kept])
        assert part.labels.tolist() == [about["labels"][i] for i in kept]
        assert list(part.ids) == ["abcd"[i] for i in kept]
        assert len(part) == part.manifest.count == 2
        np.testing.assert_array_equal(part.head.logits(vectors, 3), vectors)
    assert len(whole) == 4


def test_transformed_vectors_keep_their_names_but_neither_head_nor_claims():
    head = Head.tied(np.eye(3), dims=(3,))
    whole = EmbeddingSet.of(np.eye(3), labels=[0, 1, 2], ids=list("abc"), head=head, nesting=Nesting([1, 3]))
    other = whole.transformed(2 * np.ones((3, 5)))
    assert (other.dim, other.nesting.dims, other.head, other.manifest.normalized) == (5, (5,), None, None)
    assert (list(other.ids), other.labels.tolist()) == (list("abc"), [0, 1, 2])
    assert whole.transformed(np.eye(3), head=head, nesting=Nesting([2, 3])).nesting.dims == (2, 3)
    with pytest.raises(EmbeddingsError, match="a vector for each of the 3"):
        whole.transformed(np.ones((2, 5)))


def test_a_class_may_have_no_superclass():
    about = {"classes": ["a", "b"], "superclasses": ["x"], "superclass_of": [0, -1]}
    assert EmbeddingSet.of(np.eye(2), labels=[0, 1], **about).manifest.superclass_of == (0, -1)
