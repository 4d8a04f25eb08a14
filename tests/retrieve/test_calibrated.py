"""Calibrated search: the recall it promises is the recall it gives, and its scores are exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("numba")
from matryo import Nesting
from matryo.errors import InputError
from matryo.retrieve.blocks import Blocks
from matryo.retrieve.calibrated import Calibrated, Calibration
from matryo.retrieve.certified import Certified, scan_exactly
from matryo.retrieve.metric import METRICS, Metric
from matryo.retrieve.sketch import Sketch

K = 5


def made(rng: np.random.Generator, count: int) -> np.ndarray:
    return (rng.standard_normal((count, 128)) * np.arange(1, 129) ** -0.4).astype(np.float32)


@pytest.fixture(scope="module")
def blocks() -> Blocks:
    return Blocks.of(made(np.random.default_rng(0), 5000), Nesting([16, 128]))


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return made(np.random.default_rng(1), 600)


def recall(found: np.ndarray, true: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), true.tolist(), strict=True)]))


@pytest.mark.parametrize("metric", METRICS)
def test_the_recall_holds_on_queries_it_never_saw(blocks: Blocks, queries: np.ndarray, metric: Metric) -> None:
    exact = Certified(blocks, Sketch.of(blocks, metric, dims=(16, 80)))
    learned = Calibration.fit(exact, queries[:400], k=K, recall=0.95)
    rows, scores = Calibrated(exact, learned).search(queries[400:], K)
    true, true_scores = scan_exactly(blocks, queries[400:], K, metric)
    assert recall(rows, true) >= learned.at_least - 0.02
    assert learned.at_least <= learned.found <= 1
    assert learned.found >= 0.93   # two standard errors below what was asked for
    assert learned.kept < blocks.count / 4
    # What it finds it scores exactly.
    for found, given, best, best_scores in zip(rows, scores, true, true_scores, strict=True):
        known = dict(zip(best.tolist(), best_scores.tolist(), strict=True))
        for row, score in zip(found.tolist(), given.tolist(), strict=True):
            assert row not in known or score == pytest.approx(known[row], rel=1e-6)


def test_more_recall_counts_more_of_a_tail(blocks: Blocks, queries: np.ndarray) -> None:
    exact = Certified(blocks, Sketch.of(blocks, dims=(16, 80)))
    low, high = (Calibration.fit(exact, queries, k=K, recall=recall) for recall in (0.8, 0.995))
    assert all(a < b <= 1 for a, b in zip(low.shares, high.shares, strict=True))
    assert low.found < high.found


def test_shares_of_one_are_certain_but_for_rounding(blocks: Blocks, queries: np.ndarray) -> None:
    exact = Certified(blocks, Sketch.of(blocks, dims=(64,)))
    learned = replace(Calibration.fit(exact, queries[:100], k=K), shares=(1.0,))
    found, _ = Calibrated(exact, learned).search(queries[100:140], K)
    assert recall(found, scan_exactly(blocks, queries[100:140], K)[0]) == 1


def test_only_allowed_rows_are_found(blocks: Blocks, queries: np.ndarray) -> None:
    exact = Certified(blocks, Sketch.of(blocks, dims=(16, 80)))
    few = np.zeros(blocks.count, bool)
    few[[3, 77, 1234]] = True
    found, scores = Calibrated(exact, Calibration.fit(exact, queries[:60], k=K)).search(queries[:4], K, few)
    np.testing.assert_array_equal(found, scan_exactly(blocks, queries[:4], K, "cosine", few)[0])
    assert (found[:, 3:] == -1).all()
    assert np.isneginf(scores[:, 3:]).all()


def test_what_cannot_be_calibrated_or_used_is_refused(blocks: Blocks, queries: np.ndarray) -> None:
    exact = Certified(blocks, Sketch.of(blocks, dims=(32,)))
    with pytest.raises(InputError, match=r"recall must lie between 0 and 1 \(got 1.0\): search certified"):
        Calibration.fit(exact, queries, recall=1.0)
    with pytest.raises(InputError, match=r"it takes 40 queries to calibrate \(got 39\)"):
        Calibration.fit(exact, queries[:39])
    learned = Calibration.fit(exact, queries[:40], k=K)
    with pytest.raises(InputError, match=r"this calibration is for k = 5 \(got 6\)"):
        Calibrated(exact, learned).search(queries, 6)
    with pytest.raises(InputError, match="a calibration belongs to the sketch it was learned with"):
        Calibrated(Certified(blocks, Sketch.of(blocks, dims=(64,))), learned)
