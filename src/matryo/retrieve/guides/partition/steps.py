"""Translate a plan into the steps that the compiled search of partitions follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.errors import InputError
from matryo.retrieve.plan.plan import Plan, Stage

if TYPE_CHECKING:
    from matryo.retrieve.guides.partition.partition import Partition
    from matryo.retrieve.vectors.blocks import Blocks


INT8, FULL, BOUNDED = range(3)
"""How a stage scores: int8 codes; full precision; full precision only for rows that the bounds of codes leave open."""


def check_plan(plan: Plan, partition: Partition) -> None:
    """Raise unless the partitions can serve ``plan``."""
    first = plan.stages[0]
    if plan.ef is not None:
        raise InputError("a plan for partitions must not have ef", got=f"ef={plan.ef}", cure="pass probe=0.05 instead")
    if first.precision != "int8" or first.dim != partition.dim:
        raise InputError(
            f"the first stage must be in int8 at the dim of the partitions' tiles, {partition.dim}",
            got=f"{first.precision} at {first.dim}",
            cure=f'start the plan with Stage({partition.dim}, keep, "int8")',
        )
    longest = max(stage.dim for stage in plan.stages if stage.precision == "int8")
    if longest > partition.long:
        raise InputError(
            f"int8 stages must not exceed the {partition.long} columns that the partitions have in int8",
            got=longest,
            cure=f"build the partitions with long={longest}, or run that stage in full precision",
        )


def steps_of(plan: Plan, blocks: Blocks, partition: Partition) -> list[tuple[int, int, int, int, float]]:
    """Return the steps of the search: how each scores, its dim, its keep, the columns summed before, its margin."""
    stages = list(plan.stages)
    if stages[-1].precision == "int8":   # final scores are always in full precision
        stages.append(Stage(plan.dim, stages[-1].keep))
    steps = []
    summed, coded = stages[0].dim, True   # columns summed so far, and whether in int8
    for number, stage in enumerate(stages):
        how = INT8 if stage.precision == "int8" else FULL
        # A margin needs the scores of all rows; that of the last stage has no effect.
        unbound = stage.dim > partition.long or (stage.margin is not None and number < len(stages) - 1)
        if how == FULL and coded and not unbound:
            how = BOUNDED
        if how == FULL:
            # Sums in int8 cannot be continued in full precision: these start from column 0.
            summed, coded = 0 if coded else summed, False
        margin = float("inf") if stage.margin is None else stage.margin
        steps.append((how, stage.dim, max(1, min(stage.keep, blocks.count)), summed, margin))
        summed = stage.dim
    return steps
