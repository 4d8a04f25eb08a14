"""Parts of embeddings, and the work of the jobs in one process: what needs no Ray."""

import numpy as np
import pytest
from needs_core import needs_core

from matryo import EmbeddingSet, Index, Retrofit
from matryo.embeddings.head import Head
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation.knn.search import search
from matryo.ray import Cluster, Parts, build_index, fit, gather, neighbours
from matryo.ray.fitting import _drawn
from matryo.ray.parts import write_part, written_parts
from matryo.ray.place import Place
from matryo.retrofit.reading import Reservoir


class Here(Cluster):
    """Runs jobs in this process, the last one first."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def room(self):
        return 2

    def share(self, value):
        return value

    def run(self, worker, arguments, jobs):
        made = worker(*arguments)
        return ((number, made.run(*jobs[number])) for number in reversed(range(len(jobs))))


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    vectors = rng.integers(-2, 3, (700, 16)) * np.linspace(2, 0.3, 16)
    return vectors.astype(np.float32), [f"row {i}" for i in range(700)]


@pytest.fixture
def written(tmp_path, rows):
    """Parts of 150 rows, with labels, ids and a head."""
    vectors, ids = rows
    place, records = Place.of(tmp_path / "parts"), {}
    for number, first in enumerate(range(0, 700, 150)):
        part = slice(first, first + 150)
        columns = {"vectors": vectors[part], "ids": np.array(ids[part]), "labels": np.arange(700)[part] % 3}
        records[number] = write_part(place, number, first, columns, "stamp")
    head = Head.tied(np.ones((3, 16), np.float32), None, dims=[4, 16])
    head.save(tmp_path / "parts" / "head.safetensors")
    description = {"nesting": [4, 16], "classes": ["a", "b", "c"], "dataset": "made"}
    about = {"dtype": "float32", "head": "tied", "fingerprint": "f", "description": description}
    return Parts.commit(place, records, 16, about), head, description


def test_gathered_parts_are_byte_for_byte_one_folder(tmp_path, rows, written):
    vectors, ids = rows
    parts, head, description = written
    gathered = gather(Parts.open(parts.place.url), tmp_path / "gathered", progress=False)
    given = {"ids": ids, "labels": np.arange(700) % 3, "head": head, **description}
    whole = EmbeddingSet.write(tmp_path / "whole", vectors, **given)
    assert sorted(file.name for file in gathered.path.iterdir()) == sorted(file.name for file in whole.path.iterdir())
    for file in whole.path.iterdir():
        assert file.read_bytes() == (gathered.path / file.name).read_bytes(), file.name
    gathered.verify()


def test_ranges_are_read_across_parts_and_damage_is_found(written, rows):
    parts, vectors = Parts.open(written[0].place.url), rows[0]
    np.testing.assert_array_equal(parts.read(140, 200), vectors[140:340])
    assert parts.read(149, 2, "ids").tolist() == ["row 149", "row 150"]
    assert parts.ranges(300) == [(0, 300), (300, 300), (600, 100)] and parts.ranges(10) == parts.ranges(150)
    found, others = written_parts(parts.place, "stamp")
    assert set(found) == {0, 1, 2, 3, 4} and others == 0 and written_parts(parts.place, "other") == ({}, 5)
    (parts.place / "part-000002.json").write(b'{"number": 2}')
    assert set(written_parts(parts.place, "stamp")[0]) == {0, 1, 3, 4}
    with pytest.raises(EmbeddingsError, match="every row once"):
        Parts.commit(parts.place, {0: found[0], 1: found[2]}, 16, None)
    (parts.place / "part-000000.npy").write(b"short")
    with pytest.raises(EmbeddingsError, match=r"part-000000\.npy is damaged"):
        parts.read(0, 1)
    (parts.place / "parts.json").write(b"{}")
    with pytest.raises(EmbeddingsError, match=r"parts\.json is damaged"):
        Parts.open(parts.place.url)
    with pytest.raises(EmbeddingsError, match="there must be vectors"):
        Parts.open(parts.place.path.parent)
    with pytest.raises(InputError, match="gather needs parts"):
        gather(Parts(parts.place, 1, 2), "out")


@needs_core
def test_neighbours_of_ranges_are_those_of_all_rows(written, rows):
    vectors, wanted = rows[0], search(rows[0], rows[0][:40], [4, 16], 30)
    (batch,) = neighbours(written[0].place.url, vectors[:40], [16, 4], 30, cluster=Here(), range_rows=300)
    for dim, hits in wanted.items():
        np.testing.assert_array_equal(batch.indices[dim], hits)
    (few,) = neighbours(written[0].place.url, vectors[:3], [4], 700, cluster=Here())   # more than a range has
    np.testing.assert_array_equal(few.indices[4], search(vectors, vectors[:3], [4], 700)[4])
    with pytest.raises(InputError, match="k must be in 1 … 700"):
        list(neighbours(written[0].place.url, vectors[:3], [4], 701, cluster=Here()))


def test_the_sample_of_a_fit_is_that_of_one_process(tmp_path):
    rng = np.random.default_rng(1)
    vectors = (rng.normal(size=(900, 12)) @ rng.normal(size=(12, 12))).astype(np.float32)
    reservoir = Reservoir(100, np.empty(0, np.int64), np.random.default_rng(5))
    for start in range(0, 900, 250):
        reservoir.add(vectors[start : start + 250])
    assert _drawn(900, 100, np.random.default_rng(5)).tolist() == reservoir.sample()[0].tolist()
    np.save(tmp_path / "v.npy", vectors)
    one = Retrofit.fit(vectors, progress=False)
    many = fit(tmp_path / "v.npy", cluster=Here(), range_rows=211, progress=False)
    assert (one.rung, one.nesting) == (many.rung, many.nesting)
    np.testing.assert_allclose(one.moments.covariance, many.moments.covariance, rtol=1e-4, atol=1e-5)


def test_shards_built_by_jobs_answer_as_one_index(tmp_path, written, rows):
    vectors, ids = rows
    with build_index(written[0].place.url, tmp_path / "many", shards=3, nesting=[4, 16], cluster=Here(),
                     progress=False) as many, Index.create(tmp_path / "one", [4, 16]) as one:   # fmt: skip
        one.add(vectors, ids)
        mine, theirs = one.search(vectors[:20], 12), many.search(vectors[:20], 12)
        np.testing.assert_array_equal(mine.ids, theirs.ids)
        np.testing.assert_array_equal(mine.scores, theirs.scores)
        assert many.ids.tolist() == ids
    with pytest.raises(InputError, match="drop graph"):
        build_index(written[0].place.url, tmp_path / "other", shards=3, guides={"graph": 4})
