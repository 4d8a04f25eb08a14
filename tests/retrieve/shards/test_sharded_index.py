"""A sharded index answers bit for bit as one index does: random changes, ties, deletions, filters and sketches."""

import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
from needs_core import needs_core

from matryo.errors import IndexFolderError, InputError, UnknownId
from matryo.nesting import Nesting
from matryo.retrieve import Index, Plan
from matryo.retrieve.guides.sketch.certified import Certified
from matryo.retrieve.guides.sketch.sketch import Sketch
from matryo.retrieve.shards import ShardedIndex, open_index, shard_of, split
from matryo.retrieve.vectors.blocks import Blocks

NESTING = Nesting([2, 4, 8])


def changed_at_random(one, many, rng, text, steps=10):
    """Change both in the same way; vectors are small integers, so that many scores tie."""
    ids, fresh = [], 0
    for _ in range(steps):
        kind = rng.choice(["add", "add", "upsert", "delete", "compact"])
        if kind == "delete" and ids:
            chosen = [ids[i] for i in rng.choice(len(ids), min(len(ids), int(rng.integers(1, 9))), replace=False)]
            for index in (one, many):
                index.delete(chosen)
            ids = [id for id in ids if id not in chosen]
        elif kind == "compact":
            one.compact()
            many.compact()
        else:
            count = int(rng.integers(1, 30))
            new = [f"id {fresh + i}" if text else fresh + i for i in range(count)]
            fresh += count
            if kind == "upsert" and ids:
                old = [ids[i] for i in rng.choice(len(ids), min(5, len(ids)), replace=False)]
                new = [*old, *new]
            vectors = rng.integers(1, 4, (len(new), 8)).astype(np.float32)
            payload = [{"n": int(rng.integers(0, 3))} for _ in new]
            for index in (one, many):
                (index.upsert if kind == "upsert" else index.add)(vectors, new, payload)
            ids = [*(id for id in ids if id not in set(new)), *new]
    return ids


def assert_equal(one, many):
    np.testing.assert_array_equal(one.ids, many.ids)
    np.testing.assert_array_equal(one.scores.view(np.int32), many.scores.view(np.int32))
    assert one.payloads == many.payloads


@pytest.mark.parametrize("seed", range(4))
def test_exact_search_equals_that_of_one_index_bit_for_bit(tmp_path, seed):
    rng = np.random.default_rng(seed)
    metric, text = ("cosine", "ip", "l2")[seed % 3], seed % 2 == 0
    one = Index.create(tmp_path / "one", NESTING, metric=metric)
    many = ShardedIndex.create(tmp_path / "many", NESTING, shards=int(rng.integers(1, 5)), metric=metric)
    ids = changed_at_random(one, many, rng, text)
    queries = rng.integers(1, 4, (9, 8)).astype(np.float32)
    assert many.ids.tolist() == one.ids.tolist() == ids
    for k in (1, 7, len(ids) + 3):
        for threads in (1, 4):
            assert_equal(one.search(queries, k, threads=threads), many.search(queries, k, threads=threads))
        assert_equal(one.search(queries[0], k, payload=True), many.search(queries[0], k, threads=3, payload=True))
        for where in ({"n": 1}, {"n": {"$gte": 3}}):
            assert_equal(one.search(queries, k, where=where, payload=True),
                         many.search(queries, k, where=where, payload=True))   # fmt: skip
    assert_equal(one.search(queries, 5, Plan.adaptive(2, 8, keep=4000, k=5)),
                 many.search(queries, 5, Plan.adaptive(2, 8, keep=4000, k=5)))   # fmt: skip
    chosen = ids[::3]
    np.testing.assert_array_equal(one.get(chosen)[0], many.get(chosen)[0])
    assert one.get(chosen)[1] == many.get(chosen)[1]
    many.close()
    with open_index(tmp_path / "many") as reader:
        assert isinstance(reader, ShardedIndex)
        assert_equal(one.search(queries, 5), reader.search(queries, 5))
        reader.verify()


@needs_core
@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_certified_search_stays_exact_with_a_shared_bound(tmp_path, metric):
    rng = np.random.default_rng(3)
    vectors = np.round(rng.normal(size=(3000, 32)) * np.geomspace(4, 0.04, 32), 1).astype(np.float32)
    vectors[rng.integers(0, 3000, 400)] = vectors[:400]   # ties
    queries = vectors[rng.integers(0, 3000, 20)] + np.float32(0.05)
    with Index.create(tmp_path / "one", [8, 32], metric=metric) as one, \
            ShardedIndex.create(tmp_path / "many", [8, 32], shards=3, metric=metric) as many:   # fmt: skip
        for index in (one, many):
            index.add(vectors)
            index.compact()
        plain = one.search(queries, 10)
        many.build(sketch=True)
        assert_equal(plain, many.search(queries, 10))
    certified = Certified(blocks := Blocks.of(vectors, Nesting([8, 32])), Sketch.of(blocks, metric, dims=(8,)))
    rows, scores, left = certified.find(queries, 10)
    again, same, fewer = certified.find(queries, 10, bars=scores[:, -1].copy())
    np.testing.assert_array_equal(rows, again)
    np.testing.assert_array_equal(scores, same)
    above, _, fewest = certified.find(queries, 10, bars=scores[:, 4].copy())   # only the rows that matter
    np.testing.assert_array_equal(rows[:, :5], above[:, :5])
    assert (fewest <= fewer).all() and (fewer <= left).all() and fewest.sum() < left.sum()
    hopeless, none, _ = certified.find(queries, 10, bars=np.full(20, 1e6))
    assert (hopeless == -1).all() and np.isneginf(none).all()


