"""A migration carries vectors into the space of another model; its table holds for rows that no map was fitted to."""

import json

import numpy as np
import pytest

from matryo import Index
from matryo.cli import main
from matryo.errors import EmbeddingsError, InputError
from matryo.retrofit import Migration, Retrofit
from matryo.retrofit.migration import bridges

OLD, NEW = 24, 32


def models(rows, seed=0, noise=0.1):
    """The vectors of the same items by two models that see most of the same facts."""
    fixed, rng = np.random.default_rng(7), np.random.default_rng(seed)
    first, second = fixed.normal(size=(20, OLD)), fixed.normal(size=(20, NEW))
    facts = rng.normal(size=(rows, 20))
    old = facts @ first + noise * rng.normal(size=(rows, OLD))
    return old.astype(np.float32), (facts @ second + 1 + noise * rng.normal(size=(rows, NEW))).astype(np.float32)


@pytest.fixture(scope="module")
def fitted():
    return Migration.fit(*models(1500), old_model="a", new_model="b")


def recall(rows, queries, mapped, asked, k=10):
    """The share of the true nearest that are nearest to the mapped rows, by plain loops in float64."""
    sides = map(np.float64, (rows, queries, mapped, asked))
    rows, queries, mapped, asked = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides)
    shares = []
    for query, other in zip(queries, asked, strict=True):
        true = set(np.argsort(-(rows @ query), kind="stable")[:k].tolist())
        shares.append(len(true & set(np.argsort(-(mapped @ other), kind="stable")[:k].tolist())) / k)
    return np.mean(shares)


def test_the_table_holds_for_items_that_no_map_saw(fitted):
    table = {entry.name: entry for entry in fitted.table}
    count = fitted.provenance["database"] + 200
    old, new = models(count, seed=3)
    rows, asked = slice(200, None), slice(0, 200)
    found = recall(new[rows], new[asked], fitted.transform(old[rows]), new[asked])
    stay = recall(new[rows], new[asked], old[rows], old[asked])
    assert abs(found - table[fitted.bridge.name].recall) < 0.05 and abs(stay - table["stay"].recall) < 0.05
    assert fitted.bridge.name == "low_rank" and found > table["procrustes"].recall
    mixed = [table["low_rank"].recall, *(fitted.mixed[share].recall for share in (0.25, 0.5, 0.75))]
    assert mixed == sorted(mixed)


def test_procrustes_is_that_of_the_singular_vectors():
    old, new = models(300)
    bridge = bridges.procrustes(old, new)
    left, _, right = np.linalg.svd((old - old.mean(0)).T.astype(np.float64) @ (new - new.mean(0)), full_matrices=False)
    turn = left @ right
    scale = np.linalg.norm(bridge.weight) / np.linalg.norm(turn)
    np.testing.assert_allclose(bridge.weight, scale * turn, atol=1e-4)
    error = [np.square(factor * (old - old.mean(0)) @ turn - new + new.mean(0)).sum() for factor in
             (scale, 0.99 * scale, 1.01 * scale)]  # fmt: skip
    assert error[0] == min(error)


