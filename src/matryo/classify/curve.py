"""The cascade's curve: accuracy against expected dim over random hold-outs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from matryo.arguments import checked
from matryo.classify.labels import check_holdout, class_names, to_columns
from matryo.classify.outcomes import NEVER
from matryo.classify.rows import read_rows
from matryo.classify.thresholds.budget import budget_thresholds
from matryo.classify.thresholds.greedy import greedy_thresholds
from matryo.classify.thresholds.risk import fewest_rows, risk_thresholds
from matryo.classify.thresholds.strategy import check_choice, check_strategy
from matryo.classify.walk import ask_all
from matryo.embeddings import EmbeddingSet
from matryo.errors import InputError
from matryo.nesting import Nesting
from matryo.progress import tqdm
from matryo.results import SplitResult
from matryo.tables import Block, Metric, number, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matryo.classify.outcomes import CascadeResult, Outcomes
    from matryo.embeddings import Head

_LOSSES = (0.005, 0.01, 0.02, 0.05)


@dataclass(frozen=True)
class CascadeCurve(SplitResult):
    """Mean and standard deviation over the hold-outs, per point of the curve."""

    kind: ClassVar[str] = "cascade"
    head: str
    """"separate" or "tied"."""
    strategy: str
    """How thresholds were chosen: "greedy", "budget" or "risk"."""
    holdouts: int
    fitted_on: int
    """Rows per hold-out, which the thresholds were fitted on."""
    tested_on: int
    dims: tuple[int, ...]
    """All dims of the cascade."""
    single: tuple[float, ...]
    """[dims]: accuracy of that dim alone on all examples (no cascade)."""
    stop: tuple[float, ...]
    """[points]: for greedy the last dim allowed; for budget the expected dim allowed; for risk the loss allowed."""
    accuracy: tuple[float, ...]
    accuracy_sd: tuple[float, ...]
    expected_dim: tuple[float, ...]
    """[points]: mean of the last dim used."""
    expected_dim_sd: tuple[float, ...]
    cumulative_dim: tuple[float, ...]
    """[points]: mean of the sum of all dims computed, the cost of separate heads."""
    cumulative_dim_sd: tuple[float, ...]

    def blocks(self) -> list[Block]:
        """Return one table with a row per point of the curve."""
        rows = {"greedy": "last dim", "budget": "budget", "risk": "max loss"}[self.strategy]
        metrics = [
            Metric(f"{title}{spread}", dict(zip(self.stop, getattr(self, f"{name}{end}"), strict=True)), text)
            for name, title, text in (("accuracy", "accuracy", percent), ("expected_dim", "expected dim", number),
                                      ("cumulative_dim", "cumulative dim", number))
            for end, spread in (("", ""), ("_sd", " ±"))
        ]  # fmt: skip
        about = (
            f"{self.strategy} cascade, mean ± standard deviation over {self.holdouts} hold-outs, fitted on "
            f"{self.fitted_on:,} rows, tested on {self.tested_on:,}"
        )
        return [Block(self.model, self.where, about, metrics, rows=rows)]


@checked
def cascade_curve(
    X: Any,
    y: Any = None,
    *,
    nesting: Nesting | Sequence[int] | None = None,
    head: Head | None = None,
    strategy: str = "greedy",
    stops: Sequence[float] | None = None,
    confidence: float = 0.95,
    holdouts: int = 30,
    fraction: float = 0.5,
    seed: int = 0,
    progress: bool = True,
) -> CascadeCurve:
    """Fit on a random ``fraction`` of the rows and test on the others, ``holdouts`` times.

    ``X``, ``y``, ``nesting`` and ``head`` are those of :class:`Cascade`. The points of the curve are ``stops``: for
    "greedy" the last dims allowed (default: every dim), for "budget" the expected dims allowed (default: every dim and
    those between), for "risk" the losses allowed (default: those of 0.5, 1, 2 and 5 points that the number of rows can
    certify).
    """
    check_strategy(strategy)
    rows = read_rows(X, nesting, head)
    columns = to_columns(X, y, class_names(None, rows.classes), rows.count)
    check_holdout(columns)
    outcomes = ask_all(rows, columns)
    fitted = _check_sizes(outcomes.count, fraction, holdouts)
    points = _points(strategy, stops, rows.dims, confidence, fitted)
    found = []
    for turn in tqdm(range(holdouts), desc="cascade", unit="hold-out", delay=2, disable=not progress):
        order = np.random.default_rng([seed, turn]).permutation(outcomes.count)
        holdout, rest = outcomes.select(order[:fitted]), outcomes.select(order[fitted:])
        found.append(_fit_and_test(holdout, rest, strategy, points, confidence, turn))
    model, dataset, split = X.manifest.origin if isinstance(X, EmbeddingSet) else ("", "", "")
    return CascadeCurve(
        model,
        dataset,
        split,
        head="tied" if rows.tied else "separate",
        strategy=strategy,
        holdouts=holdouts,
        fitted_on=fitted,
        tested_on=outcomes.count - fitted,
        dims=rows.dims,
        single=tuple(outcomes.correct.mean(axis=1).tolist()),
        stop=tuple(points),
        **_summary(found),
    )


def _fit_and_test(
    holdout: Outcomes, rest: Outcomes, strategy: str, points: Sequence[float], confidence: float, seed: int
) -> list[CascadeResult]:
    dims = holdout.dims
    if strategy == "greedy":   # stopping earlier leaves the thresholds before that as they were
        thresholds, last = greedy_thresholds(holdout), [dims.index(int(stop)) for stop in points]
        return [rest.until(place + 1).measure(thresholds[:place]) for place in last]
    if strategy == "budget":
        return [rest.measure(thresholds) for thresholds in budget_thresholds(holdout, points)]
    found = [risk_thresholds(holdout, stop, confidence, seed) for stop in points]
    full = np.full(len(dims) - 1, NEVER)
    return [rest.measure(full if thresholds is None else thresholds) for thresholds in found]


def _points(
    strategy: str, stops: Sequence[float] | None, dims: tuple[int, ...], confidence: float, fitted: int
) -> tuple[float, ...]:
    defaults: dict[str, Callable[[], Sequence[float]]] = {
        "greedy": lambda: dims,
        "budget": lambda: (*dims, *Nesting(dims).between()),
        "risk": lambda: [loss for loss in _LOSSES if fewest_rows(loss, confidence) <= fitted] or _LOSSES[-1:],
    }
    points = tuple(sorted(defaults[strategy]() if stops is None else stops))
    for stop in points:
        if strategy == "greedy" and stop not in dims:
            raise InputError("a greedy cascade must stop at one of its dims", got=stop, cure=f"choose from {dims}")
        check_choice(dims, strategy, expected_dim=stop, max_loss=stop, confidence=confidence)
    return points


def _check_sizes(count: int, fraction: float, holdouts: int) -> int:
    fitted = round(fraction * count) if 0 <= fraction <= 1 else 0
    if holdouts < 2 or not 2 <= fitted <= count - 1:
        raise InputError(
            "there must be at least two hold-outs of at least two rows, with rows left to test on",
            got=f"{holdouts} hold-outs of {fraction:g} of {count} rows",
            cure="choose a fraction between 0 and 1, or give more rows",
        )
    return fitted


def _summary(results: list[list[CascadeResult]]) -> dict[str, tuple[float, ...]]:
    found: dict[str, tuple[float, ...]] = {}
    for name in ("accuracy", "expected_dim", "cumulative_dim"):
        values = np.array([[getattr(point, name) for point in points] for points in results])
        found[name] = tuple(values.mean(axis=0).tolist())
        found[f"{name}_sd"] = tuple(values.std(axis=0, ddof=1).tolist())
    return found
