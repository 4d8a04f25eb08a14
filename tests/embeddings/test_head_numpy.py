"""The head kept with embeddings: logits at each dim equal plain loops, for both kinds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from matryo.embeddings import Head
from matryo.errors import EmbeddingsError, NestingError

if TYPE_CHECKING:
    from pathlib import Path

rng = np.random.default_rng(2)
Z = rng.standard_normal((6, 12)).astype(np.float32)
WEIGHT = rng.standard_normal((5, 12)).astype(np.float32)
BIAS = rng.standard_normal(5).astype(np.float32)
DIMS = (2, 4, 12)


def separate(biased: bool = True) -> Head:
    weights = {m: rng.standard_normal((5, m)) for m in DIMS}
    return Head.separate(weights, {m: rng.standard_normal(5) for m in DIMS} if biased else None)


def by_loops(z: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, dim: int) -> list[list[float]]:
    added = np.zeros(len(weight)) if bias is None else bias
    return [
        [
            sum(float(row[i]) * float(weight[c, i]) for i in range(dim)) + float(added[c])
            for c in range(len(weight))
        ]
        for row in z
    ]


@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 11, 12])
def test_tied_logits_at_any_dim(bias: np.ndarray | None, dim: int) -> None:
    head = Head.tied(WEIGHT, bias, dims=DIMS)
    logits = head.logits(Z, dim)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, by_loops(Z, WEIGHT, bias, dim), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("biased", [False, True])
def test_separate_logits_at_its_dims_only(biased: bool) -> None:
    head = separate(biased)
    for dim in DIMS:
        expected = by_loops(Z, head.weights[dim], head.biases.get(dim), dim)
        np.testing.assert_allclose(head.logits(Z, dim), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(NestingError, match=r"dims it was trained for \(got 3\): choose one of 2, 4, 12"):
        head.logits(Z, 3)


@pytest.mark.parametrize("dims", [None, (1, 3, 7, 12), (5,)])
@pytest.mark.parametrize("bias", [None, BIAS])
def test_all_logits_of_a_tied_head(dims: tuple[int, ...] | None, bias: np.ndarray | None) -> None:
    head = Head.tied(WEIGHT, bias, dims=DIMS)
    kept = list(head.all_logits(Z, dims))   # kept past the loop: each must be an array of its own
    assert [dim for dim, _ in kept] == list(dims or DIMS)
    for dim, logits in kept:
        np.testing.assert_allclose(logits, head.logits(Z, dim), rtol=1e-5, atol=1e-5)
        assert logits.dtype == np.float32


def test_all_logits_of_a_separate_head() -> None:
    head = separate()
    for dim, logits in head.all_logits(Z):
        np.testing.assert_array_equal(logits, head.logits(Z, dim))
    with pytest.raises(NestingError):
        list(head.all_logits(Z, (2, 3)))


def test_half_precision_vectors_are_widened() -> None:
    head = Head.tied(WEIGHT, dims=DIMS)
    big = np.full((1, 12), 6e4, np.float16)
    assert np.isfinite(head.logits(big, 12)).all()
    assert all(np.isfinite(logits).all() for _, logits in head.all_logits(big))


@pytest.mark.parametrize("dim", [0, 13])
def test_a_dim_the_weights_lack(dim: int) -> None:
    with pytest.raises(NestingError, match="1 … 12"):
        Head.tied(WEIGHT, dims=DIMS).logits(np.ones((1, 20)), dim)


@pytest.mark.parametrize(
    "head", [Head.tied(WEIGHT, BIAS, dims=DIMS), Head.tied(WEIGHT, dims=(12,)), separate(), separate(False)]
)
def test_a_head_round_trips(tmp_path: Path, head: Head) -> None:
    path = tmp_path / "head.safetensors"
    head.save(path)
    back = Head.load(path)
    assert (back.kind, back.dims, back.classes, back.dim) == (head.kind, head.dims, 5, 12)
    for mine, other in ((head.weights, back.weights), (head.biases, back.biases)):
        assert mine.keys() == other.keys()
        for dim in mine:
            np.testing.assert_array_equal(mine[dim], other[dim])
    first = path.read_bytes()
    head.save(path)
    assert path.read_bytes() == first


def test_the_file_has_the_documented_names(tmp_path: Path) -> None:
    separate().save(tmp_path / "a")
    Head.tied(WEIGHT, BIAS, dims=DIMS).save(tmp_path / "b")
    with safe_open(tmp_path / "a", framework="numpy") as file:
        assert sorted(file.keys()) == ["bias.12", "bias.2", "bias.4", "weight.12", "weight.2", "weight.4"]
        assert json.loads(file.metadata()["head"]) == {"kind": "separate", "dims": [2, 4, 12]}
    with safe_open(tmp_path / "b", framework="numpy") as file:
        assert sorted(file.keys()) == ["bias", "weight"]
        assert json.loads(file.metadata()["head"]) == {"kind": "tied", "dims": [2, 4, 12]}


def test_shapes_that_are_no_head() -> None:
    rule = r"weight \[classes, m\] for each dim m"
    with pytest.raises(EmbeddingsError, match=rule):
        Head.separate({2: np.ones((5, 3))})
    with pytest.raises(EmbeddingsError, match=rule):
        Head.separate({2: np.ones((5, 2)), 4: np.ones((6, 4))})
    with pytest.raises(EmbeddingsError, match=rule):
        Head.separate({2: np.ones((5, 2)), 4: np.ones((5, 4))}, {2: np.ones(5)})
    with pytest.raises(EmbeddingsError, match=rule):
        Head.tied(WEIGHT, np.ones(4), dims=DIMS)
    with pytest.raises(EmbeddingsError, match=rule):
        Head.tied(np.ones(12), dims=DIMS)
    with pytest.raises(EmbeddingsError, match="finite"):
        Head.tied(WEIGHT * np.nan, dims=DIMS)
    with pytest.raises(NestingError, match="exceed the 12"):
        Head.tied(WEIGHT, dims=(16,))
    with pytest.raises(EmbeddingsError, match=rule):
        Head.separate({})


def test_files_that_are_no_head(tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    with pytest.raises(EmbeddingsError, match=r"head\.safetensors must hold a head"):
        Head.load(path)
    for data in (b"", b"junk" * 10):
        path.write_bytes(data)
        with pytest.raises(EmbeddingsError, match="must hold a head"):
            Head.load(path)
    for about in ("{", "3", '{"kind": "tied"}', '{"kind": "separate", "dims": [3]}', None):
        save_file({"weight": WEIGHT}, path, metadata={"head": about} if about else None)
        with pytest.raises(EmbeddingsError, match="must hold a head"):
            Head.load(path)
