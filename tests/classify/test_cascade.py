"""Cascade as users hold it: fit, predict, labels of any name, saving, and each error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import EmbeddingSet, Nesting
from matryo.classify import Cascade
from matryo.classify.outcomes import NEVER
from matryo.classify.rows import read_rows
from matryo.classify.thresholds.budget import budget_thresholds
from matryo.classify.thresholds.greedy import greedy_thresholds
from matryo.classify.walk import ask_all
from matryo.embeddings import Head
from matryo.errors import InputError, NestingError

DIMS, CLASSES = (2, 4, 8), 4


def problem(count: int, seed: int, dim: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Gaussians whose means lie further apart with every dim, by ever less."""
    rng = np.random.default_rng(seed)
    y = rng.integers(CLASSES, size=count)
    return (MEANS[:, :dim][y] + rng.normal(size=(count, dim))).astype(np.float32), y


MEANS = np.random.default_rng(5).normal(size=(CLASSES, 8)) * 3 / np.arange(1, 9)
# The best classifier there is of such Gaussians: log-likelihoods at each dim.
HEAD = Head.separate({m: MEANS[:, :m] for m in DIMS}, {m: -0.5 * (MEANS[:, :m] ** 2).sum(axis=1) for m in DIMS})
X, Y = problem(1500, 0)
FRESH, TRUTH = problem(4000, 1)
LOGITS = dict(HEAD.all_logits(X))


def test_fresh_rows_are_answered_with_fewer_dims_and_as_well() -> None:
    cascade = Cascade(head=HEAD).fit(X, Y)
    found = cascade.measure(FRESH, TRUTH)
    assert found.full_accuracy == pytest.approx((HEAD.logits(FRESH, 8).argmax(axis=1) == TRUTH).mean())
    assert found.accuracy >= found.full_accuracy - 0.02
    assert found.expected_dim < 7
    assert cascade.score(FRESH, TRUTH) == pytest.approx(found.accuracy)
    assert cascade.exit_dim(FRESH).mean() == pytest.approx(found.expected_dim)
    assert (cascade.predict(FRESH) == TRUTH).mean() == pytest.approx(found.accuracy)
    probabilities = cascade.predict_proba(FRESH)
    assert (probabilities.argmax(axis=1) == cascade.predict(FRESH)).all()
    assert probabilities.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert probabilities.max(axis=1) == pytest.approx(cascade.answers(FRESH).confidence, abs=1e-6)


def test_thresholds_are_those_of_the_strategy() -> None:
    outcomes = ask_all(read_rows(X, None, HEAD), Y)
    assert (Cascade(head=HEAD).fit(X, Y).thresholds_ == greedy_thresholds(outcomes)).all()
    cheap = Cascade(head=HEAD, strategy="budget", expected_dim=4).fit(X, Y)
    assert (cheap.thresholds_ == budget_thresholds(outcomes, [4])[0]).all()
    assert cheap.holdout_ == outcomes.measure(cheap.thresholds_)
    assert cheap.holdout_.expected_dim <= 4
    assert cheap.measure(FRESH, TRUTH).expected_dim == pytest.approx(4, abs=0.3)
    assert not hasattr(cheap, "certified_")


def test_a_certified_cascade_keeps_its_promise() -> None:
    cascade = Cascade(head=HEAD, strategy="risk", max_loss=0.03).fit(X, Y)
    found = cascade.measure(FRESH, TRUTH)
    assert cascade.certified_ is True
    assert found.full_accuracy - found.accuracy <= 0.03
    assert found.expected_dim < 7.5


def test_where_nothing_can_be_certified_the_last_dim_answers() -> None:
    wrong = np.eye(2)[1 - Y % 2] * 99
    logits = {2: wrong, 8: np.eye(2)[Y % 2] * 5}   # dim 2 is always sure and always wrong
    cascade = Cascade(strategy="risk").fit(logits, Y % 2)
    assert cascade.certified_ is False
    assert (cascade.exit_dim(logits) == 8).all()
    assert cascade.thresholds_.tolist() == [NEVER]
    assert cascade.score(logits, Y % 2) == 1
    cascade.set_params(strategy="greedy").fit(logits, Y % 2)
    assert not hasattr(cascade, "certified_")   # what an earlier fit learned is gone


def test_every_form_of_the_same_rows_gives_the_same_cascade() -> None:
    embeddings = EmbeddingSet.of(X, labels=Y, head=HEAD, nesting=Nesting(DIMS))
    stacked = np.stack(list(LOGITS.values()))
    fitted = [
        Cascade(head=HEAD).fit(X, Y),
        Cascade().fit(embeddings),
        Cascade(Nesting(DIMS)).fit(stacked, Y),
        Cascade(list(DIMS)).fit(list(stacked), Y.tolist()),
        Cascade().fit(LOGITS, Y),
    ]
    for one in fitted:
        assert one.thresholds_.tolist() == fitted[0].thresholds_.tolist()
        assert one.dims_ == DIMS
        assert one.classes_.tolist() == [0, 1, 2, 3]
        assert (one.predict(embeddings) == fitted[0].predict(X)).all()
        assert (one.predict(LOGITS) == fitted[0].predict(X)).all()
    assert [getattr(one, "n_features_in_", None) for one in fitted] == [8, 8, None, None, None]


