"""The recall of an index of codes among all vectors, against plain loops."""

import numpy as np
import pytest

from matryo import Compression, Index
from matryo.retrieve.compress.filling import Filling

DIM = 12


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.parametrize("names", [False, True])
def test_recall_is_that_of_loops(metric, names, tmp_path):
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(600, DIM)) * np.geomspace(1, 0.1, DIM) + 0.2).astype(np.float32)
    batches = np.split(vectors, [100, 130, 400])
    filling = Filling(metric, k=5, most=40)
    assert sum(len(batch) for batch in filling.sampled(batches)) == 600
    own = Compression.fit(vectors, bits=4, metric=metric, progress=False)
    with Index.create(tmp_path / "i", compression=own) as index:
        for batch in batches:
            ids = [f"r{len(index) + row}" for row in range(len(batch))] if names else None
            filling.see(batch, index.add(batch, ids=ids))
        facts = filling.recall(index)
        index.record_recall(facts)
        every = index.search(vectors, 6).ids.tolist()
        line = index.describe().codes
    rows = filling._reservoir.sample()[0].tolist()
    shares = []
    for row in rows:
        score = {"cosine": lambda x, q: x @ q / np.linalg.norm(x), "ip": lambda x, q: x @ q,
                 "l2": lambda x, q: -np.square(x - q).sum()}[metric]  # fmt: skip
        scores = [score(vectors[other].astype(np.float64), vectors[row].astype(np.float64)) for other in range(600)]
        true = [other for other in np.argsort(scores)[::-1].tolist() if other != row][:5]
        found = [int(str(id).removeprefix("r")) for id in every[row]]
        shares.append(len({*[other for other in found if other != row][:5]} & {*true}) / 5)
    assert len(rows) == 40 and facts["rows"] == 600 and facts["recall"] == pytest.approx(np.mean(shares))
    assert 0 < facts["lower"] < facts["recall"] < 1
    assert f"recall@5 {facts['recall']:.1%}, at least {facts['lower']:.1%} with 95% confidence" in line
    with Index.open(tmp_path / "i") as index:
        assert index.measured == facts


def test_nothing_is_measured_unless_all_rows_were_added(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(600, DIM)).astype(np.float32)
    filling = Filling("cosine")
    list(filling.sampled([vectors]))
    with Index.create(tmp_path / "i", compression=Compression.fit(vectors, bits=8, progress=False)) as index:
        assert filling.recall(index) is None
        filling.see(vectors[:300], index.add(vectors[:300]))
        assert filling.recall(index) is None and index.measured == {}
        assert "recall was not measured" in index.describe().codes
