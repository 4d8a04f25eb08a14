"""One long id must not make every row as long: it is refused before an array is made of the ids."""

import numpy as np
import pytest

from matryo import EmbeddingSet
from matryo.embeddings import EmbeddingWriter
from matryo.embeddings.rows import ID_CHARACTERS
from matryo.errors import EmbeddingsError

VECTORS = np.ones((50_000, 2), np.float32)


@pytest.mark.parametrize("kind", [list, tuple, lambda ids: np.array(ids, object)], ids=["list", "tuple", "array"])
def test_a_long_id_is_refused_before_an_array_of_ids_is_made(kind, tmp_path):
    """As an array of strings these ids would need 18.6 GiB."""
    ids = [f"doc-{row}" for row in range(len(VECTORS))]
    ids[777] = "L" * 100_000
    rule = "an id must have at most 512 characters .got 100,000 in row 777: 'L{40}'….: use a shorter id"
    with pytest.raises(EmbeddingsError, match=rule):
        EmbeddingSet.write(tmp_path / "mine", VECTORS, ids=kind(ids))
    with pytest.raises(EmbeddingsError, match=rule):
        EmbeddingSet.of(VECTORS, ids=kind(ids))
    assert not list(tmp_path.iterdir())


def test_the_longest_id_is_stored_and_a_longer_one_is_not(tmp_path):
    ids = ["é" * ID_CHARACTERS, "b"]
    assert EmbeddingSet.write(tmp_path / "mine", VECTORS[:2], ids=ids).ids.tolist() == ids
    with EmbeddingWriter(tmp_path / "more", dim=2) as writer:
        writer.append(VECTORS[:2], ids=ids)
        with pytest.raises(EmbeddingsError, match="got 513 in row 0"):
            writer.append(VECTORS[:1], ids=np.array(["c" * (ID_CHARACTERS + 1)]))
        writer.append(VECTORS[:1], ids=np.array(["c"], "U9999"))
    assert EmbeddingSet.open(tmp_path / "more").ids.tolist() == [*ids, "c"]