def test_a_richer_bridge_must_prove_its_gain():
    rng = np.random.default_rng(0)
    old = rng.normal(size=(800, 16))
    turn = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    assert Migration.fit(old, old @ turn).bridge.name == "procrustes"
    bent = np.maximum(old @ rng.normal(size=(16, 40)), 0) @ rng.normal(size=(40, 16))
    assert Migration.fit(old, bent, metric="l2").bridge.name in ("low_rank", "residual")


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_save_and_load(tmp_path, metric):
    old, new = models(600)
    made = Migration.fit(old, new, metric=metric)
    made.save(tmp_path / "map")
    loaded = Migration.load(tmp_path / "map")
    np.testing.assert_array_equal(loaded.transform(old), made.transform(old))
    assert str(loaded) == str(made) and loaded.to_dict() == made.to_dict()
    assert made.transform(old[0]).shape == (NEW,)
    norms = np.linalg.norm(made.transform(old), axis=1)
    assert np.allclose(norms, 1, atol=1e-5) == (metric == "cosine")
    with pytest.raises(InputError, match=r"no map in this folder \(got a migration in .*matryo retrofit SOURCE --map"):
        Retrofit.load(tmp_path / "map")
    data = bytearray((tmp_path / "map" / "migration.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "map" / "migration.safetensors").write_bytes(data)
    with pytest.raises(InputError, match=r"map is damaged .*fit the map again"):
        Migration.load(tmp_path / "map")


BAD = [
    (np.ones((300, 4)), models(300)[1], r"the old vectors must differ \(got equal ones\)"),
    (models(300)[0], models(299)[1], r"the same items in the same order \(got 300 and 299 rows\)"),
    (models(50)[0], models(50)[1], r"at least 200 items \(got 50\): encode more"),
    (np.zeros((300, 4)), models(300)[1], r"at least 200 items \(got 0, and 300 of zeros\)"),
    (np.full((300, 4), np.nan), models(300)[1], r"vectors must be finite"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD)
def test_bad_pairs_are_one_line(old, new, message):
    with pytest.raises((InputError, EmbeddingsError), match=message) as caught:
        Migration.fit(old, new)
    assert "\n" not in str(caught.value)


def test_vectors_of_the_new_model_are_refused(fitted):
    with pytest.raises(EmbeddingsError, match=rf"with {OLD} columns \(got {NEW}, as the new model has\)"):
        fitted.transform(models(2)[1])
    zero = np.zeros((1, OLD), np.float32)
    assert not fitted.transform(zero).any()


def test_an_index_survives_an_upgrade(tmp_path, capsys):
    """Fit by ids, build the mapped index, search it with the new model, and re-encode it row by row."""
    old, new = models(900)
    names = [f"doc{row}" for row in range(900)]
    with Index.create(tmp_path / "old", OLD, model="a") as index:
        index.add(old, ids=names, payload=[{"row": row} for row in range(900)])
    some = np.random.default_rng(0).permutation(900)[:500]
    lines = [json.dumps({"id": names[row], "vector": new[row].tolist()}) for row in some]
    (tmp_path / "new.jsonl").write_text("\n".join(lines))

    def run(*words):
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    code, out, err = run("retrofit", tmp_path / "old", "--migrate", tmp_path / "new.jsonl", "--map", tmp_path / "map")
    assert code == 0 and "fitted on 500 items" in out and f"--migrate {tmp_path / 'map'}" in out, err
    code, out, err = run("index", tmp_path / "index", tmp_path / "old", "--migrate", tmp_path / "map")
    assert code == 0, err
    with Index.open(tmp_path / "index", writable=True) as index:
        assert index.nesting.dim == NEW and index.get(["doc7"])[1] == [{"row": 7}]
        mapped = Migration.load(tmp_path / "map").transform(old)
        np.testing.assert_allclose(index.get(names)[0], mapped, atol=1e-5)
        before = recall(new[100:], new[:100], mapped[100:], new[:100])
        index.upsert(new[:450], ids=names[:450])
        assert index.search(new[:100], k=1).ids[:, 0].tolist() == names[:100] and before > 0.7
    for words, message in [
        (("index", tmp_path / "x", tmp_path / "new.jsonl", "--migrate", tmp_path / "map"), f"with {OLD} columns"),
        (("index", tmp_path / "x", tmp_path / "old", "--migrate", tmp_path / "map", "--metric", "l2"), "metric cosine"),
        (("retrofit", tmp_path / "old", "--migrate", tmp_path / "new.jsonl", "--dims", "8"), "--migrate fits a map"),
        (("index", tmp_path / "x", tmp_path / "old", "--migrate", tmp_path / "old"), "no migration in this folder"),
    ]:
        code, out, err = run(*words)
        assert code == 1 and message in err and err.count("\n") == 1, err
        assert not (tmp_path / "x").exists()