def test_embeddings_on_disk_are_read_part_by_part(tmp_path: Path) -> None:
    labels = Y.copy()
    labels[::5] = -1   # unknown
    mine = EmbeddingSet.write(tmp_path / "mine", X, labels=labels, head=HEAD, nesting=Nesting(DIMS), dtype="float32")
    cascade = Cascade().fit(EmbeddingSet.open(tmp_path / "mine"))
    known = labels >= 0
    assert cascade.thresholds_.tolist() == Cascade(head=HEAD).fit(X[known], Y[known]).thresholds_.tolist()
    assert cascade.holdout_.count == known.sum()
    assert len(cascade.predict(mine)) == len(X)
    assert cascade.score(mine) == pytest.approx(Cascade(head=HEAD).fit(X[known], Y[known]).score(X[known], Y[known]))


def test_classes_may_have_any_names() -> None:
    names = ["pear", "fig", "apple", "kiwi"]
    cascade = Cascade(classes=names).fit(LOGITS, np.array(names)[Y])
    plain = Cascade().fit(LOGITS, Y)
    assert cascade.predict(LOGITS).tolist() == [names[label] for label in plain.predict(LOGITS)]
    assert cascade.score(LOGITS, np.array(names, object)[Y]) == plain.score(LOGITS, Y)
    embeddings = EmbeddingSet.of(X, labels=Y, head=HEAD, classes=names)   # labels of embeddings are columns
    assert Cascade(classes=names).fit(embeddings).predict(embeddings).tolist() == cascade.predict(LOGITS).tolist()
    odd = Cascade(classes=[30, 10, 20, -1]).fit(LOGITS, np.array([30, 10, 20, -1])[Y])
    assert odd.score(LOGITS, np.array([30, 10, 20, -1])[Y]) == plain.score(LOGITS, Y)


