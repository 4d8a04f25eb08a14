import pickle

import numpy as np
import pytest
from retrieval import Task
from support.retrieval_ours import partition_asks, partition_builds

from matryo import EmbeddingSet, Nesting, Plan
from matryo.embeddings import EmbeddingWriter

NESTING = Nesting.halving(256)


@pytest.fixture
def task(tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("database", 50), ("queries", 1020)):
        with EmbeddingWriter(tmp_path / name, dim=256, dtype="float16", nesting=NESTING, model="model") as writer:
            writer.append(rng.standard_normal((count, 256)).astype("f4"), np.arange(count) % 5)
    return Task(tmp_path / "database", tmp_path / "queries", 40, 20, 256, 0)


def test_a_task_goes_to_another_process_without_its_arrays(task):
    assert task.sets[0].count == 50 and len(task.rows) == 40
    sent = pickle.dumps(task)
    assert len(sent) < 2000
    again = pickle.loads(sent)
    assert again == task and (again.rows == task.rows).all()


def test_batches_are_the_chosen_rows_of_length_1(task):
    database, whole = task.database_vectors(), EmbeddingSet.open(task.database).vectors
    (start, stored), (_, unit) = next(database.stored()), next(database.batches(8))
    assert start == 0 and (stored == whole[task.rows]).all()
    assert np.linalg.norm(unit, axis=1) == pytest.approx(np.ones(40)) and unit.shape == (40, 8)


def test_plans_fit_the_tiles_they_are_asked_of(task):
    database = task.database_vectors()
    builds = partition_builds(database)
    assert [build["dim"] for build in builds] == [None, 16, 32]   # None: the layout is chosen
    assert all(build["dtype"] == "float16" for build in builds)   # as the file is
    for build in builds:
        plans = [Plan.from_dict(ask["plan"]) for ask in partition_asks(database, build)]
        assert all(plan.stages[0].dim == (build["dim"] or 64) and plan.dim == 256 for plan in plans)
        assert len(plans) > 9
