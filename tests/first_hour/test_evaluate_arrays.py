"""Arrays go straight into `evaluate`, with labels of any kind; mistakes are answered with the call to write."""

from __future__ import annotations

import numpy as np
import pytest

from matryo import EmbeddingSet, Nesting, evaluate
from matryo.errors import InputError

RNG = np.random.default_rng(0)
LABELS = RNG.integers(4, size=120)
VECTORS = RNG.normal(size=(4, 16))[LABELS] + RNG.normal(size=(120, 16))
TRAIN, TEST = slice(80), slice(80, None)


def test_tuples_of_vectors_and_labels_equal_embeddings() -> None:
    sets = [EmbeddingSet.of(VECTORS[part], labels=LABELS[part], nesting=Nesting([4, 16])) for part in (TRAIN, TEST)]
    expected = evaluate(*sets, progress=False)
    given = [(VECTORS[part], LABELS[part]) for part in (TRAIN, TEST)]
    assert evaluate(*given, nesting=[4, 16], progress=False) == expected
    assert expected.dims == (4, 10, 16)
    lists = [(VECTORS[part].tolist(), LABELS[part].tolist()) for part in (TRAIN, TEST)]
    assert evaluate(*lists, nesting=Nesting([4, 16]), progress=False) == expected


def test_text_labels_are_numbered_alike_on_both_sides() -> None:
    names = np.array(["dog", "cat", "bee", "ant"])[LABELS]
    few = names[TEST] != "ant"   # the queries lack a class, so numbering each side by itself would differ
    test = VECTORS[TEST][few]
    by_name = evaluate((VECTORS[TRAIN], names[TRAIN]), (test, list(names[TEST][few])), progress=False)
    by_number = evaluate((VECTORS[TRAIN], LABELS[TRAIN]), (test, LABELS[TEST][few]), progress=False)
    assert by_name == by_number


@pytest.mark.parametrize("given", [(VECTORS, VECTORS[:9]), (VECTORS.tolist(), "a"), ((VECTORS, LABELS), VECTORS)])
def test_arrays_without_labels_are_refused_with_the_call_to_write(given: tuple[object, object]) -> None:
    message = r"both be tuples \(vectors, labels\).*evaluate\(\(train_vectors, train_labels\)"
    with pytest.raises(InputError, match=message):
        evaluate(*given)   # type: ignore[arg-type]


def test_embeddings_have_their_own_nesting() -> None:
    sets = [EmbeddingSet.of(VECTORS[part], labels=LABELS[part]) for part in (TRAIN, TEST)]
    with pytest.raises(InputError, match=r"nesting is only for \(vectors, labels\).*dims="):
        evaluate(*sets, nesting=[4, 16])
