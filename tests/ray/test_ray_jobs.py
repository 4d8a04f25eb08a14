"""Fit, evaluate and build on a local cluster: equal to one process, whatever dies; parts on disk and on S3."""

import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from matryo import EmbeddingSet, Index, Retrofit, evaluate
from matryo.errors import EmbeddingsError, IndexFolderError, InputError
from matryo.evaluation.knn.search import search
from matryo.ray import Cluster, Parts, build_index, fit, fit_means, neighbours
from matryo.ray import evaluate as evaluate_on
from matryo.ray.parts import gather, write_part, written_parts
from matryo.ray.place import Place
from matryo.retrieve.shards import ShardedIndex

pytest_plugins = ["ray_cluster"]
cloudpickle = pytest.importorskip("ray._raylet") and pytest.importorskip("ray.cloudpickle")   # a folder is no Ray
cloudpickle.register_pickle_by_value(sys.modules[__name__])   # workers cannot import tests


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory):
    """Two embeddings folders with labels, ids and ties."""
    folder, rng = tmp_path_factory.mktemp("emb"), np.random.default_rng(0)
    centres = rng.normal(size=(12, 32)) * 2
    for name, count in (("train", 5000), ("test", 200)):
        labels = rng.integers(0, 12, count)
        vectors = (centres[labels] + rng.normal(size=(count, 32))) * np.linspace(2, 0.2, 32)
        vectors[: count // 10] = np.round(vectors[: count // 10])
        vectors[count // 10 : count // 5] = vectors[: count // 5 - count // 10]   # twins
        EmbeddingSet.write(folder / name, vectors, labels=labels, ids=[f"{name} {i}" for i in range(count)],
                           nesting=[8, 16, 32])   # fmt: skip
    return folder


class Fragile:
    """A worker that kills its own process at the first attempt of some jobs."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def run(self, number):
        marker = self.folder / str(number)
        if number % 3 == 0 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 100:
            raise InputError("a job must not be 100", got=number)
        return number * number


class Hopeless:
    """A worker that cannot start."""

    def __init__(self):
        raise InputError("no such model", got="runs/none")


def test_jobs_of_dead_workers_run_again_and_errors_are_raised(cluster, tmp_path):
    assert dict(cluster.run(Fragile, (str(tmp_path),), [(n,) for n in range(10)])) == {n: n * n for n in range(10)}
    with pytest.raises(InputError, match="must not be 100"):
        dict(cluster.run(Fragile, (str(tmp_path),), [(1,), (100,)]))
    with pytest.raises(InputError, match=r"could not start.*no such model"):
        dict(cluster.run(Hopeless, (), [(1,)]))
    with pytest.raises(InputError, match="workers must be at least 1"):
        Cluster(workers=0)


def test_neighbours_and_figures_equal_those_of_one_process(cluster, embeddings):
    known, asked = (EmbeddingSet.open(embeddings / name) for name in ("train", "test"))
    wanted = search(known.vectors, asked.vectors, [8, 16, 32], 20)
    (batch,) = neighbours(embeddings / "train", asked.vectors, [8, 16, 32], 20, cluster=cluster, range_rows=700)
    for dim, rows in wanted.items():
        np.testing.assert_array_equal(batch.indices[dim], rows)
    few = list(neighbours(embeddings / "train", asked.vectors, [32], 4900, cluster=cluster, range_rows=3000))
    whole = search(known.vectors, asked.vectors, [32], 4900)[32]
    np.testing.assert_array_equal(np.concatenate([one.indices[32] for one in few]), whole)
    one = evaluate(known, asked, progress=False)
    assert evaluate_on(known, asked, cluster=cluster, range_rows=900, progress=False) == one


def test_a_map_from_merged_moments_equals_that_of_one_process(cluster, embeddings):
    vectors = EmbeddingSet.open(embeddings / "train")
    one = Retrofit.fit(vectors, progress=False)
    many = fit(embeddings / "train", cluster=cluster, range_rows=800, progress=False, trained=vectors.nesting)
    assert (one.rung, one.nesting, one.provenance["rows"]) == (many.rung, many.nesting, many.provenance["rows"])
    np.testing.assert_allclose(many.moments.covariance, one.moments.covariance, atol=1e-5)
    few, some = (each.transform(vectors.vectors[:50], dim=8) for each in (one, many))
    np.testing.assert_allclose(np.abs(few), np.abs(some), atol=2e-3)


def test_means_lower_the_distances_as_k_means_does(cluster, embeddings):
    vectors = np.asarray(EmbeddingSet.open(embeddings / "train").vectors)
    means = fit_means(embeddings / "train", 12, unit=False, cluster=cluster, range_rows=900)

    def spread(chosen):
        return np.square(vectors[:, None] - chosen).sum(2).min(1).mean()

    start = vectors[np.random.default_rng(1).choice(5000, 12, replace=False)]
    assert means.shape == (12, 32) and spread(means) < 0.75 * spread(start)


def test_a_sharded_index_is_built_by_workers_and_resumes(cluster, embeddings, tmp_path, monkeypatch):
    known, queries = EmbeddingSet.open(embeddings / "train"), EmbeddingSet.open(embeddings / "test").vectors
    options = {"shards": 5, "nesting": [8, 32], "guides": {"sketch": True, "partition": 16}, "cluster": cluster}
    with monkeypatch.context() as patch:
        patch.setattr("matryo.retrieve.shards.Manifest.save", lambda *_: 1 / 0)   # the driver dies at the end
        with pytest.raises(ZeroDivisionError):
            build_index(embeddings / "train", tmp_path / "many", **options)
    assert not (tmp_path / "many" / "shards.json").exists()
    shutil.rmtree(tmp_path / "many" / "shard-0003")   # as if it had died earlier
    kept = (tmp_path / "many" / "shard-0001" / "index.sqlite").stat().st_ino
    with pytest.raises(IndexFolderError, match="same call"):
        build_index(embeddings / "test", tmp_path / "many", **options)
    with build_index(embeddings / "train", tmp_path / "many", **options) as many, \
            Index.create(tmp_path / "one", [8, 32]) as one:   # fmt: skip
        assert (tmp_path / "many" / "shard-0001" / "index.sqlite").stat().st_ino == kept
        one.add(known.vectors, known.ids.tolist())
        many.verify()
        mine, theirs = one.search(queries, 10), many.search(queries, 10)
        np.testing.assert_array_equal(mine.ids, theirs.ids)
        np.testing.assert_array_equal(mine.scores, theirs.scores)
        assert {len(shard) for shard in many.shards} != {1000} and set(many.wanted()) == {"sketch", "partition"}
    with pytest.raises(IndexFolderError, match="finished"):
        build_index(embeddings / "train", tmp_path / "many", **options)
    assert isinstance(ShardedIndex.open(tmp_path / "many"), ShardedIndex)


def write_parts(place, vectors, ids):
    records = {}
    for number, first in enumerate(range(0, len(vectors), 300)):
        part = slice(first, first + 300)
        columns = {"vectors": vectors[part], "ids": np.array(ids[part])}
        records[number] = write_part(place, number, first, columns, "stamp")
    about = {"dtype": "float32", "head": None, "fingerprint": {"by": "hand"}, "description": {"nesting": [8, 32]}}
    return Parts.commit(place, records, vectors.shape[1], about)


def check_parts(url, embeddings, tmp_path, cluster):
    known = EmbeddingSet.open(embeddings / "test")
    vectors, ids = np.asarray(known.vectors), known.ids.tolist()
    vectors, ids = np.concatenate([vectors] * 4)[:750], [f"{i}" for i in range(750)]
    place = Place.of(url)
    write_parts(place, vectors, ids)
    parts = Parts.open(url)
    assert (parts.count, parts.dim) == (750, 32) and set(written_parts(place, "stamp")[0]) == {0, 1, 2}
    np.testing.assert_array_equal(parts.read(250, 100), vectors[250:350])
    assert parts.read(599, 3, "ids").tolist() == ids[599:602]
    gathered = gather(parts, tmp_path / "gathered", progress=False)
    whole = EmbeddingSet.write(tmp_path / "whole", vectors, ids=ids, nesting=[8, 32])
    for file in whole.path.iterdir():
        assert file.read_bytes() == (gathered.path / file.name).read_bytes()
    (batch,) = neighbours(url, vectors[:30], [8, 32], 5, cluster=cluster)
    np.testing.assert_array_equal(batch.indices[32], search(vectors, vectors[:30], [8, 32], 5)[32])
    content = (place / "part-000001.npy").read()
    (place / "part-000001.npy").write(content[:-1] + b"\1")
    with pytest.raises(EmbeddingsError, match="damaged"):
        parts.read(300, 2)


def test_parts_in_a_folder(cluster, embeddings, tmp_path):
    check_parts(tmp_path / "parts", embeddings, tmp_path, cluster)


def test_parts_in_an_object_store(bucket, cluster, embeddings, tmp_path):
    check_parts(f"{bucket}/job/parts", embeddings, tmp_path, cluster)
    assert Place.of(f"{bucket}/none").names() == [] and Place.of(f"{bucket}/none").read() is None
    with pytest.raises(InputError, match="check the URL"):
        Parts.open(f"{bucket}/none")
