"""The manifest: it says what the folder holds, and a damaged or newer one is an error that says so."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.embeddings import EmbeddingSet, Manifest
from matryo.errors import EmbeddingsError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    EmbeddingSet.write(tmp_path / "set", [[1.0, 2.0]], labels=[0], classes=["ä"], model="m")
    return tmp_path / "set"


def change(folder: Path, **fields: Any) -> None:
    path = folder / "manifest.json"
    data = {**json.loads(path.read_text(encoding="utf-8")), **fields}
    del data["sha256"]
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**data, "sha256": digest}), encoding="utf-8")


def test_it_is_readable(folder: Path) -> None:
    text = (folder / "manifest.json").read_text(encoding="utf-8")
    data = json.loads(text)
    assert list(data) == [
        "format", "dim", "dtype", "nesting", "normalized", "model", "dataset", "split",
        "classes", "superclasses", "superclass_of", "content", "count", "files", "sha256",
    ]   # fmt: skip
    assert data["format"] == 1
    assert data["nesting"] == {"dims": [2], "weights": [1.0]}
    assert data["files"]["labels.npy"].keys() == {"size", "sha256"}
    assert "ä" in text
    assert str(folder.parent) not in text


def test_it_round_trips(folder: Path) -> None:
    manifest = Manifest.load(folder)
    manifest.save(folder)
    assert Manifest.load(folder) == manifest


def test_a_newer_layout_asks_for_a_newer_matryo(folder: Path) -> None:
    change(folder, format=2, nesting="another idea")
    with pytest.raises(EmbeddingsError, match=r"layout newer .*format 2, supported up to 1.*--upgrade"):
        EmbeddingSet.open(folder)


def test_fields_of_a_later_minor_version_are_passed_over(folder: Path) -> None:
    change(folder, remark="hello")
    assert len(EmbeddingSet.open(folder)) == 1


def test_a_folder_of_a_version_without_the_checksum_opens(folder: Path) -> None:
    path = folder / "manifest.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    del data["sha256"]
    path.write_text(json.dumps(data), encoding="utf-8")
    EmbeddingSet.open(folder).verify()


def test_a_flipped_bit_is_found_on_opening(folder: Path) -> None:
    """Every bit of the file; a damaged name of the checksum is no reason to skip it."""
    path = folder / "manifest.json"
    sound = path.read_bytes()
    content = json.loads(sound)
    for position in range(len(sound)):
        for bit in range(8):
            path.write_bytes(sound[:position] + bytes([sound[position] ^ 1 << bit]) + sound[position + 1 :])
            try:
                same = json.loads(path.read_bytes()) == content   # white space may change
            except ValueError:
                same = False
            if not same:
                with pytest.raises(EmbeddingsError, match=r"manifest\.json is damaged|layout newer"):
                    EmbeddingSet.open(folder)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"format": "1"}, "format must not be '1'"),
        ({"format": True}, "format must not be True"),
        ({"dim": None}, "dim must not be None"),
        ({"dim": 0}, "at least one column"),
        ({"dtype": "object"}, "dtype must be"),
        ({"count": 0}, "at least one vector"),
        ({"count": 1.0}, "count must not be 1.0"),
        ({"normalized": None}, "normalized must not be None"),
        ({"nesting": {"dims": [4], "weights": [1]}}, "must not exceed"),
        ({"nesting": {"dims": [2, 1], "weights": [1, 1]}}, "increasing"),
        ({"nesting": {"dims": 3, "weights": []}}, "positive integers"),
        ({"nesting": {}}, "dims"),
        ({"model": 3}, "model must not be 3"),
        ({"superclass_of": [1]}, "superclass"),
        ({"files": {}}, "vectors.npy"),
        ({"files": {"vectors.npy": 1}}, "JSON object"),
        ({"files": {"../../etc/passwd": {"size": 1, "sha256": ""}}}, "unknown file"),
    ],
)
def test_a_field_that_is_wrong_is_named(folder: Path, fields: dict[str, Any], told: str) -> None:
    change(folder, **fields)
    with pytest.raises(EmbeddingsError, match=rf"manifest\.json is damaged .*{told}.*restore the folder"):
        EmbeddingSet.open(folder)


@pytest.mark.parametrize("field", ["format", "dim", "dtype", "nesting", "model", "classes", "count", "files"])
def test_a_field_that_is_missing_is_named(folder: Path, field: str) -> None:
    path = folder / "manifest.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    del data[field]
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(EmbeddingsError, match=f"damaged .*{field} is missing"):
        EmbeddingSet.open(folder)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_damage_is_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("set") / "set"
    EmbeddingSet.write(folder, [[1.0, 2.0]], labels=[0])
    path = folder / "manifest.json"
    sound = path.read_bytes()
    junk = data.draw(st.one_of(st.binary(max_size=30), st.just(b"[" * 100_000)))
    place = data.draw(st.integers(0, len(sound)))
    path.write_bytes(sound[:place] + junk)
    if path.read_bytes() != sound:
        try:
            EmbeddingSet.open(folder)
        except EmbeddingsError as error:
            assert "manifest.json is damaged" in str(error)
