"""Codes, their scores, the choice between them and their folder, against plain loops and on new queries."""

import itertools

import numpy as np
import pytest

from matryo import Compression, EmbeddingSet, MatryoError, Retrofit
from matryo.retrieve.compress import choosing
from matryo.retrieve.compress.codes.codecs import Product, Scalars
from matryo.retrieve.compress.codes.widths import _EXCESS, _WIDE, _WIDTHS, widths_of
from matryo.retrieve.compress.exports import as_strings

DIM = 32


def made(seed=0, rows=1500, dim=DIM):
    """Vectors whose principal axes are no columns, around a mean."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    return ((rng.normal(size=(rows, dim)) * np.geomspace(1, 0.1, dim)) @ turn + 0.1).astype(np.float32)


@pytest.fixture(scope="module")
def vectors():
    return made()


ALL = [{"bits": 16, "dim": 20}, {"bits": 8, "dim": 20}, {"bits": 4, "dim": 21}, {"bits": 1}, {"bytes_per_vector": 8}]


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.parametrize("settings", ALL, ids=str)
def test_scores_are_those_of_decoded_vectors_and_search_sorts_them(vectors, settings, metric):
    compression = Compression.fit(vectors, metric=metric, progress=False, **settings)
    codes, queries = compression.encode(vectors), made(1, 6)
    assert codes.shape == (1500, compression.bytes_per_vector) and codes.dtype == np.uint8
    decoded = compression.decode(codes)
    found = compression.score(queries, codes)
    for (i, query), j in itertools.product(enumerate(queries), range(0, 1500, 97)):
        row = decoded[j].astype(np.float64)
        exact = {"cosine": query @ row / np.linalg.norm(query) / np.linalg.norm(row), "ip": query @ row,
                 "l2": -np.square(query - row).sum()}[metric]  # fmt: skip
        assert found[i, j] == pytest.approx(exact, abs=2e-5, rel=1e-4)
    rows, scores = compression.search(queries, codes, k=5)
    best = np.sort(found, axis=1)[:, ::-1][:, :5]
    loose = {"product": 1e-4, "float16": 1e-6}.get(compression.code, 0.01)   # queries, or their tables, are in codes
    close = loose * max(1, np.abs(found).max())
    np.testing.assert_allclose(scores, best, atol=close)
    np.testing.assert_allclose(np.take_along_axis(found, rows, axis=1), scores, atol=close)


def test_a_rerank_of_all_rows_is_exact_search(vectors):
    compression = Compression.fit(vectors, bits=1, progress=False)
    queries = made(1, 5)
    rows, scores = compression.search(queries, compression.encode(vectors), 7, full=vectors, shortlist=1500)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    exact = queries / np.linalg.norm(queries, axis=1, keepdims=True) @ unit.T
    np.testing.assert_array_equal(rows, np.argsort(-exact, axis=1, kind="stable")[:, :7])
    np.testing.assert_allclose(scores, np.sort(exact, axis=1)[:, ::-1][:, :7], atol=1e-6)


def test_product_codes_are_the_nearest_centroids():
    rows = made(2, 600, 12)
    codec = Product.fit(rows, rows.var(axis=0), 4, seed=0)
    codes, low = codec.encode(rows), 0
    for place, book in enumerate(codec.books):
        apart = np.square(rows[:, None, low : low + book.shape[1]] - book).sum(axis=2)
        chosen = np.take_along_axis(apart, codes[:, place : place + 1].astype(int), axis=1)[:, 0]
        np.testing.assert_allclose(chosen, apart.min(axis=1), atol=1e-6)
        low += book.shape[1]


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_scalar_codes_unpack_as_documented(bits):
    rows = made(3, 20, 13)
    codes = Scalars(13, bits, scaled=True).encode(rows)
    units = codes[:, -4:].copy().view("<f4")[:, 0]
    for row, code in enumerate(codes):
        if bits == 1:
            levels = [code[j // 8] >> (7 - j % 8) & 1 for j in range(13)]
        elif bits == 4:
            levels = [code[j // 2] >> 4 * (j % 2) & 15 for j in range(13)]
        else:
            levels = [code[j] for j in range(13)]
        decoded = (np.array(levels, float) - (2**bits - 1) / 2) * units[row]
        np.testing.assert_allclose(Scalars(13, bits, scaled=True).decode(codes)[row], decoded, atol=1e-6)
        assert decoded @ rows[row] == pytest.approx(rows[row] @ rows[row], rel=1e-3)   # as in RaBitQ


def test_widths_lose_no_more_than_any_other_division():
    variances = np.geomspace(4, 0.01, 8)

    def loss(widths):
        total, low = 0.0, 0
        for width in widths:
            some = variances[low : low + width]
            rest = width * np.prod(some) ** (1 / width) * 4 ** (-8 / width) * _EXCESS.get(width, _WIDE)
            total, low = total + min(rest, some.sum()), low + width
        return total + variances[low:].sum()

    for count in (1, 2, 3):
        every = [some for some in itertools.product(_WIDTHS, repeat=count) if sum(some) <= len(variances)]
        assert loss(widths_of(variances, count)) == pytest.approx(min(map(loss, every)))


def test_the_bounds_of_the_choice_hold_on_new_queries():
    held = 0
    for seed in range(4):
        every = made(seed, 3000)
        database, later = every[:2000], every[2000:]
        compression = Compression.choose(database, 6, seed=seed, progress=False)
        assert compression.code == "product" and compression.bytes_per_vector == 6
        taken = next(entry for entry in compression.table if entry.taken)
        unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (database, later)]
        truth = np.argsort(-(unit[1] @ unit[0].T), axis=1)[:, :10]
        rows = compression.search(later, compression.encode(database), 10)[0]
        recall = np.mean([len(np.intersect1d(*pair)) / 10 for pair in zip(rows, truth, strict=True)])
        held += taken.lower <= recall + 0.02   # fewer rows were searched in the choice
        assert taken.lower < taken.quality and taken.reranked >= taken.quality
    assert held == 4


def test_the_reason_says_what_is_proved(vectors):
    many = Compression.choose(vectors, 4, progress=False)
    assert many.code == "product" and many.why == "proved better than plain numbers with 95% confidence"
    few = Compression.choose(made(3, 530), 20, kinds=["int8", "product"], progress=False)
    assert few.code == "product" or few.why == "the largest lower bound"
    lows = [entry.lower for entry in few.table]
    assert few.table[int(np.argmax(lows))].taken
    gains = np.tile([0.0, 0.3, -0.2], 20)   # a better mean, within noise
    simple, product = (choosing.Recipe(name, kind, 8, 32) for name, kind in (("pca", "int8"), ("centred", "product")))
    values = [np.full(60, 0.5), 0.5 + gains]
    assert choosing._why([simple, product], values, 1, 0.01, 0.95).endswith("not proved better than plain numbers")


def test_queries_and_relevance(vectors):
    queries = made(4, 200)
    relevance = [[int(row)] for row in np.argmax(queries @ vectors.T, axis=1)]
    compression = Compression.choose(vectors, 8, queries, relevance, metric="ip", progress=False)
    assert compression.provenance["quality"] == "ndcg" and compression.provenance["full"] == pytest.approx(1)
    assert {entry.rotation for entry in compression.table} >= {"queries", "identity", "pca"}
    assert "nDCG@10" in str(compression)


def test_a_choice_by_relevance_may_leave_out_axes():
    """Rows of a class differ in the last axes only, which would outweigh what tells classes apart."""
    rng = np.random.default_rng(0)
    classes = np.repeat(np.arange(100), 15)
    rows = np.concatenate([rng.normal(size=(100, 4))[classes], rng.normal(size=(1500, 28)) * 0.45], axis=1)
    asked = rows[::15] + np.concatenate([np.zeros((100, 4)), rng.normal(size=(100, 28)) * 0.45], axis=1)
    relevance = [np.flatnonzero(classes == each)[1:] for each in range(100)]
    chosen = Compression.choose(rows, 32, asked, relevance, kinds=("int8", "product"), progress=False)
    dims = {entry.dim for entry in chosen.table if entry.code == "product"}
    assert chosen.fitted.codec.dim <= 8 and dims >= {4, 8, 16, 32}, str(chosen)
    assert {entry.dim for entry in Compression.choose(rows, 32, kinds=("int8",), progress=False).table} == {32}


def test_a_map_of_retrofit_is_tried(vectors):
    fitted = Retrofit.fit(vectors, progress=False)
    compression = Compression.choose(vectors, 8, retrofit=fitted, kinds=["int8"], progress=False)
    assert "map" in {entry.rotation for entry in compression.table}


def test_any_source_gives_the_codes_of_the_array(vectors, tmp_path):
    EmbeddingSet.write(tmp_path / "e", vectors)
    np.save(tmp_path / "v.npy", vectors)
    whole = Compression.fit(vectors, bits=4, dim=16, progress=False)
    for source in (EmbeddingSet.open(tmp_path / "e"), tmp_path / "v.npy", iter(np.array_split(vectors, 7))):
        other = Compression.fit(source, bits=4, dim=16, progress=False)
        assert np.mean(other.encode(vectors) == whole.encode(vectors)) > 0.99
    np.testing.assert_array_equal(whole.encode(iter(np.array_split(vectors, 7))), whole.encode(vectors))


@pytest.mark.parametrize("settings", ALL, ids=str)
def test_a_folder_gives_the_same_codes(vectors, settings, tmp_path):
    compression = Compression.fit(vectors, progress=False, model="m", **settings)
    compression.save(tmp_path / "c")
    loaded = Compression.load(tmp_path / "c")
    np.testing.assert_array_equal(loaded.encode(vectors), compression.encode(vectors))
    codes = compression.encode(vectors)
    np.testing.assert_array_equal(loaded.decode(codes), compression.decode(codes))
    assert loaded.provenance == compression.provenance and str(loaded) == str(compression)


def test_damage_and_other_folders_are_refused(vectors, tmp_path):
    Compression.choose(vectors, 8, progress=False).save(tmp_path / "c")
    assert Compression.load(tmp_path / "c").table[0].rotation == "identity"
    arrays = tmp_path / "c" / "compression.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-1] + b"\0" * 2)
    with pytest.raises(MatryoError, match="is damaged"):
        Compression.load(tmp_path / "c")
    about = tmp_path / "c" / "compression.json"
    about.write_text(about.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(MatryoError, match=r"damaged|newer version"):
        Compression.load(tmp_path / "c")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(MatryoError, match="is not a compression"):
        Compression.fit(vectors, bits=8, progress=False).save(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def bad(name):
    rows = made(5, 900)
    if name == "constant":
        rows[:, 3] = 0.25
    elif name == "zeros":
        rows[7] = 0
    elif name == "nan":
        rows[7, 2] = np.nan
    elif name == "duplicates":
        rows[300:] = rows[:300].repeat(2, axis=0)
    elif name == "equal":
        rows[:] = rows[0]
    return rows[:400] if name == "few" else rows


@pytest.mark.parametrize(("name", "message"), [
    ("constant", "every column must vary (got 1 columns with one value, the first is column 3): drop those columns"),
    ("zeros", "vectors must have a direction (got 1 rows of zeros, the first is row 7): drop those rows"),
    ("nan", "vectors must be finite (got 1 bad rows, the first is row 7): drop those rows"),
    ("duplicates", "most vectors must occur once (got 300 different ones in a sample of 900): drop the duplicates"),
    ("equal", "vectors must differ (got 900 equal ones)"),
    ("few", "a compression of 32 dims needs at least 512 vectors (got 400): pass more vectors of this model"),
])  # fmt: skip
def test_unfit_vectors_are_refused_with_the_cure(name, message):
    with pytest.raises(MatryoError) as error:
        Compression.choose(bad(name), 8, progress=False)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_other_bad_arguments_are_refused(vectors):
    fitted = Compression.fit(vectors, bits=8, progress=False)
    other = Retrofit.fit(made(6, 600, 16), progress=False)
    for call, message in (
        (lambda: Compression.choose(vectors, 8, retrofit=other), "the map must be fitted on vectors with 32 columns"),
        (lambda: Compression.choose(vectors, 8, made(6, 60, 16)), "queries must have 32 columns"),
        (lambda: Compression.choose(vectors, 8, kinds=("int3",)), "kinds must be some of float16"),
        (lambda: Compression.choose(vectors, 0), "bytes_per_vector must be an integer from 1"),
        (lambda: Compression.choose(vectors, 8, metric="hamming"), "metric must be cosine, ip or l2"),
        (lambda: Compression.choose(vectors, 8, relevance=[[1]]), "relevance needs queries"),
        (lambda: Compression.fit(vectors), "pass bits, or bytes_per_vector"),
        (lambda: Compression.fit(vectors, bits=3), "bits must be 1, 4, 8 or 16 (got 3): bits=4"),
        (lambda: Compression.fit(vectors, dim=99, bits=4), "dim must be an integer from 1 to 32"),
        (lambda: fitted.encode(made(6, 10, 16)), "fitted on vectors with 32 columns"),
        (lambda: fitted.search(vectors[:2], vectors), "codes must be uint8 with 32 bytes per row"),
        (lambda: fitted.search(vectors[:2], fitted.encode(vectors), full=vectors[:5]), "full must hold the 1500"),
    ):
        with pytest.raises(MatryoError) as error:
            call()
        assert message in str(error.value)


def test_vectors_and_maps_of_another_model_are_refused(vectors, tmp_path):
    for name in ("one", "two"):
        EmbeddingSet.write(tmp_path / name, vectors, model=name)
    first, second = (EmbeddingSet.open(tmp_path / name) for name in ("one", "two"))
    compression, fitted = Compression.fit(first, bits=4, progress=False), Retrofit.fit(first, progress=False)
    assert compression.encode(first).shape == (1500, 16)
    with pytest.raises(MatryoError, match="fitted on vectors of one"):
        compression.encode(second)
    with pytest.raises(MatryoError, match="the map was fitted on vectors of one"):
        Compression.choose(second, 8, retrofit=fitted, progress=False)


def test_strings_for_databases(vectors):
    bits = Compression.fit(vectors, bits=1, progress=False)
    signs = bits.transform(vectors[:20]) >= 0
    assert as_strings(bits, bits.encode(vectors[:20])) == ["".join("01"[int(b)] for b in row) for row in signs]
    halves = Compression.fit(vectors, bits=16, dim=5, progress=False)
    lines = as_strings(halves, halves.encode(vectors[:20]))
    parsed = np.array([[float(number) for number in line[1:-1].split(",")] for line in lines])
    np.testing.assert_allclose(parsed, halves.transform(vectors[:20]), rtol=1e-3, atol=1e-6)
    with pytest.raises(MatryoError, match="halfvec needs codes of float16"):
        as_strings(Compression.fit(vectors, bits=8, progress=False), np.zeros((1, 32), np.uint8))
