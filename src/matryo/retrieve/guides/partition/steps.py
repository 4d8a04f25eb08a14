"""Translate a plan into the steps that the compiled search of partitions follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.retrieve.plan.plan import Plan, Stage

if TYPE_CHECKING:
    from matryo.retrieve.guides.partition.partition import Partition
    from matryo.retrieve.vectors.blocks import Blocks


CODES, FULL, BOUNDED = range(3)
"""How a stage scores: codes; full precision; full precision only for rows that the bounds of codes leave open."""


def steps_of(plan: Plan, blocks: Blocks, partition: Partition) -> list[tuple[int, int, int, int, float]]:
    """Return the steps of the search: how each scores, its dim, its keep, the columns summed before, its margin.

    The first step scans the tiles, whatever the dim and the precision of the first stage.
    """
    first, *stages = plan.stages
    if not stages or stages[-1].precision != "full":   # final scores are always in full precision
        stages.append(Stage(plan.dim, plan.stages[-1].keep))
    steps = [(CODES, partition.dim, _within(first.keep, blocks), 0, _margin(first))]
    summed, coded = 0, True   # columns summed so far, and whether in int8
    for number, stage in enumerate(stages):
        how = FULL if stage.precision == "full" else CODES
        # A margin needs the scores of all rows; that of the last stage has no effect.
        unbound = stage.dim > partition.long or (stage.margin is not None and number < len(stages) - 1)
        if stage.dim > partition.long:
            how = FULL
        if how == FULL and coded and not unbound:
            how = BOUNDED
        if how == FULL:
            # Sums in int8 cannot be continued in full precision: these start from column 0.
            summed, coded = 0 if coded else summed, False
        steps.append((how, stage.dim, _within(stage.keep, blocks), summed, _margin(stage)))
        summed = stage.dim
    return steps


def _within(keep: int, blocks: Blocks) -> int:
    return max(1, min(keep, blocks.count))


def _margin(stage: Stage) -> float:
    return float("inf") if stage.margin is None else stage.margin