@needs_core
def test_one_plan_is_chosen_for_all_shards_and_kept(tmp_path):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(1500, 32)) * np.linspace(2, 0.1, 32)
    with ShardedIndex.create(tmp_path / "many", [4, 8, 16, 32], shards=3) as many:
        many.add(vectors)
        many.compact()
        many.build(partition=16)
        assert len({json.dumps(shard.wanted(), sort_keys=True) for shard in many.shards}) == 1
        queries = rng.normal(size=(300, 32)) * np.linspace(2, 0.1, 32)
        choice = many.plan(0.9, queries=queries[:150], cost="bytes", progress=False)
        truth, found = many.search(queries).ids, many.search(queries, plan=choice).ids
        recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(truth, found, strict=True)])
        assert choice.met and recall >= 0.88
        assert many.check(queries, choice, recall=0.85).verdict == "holds"


def test_ids_are_placed_by_a_hash_that_never_changes():
    assert [shard_of(id, 1000) for id in (0, 1, 2**63 - 1, -(2**63), "0", "", "ключ")] == STORED
    counts = [len(at) for at in split(range(10_000), 8)]
    assert sum(counts) == 10_000 and min(counts) > 1100
    assert np.concatenate(split([f"{i}" for i in range(50)], 3)).size == 50


STORED = [58, 411, 564, 246, 764, 756, 12]


def test_rules_of_one_index_hold_for_all_shards(tmp_path):
    with ShardedIndex.create(tmp_path / "many", NESTING, shards=3) as many:
        many.add(np.ones((20, 8)), payload=[{"a": 1}, *[{"b": 2}] * 19])
        before = many.state
        for bad, match in (
            (lambda: many.add(np.ones((2, 8)), ids=[30, 3]), "ids must be new"),
            (lambda: many.add(np.full((2, 8), np.nan)), "finite"),
            (lambda: many.add(np.ones((2, 8)), ids=["a", "b"]), "integers"),
            (lambda: many.search(np.ones(8), where={"c": 1}), "no payload has"),
            (lambda: many.compact(background=True), "shard by shard"),
            (lambda: ShardedIndex.create(tmp_path / "many", NESTING, shards=2), "new or empty"),
            (lambda: ShardedIndex.create(tmp_path / "other", NESTING, shards=0), "shards"),
            (lambda: ShardedIndex.create(tmp_path / "other", NESTING, shards=2, rotation="auto"), "one rotation"),
        ):
            with pytest.raises(InputError, match=match):
                bad()
        with pytest.raises(UnknownId, match="99"):
            many.delete([1, 2, 99])
        assert many.state == before and len(many) == 20
        assert many.search(np.ones(8), where={"a": 1}).ids[0, :2].tolist() == [0, -1]   # a field of one shard only
        assert 3 in many and 99 not in many and 2**70 not in many and many[3].payload == {"b": 2}
        assert many.add(np.ones((2, 8))) == [20, 21]
        assert many.describe().shards == 3 and "in 3 shards" in str(many.describe())
        many.backup(tmp_path / "copy")
    with open_index(tmp_path / "copy", writable=True) as copy:
        assert copy.ids.tolist() == list(range(22))
    with pytest.raises(IndexFolderError, match=r"shards\.json"):
        ShardedIndex.open(tmp_path / "copy" / "shard-0000")
    manifest = tmp_path / "copy" / "shards.json"
    manifest.write_text(manifest.read_text().replace("shard-0001", "../many"))
    with pytest.raises(IndexFolderError, match="damaged"):
        open_index(tmp_path / "copy")


def add_until_killed(folder, acknowledged):
    index = ShardedIndex.open(folder, writable=True)
    rng = np.random.default_rng(1)
    while True:
        ids = index.add(rng.normal(size=(40, 8)))
        with acknowledged.open("a") as file:
            file.write(f"{ids[-1]}\n")
            file.flush()


def test_a_killed_addition_is_whole_or_absent(tmp_path):
    ShardedIndex.create(tmp_path / "many", NESTING, shards=4).close()
    acknowledged = tmp_path / "acknowledged"
    context = multiprocessing.get_context("fork")
    for wait in (0.05, 0.11, 0.17):
        child = context.Process(target=add_until_killed, args=(tmp_path / "many", acknowledged))
        before = acknowledged.read_text() if acknowledged.exists() else ""
        child.start()
        while not acknowledged.exists() or acknowledged.read_text() == before:
            time.sleep(0.005)
        time.sleep(wait)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        lasts = {int(line) for line in acknowledged.read_text().splitlines()}
        with ShardedIndex.open(tmp_path / "many", writable=True) as index:
            batches = index.ids.reshape(-1, 40)   # no batch is in part
            assert (np.diff(batches, axis=1) == 1).all()
            assert lasts <= set(batches[:, -1].tolist()) and len(batches) - len(lasts) <= 3   # none is lost
            index.verify()


def test_an_addition_that_fails_in_one_shard_is_undone_in_the_others(tmp_path, monkeypatch):
    with ShardedIndex.create(tmp_path / "many", NESTING, shards=3) as many:
        many.add(np.ones((30, 8)))
        monkeypatch.setattr(many.shards[2], "put", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            many.add(np.ones((30, 8)))
        assert many.ids.tolist() == list(range(30))
        assert not (tmp_path / "many" / "adding.json").exists()
