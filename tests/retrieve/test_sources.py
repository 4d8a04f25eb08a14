"""Sources: every format gives the same rows, in batches, and what cannot be used is refused by file and row."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import EmbeddingSet, Index, Nesting
from matryo.errors import EmbeddingsError, InputError, MissingExtra
from matryo.retrieve.sources import Source, open_source, read_ids

COUNT, DIM = 23, 6
VECTORS = np.random.default_rng(0).normal(size=(COUNT, DIM)).astype(np.float32)
IDS = [f"doc-{row}" for row in range(COUNT)]
PAYLOAD = [{"year": 2000 + row, "lang": "en" if row % 2 else None} for row in range(COUNT)]
TABLES = ("parquet", "arrow", "stream", "feather")
FORMATS = ("npy", "jsonl", *TABLES)


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def lines() -> list[dict[str, Any]]:
    rows = zip(IDS, VECTORS.tolist(), PAYLOAD, strict=True)
    return [{"id": id, "vector": vector, "payload": payload} for id, vector, payload in rows]


def write_table(path: Path, kind: str, columns: dict[str, Any], rows: int = 7) -> Path:
    """A table in small pieces, as other programs write it."""
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table(columns)
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=rows)
    elif kind == "feather":
        pytest.importorskip("pyarrow.feather").write_feather(table, str(path), chunksize=rows)
    else:
        new = arrow.ipc.new_stream if kind == "stream" else arrow.ipc.new_file
        with new(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return path


def columns(vectors: Any = None) -> dict[str, Any]:
    years, langs = ([one[name] for one in PAYLOAD] for name in ("year", "lang"))
    return {"id": IDS, "vector": VECTORS.tolist() if vectors is None else vectors, "year": years, "lang": langs}


def write(folder: Path, kind: str) -> Path:
    if kind == "npy":
        np.save(folder / "a.npy", VECTORS)
        return folder / "a.npy"
    if kind == "jsonl":
        return write_lines(folder / "a.jsonl", lines())
    return write_table(folder / f"a.{'arrow' if kind == 'stream' else kind}", kind, columns())


def gathered(source: Source, **how: Any) -> tuple[Any, list[Any], list[Any]]:
    """All batches as one: vectors, ids and payloads."""
    batches = list(source.batches(**how))
    vectors = np.concatenate([np.asarray(batch.vectors) for batch in batches])
    return vectors, *([one for batch in batches for one in getattr(batch, name) or ()] for name in ("ids", "payload"))


def failing(source: Source, **how: Any) -> tuple[int, str]:
    """How many rows come before the error, and what it says."""
    count = 0
    with pytest.raises(InputError) as stop:
        for batch in source.batches(**how):
            count += len(batch.vectors)
    return count, str(stop.value)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rows", [None, 1, 5, 100])
@pytest.mark.parametrize("skip", [0, 3, 7, 22, 23, 40])
def test_every_format_gives_the_same_rows(tmp_path: Path, kind: str, rows: int | None, skip: int) -> None:
    source = open_source(write(tmp_path, kind))
    assert source.dim == DIM
    assert source.count == (COUNT if kind in ("npy", "parquet") else None)
    sizes = [len(batch.vectors) for batch in source.batches(rows, skip)]
    assert sum(sizes) == max(0, COUNT - skip)
    assert set(sizes[:-1]) <= {rows}   # full ones, however small the pieces of the file are
    assert max(sizes, default=0) <= (rows or COUNT)
    if skip < COUNT:
        for _ in range(2):   # a file can be read again
            vectors, ids, payload = gathered(source, rows=rows, skip=skip)
            np.testing.assert_array_equal(vectors, VECTORS[skip:])
            assert ids == ([] if kind == "npy" else IDS[skip:])
            assert payload == ([] if kind == "npy" else PAYLOAD[skip:])


def test_an_array_is_memory_mapped_and_may_lie_in_any_order(tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", np.asfortranarray(VECTORS.astype(np.float64)))
    np.testing.assert_array_equal(gathered(open_source(tmp_path / "f.npy"), rows=4)[0], VECTORS.astype(np.float64))
    np.save(tmp_path / "i.npy", np.arange(12).reshape(3, 4))
    assert gathered(open_source(tmp_path / "i.npy"))[0].tolist() == np.arange(12).reshape(3, 4).tolist()


def test_an_embeddings_folder_tells_its_nesting_ids_and_classes(tmp_path: Path) -> None:
    EmbeddingSet.write(
        tmp_path / "train", VECTORS, labels=[row % 3 - 1 for row in range(COUNT)], ids=IDS, classes=["cat", "oak"],
        nesting=Nesting([2, 6]), superclasses=["animal"], superclass_of=[0, -1],
    )  # fmt: skip
    source = open_source(tmp_path / "train")
    assert (source.dim, source.count, source.nesting) == (DIM, COUNT, Nesting([2, 6]))
    vectors, ids, payload = gathered(source, rows=10, skip=1)
    np.testing.assert_array_equal(vectors, VECTORS[1:])
    assert ids == IDS[1:]
    cat, oak = {"label": 0, "class": "cat", "superclass": "animal"}, {"label": 1, "class": "oak"}
    assert payload[:3] == [cat, oak, {}]
    assert gathered(open_source(tmp_path / "train", payload_columns=["class"]))[2][1] == {"class": "cat"}


def test_embeddings_without_names_are_numbered_by_whoever_takes_them(tmp_path: Path) -> None:
    EmbeddingSet.write(tmp_path / "bare", VECTORS)
    source = open_source(tmp_path / "bare")
    [batch] = source.batches()
    assert (batch.ids, batch.payload, source.nesting) == (None, None, None)


def test_an_index_is_a_source(tmp_path: Path) -> None:
    with Index.create(tmp_path / "idx", nesting=Nesting([2, 6])) as index:
        with pytest.raises(InputError, match=r"must hold a vector \(got an empty index\)"):
            open_source(tmp_path / "idx")
        index.add(VECTORS, IDS, PAYLOAD)
        index.delete(IDS[3:5])
    source = open_source(tmp_path / "idx", payload_columns=["year"])
    assert (source.dim, source.count, source.nesting) == (DIM, COUNT - 2, Nesting([2, 6]))
    vectors, ids, payload = gathered(source, rows=4, skip=1)
    np.testing.assert_array_equal(vectors, np.delete(VECTORS, [0, 3, 4], axis=0))
    assert ids == [id for id in IDS if id not in ("doc-0", "doc-3", "doc-4")]
    assert payload[0] == {"year": 2001}


def test_folders_that_are_no_embeddings_are_told_what_to_give(tmp_path: Path) -> None:
    EmbeddingSet.write(tmp_path / "run" / "embeddings" / "val", VECTORS)
    cure = re.escape(f"specify the split: {tmp_path / 'run' / 'embeddings' / 'val'}")
    for folder in (tmp_path / "run", tmp_path / "run" / "embeddings"):
        with pytest.raises(EmbeddingsError, match=cure):
            open_source(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(EmbeddingsError, match=r"embeddings must have a manifest\.json"):
        open_source(tmp_path / "empty")


# ── JSON lines ────────────────────────────────────────────────────────────────────────────────────────────────


def test_lines_as_others_write_them(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.ndjson", [
        {"object": "embedding", "index": 0, "embedding": [1, 2.5]}, "", "  ", {"embedding": [3, 4], "index": 1},
    ])  # fmt: skip
    vectors, ids, payload = gathered(open_source(path), rows=1)
    assert (vectors.tolist(), ids) == ([[1, 2.5], [3, 4]], [])
    assert payload == [{"object": "embedding", "index": 0}, {"index": 1}]
    path = write_lines(tmp_path / "b.jsonl", [{"key": 7, "v": [1, 2], "vector": "north", "payload": {"a": 1}, "b": 2}])
    source = open_source(path, id_column="key", vector_column="v", payload_columns=["b", "vector", "none"])
    assert gathered(source)[1:] == ([7], [{"b": 2, "vector": "north"}])
    assert gathered(open_source(path, vector_column="v"))[2] == [{"key": 7, "vector": "north", "a": 1, "b": 2}]


GOOD = {"id": 1, "vector": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"id": 3, "vec', "a line must be JSON (got Unterminated string"),
        ("[1, 2]", "a line must be a JSON object (got [1, 2]): for example {"),
        ({"id": 3, "vec": [1, 2]}, 'must have the key "vector" or "embedding" (got id, vec): specify the key'),
        ({"id": 3, "vector": "1, 2"}, "a vector must be a list of numbers (got '1, 2')"),
        ({"id": 3, "vector": ["1", "2"]}, "a vector must be a list of numbers (got ['1', '2'])"),
        ({"id": 3, "vector": [[1, 2]]}, "a vector must be a list of numbers"),
        ({"id": 3, "vector": [1, [2]]}, "a vector must be a list of numbers"),
        ({"id": 3, "vector": [1, None]}, "a vector must be a list of numbers"),
        ({"id": 3, "vector": []}, "a vector must be a list of numbers (got [])"),
        ({"id": 3, "vector": [1, 2, 3]}, "a vector must have 2 numbers, like the first one (got 3): encode"),
        ('{"id": 3, "vector": [1, NaN]}', "finite numbers in float32 (got nan at 1): drop that line"),
        ({"id": 3, "vector": [1e39, 1]}, "finite numbers in float32 (got inf at 0)"),
        ({"vector": [1, 2]}, "an id must be an integer, like the first one (got none): use one type of id"),
        ({"id": "3", "vector": [1, 2]}, "an id must be an integer, like the first one (got '3')"),
        ({"id": 1.5, "vector": [1, 2]}, "an id must be an integer or a string (got 1.5): convert it"),
        ({"id": True, "vector": [1, 2]}, "an id must be an integer or a string (got True)"),
        ({"id": 3, "vector": [1, 2], "payload": "x"}, "a payload must be an object (got 'x'): wrap it"),
    ],
)
def test_a_bad_line_is_named_after_those_before_it(tmp_path: Path, line: Any, told: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", [GOOD, {"id": 2, "vector": [0.5, 1]}, line, GOOD])
    count, message = failing(open_source(path))
    assert count == 2
    assert message.startswith(f"{path}, line 3: ")
    assert told in message
    after = [batch.ids for batch in open_source(path).batches(skip=3)]
    assert after == [[1]]   # one may go on behind it


def test_what_must_not_be_named_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"vector": [1, 2]}, {"id": 1, "vector": [1, 2]}])
    assert "an id must be absent, as in the first row (got 1)" in failing(open_source(path))[1]
    with pytest.raises(InputError, match='line 1: a line must have the key "key"'):
        open_source(path, id_column="key")
    with pytest.raises(InputError, match='line 1: a line must have the key "v"'):
        open_source(path, vector_column="v")
    (tmp_path / "bytes.jsonl").write_bytes(b'{"vector": [1]}\n\xff\xfe\n')
    assert "line 2: a line must be JSON" in failing(open_source(tmp_path / "bytes.jsonl"))[1]


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_columns_of_many_types(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from datetime import UTC, date, datetime

    flat = arrow.array(VECTORS[:2].astype(np.float16).ravel())
    fields = {
        "number": [5, 6],
        "emb": arrow.FixedSizeListArray.from_arrays(flat, DIM),
        "day": [date(2024, 2, 29), None],
        "at": [datetime(2024, 2, 29, 12, tzinfo=UTC), None],
        "tags": [["a", "b"], []],
        "inner": [{"x": 1, "y": "z"}, None],
        "kind": arrow.array(["u", "v"]).dictionary_encode(),
        "sure": [True, None],
        "nothing": arrow.nulls(2),
    }
    path = write_table(tmp_path / "a.parquet", "parquet", fields)
    vectors, ids, payload = gathered(open_source(path, id_column="number"))
    np.testing.assert_array_equal(vectors, VECTORS[:2].astype(np.float16))
    assert ids == [5, 6]
    assert payload[0] == {"day": "2024-02-29", "at": "2024-02-29T12:00:00+00:00", "tags": ["a", "b"],
                          "inner": {"x": 1, "y": "z"}, "kind": "u", "sure": True, "nothing": None}  # fmt: skip
    assert json.loads(json.dumps(payload)) == payload
    _, ids, payload = gathered(open_source(path, payload_columns=["kind"]))
    assert (ids, payload) == ([], [{"kind": "u"}, {"kind": "v"}])
    [batch] = open_source(path, payload_columns=[]).batches()
    assert batch.payload is None


def test_tensors_of_a_fixed_shape_are_vectors(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    storage = arrow.FixedSizeListArray.from_arrays(VECTORS.ravel(), DIM)
    tensors = arrow.ExtensionArray.from_storage(arrow.fixed_shape_tensor(arrow.float32(), (DIM,)), storage)
    path = write_table(tmp_path / "a.arrow", "arrow", {"vector": tensors})
    np.testing.assert_array_equal(gathered(open_source(path), rows=4)[0], VECTORS)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rows: rows["vector"].__setitem__(9, [1.0, 2.0]), "a vector must have 6 numbers, like the first one"),
        (lambda rows: rows["vector"].__setitem__(9, None), "a vector must have 6 numbers, like the first one"),
        (lambda rows: rows["vector"][9].__setitem__(2, None), "a vector must have finite numbers (got nan at 2)"),
        (lambda rows: rows["vector"][9].__setitem__(5, np.inf), "a vector must have finite numbers (got inf at 5)"),
        (lambda rows: rows["id"].__setitem__(9, None), "every row must have an id (got id: null): fill it in"),
        (lambda rows: rows["year"].__setitem__(9, np.nan), "a payload must have finite numbers (got year: nan): write"),
    ],
)
def test_a_bad_row_of_a_table_is_named_after_those_before_it(tmp_path: Path, kind: str, change: Any, told: str) -> None:
    rows = {**columns(VECTORS.tolist()), "id": list(IDS), "year": [2000.5 + row for row in range(COUNT)]}
    change(rows)
    path = write_table(tmp_path / f"a.{'arrow' if kind == 'stream' else kind}", kind, rows, rows=5)
    count, message = failing(open_source(path), rows=100)
    assert count == 9
    assert message.startswith(f"{path}, row 9: {told}")
    assert failing(open_source(path), rows=4, skip=3) == (6, message)
    vectors, ids, _ = gathered(open_source(path), skip=10)
    np.testing.assert_array_equal(vectors, VECTORS[10:])
    assert ids == IDS[10:]


def test_the_first_of_several_bad_rows_is_named(tmp_path: Path) -> None:
    rows = columns(VECTORS.tolist()) | {"id": list(IDS)}
    rows["vector"][12], rows["id"][8] = [1.0], None
    count, message = failing(open_source(write_table(tmp_path / "a.parquet", "parquet", rows, rows=50)), rows=100)
    assert (count, "row 8: every row must have an id" in message) == (8, True)
    rows["vector"][5] = [np.nan] * DIM
    count, message = failing(open_source(write_table(tmp_path / "b.parquet", "parquet", rows, rows=50)), rows=100)
    assert (count, "row 5: a vector must have finite numbers" in message) == (5, True)


def test_columns_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")

    def refused(fields: dict[str, Any], **options: Any) -> str:
        path = write_table(tmp_path / "a.parquet", "parquet", fields)
        with pytest.raises(InputError) as stop:
            open_source(path, **options)
        return str(stop.value).removeprefix(str(path))

    both = {"a": [[1.0]], "b": [[2.0]]}
    rule = "must have one column of lists of numbers"
    assert refused(both) == f" {rule} (got a, b among a, b): specify one: --vector-column NAME"
    assert "(got none among x): write list<float>" in refused({"x": [1.0]})
    assert "(got x of double)" in refused({"x": [1.0], "vector": [[1.0]]}, vector_column="x")
    assert "has no column z (got a, b): use one of these names" in refused(both, vector_column="z")
    assert "has no column z" in refused(both, vector_column="a", payload_columns=["z"])
    real = refused({"id": [1.5], "vector": [[1.0]]})
    assert ": the id column must have integers or strings (got id of double)" in real
    binary = refused({"vector": [[1.0]], "picture": [b"\x89PNG"], "year": [2020]})
    assert "and lists and structs of these (got picture of binary): exclude it: --payload year" in binary
    assert ": exclude it: --payload none" in refused({"vector": [[1.0]], "struct": [{"picture": b"\x89PNG"}]})


@pytest.mark.parametrize("kind", FORMATS)
def test_truncated_and_strange_files(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    try:
        source = open_source(path)   # a stream, and lines, begin well
    except InputError as error:
        message = str(error)
    else:
        count, message = failing(source, rows=1)
        assert 0 < count < COUNT
        assert failing(source, rows=100) == (count, message)
    assert message.startswith(str(path))
    assert "\n" not in message
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"^\S+ must (be a readable|hold a vector)"):
        open_source(path)
    path.unlink()
    with pytest.raises(InputError, match=rf"{path.name} must be a readable \w+ file \(got .*No such file"):
        open_source(path)


@pytest.mark.parametrize(("first", "got"), [(None, "null"), ([], "0")])
def test_a_first_row_without_a_vector(tmp_path: Path, first: Any, got: str) -> None:
    path = write_table(tmp_path / "a.parquet", "parquet", {"vector": [first, [1.0]]})
    with pytest.raises(InputError, match=rf"row 0: a vector must have numbers \(got {got}\)"):
        open_source(path)


def test_tables_without_a_row(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    empty = {"vector": arrow.array([], arrow.list_(arrow.float32()))}
    for kind in TABLES:
        path = write_table(tmp_path / f"a.{'arrow' if kind == 'stream' else kind}", kind, empty)
        with pytest.raises(InputError, match=r"must hold a vector \(got no row\)"):
            open_source(path)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'matryo\[arrow\]'"):
        open_source(tmp_path / "a.parquet")


# ── arrays and names ──────────────────────────────────────────────────────────────────────────────────────────


def test_arrays_that_are_no_vectors(tmp_path: Path) -> None:
    for array, told in [
        (np.zeros(3), r"array of real numbers, one row per vector \(got shape \(3,\), float64\): stack"),
        (np.zeros((2, 2), bool), r"\(got shape \(2, 2\), bool\)"),
        (np.zeros((0, 4)), r"must hold a vector \(got shape \(0, 4\)\)"),
        (np.zeros((4, 0)), r"must hold a vector"),
    ]:
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(InputError, match=told):
            open_source(tmp_path / "a.npy")
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(InputError, match=r"o\.npy must be a readable npy file"):
        open_source(tmp_path / "o.npy")
    np.savez(tmp_path / "z.npz", VECTORS)
    with pytest.raises(InputError, match=r"\(got several arrays\)"):
        open_source((tmp_path / "z.npz").rename(tmp_path / "z.npy"))
    vectors = VECTORS.copy()
    vectors[9, 3] = np.nan
    np.save(tmp_path / "n.npy", vectors)
    assert failing(open_source(tmp_path / "n.npy"), rows=4) == (
        9,
        f"{tmp_path / 'n.npy'}, row 9: a vector must have finite numbers (got nan at 3): "
        "drop that row, or encode it again",
    )


def test_names_that_tell_no_format(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.txt", [GOOD])
    with pytest.raises(InputError, match=r"a file that ends in \.npy, \.jsonl, .* specify --format"):
        open_source(path)
    assert open_source(path, format="jsonl").dim == 2
    with pytest.raises(InputError, match=r"which does not exist\): check the path"):
        open_source(tmp_path / "b.txt")
    with pytest.raises(InputError, match=r"format must be one of npy, jsonl, .* \(got 'xlsx'\)"):
        open_source(path, format="xlsx")   # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"has no named columns \(got v\)"):
        open_source(write(tmp_path, "npy"), vector_column="v")
    for how, told in (({"rows": 0}, "a batch must have at least one row"), ({"skip": -1}, "must be 0 or more")):
        assert told in failing(open_source(path, format="jsonl"), **how)[1]


# ── standard input ────────────────────────────────────────────────────────────────────────────────────────────


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["npy", "jsonl"])
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("skip", [0, 3, 9, 22])
def test_standard_input_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, told: bool, skip: int
) -> None:
    pipe(monkeypatch, write(tmp_path, kind).read_bytes())
    source = open_source("-", format=kind if told else None)   # type: ignore[arg-type]
    assert (source.dim, source.count) == (DIM, COUNT if kind == "npy" else None)
    vectors, ids, _ = gathered(source, rows=4, skip=skip)
    np.testing.assert_array_equal(vectors, VECTORS[skip:])
    assert ids == (IDS[skip:] if kind == "jsonl" else [])
    assert "standard input can be read only once" in failing(source)[1]


def test_standard_input_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"\n\n" + json.dumps(GOOD).encode() + b"\nx")
    assert failing(open_source("-")) == (1, "standard input, line 4: a line must be JSON (got Expecting value, "
                                         "column 1): fix or drop that line")  # fmt: skip
    for data, told in [
        (b"", "standard input must hold a vector (got no line): write one object per line"),
        (b"\n \n", "standard input must hold a vector"),
        (b"x", "standard input, line 1: a line must be JSON"),
        (npy(VECTORS)[:20], "standard input must be a readable npy file"),
        (npy(np.asfortranarray(VECTORS)), "must be in C order (got Fortran order): pass its path"),
        (npy(np.zeros(3)), "standard input must hold a two-dimensional array"),
    ]:
        pipe(monkeypatch, data)
        with pytest.raises(InputError, match=re.escape(told)):
            open_source("-")
    pipe(monkeypatch, npy(VECTORS)[:-30])
    assert failing(open_source("-"), rows=5) == (
        21, "standard input, row 21: the header announces 23 rows (got 21): check its writer",
    )  # fmt: skip
    with pytest.raises(InputError, match="must be JSON lines or npy"):
        open_source("-", format="parquet")


# ── files of ids ──────────────────────────────────────────────────────────────────────────────────────────────


def test_ids_from_files(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    for text, ids in [
        ("a\nb 1\n\u2028\n", ["a", "b 1", "\u2028"]), ("7\n-3\n", [7, -3]), ("007\n8", ["007", "8"]), ("", []),
    ]:  # fmt: skip
        path.write_text(text, encoding="utf-8")
        assert read_ids(path) == ids
    for array in (np.array([3, 1]), np.array(["x", "yy"])):
        np.save(tmp_path / "ids.npy", array)
        assert read_ids(tmp_path / "ids.npy") == array.tolist()
    path.write_text("1\n2\nx\n")
    with pytest.raises(InputError, match=r"ids\.txt, line 3: an id must be an integer, .* \(got 'x'\)"):
        read_ids(path)
    np.save(tmp_path / "ids.npy", np.zeros(3))
    for bad in (tmp_path / "ids.npy", tmp_path / "none.txt"):
        with pytest.raises(InputError, match="must be a file of ids"):
            read_ids(bad)
