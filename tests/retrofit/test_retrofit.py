"""A fitted map is orthogonal, finds directions that were planted, and is taken only where it is better."""

import json

import numpy as np
import pytest

from matryo import EmbeddingSet, Nesting, Retrofit
from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.nesting import truncate
from matryo.retrofit import rungs
from matryo.retrofit.choice import choose, lower_bound

DIM = 32


def planted(rows=2000, seed=0, dim=DIM):
    """Vectors of unequal variances in directions that are no columns."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    return (rng.normal(size=(rows, dim)) * np.geomspace(1, 0.05, dim)) @ turn, turn


@pytest.fixture(scope="module")
def vectors():
    return planted()[0]


@pytest.fixture(scope="module")
def fitted(vectors):
    return Retrofit.fit(vectors)


def shortlist_recall(rows, queries, dim, k=10, keep=100):
    """By plain loops, in float64."""
    unit = [truncate(np.asarray(side, np.float64), side.shape[1]) for side in (rows, queries)]
    short = [truncate(np.asarray(side, np.float64), dim) for side in (rows, queries)]
    shares = []
    for query, part in zip(unit[1], short[1], strict=True):
        true = set(np.argsort(-(unit[0] @ query), kind="stable")[:k].tolist())
        found = np.argsort(-(short[0] @ part), kind="stable")[:keep].tolist()
        shares.append(len(true & set(found)) / k)
    return np.mean(shares)


def test_pca_is_taken_where_columns_are_alike(fitted):
    assert fitted.rung == "pca" and fitted.keeps_scores and fitted.nesting.dims == (8, 16, 32)
    assert fitted.table[0].quality["pca"] > fitted.table[0].quality["identity"] + 0.1
    assert all(entry.quality["pca"] >= entry.quality["identity"] for entry in fitted.table)


def test_full_dim_scores_do_not_change(fitted, vectors):
    mapped = fitted.transform(vectors)
    np.testing.assert_allclose(mapped[:50] @ mapped[:50].T, vectors[:50] @ vectors[:50].T, atol=1e-5)
    np.testing.assert_allclose(fitted.inverse(mapped), vectors, atol=1e-5)
    np.testing.assert_allclose(fitted.axes.T @ fitted.axes, np.eye(DIM), atol=1e-6)


def test_the_axes_are_those_of_the_singular_vectors(vectors):
    fitted = Retrofit.fit(vectors, metric="ip")
    wide = planted()[0]
    _, _, right = np.linalg.svd(wide, full_matrices=False)
    overlap = np.abs(right @ fitted.axes)   # ±1 on the diagonal, but for what the held-out rows change
    assert np.diag(overlap)[:8].min() > 0.9


def test_the_table_holds_for_queries_that_were_not_there(fitted, vectors):
    new = planted(rows=2200)[0]
    assert np.array_equal(new[:2000].shape, vectors.shape)
    rng = np.random.default_rng(5)
    queries = rng.normal(size=(200, DIM)) * np.geomspace(1, 0.05, DIM) @ planted()[1]
    for entry in fitted.table:
        found = shortlist_recall(fitted.transform(vectors), fitted.transform(queries), entry.dim)
        assert found > shortlist_recall(vectors, queries, entry.dim) - 0.01
        assert abs(found - entry.quality["pca"]) < 0.08


def test_nested_vectors_stay_as_they_are():
    rng = np.random.default_rng(1)
    nested = rng.normal(size=(1500, DIM)) * np.geomspace(1, 0.05, DIM)
    fitted = Retrofit.fit(nested)
    new = rng.normal(size=(200, DIM)) * np.geomspace(1, 0.05, DIM)
    for dim in (8, 16):
        better = shortlist_recall(fitted.transform(nested), fitted.transform(new), dim)
        assert better > shortlist_recall(nested, new, dim) - 0.03


def test_what_holds_the_vectors_does_not_matter(vectors, tmp_path):
    np.save(tmp_path / "v.npy", vectors.astype(np.float32))
    EmbeddingSet.write(tmp_path / "emb", vectors.astype(np.float32))
    wide = vectors.astype(np.float32)
    held = [wide, wide.tolist(), tmp_path / "v.npy", np.load(tmp_path / "v.npy", mmap_mode="r"), tmp_path / "emb",
            EmbeddingSet.open(tmp_path / "emb"), iter(np.array_split(wide, 5))]  # fmt: skip
    axes = [Retrofit.fit(each, progress=False).axes for each in held]
    for other in axes[1:]:
        np.testing.assert_allclose(np.abs(np.diag(axes[0].T @ other)), 1, atol=0.35)
        assert other.shape == (DIM, DIM)
    assert np.array_equal(axes[0], axes[1]) and np.array_equal(axes[0], axes[2])


def test_update_equals_a_fit_on_all_rows():
    one, two = planted(rows=1500)[0], planted(rows=1500, seed=0)[0][::-1] * 2
    updated = Retrofit.fit(one, metric="ip").update(two)
    first = Retrofit.fit(one, metric="ip")
    second = first.moments.second * first.moments.count + two.T @ two
    wanted = rungs.leading(second)
    np.testing.assert_allclose(np.abs(np.diag(wanted.T @ updated.axes)), 1, atol=1e-3)
    assert updated.provenance["rows"] == first.moments.count + 1500


def test_a_map_around_a_mean(vectors):
    moved = vectors + 3
    fitted = Retrofit.fit(moved, metric="l2", nesting=[4, DIM])
    centred = fitted.at(4) if fitted.table[0].rung == "centred" else fitted
    mapped = centred.transform(moved)
    np.testing.assert_allclose(centred.inverse(mapped), moved, atol=1e-4)
    apart = np.linalg.norm(mapped[:20, None] - mapped[None, :20], axis=2)
    np.testing.assert_allclose(apart, np.linalg.norm(moved[:20, None] - moved[None, :20], axis=2), atol=1e-4)


def test_prefixes_at_trained_dims_keep_their_span():
    second = np.cov(np.random.default_rng(0).normal(size=(DIM, 500)) * np.linspace(1, 2, DIM)[:, None])
    axes = rungs.within_blocks(second, Nesting([8, 16, DIM]))
    np.testing.assert_allclose(axes.T @ axes, np.eye(DIM), atol=1e-9)
    assert not axes[:8, 8:].any() and not axes[8:16, 16:].any() and not axes[16:, :16].any()


def test_query_aware_axes_lose_less_of_the_scores_than_pca():
    rng = np.random.default_rng(0)
    rows = np.diag(np.linspace(2, 1, DIM))
    queries = np.diag(rng.permutation(np.geomspace(3, 0.01, DIM)))
    nesting = Nesting([8, 16, DIM])
    aware = rungs.query_aware(rows, queries, nesting)
    assert rungs.lost(aware, rows, queries, (8, 16)) < 0.7 * rungs.lost(rungs.leading(rows), rows, queries, (8, 16))


def test_queries_of_another_distribution_are_served():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, DIM)) * np.geomspace(1, 0.3, DIM)
    queries = rng.normal(size=(800, DIM)) * np.geomspace(0.02, 1, DIM)
    fitted = Retrofit.fit(rows, queries, nesting=[4, 8, DIM], metric="ip")
    taken = {entry.dim: entry for entry in fitted.table}
    assert taken[8].rung == "queries" and taken[8].lower >= 0 and taken[8].gain > 0.05


def test_labels_are_used_where_they_help_and_not_where_they_are_few():
    rng = np.random.default_rng(0)
    labels = rng.integers(8, size=3000)
    means = np.zeros((8, DIM))
    means[:, -6:] = rng.normal(size=(8, 6)) * 0.5   # in the directions of the least variance
    rows = means[labels] + rng.normal(size=(3000, DIM)) * np.geomspace(2, 0.15, DIM)
    many = Retrofit.fit(rows, labels=labels, nesting=[4, 8, DIM])
    assert [entry.rung for entry in many.table] == ["classes", "classes"]
    few = Retrofit.fit(rows, labels=np.where(np.arange(3000) < 20, labels, -1), nesting=[4, 8, DIM])
    assert all(entry.rung in ("identity", "pca", "centred") for entry in few.table)
    assert "too few held-out queries" in few.table[0].why


def test_relevance_is_used():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1200, DIM)) * np.geomspace(2, 0.5, DIM)
    picked = rng.permutation(1200)[:900]
    queries = rng.normal(size=(900, DIM)) * np.geomspace(2, 0.5, DIM)
    queries[:, -12:] = rows[picked, -12:]
    fitted = Retrofit.fit(rows, queries, [[row] for row in picked], nesting=[8, DIM])
    assert fitted.provenance["quality"] == "ndcg" and fitted.table[0].rung == "pairs"
    assert fitted.table[0].gain > 0.05


def test_a_gain_by_chance_is_not_taken():
    rng = np.random.default_rng(0)
    simple = rng.random((300, 2))
    worth = {"identity": simple, "pca": simple, "learned": simple + rng.normal(size=(300, 2)) * 0.3}
    table, whole = choose(worth, (8, 16), 0.95)
    assert all(entry.rung != "learned" for entry in table) and whole in ("identity", "pca")
    better = {**worth, "learned": simple + 0.1 + rng.normal(size=(300, 2)) * 0.3}
    table, whole = choose(better, (8, 16), 0.95)
    assert [entry.rung for entry in table] == ["learned"] * 2 and whole == "learned"


def test_the_lower_bound_is_that_of_student():
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).normal(size=60) + 0.2
    wanted = stats.ttest_1samp(values, 0).confidence_interval(0.98).low
    assert abs(lower_bound(values, 0.01) - wanted) < 1e-4
    assert lower_bound(values[:30], 0.01) == -np.inf and lower_bound(np.zeros(60), 0.01) == 0


def test_save_and_load(fitted, vectors, tmp_path):
    fitted.save(tmp_path / "map")
    loaded = Retrofit.load(tmp_path / "map")
    assert str(loaded) == str(fitted) and loaded.energy == pytest.approx(fitted.energy)
    assert np.array_equal(loaded.transform(vectors), fitted.transform(vectors))
    assert loaded.update(vectors).provenance["rows"] == fitted.provenance["rows"] + len(vectors)
    fitted.save(tmp_path / "map")   # a map replaces a map
    (tmp_path / "map" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"map is not a map of retrofit \(got notes.txt\): choose another folder"):
        fitted.save(tmp_path / "map")


@pytest.mark.parametrize("damage", ["bytes", "json", "orthogonal"])
def test_damage_is_found(fitted, tmp_path, damage):
    fitted.save(tmp_path / "map")
    arrays, about = tmp_path / "map" / "retrofit.safetensors", tmp_path / "map" / "retrofit.json"
    if damage == "bytes":
        data = bytearray(arrays.read_bytes())
        data[-1] ^= 1
        arrays.write_bytes(data)
    elif damage == "json":
        about.write_text("{}")
    else:
        from safetensors.numpy import load, save

        from matryo.files import sha256

        tensors = load(arrays.read_bytes())
        tensors["pca.axes"] = tensors["pca.axes"] * 2
        arrays.write_bytes(save(tensors))
        about.write_text(json.dumps(json.loads(about.read_text()) | {"sha256": sha256(arrays)}))
    with pytest.raises(InputError, match=r"map is damaged .*fit the map again"):
        Retrofit.load(tmp_path / "map")


BAD = [
    (np.full((100, 4), 2.0), {}, r"vectors must differ \(got .* equal ones\): check how they were encoded"),
    (np.zeros((100, 4)), {}, r"at least 4 vectors \(got 0, and 100 of zeros\): pass more vectors"),
    (np.eye(8)[:5], {}, r"a rotation of 8 dims needs at least 8 vectors \(got 5\)"),
    (np.array([[1.0, np.nan], [0, 1], [1, 1]]), {}, r"finite \(got 1 bad rows, the first is row 0\)"),
    (planted(100)[0], {"labels": [1, 2]}, r"one entry for each of the 100 vectors \(got 2\)"),
    (planted(100)[0], {"queries": np.ones((5, 3))}, r"queries must have 32 columns, .*got 3\): encode both"),
    (planted(100)[0], {"relevance": [[1]]}, r"relevance needs queries"),
    (planted(100)[0], {"queries": np.ones((2, DIM)), "relevance": [[1], [100]]}, r"rows below 100 \(got 100\)"),
    (planted(100)[0], {"nesting": [8, 64]}, r"must not exceed the 32"),
    (planted(100)[0], {"metric": "dot"}, r"metric must be cosine, ip or l2 \(got 'dot'\)"),
    (planted(100)[0], {"k": 0}, r"k must be at least 1"),
    ("missing.parquet", {}, r"for other files pass matryo.retrieve.sources.open_source"),
]


@pytest.mark.parametrize(("values", "options", "message"), BAD)
def test_bad_input_is_one_line(values, options, message):
    with pytest.raises((InputError, EmbeddingsError, NestingError), match=message) as caught:
        Retrofit.fit(values, **options)
    assert "\n" not in str(caught.value)


def test_constant_columns_and_duplicates_are_no_problem():
    rows = planted(1000)[0]
    rows[:, 3] = 0
    rows[500:] = rows[:500]
    fitted = Retrofit.fit(np.vstack([rows, np.zeros((5, DIM))]))
    assert fitted.provenance["zeros"] == 5
    np.testing.assert_allclose(fitted.inverse(fitted.transform(rows)), rows, atol=1e-5)


def test_vectors_of_another_model_are_refused(fitted):
    with pytest.raises(EmbeddingsError, match=r"fitted on vectors with 32 columns \(got 16\): fit a map"):
        fitted.transform(np.ones((2, 16)))
    with pytest.raises(InputError, match=r"dim must be one of 8, 16 \(got 5\): fit with nesting=\[5, 32\]"):
        fitted.at(5)


def test_the_promise_over_random_draws():
    """Rungs that are taken are not worse on new queries; the full version is benchmarks/retrofit.py draws."""
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        from support.retrofit_draws import draw
    finally:
        sys.path.pop(0)
    taken = [draw(seed, rows=800, tests=1500) for seed in range(100, 110)]
    assert sum(all(gain >= 0 for *_, gain in one) for one in taken) >= 9
    assert any(taken)   # some are taken, so that the test tests something
