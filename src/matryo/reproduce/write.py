"""Write what was reproduced: a page in Markdown with its figures, beside the rows."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from matryo.errors import MissingExtra
from matryo.files import check_may_write, replacing
from matryo.reproduce.page import OVERVIEW, Evidence, body
from matryo.reproduce.paper import TABLES
from matryo.reproduce.picture import overview, picture

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matryo.results import Row

PAGE = "paper.md"
TITLE = "# The paper's tables, reproduced"
START = f"{TITLE}\n".encode()


def check_page(runs: Path) -> None:
    """Refuse to replace a page that this verb has not written."""
    check_may_write(runs / PAGE, is_ours=lambda path: path.read_bytes().startswith(START))


def write_page(rows: Sequence[Row], runs: Path, title: str) -> Path:
    """Write the page of ``rows`` and its figures; without matplotlib the page has no figures."""
    evidence = [Evidence.of(title, rows)]
    figures = write_pictures(evidence, runs / "figures", "figures/")
    with replacing(runs / PAGE) as file:
        file.write(f"{TITLE}\n\n{body(evidence, figures)}\n".encode())
    return runs / PAGE


def write_pictures(evidence: Sequence[Evidence], folder: Path, prefix: str, start: str = "") -> dict[str, str]:
    """Write one SVG per table that has a figure, and return their addresses by table."""
    written = {}
    with contextlib.suppress(MissingExtra):
        drawn = {OVERVIEW: overview(evidence)} | {name: picture(one, evidence) for name, one in TABLES.items()}
        for name, svg in drawn.items():
            if svg:
                with replacing(folder / f"{start}{name}.svg") as file:
                    file.write(svg.encode())
                written[name] = f"{prefix}{start}{name}.svg"
    return written