@pytest.mark.parametrize("settings", [
    {}, {"strategy": "budget", "expected_dim": 2.0}, {"strategy": "risk", "max_loss": 0.03, "seed": 3},
    {"classes": ["a", "b", "c", "d"]},
])  # fmt: skip
def test_a_saved_cascade_answers_the_same(settings: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "sub" / "cascade.json"
    y = np.array(settings["classes"])[Y] if "classes" in settings else Y
    cascade = Cascade(head=HEAD, **settings).fit(X, y)
    cascade.save(path)
    again = Cascade.load(path, head=HEAD)
    assert again.thresholds_.tolist() == cascade.thresholds_.tolist()   # to the last bit
    assert (again.predict(FRESH) == cascade.predict(FRESH)).all()
    assert again.predict(FRESH).dtype == cascade.predict(FRESH).dtype
    assert (Cascade.load(path).predict(LOGITS) == cascade.predict(X)).all()   # logits need no head
    assert again.holdout_ == cascade.holdout_
    assert getattr(again, "certified_", None) == getattr(cascade, "certified_", None)
    assert {name: getattr(again, name) for name in ("strategy", "expected_dim", "max_loss", "seed")} == {
        name: getattr(cascade, name) for name in ("strategy", "expected_dim", "max_loss", "seed")
    }
    json.loads(path.read_text(), parse_constant=pytest.fail)   # plain JSON: no NaN, no Infinity
    again.save(tmp_path / "again.json")
    if "classes" in settings:
        assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_a_dim_that_never_answers_survives_saving(tmp_path: Path) -> None:
    logits = {2: np.eye(2)[1 - Y % 2] * 99, 8: np.eye(2)[Y % 2]}
    Cascade(strategy="risk").fit(logits, Y % 2).save(tmp_path / "c.json")
    assert Cascade.load(tmp_path / "c.json").thresholds_.tolist() == [NEVER]
    assert Cascade.load(tmp_path / "c.json").certified_ is False


def test_files_that_are_no_cascade(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with pytest.raises(InputError, match=r"c.json must be a saved cascade .*No such file"):
        Cascade.load(path)
    Cascade().fit(LOGITS, Y).save(path)
    good = json.loads(path.read_text())
    short = {**good, "holdout": {**good["holdout"], "thresholds": [0.5]}}
    for text in ("{", "[]", "{}", json.dumps({**good, "format": "other"}), json.dumps(short)):
        path.write_text(text)
        with pytest.raises(InputError, match=r"must be a saved cascade .*save it again"):
            Cascade.load(path)


def test_parameters_are_read_and_set_as_scikit_learn_does() -> None:
    cascade = Cascade(DIMS, strategy="risk", max_loss=0.01)
    params = cascade.get_params()
    assert list(params) == [
        "nesting", "head", "classes", "strategy", "expected_dim", "max_loss", "confidence", "seed",
    ]   # fmt: skip
    assert params["max_loss"] == 0.01
    assert repr(cascade) == "Cascade(nesting=(2, 4, 8), strategy='risk', max_loss=0.01)"
    assert repr(Cascade()) == "Cascade()"
    assert Cascade(**params).get_params() == params
    assert cascade.set_params(strategy="greedy") is cascade
    assert cascade.strategy == "greedy"
    with pytest.raises(InputError, match=r"Cascade has no such parameter \(got \['depth'\]\): choose from nesting"):
        cascade.set_params(depth=3)


def test_fitting_again_gives_the_same_and_leaves_the_input_alone() -> None:
    before = X.copy()
    cascade = Cascade(head=HEAD, strategy="risk", max_loss=0.03, seed=4)
    first = cascade.fit(X, Y).thresholds_.tolist()
    assert cascade.fit(X, Y).thresholds_.tolist() == first
    assert (before == X).all()
    unfitted = Cascade(strategy="risk")
    with pytest.raises(InputError, match="at least 1,149 rows"):
        unfitted.fit({m: one[:50] for m, one in LOGITS.items()}, Y[:50])
    assert not hasattr(unfitted, "thresholds_")


def test_one_dim_alone_is_a_cascade_too() -> None:
    for strategy in ({}, {"strategy": "budget", "expected_dim": 8}, {"strategy": "risk"}):
        cascade = Cascade([8], **strategy).fit({8: LOGITS[8]}, Y)
        assert (cascade.predict({8: LOGITS[8]}) == LOGITS[8].argmax(axis=1)).all()


def test_what_cannot_be_fitted() -> None:
    with pytest.raises(InputError, match=r"no such strategy \(got bold\): choose from greedy, budget, risk"):
        Cascade(strategy="bold").fit(LOGITS, Y)
    for budget in (None, 1.5, float("nan")):
        with pytest.raises(InputError, match=r"needs an expected_dim of at least 2, .*choose one between 2 and 8"):
            Cascade(strategy="budget", expected_dim=budget).fit(LOGITS, Y)
    for wrong in ({"max_loss": 0}, {"max_loss": 1.0}, {"confidence": 95}):
        with pytest.raises(InputError, match="max_loss and confidence must be between 0 and 1"):
            Cascade(strategy="risk", **wrong).fit(LOGITS, Y)
    with pytest.raises(InputError, match=r"at least two classes \(got 1500 rows, 1 class\): give labelled rows of"):
        Cascade().fit(LOGITS, np.zeros_like(Y))
    with pytest.raises(InputError, match=r"at least two classes \(got 0 rows, 0 classes\)"):
        Cascade().fit({m: one[:0] for m, one in LOGITS.items()}, [])
    with pytest.raises(InputError, match="requires y to be passed"):
        Cascade().fit(LOGITS)
    with pytest.raises(InputError, match=r"the embeddings must have labels .*labels=…"):
        Cascade().fit(EmbeddingSet.of(X, head=HEAD))
    with pytest.raises(InputError, match=r"one for each of the 1500 rows \(got shape \(1499,\), int64\)"):
        Cascade().fit(LOGITS, Y[1:])
    with pytest.raises(InputError, match=r"labels must be among the classes .*got 4, 5"):
        Cascade().fit(LOGITS, Y + 2)
    with pytest.raises(InputError, match=r"labels must be among .*got -1"):
        Cascade().fit(LOGITS, Y - 1)   # only embeddings may leave classes unknown
    for names in (["a"], ["a", "b", "c", "c"], [("a", "b")] * 4, ["a", "b", "c", None]):
        with pytest.raises(InputError, match=r"name each of the 4 columns of the logits once"):
            Cascade(classes=names).fit(LOGITS, Y)
    with pytest.raises(InputError, match="logits must be finite"):
        Cascade().fit({m: np.where(one > 3, np.nan, one) for m, one in LOGITS.items()}, Y)
    with pytest.raises(NestingError, match="must not exceed"):
        Cascade([2, 16], head=HEAD).fit(X, Y)


def test_what_cannot_be_answered() -> None:
    with pytest.raises(InputError, match=r"must be fitted before it answers \(got Cascade\(\)\)"):
        Cascade().predict(LOGITS)
    with pytest.raises(InputError, match="must be fitted"):
        Cascade().save("nowhere.json")
    cascade = Cascade(head=HEAD).fit(X, Y)
    with pytest.raises(InputError, match=r"vectors must have 8 columns, as those .*got 9"):
        cascade.predict(np.zeros((3, 9)))
    with pytest.raises(InputError, match=r"logits for the 4 classes the cascade was fitted to \(got 3\)"):
        cascade.predict({m: one[:, :3] for m, one in LOGITS.items()})
    with pytest.raises(NestingError, match=r"got none for 8"):
        cascade.predict({2: LOGITS[2], 4: LOGITS[4]})
    with pytest.raises(InputError, match="logits must be finite"):
        cascade.predict(np.full((1, 8), np.nan))
    unknown = EmbeddingSet.of(X, labels=np.full(len(X), -1), head=HEAD)
    for ask in (cascade.score, cascade.measure):
        with pytest.raises(InputError, match=r"rows whose class is known \(got 1500 rows\)"):
            ask(unknown)
    assert len(cascade.predict(unknown)) == 1500
