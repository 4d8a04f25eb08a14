"""Hostile calls and folders of embeddings: nothing damaged replaces what is good, and no foreign file is lost."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from matryo import EmbeddingSet
from matryo.embeddings import EmbeddingWriter, FileRecord, Head, Manifest
from matryo.embeddings.place import embedding_sets
from matryo.errors import EmbeddingsError, InputError, StorageError
from matryo.files import sha256

VECTORS = np.eye(4, dtype=np.float32)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    EmbeddingSet.write(tmp_path / "mine", VECTORS, labels=[0, 1, 0, 1], ids=list("abcd"), classes=["x", "y"], split="s")
    return tmp_path / "mine"


ODD = [np.True_, np.int64(1), np.array(["x", "y"]), np.array([0, 1]), np.nan, "\ud800", "a\0b", object(), {1: 2}, b"x"]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=4) | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
FIELDS = ["nesting", "model", "normalized", "dataset", "split", "classes", "superclasses", "superclass_of", "content"]
named = st.sampled_from([*FIELDS, "dtype", "head", "labels", "ids"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=st.dictionaries(named, values, min_size=1, max_size=3), streams=st.booleans(), fingerprint=values)
def test_any_description_is_refused_or_can_be_read_back(
    tmp_path_factory: pytest.TempPathFactory, arguments: dict[str, Any], streams: bool, fingerprint: Any
) -> None:
    path = tmp_path_factory.mktemp("x") / "mine"
    old = contents(EmbeddingSet.write(path, VECTORS, ids=list("abcd")).path)
    try:
        if streams:
            columns = {name: arguments.pop(name) for name in ("labels", "ids") if name in arguments}
            with EmbeddingWriter(path, dim=4, fingerprint=fingerprint, overwrite=True, **arguments) as writer:
                writer.append(VECTORS, **columns)
        else:
            EmbeddingSet.write(path, VECTORS, overwrite=True, **arguments)
    except InputError as error:
        assert "\n" not in str(error)
        assert contents(path) == old
    else:
        EmbeddingSet.open(path).verify()
        if isinstance(arguments.get("split"), str):
            assert EmbeddingSet.open(path).manifest.split == arguments["split"]
    assert names(path.parent) == ["mine"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("split", None), ("dataset", 3), ("content", b"x"), ("classes", "xy"), ("classes", [1, 2]), ("classes", 5),
        ("normalized", "no"), ("model", 3), ("model", ["m"]), ("superclass_of", ["0", "1"]), ("split", "\ud800"),
        ("model", {"deep": json.loads("[" * 900 + "]" * 900)}), ("head", "head.safetensors"), ("dtype", np.float32),
    ],
)  # fmt: skip
def test_a_field_of_another_type_replaces_nothing(mine: Path, field: str, value: Any) -> None:
    old = contents(mine)
    with pytest.raises(EmbeddingsError, match=field.replace("deep", "") if value != "\ud800" else "description"):
        EmbeddingSet.write(mine, VECTORS, overwrite=True, **{field: value})
    with pytest.raises(EmbeddingsError):
        EmbeddingWriter(mine, dim=4, overwrite=True, **{field: value})
    assert contents(mine) == old
    assert names(mine.parent) == ["mine"]


@pytest.mark.parametrize("fingerprint", [{1: 2}, {"a": float("nan")}, object(), {"a": b"x"}])
def test_a_fingerprint_that_could_not_be_compared_again_is_refused(tmp_path: Path, fingerprint: Any) -> None:
    with pytest.raises(EmbeddingsError, match="fingerprint must be"):
        EmbeddingWriter(tmp_path / "mine", dim=4, fingerprint=fingerprint)


def forge(folder: Path, name: str, array: np.ndarray, **fields: Any) -> None:
    """Replace an array, with checksums that agree."""
    np.save(folder / name, array)
    manifest = Manifest.load(folder)
    record = FileRecord((folder / name).stat().st_size, sha256(folder / name))
    dataclasses.replace(manifest, files={**manifest.files, name: record}, **fields).save(folder)


@pytest.mark.parametrize(
    ("name", "array", "fields", "told"),
    [
        ("labels.npy", np.array([0, 1, 2, 0]), {}, "last of the classes"),
        ("labels.npy", np.array([0, 1, -2, 0]), {"classes": ()}, "labels must lie in"),
        ("ids.npy", np.array(list("abca")), {}, "ids must be unique"),
        ("vectors.npy", 2 * VECTORS, {}, "norm 1"),
        ("vectors.npy", VECTORS * np.float32(np.nan), {"normalized": False}, "finite"),
    ],
)
def test_verify_compares_the_content_with_the_manifest(
    mine: Path, name: str, array: np.ndarray, fields: dict[str, Any], told: str
) -> None:
    forge(mine, name, array, **fields)
    with pytest.raises(EmbeddingsError, match=told):
        EmbeddingSet.open(mine).verify()


def test_an_array_in_column_order_or_of_the_other_byte_order_is_damage(mine: Path) -> None:
    for name, array in (("vectors.npy", np.asfortranarray(VECTORS)), ("ids.npy", np.array(list("abcd"), ">U1"))):
        old = contents(mine)
        forge(mine, name, array)
        with pytest.raises(EmbeddingsError, match=f"{name} is damaged"):
            EmbeddingSet.open(mine)
        for file, data in old.items():
            (mine / file).write_bytes(data)


@pytest.mark.parametrize(
    "files",
    [
        {".precious.tmp": "mine"},
        {"manifest.json": '{"name": "a web page"}'},
        {"manifest.json": "{}", "vectors.npy": "mine", "labels.npy": "mine"},
        {"labels.npy": "mine"},
    ],
)
@pytest.mark.parametrize("end", ["", ".partial"])
def test_files_of_other_programs_are_kept(tmp_path: Path, files: dict[str, str], end: str) -> None:
    """Though their names are those of ours."""
    folder = tmp_path / f"mine{end}"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    before = contents(tmp_path)
    with (
        pytest.raises(EmbeddingsError, match=r"must (be free|hold nothing but)"),
        EmbeddingWriter(tmp_path / "mine", dim=4, overwrite=True) as writer,
    ):
        writer.append(VECTORS)
    if not end:
        with pytest.raises(EmbeddingsError, match="must be free"):
            EmbeddingSet.write(tmp_path / "mine", VECTORS, overwrite=True)
    assert contents(tmp_path) == before


def test_a_working_directory_that_changes_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    head = Head.tied(np.eye(4), dims=(4,))
    with EmbeddingWriter("mine", dim=4, sync_seconds=0, head=head) as writer:
        writer.append(VECTORS[:2])
        os.chdir("../b")
        writer.append(VECTORS[2:])
    os.chdir("../a")
    mine = EmbeddingSet.open("mine")
    os.chdir("../b")
    mine.verify()
    assert mine.head is not None
    assert (names(tmp_path / "a"), names(tmp_path / "b")) == (["mine"], [])


def test_a_reader_sees_one_version_while_another_process_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    EmbeddingSet.write(path, VECTORS, split="0", overwrite=True)
    ended = threading.Event()

    def overwrites() -> None:
        for version in range(1, 20):
            EmbeddingSet.write(path, VECTORS + version, split=str(version), overwrite=True)
        ended.set()

    writer = threading.Thread(target=overwrites)
    writer.start()
    seen = set()
    while not ended.is_set():
        mine = EmbeddingSet.open(path)
        np.testing.assert_array_equal(mine.vectors, VECTORS + int(mine.manifest.split))
        seen.add(mine.manifest.split)
    writer.join()
    assert seen


def test_a_head_of_a_later_version_is_not_mixed_in(mine: Path) -> None:
    head = Head.tied(np.eye(2, 4), dims=(4,))
    old = EmbeddingSet.write(mine, VECTORS, head=head, overwrite=True)
    EmbeddingSet.write(mine, VECTORS, head=Head.tied(2 * np.eye(2, 4), dims=(4,)), overwrite=True)
    with pytest.raises(EmbeddingsError, match=r"was overwritten after it was opened: open it again"):
        old.head   # noqa: B018
    np.testing.assert_array_equal(old.vectors, VECTORS)


def test_a_work_folder_is_no_split(tmp_path: Path) -> None:
    EmbeddingSet.write(tmp_path / "train", VECTORS)
    for name in ("val.partial", ".train.0123abcd.tmp"):
        EmbeddingSet.write(tmp_path / name, VECTORS)
    assert list(embedding_sets(tmp_path)) == ["train"]


def test_older_embeddings_that_a_killed_writer_had_exchanged_are_swept(mine: Path) -> None:
    partial = EmbeddingSet.write(mine.with_name("mine.partial"), VECTORS).path
    EmbeddingSet.write(mine, VECTORS, overwrite=True)
    assert not partial.exists()


def test_a_forged_progress_file_opens_no_other_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), EmbeddingWriter(tmp_path / "mine", dim=4, fingerprint="f") as writer:
        writer.append(VECTORS)
        raise KeyboardInterrupt
    progress = tmp_path / "mine.partial" / "progress.json"
    data = json.loads(progress.read_text())
    for changes in ({"count": 3}, {"unit": False}):
        progress.write_text(json.dumps({**data, **changes}))
        with pytest.raises(EmbeddingsError, match=r"progress\.json is damaged \(got other bytes"):
            EmbeddingWriter(tmp_path / "mine", dim=4, fingerprint="f").__enter__()
    del data["sha256"]
    progress.write_text(json.dumps({**data, "columns": ["../stolen"]}))
    with pytest.raises(EmbeddingsError, match=r"progress\.json is damaged"):
        EmbeddingWriter(tmp_path / "mine", dim=4, fingerprint="f").__enter__()
    assert names(tmp_path) == ["mine.partial"]


def test_too_many_open_files_is_no_damage(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StorageError, match="raise the limit of open files"):
        EmbeddingSet.open(mine)
