"""Vectors and labels come as users have them: lists, tables, columns, class names and lists of dims."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from matryo.embeddings import EmbeddingSet, EmbeddingWriter
from matryo.embeddings.rows import as_vectors
from matryo.errors import EmbeddingsError

VECTORS = np.array([[3.0, 4.0, 12.0], [0.0, 1.0, 5.0]], np.float32)
ROWS = {"id": ["x", "y"], "vector": VECTORS.tolist(), "label": ["dog", "cat"]}


def table(module: ModuleType, columns: dict[str, list[Any]]) -> Any:
    if module.__name__ == "pyarrow":
        return module.table(columns)
    return module.Dataset.from_dict(columns) if module.__name__ == "datasets" else module.DataFrame(columns)


@pytest.mark.parametrize("library", ["pandas", "polars", "datasets", "pyarrow"])
def test_tables_and_columns_give_the_vectors_of_the_array(library: str, tmp_path: Path) -> None:
    rows = table(pytest.importorskip(library), ROWS)
    for vectors in (rows, rows["vector"]):
        np.testing.assert_array_equal(as_vectors(vectors), VECTORS)
    if library == "pyarrow":   # whose strings are not Python's
        return
    written = EmbeddingSet.write(tmp_path / "set", rows, ids=rows["id"], labels=rows["label"], nesting=[2, 3])
    np.testing.assert_array_equal(written.vectors, VECTORS)
    assert (written.ids.tolist(), written.classes, written.nesting.dims) == (["x", "y"], ("cat", "dog"), (2, 3))
    assert written.labels is not None
    assert written.labels.tolist() == [1, 0]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_table_of_numbers_is_one_vector_per_row(library: str) -> None:
    rows = table(pytest.importorskip(library), {name: VECTORS[:, i].tolist() for i, name in enumerate("abc")})
    np.testing.assert_array_equal(as_vectors(rows), VECTORS)


def test_tensors_give_the_vectors_of_the_array() -> None:
    torch = pytest.importorskip("torch")
    for tensor in (torch.tensor(VECTORS, requires_grad=True), torch.tensor(VECTORS, dtype=torch.bfloat16)):
        np.testing.assert_array_equal(as_vectors(tensor), VECTORS)


def test_labels_may_be_class_names() -> None:
    derived = EmbeddingSet.of(VECTORS, labels=["dog", None])
    assert (derived.classes, np.asarray(derived.labels).tolist()) == (("dog",), [0, -1])
    given = EmbeddingSet.of(VECTORS, labels=["dog", "cat"], classes=["dog", "bird", "cat"])
    assert (given.classes, np.asarray(given.labels).tolist()) == (("dog", "bird", "cat"), [0, 2])
    with pytest.raises(EmbeddingsError, match=r"among the classes \(got 'cat'\): correct the label, or add it"):
        EmbeddingSet.of(VECTORS, labels=["dog", "cat"], classes=["dog"])


def test_a_writer_takes_class_names_only_with_classes(tmp_path: Path) -> None:
    with EmbeddingWriter(tmp_path / "set", dim=3, classes=["cat", "dog"], nesting=[2, 3]) as writer:
        writer.append(VECTORS, labels=["dog", "cat"])
    assert np.asarray(EmbeddingSet.open(tmp_path / "set").labels).tolist() == [1, 0]
    with (
        pytest.raises(EmbeddingsError, match=r"\(got 'cat'\): pass classes=\[…\] with every name"),
        EmbeddingWriter(tmp_path / "other", dim=3) as writer,
    ):
        writer.append(VECTORS, labels=["dog", "cat"])
