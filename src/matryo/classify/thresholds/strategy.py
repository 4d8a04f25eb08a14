"""The three strategies to choose thresholds, by name, and checks of their options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.classify.thresholds.budget import budget_thresholds
from matryo.classify.thresholds.greedy import greedy_thresholds
from matryo.classify.thresholds.risk import risk_thresholds
from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Doubles
    from matryo.classify.outcomes import Outcomes

STRATEGIES = ("greedy", "budget", "risk")

_LEAST_LOSS = 1e-9   # a smaller loss would need billions of rows


def choose_thresholds(
    outcomes: Outcomes, strategy: str, expected_dim: float | None, max_loss: float, confidence: float, seed: int
) -> Doubles | None:
    """Return [dims − 1]: the thresholds that ``strategy`` chooses on these rows; None if none can be certified."""
    if strategy == "risk":
        return risk_thresholds(outcomes, max_loss, confidence, seed)
    if strategy == "budget":
        assert expected_dim is not None   # ensured by check_choice
        return budget_thresholds(outcomes, [expected_dim])[0]
    return greedy_thresholds(outcomes)


def check_strategy(strategy: str) -> None:
    """Raise unless ``strategy`` exists."""
    if strategy not in STRATEGIES:
        raise InputError("no such strategy", got=strategy, cure=f"choose from {', '.join(STRATEGIES)}")


def check_choice(
    dims: Sequence[int], strategy: str, expected_dim: float | None, max_loss: float, confidence: float
) -> None:
    """Raise unless ``strategy`` exists and its options are valid: some cascade can meet a budget."""
    check_strategy(strategy)
    if strategy == "budget" and (expected_dim is None or not expected_dim >= dims[0]):   # also refuses NaN
        raise InputError(
            f"the budget strategy needs an expected_dim of at least {dims[0]}, the smallest dim",
            got=expected_dim,
            cure=f"choose one between {dims[0]} and {dims[-1]}",
        )
    if strategy == "risk" and not (_LEAST_LOSS <= max_loss < 1 and 0 < confidence < 1):
        raise InputError(
            f"max_loss and confidence must be between 0 and 1, and max_loss at least {_LEAST_LOSS:g}",
            got=f"max_loss={max_loss}, confidence={confidence}",
            cure="for half a point with 95 % confidence write max_loss=0.005, confidence=0.95",
        )
