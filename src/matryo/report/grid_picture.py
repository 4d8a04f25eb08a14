"""The picture of a grid: one cell per number of layers and dim, the darker the better."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.evaluation.grid import COST
from matryo.report.draw import Drawing, drawing, export, sheet
from matryo.report.style import RAMP, light
from matryo.tables import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.tables import Block, Metric

_LINE = 0.33   # inches per line of cells


def grid_picture(blocks: Sequence[Block]) -> Drawing:
    """Draw the grids of :func:`~matryo.evaluation.grid.grids` below each other, with one scale of colours."""
    from matplotlib.colors import LinearSegmentedColormap

    with drawing():
        figure, axes = sheet([0.75 + _LINE * len(block.metrics[0].values) for block in blocks])
        ramp = LinearSegmentedColormap.from_list("cells", [light("wash"), light(RAMP[0]), light(RAMP[-1])])
        known = [value for block in blocks for each in _columns(block) for value in each.values.values()]
        present = [value for value in known if value is not None]
        low, high = min(present), max(present)
        for axis, block in zip(axes, blocks, strict=True):
            columns, labels = _columns(block), list(block.metrics[0].values)
            cells = [[column.values.get(label) for column in columns] for label in labels]
            shades = [[float("nan") if value is None else value for value in line] for line in cells]
            axis.pcolormesh(shades, cmap=ramp, vmin=low, vmax=high + 1e-9, edgecolors=light("paper"), linewidth=1.5)
            axis.invert_yaxis()
            for row, line in enumerate(cells):
                for column, value in enumerate(line):
                    dark = value is not None and value - low > 0.55 * (high - low)
                    colour = light("paper") if dark else light("ink")
                    axis.text(
                        column + 0.5, row + 0.5, percent(value), color=colour, ha="center", va="center", fontsize=10
                    )
            axis.set_xticks([place + 0.5 for place in range(len(columns))], [column.title for column in columns])
            axis.set_yticks([place + 0.5 for place in range(len(labels))], labels)
            axis.set_ylabel("layers")
            axis.set_xlabel("dims", loc="right")
            axis.set_title(", ".join(filter(None, (block.where, block.about.partition(" by ")[0]))), loc="left")
            axis.grid(visible=False)
            axis.tick_params(length=0)
        return export(figure)


def _columns(block: Block) -> list[Metric]:
    return [metric for metric in block.metrics if metric.title != COST]
