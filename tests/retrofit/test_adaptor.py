"""An adaptor comes last: it must beat every rotation and serves single dims only; a few labels do not replace PCA."""

import json
from dataclasses import replace

import numpy as np
import pytest

from matryo import Index, Retrofit
from matryo.errors import InputError
from matryo.retrofit.choice import choose
from matryo.retrofit.correction import Correction
from matryo.retrofit.held_out import Rung

DIM = 16


def test_an_adaptor_must_beat_every_rotation():
    rng = np.random.default_rng(0)
    simple = rng.random((400, 1)) / 2

    def better(gain):
        return simple + gain + 0.05 * rng.normal(size=simple.shape)

    for adaptor, wanted in ((0.1, "learned"), (0.2, "adaptor"), (0.0, "learned")):
        worth = {"identity": simple, "pca": simple, "learned": better(0.1), "adaptor": better(adaptor)}
        table, whole = choose(worth, (8,), 0.95)
        assert table[0].rung == wanted and whole in ("learned", "pca", "identity")


def test_a_few_labels_do_not_choose_between_identity_and_pca():
    rng = np.random.default_rng(0)
    recall = {"identity": rng.random((300, 1)) / 2, "pca": rng.random((300, 1)) / 2 + 0.4}
    few = {"identity": np.array([[1.0]] * 9 + [[0.0]] * 6), "pca": np.array([[1.0]] * 6 + [[0.0]] * 9)}
    assert choose(few, (8,), 0.95)[0][0].rung == "identity"
    table, whole = choose(few, (8,), 0.95, recall)
    assert table[0].rung == "pca" and whole == "pca" and "by recall" in table[0].why
    many = {name: np.tile(values, (40, 1)) for name, values in few.items()}
    table, whole = choose(many, (8,), 0.95, recall)   # the labels prove that recall is wrong here
    assert table[0].rung == "identity" and whole == "identity"


def test_fifty_labels_keep_pca():
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    labels = rng.integers(12, size=1500)
    means = np.random.default_rng(2).normal(size=(12, DIM)) * np.geomspace(1, 0.05, DIM)
    rows = (means[labels] + rng.normal(size=(1500, DIM)) * np.geomspace(1, 0.05, DIM)) @ turn
    for seed in range(3):
        known = np.where(rng.random(1500) < 50 / 1500, labels, -1)
        fitted = Retrofit.fit(rows, labels=known, nesting=[2, 4, 8, DIM], seed=seed)
        assert {entry.rung for entry in fitted.table} <= {"pca", "centred"} and fitted.rung == "pca"


@pytest.fixture(scope="module")
def adapted():
    """A map whose adaptor was taken at dim 4, without the training."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, DIM)) * np.geomspace(1, 0.1, DIM)
    fitted = Retrofit.fit(rows, nesting=[4, DIM])
    made = Correction(*(rng.normal(size=shape).astype(np.float32) for shape in ((DIM, 8), (8,), (8, DIM))))
    rungs = {**fitted.rungs, "pca": fitted.rungs.get("pca", Rung("pca", np.eye(DIM))),
             "adaptor": Rung("adaptor", np.eye(DIM), None, made)}  # fmt: skip
    table = (replace(fitted.table[0], rung="adaptor"),)
    return replace(fitted, rungs=rungs, table=table), rows, made


def test_the_output_is_that_of_plain_loops(adapted):
    fitted, rows, made = adapted
    mapped = fitted.at(4).transform(rows[:5], 4)
    for row, found in zip(rows[:5], mapped, strict=True):
        unit = row / np.linalg.norm(row)
        hidden = [max(0.0, float(unit @ made.directions[:, j]) + float(made.shifts[j])) for j in range(8)]
        wanted = [unit[i] + sum(hidden[j] * made.weight[j, i] for j in range(8)) for i in range(4)]
        np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), atol=1e-5)


def test_files_and_what_an_adaptor_cannot_do(adapted, tmp_path):
    fitted, rows, _ = adapted
    fitted.save(tmp_path / "map")
    assert json.loads((tmp_path / "map" / "retrofit.json").read_text())["format"] == 2
    loaded = Retrofit.load(tmp_path / "map")
    np.testing.assert_array_equal(loaded.at(4).transform(rows, 4), fitted.at(4).transform(rows, 4))
    Retrofit.fit(rows).save(tmp_path / "plain")
    assert json.loads((tmp_path / "plain" / "retrofit.json").read_text())["format"] == 1
    one = loaded.at(4)
    assert not one.keeps_scores and not one.is_rotation and loaded.is_rotation
    with pytest.raises(InputError, match=r"an adaptor has no inverse \(got adaptor\): fit without adapt"):
        one.inverse(rows)
    with pytest.raises(InputError, match=r"only a rotation can be folded into a model \(got adaptor\)"):
        loaded.fold_into(None, tmp_path / "axes.npy", dim=4)
    with pytest.raises(InputError, match=r"an index takes a rotation \(got rung adaptor\)"):
        Index.create(tmp_path / "index", [4, DIM], rotation=one)
    assert not (tmp_path / "axes.npy").exists() and not (tmp_path / "index").exists()


def test_a_signal_beyond_rotations_is_learned():
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=1600)
    side = np.where(labels % 2, 1, -1)[:, None] * np.where(labels > 1, 1, 0)[:, None]
    rows = rng.normal(size=(1600, DIM)) * np.geomspace(2, 0.2, DIM)
    rows[:, -4:] += np.concatenate([side * 2, np.abs(side) * 2, side, -side], axis=1)
    fitted = Retrofit.fit(rows, labels=labels, nesting=[2, 4, DIM], adapt=True, progress=False)
    quality = fitted.table[0].quality
    assert quality["adaptor"] > quality["pca"] + 0.05 and fitted.rung != "adaptor"
