"""A plan as the compiled search follows it: numbers of each stage, and how it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError
from matryo.retrieve.plan.plan import Plan, Stage

if TYPE_CHECKING:
    from matryo.retrieve.guides.partition import Partition
    from matryo.retrieve.vectors.blocks import Blocks

    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Steps = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["BOUNDED", "FULL", "INT8", "check_plan", "steps_of"]

INT8, FULL, BOUNDED = range(3)
"""In codes; in full precision; in full precision too, but only of rows about which codes leave doubt."""


def check_plan(plan: Plan, partition: Partition) -> None:
    """Raise unless ``plan`` can be followed through the partitions."""
    first = plan.stages[0]
    if plan.ef is not None:
        raise InputError("a plan with ef walks through a graph", got=f"ef={plan.ef}", cure="partitions have a probe")
    if first.precision != "int8" or first.dim != partition.dim:
        raise InputError(
            f"the first stage must be in int8 at the dim of the partitions' tiles, {partition.dim}",
            got=f"{first.precision} at {first.dim}",
            cure=f'begin with Stage({partition.dim}, keep, "int8"); scores are of full precision in the end',
        )
    longest = max(stage.dim for stage in plan.stages if stage.precision == "int8")
    if longest > partition.long:
        raise InputError(
            f"a stage in int8 needs its columns in int8, of which the partitions have {partition.long}",
            got=longest,
            cure=f"build them with long={longest}, or plan that stage in full precision",
        )


def steps_of(plan: Plan, blocks: Blocks, partition: Partition) -> tuple[Steps, Floats]:
    """How each stage is done, its dim, its keep, the columns that are known, the number of its dim; and the margins.

    The gap of partitions to visit comes after the margins.
    """
    stages = list(plan.stages)
    if stages[-1].precision == "int8":   # scores are of full precision in any case
        stages.append(Stage(plan.dim, stages[-1].keep))
    made: list[tuple[int, ...]] = []
    known, coded = stages[0].dim, True   # columns that are summed, and whether in int8
    for number, stage in enumerate(stages):
        how = INT8 if stage.precision == "int8" else FULL
        # A margin is taken from the scores of all; the last one takes nothing.
        unbound = stage.dim > partition.long or (stage.margin is not None and number < len(stages) - 1)
        if how == FULL and coded and not unbound:
            how = BOUNDED
        if how == FULL:
            # Sums in int8 are no part of sums in full precision: these begin anew.
            known, coded = 0 if coded else known, False
        made.append((how, stage.dim, max(1, min(stage.keep, blocks.count)), known, blocks.level(stage.dim)))
        known = stage.dim
    margins = [*(stage.margin for stage in stages), partition.gap(plan.probe)]
    return np.array(made, np.int64), np.array([np.inf if margin is None else margin for margin in margins], np.float32)
