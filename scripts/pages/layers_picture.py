"""The picture of layers × dims: an encoder that is only cut, above one that was trained to be cut.

Drawn by ``python scripts/make_docs.py --figures``.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from matryo.report.grid_picture import grid_picture
from matryo.results import read_rows
from matryo.tables import Block, Metric
from pages.layers import FIGURE, by_arm

SHOWN = {"nested": "cut, trained after the last layer only", "grid, distilled": "cut, trained after every layer"}


def write(docs: Path) -> None:
    """Write layers.svg beside its rows in ``docs``."""
    results = docs / "results"
    arms = by_arm([row for row in read_rows(results / "layers.jsonl") if row.kind == "layers"])
    blocks = []
    for arm, title in SHOWN.items():
        values = arms[arm]
        layers, dims = (sorted({key[place] for key in values}) for place in (0, 1))
        columns = [Metric(f"{m}", {f"{n}": fmean(values[n, m]) / 100 for n in layers}) for m in dims]
        blocks.append(Block("", "", title, columns))
    (results / FIGURE).write_text(grid_picture(blocks).svg, encoding="utf-8")
