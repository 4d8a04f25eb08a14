"""Rows that join partitions after these were built: the oracle is an index of all rows, or a scan in float64."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from matryo import Index, Nesting, Plan
from matryo.compiled import core
from matryo.errors import EmbeddingsError, IndexFolderError
from matryo.retrieve.guides.partition import Joined, Partition, PartitionSearch, Tail, TailPart
from matryo.retrieve.plan.plan import Stage
from matryo.retrieve.store import Limits
from matryo.retrieve.vectors.blocks import Blocks

pytestmark = pytest.mark.skipif(core() is None, reason="needs the compiled core")

DIMS, METRICS = [8, 16, 40], ("cosine", "ip", "l2")
ALL = Plan((Stage(16, 10_000, "int4"), Stage(40, 10)), probe=1.0)   # every row is a candidate: exact


def vectors(count, seed=0, dim=40):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(12, dim))
    rows = centres[rng.integers(0, 12, count)] + rng.normal(size=(count, dim))
    return (rows * np.linspace(2, 0.3, dim)).astype("f4")


def exact(rows, queries, k, metric, allowed=None):
    rows, queries = rows.astype(np.float64), queries.astype(np.float64)
    scores = queries @ rows.T
    if metric == "cosine":
        scores /= np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(rows, axis=1)
    if metric == "l2":
        scores = -np.square(queries[:, None] - rows).sum(2)
    if allowed is not None:
        scores[:, ~allowed] = -np.inf
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def part_of(rows, first, partition=None, dtype="float32"):
    blocks = Blocks.of(rows, Nesting(DIMS), dtype=dtype)
    places = None if partition is None else Joined.of(blocks, partition)
    return TailPart(blocks, np.arange(first, first + len(rows)), places)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("rotated", "copies", "dtype"), [(False, 1, "float32"), (True, 2, "float16")])
def test_a_search_of_all_partitions_finds_the_rows_of_the_tail(metric, rotated, copies, dtype):
    base, late, queries = vectors(500), vectors(333, 1), vectors(40, 2)
    blocks = Blocks.of(base, Nesting(DIMS), dtype=dtype)
    lists = 3 if rotated else None   # so few that a partition gets more tiles than one tile refers to
    partition = Partition.of(blocks, metric, dim=16, rotated=rotated, copies=copies, lists=lists)
    view = Tail(partition).view([part_of(late[:200], 500, partition, dtype), part_of(late[200:], 900, None, dtype)])
    plan = Plan((Stage(16, 1000, "int4"), Stage(40, 10)), probe=1.0)
    rows, _ = PartitionSearch(blocks, partition, plan, 10)(queries, tail=view)
    stored = np.concatenate([base, late]).astype(dtype)
    assert np.array_equal(rows, exact(stored, queries, 10, metric))
    one = [PartitionSearch(blocks, partition, plan, 10)(query, tail=view)[0][0] for query in queries]
    assert np.array_equal(rows, one)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("rotated", "copies", "dtype"), [(False, 1, "float16"), (True, 2, "float32")])
def test_a_few_rows_are_placed_as_many_are(metric, rotated, copies, dtype):
    base = Blocks.of(vectors(700), Nesting(DIMS), dtype=dtype)
    partition = Partition.of(base, metric, dim=12, rotated=rotated, copies=copies, long=16)
    rows = vectors(40, 1)
    rows[9], rows[10] = 0, 1e-3 * rows[10]
    blocks = Blocks.of(rows, Nesting(DIMS), dtype=dtype)
    few, many = Joined.of(blocks, partition, start=8), Joined.of(blocks, partition, "stored")   # one call, and numpy
    for name in ("lists", "nibbles", "codes"):   # a sum in another order may round to another code
        assert (getattr(few, name) == getattr(many, name)[8:]).mean() > 0.99, name
    same = (few.nibbles == many.nibbles[8:]).all(1)
    np.testing.assert_allclose(few.adjust[same], many.adjust[8:][same], rtol=1e-4)
    whole = rows[8:].astype(dtype)[:, :16].astype("f8")
    if metric != "l2":
        whole /= np.maximum(np.linalg.norm(rows[8:].astype(dtype).astype("f8"), axis=1), 1e-30)[:, None]
    apart = np.linalg.norm(whole - few.codes[:, :16] * partition.columns[0] - partition.columns[1], axis=1)
    assert (apart <= few.errors).all()
    np.testing.assert_allclose(few.errors, many.errors[8:], rtol=1e-3)
    assert not few.codes[:, 16:].any()


def test_a_tail_is_searched_like_the_partitions_that_it_joined():
    """Half of the rows joined later: with the same means and codes, a search finds what it finds with all built."""
    rows, queries = vectors(4000), vectors(60, 2)
    whole = Blocks.of(rows, Nesting(DIMS))
    built = Partition.of(whole, dim=16, rotated=False, copies=2, lists=50)
    half = Blocks.of(rows[:2000], Nesting(DIMS))
    first = Partition.of(half, dim=16, rotated=False, copies=2, lists=50)
    first = replace(first, centers=built.centers)
    for keep in (30, 200):
        plan = Plan((Stage(16, keep, "int4"), Stage(40, 10)), probe=1.0)
        view = Tail(first).view([part_of(rows[2000:], 2000, first)])
        found, scores = PartitionSearch(half, first, plan, 10)(queries, tail=view)
        expected = exact(rows, queries, 10, "cosine")
        shares = [len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), expected.tolist(), strict=True)]
        other, _ = PartitionSearch(whole, built, plan, 10)(queries)
        others = [len(set(a) & set(b)) / 10 for a, b in zip(other.tolist(), expected.tolist(), strict=True)]
        assert np.mean(shares) == pytest.approx(np.mean(others), abs=0.03)
        assert (np.diff(scores) <= 0).all()


def test_a_mask_covers_the_tail_and_no_place_is_empty():
    base, late, queries = vectors(400), vectors(300, 1), vectors(20, 2)
    blocks = Blocks.of(base, Nesting(DIMS))
    partition = Partition.of(blocks, dim=16, rotated=False, copies=2)
    view = Tail(partition).view([part_of(late, 400, partition)])
    allowed = np.random.default_rng(5).random(700) < 0.03
    count = int(allowed.sum())
    plan = Plan((Stage(16, 50, "int4"), Stage(40, count)), probe=0.02)
    rows, _ = PartitionSearch(blocks, partition, plan, count)(queries, allowed, 1, float(allowed.mean()), view)
    assert np.array_equal(rows, exact(np.concatenate([base, late]), queries, count, "cosine", allowed))
    with pytest.raises(ValueError, match="mask"):
        PartitionSearch(blocks, partition, plan, 10)(queries, allowed[:400], 1, 1.0, view)


def test_an_earlier_view_does_not_see_later_rows_and_gone_rows_begin_anew():
    base, late, queries = vectors(300), vectors(200, 1), vectors(20, 2)
    blocks = Blocks.of(base, Nesting(DIMS))
    partition = Partition.of(blocks, dim=16, rotated=False, copies=1)
    tail, search = Tail(partition), PartitionSearch(blocks, partition, ALL, 10)
    early = tail.view([part_of(late[:50], 300)])
    tail.view([part_of(late, 300)])
    rows, _ = search(queries, tail=early)
    assert np.array_equal(rows, exact(np.concatenate([base, late[:50]]), queries, 10, "cosine"))
    kept = np.arange(200) % 3 > 0
    view = tail.view([TailPart(Blocks.of(late[kept], Nesting(DIMS)), np.arange(300, 500)[kept])])
    rows, _ = search(queries, tail=view)
    assert np.array_equal(rows, exact(np.concatenate([base, late[kept]]), queries, 10, "cosine"))


def test_threads_may_search_while_rows_join():
    base, late, queries = vectors(400), vectors(800, 1), vectors(10, 2)
    blocks = Blocks.of(base, Nesting(DIMS))
    partition = Partition.of(blocks, dim=16, rotated=False, copies=2)
    tail, search = Tail(partition), PartitionSearch(blocks, partition, ALL, 10)
    views = [(0, tail.view([part_of(late[:1], 400)]))]
    wrong, done = [], threading.Event()

    def look():
        while not done.is_set():
            count, view = views[-1]
            rows, _ = search(queries, tail=view)
            if not np.array_equal(rows, exact(np.concatenate([base, late[: count + 1]]), queries, 10, "cosine")):
                wrong.append(count)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for count in range(1, 800, 7):
        views.append((count, tail.view([part_of(late[: count + 1], 400)])))   # noqa: PERF401, as others read it
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_stored_places_are_those_of_the_rows(tmp_path):
    blocks, late = Blocks.of(vectors(300), Nesting(DIMS)), Blocks.of(vectors(70, 1), Nesting(DIMS))
    partition = Partition.of(blocks, "l2", dim=12, rotated=True, copies=2)
    Joined.of(late, partition, "partition-x").write(tmp_path / "joined")
    opened = Joined.open(tmp_path / "joined")
    assert opened.partition == "partition-x"
    means, coordinates = partition.centers, late.rows(slice(70), 40) @ partition.axes
    apart = np.square(coordinates[:, None].astype("f8") - means).sum(2)
    assert np.array_equal(opened.lists[:, 0], apart.argmin(1))
    assert opened.distance == pytest.approx(apart.min(1).mean(), rel=1e-5)
    decoded = opened.codes[:, :40] * partition.columns[0] + partition.columns[1]
    assert (np.linalg.norm(decoded - late.rows(slice(70), 40), axis=1) <= opened.errors).all()
    with pytest.raises(EmbeddingsError, match="stored places"):
        Tail(partition).view([TailPart(blocks, np.arange(300), opened)])


@pytest.mark.parametrize("metric", METRICS)
def test_an_index_with_changes_has_the_hits_of_a_scan(tmp_path, metric):
    """Adds, replaced and deleted rows, segments that are merged: a plan that visits everything is exact throughout."""
    rng, known = np.random.default_rng(3), {}
    index = Index.create(tmp_path / "x", DIMS, metric=metric, limits=Limits(pending_bytes=40 * 160))
    first = vectors(600)
    known |= dict(zip(index.add(first), first, strict=True))
    index.build(sketch=True, partition=16)
    queries = vectors(8, 7)
    for step in range(30):
        new = vectors(int(rng.integers(1, 60)), 10 + step)
        if step % 3 == 2:
            ids = rng.choice(list(known), len(new), replace=False).tolist()
            index.upsert(new, ids)
            known = {id: row for id, row in known.items() if id not in ids}   # replaced rows are the newest
        else:
            ids = index.add(new)
        known |= dict(zip(ids, new, strict=True))
        if step % 4 == 3:
            gone = rng.choice(list(known), 25, replace=False).tolist()
            index.delete(gone)
            for id in gone:
                del known[id]
        expected = np.array(list(known))[exact(np.array(list(known.values())), queries, 10, metric)]
        assert np.array_equal(index.search(queries, 10, plan=ALL).ids, expected), step
        assert np.array_equal(index.search(queries, 10).ids, expected), step
        if step == 15:   # what other processes see
            with Index.open(tmp_path / "x") as reader:
                assert np.array_equal(reader.search(queries, 10, plan=ALL).ids, expected)
    segments = index.snapshot().segments
    assert any("joined" in segment.guides for segment in segments)
    assert all(segment.guides for segment in segments if segment.name)
    index.verify()
    index.build()
    assert np.array_equal(index.search(queries, 10, plan=ALL).ids, expected)
    index.compact()
    assert [sorted(segment.guides) for segment in index.snapshot().segments] == [["partition", "sketch"]]
    assert np.array_equal(index.search(queries, 10, plan=ALL).ids, expected)


def test_an_index_that_grows_fourfold_gets_new_partitions(tmp_path):
    with Index.create(tmp_path / "x", DIMS, limits=Limits(pending_bytes=1)) as index:
        index.add(vectors(100))
        index.build()
        for step in range(8):
            index.add(vectors(100, step))
        assert all("partition" in segment.guides or "joined" in segment.guides for segment in index.snapshot().segments)
        index.add(vectors(5000, 50))   # more than four times as many
        assert "partition" in index.snapshot().segments[-1].guides


def test_damaged_places_are_refused_and_built_again(tmp_path):
    index = Index.create(tmp_path / "x", DIMS, limits=Limits(pending_bytes=1))
    index.add(vectors(600))
    index.build()
    index.add(vectors(50, 1))
    index.close()
    (folder,) = (tmp_path / "x" / "guides").glob("joined-*")
    data = bytearray((folder / "lists.npy").read_bytes())
    data[-3] ^= 0xFF
    (folder / "lists.npy").write_bytes(data)
    with Index.open(tmp_path / "x", writable=True) as index:
        with pytest.raises(IndexFolderError, match=r"lists\.npy"):
            index.verify()
        with pytest.raises(IndexFolderError, match=r"damaged|places"):
            index.search(vectors(1, 2), 10, plan=ALL)
        index.build()
        index.verify()
        assert index.search(vectors(1, 2), 10, plan=ALL).ids.shape == (1, 10)


def test_the_description_reports_rows_that_joined_and_their_drift(tmp_path):
    with Index.create(tmp_path / "x", DIMS, limits=Limits(pending_bytes=1)) as index:
        index.add(vectors(2000))
        index.build()
        assert (index.describe().joined, index.describe().drift) == (0, None)
        index.add(vectors(100, 1))
        near = index.describe()
        assert near.joined == 100 and 0.9 < near.drift < 1.3 and near.unguided == 0
        index.add(np.random.default_rng(0).normal(size=(200, 40)))   # vectors of another kind
        far = index.describe()
        assert far.joined == 300 and far.drift > 1.2 * near.drift
        assert f"300 vectors joined the partitions later, at {far.drift:.2f} times" in str(far)
        index.compact()
        assert index.describe().drift is None
