"""The report's folder: one page, its figures and tables as files, and the rows they were drawn from.

::

    index.html          the page; it needs no other file
    figures/*.svg|png   each figure by itself, on white
    tables/*.csv        the numbers of each section, with every digit
    rows.jsonl          the rows, one a line
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.errors import InputError
from matryo.files import replacing, storage, swap_in
from matryo.report.draw import drawing
from matryo.report.figures import FIGURES
from matryo.report.material import GradCamStrip, Material
from matryo.report.page import GENERATOR, page
from matryo.report.summary import overview, summary
from matryo.results import append_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matryo.report.section import Section
    from matryo.results import Row

__all__ = ["build_report"]

PAGE, ROWS, FIGURES_FOLDER, TABLES_FOLDER = "index.html", "rows.jsonl", "figures", "tables"


def build_report(
    rows: Sequence[Row],
    out: str | Path,
    *,
    title: str,
    pictures: Mapping[str, bytes] | None = None,
    strips: Sequence[GradCamStrip] = (),
    credits: Sequence[str] = (),
    overwrite: bool = False,
) -> Path:
    """Draw every figure that ``rows`` allow into the folder ``out``, and return its page.

    Rows are read by their kind; those of a kind that no figure shows are only listed. Rows of one model on one
    split with different seeds are drawn as their mean, with the standard deviation as error bars. ``pictures``
    illustrate disagreements, by "DATASET/SPLIT/ROW"; ``credits`` are shown at the foot.

    The folder is whole or absent. An older report there is kept unless ``overwrite=True``; anything else is kept
    in any case.
    """
    place = _place(out)
    if not rows:
        raise InputError("a report needs at least one row", got=0, cure="measure something first")
    _check_free(place, overwrite)
    material = Material.of(rows, pictures, strips)
    with drawing():
        sections = [section for figure in FIGURES if (section := figure(material)) is not None]
    text = page(
        title=title,
        sentences=summary(material),
        overview=overview(material),
        sections=sections,
        rows=rows,
        credits=credits,
    )
    with storage(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".tmp", dir=place.parent))
        try:
            _write(work, text, sections, rows)
            _check_free(place, overwrite)
            swap_in(work, place)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return place / PAGE


def _write(folder: Path, text: str, sections: Sequence[Section], rows: Sequence[Row]) -> None:
    folder.chmod(folder.parent.stat().st_mode & 0o777)   # mkdtemp makes private folders; this is an ordinary one
    files = {Path(PAGE): text.encode()}
    for section in sections:
        if section.table is not None:
            files[Path(TABLES_FOLDER, f"{section.key}.csv")] = section.table.to_csv().encode()
        for plate in section.plates:
            files[Path(FIGURES_FOLDER, f"{plate.name}.svg")] = plate.drawing.svg.encode()
            files[Path(FIGURES_FOLDER, f"{plate.name}.png")] = plate.drawing.png
    for name, data in files.items():
        with replacing(folder / name) as file:
            file.write(data)
    append_rows(folder / ROWS, list(rows))


def _place(out: str | Path) -> Path:
    place = Path(out)
    place = place.resolve() if place.is_symlink() or place.name in ("", "..") else place
    if not place.name:
        raise InputError("a report needs a folder of its own", got=out, cure="name a new one")
    return place


def _check_free(place: Path, overwrite: bool) -> None:
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return
    strange = _not_ours(place) if place.is_dir() else [place.name]
    if strange:
        raise InputError(
            f"{place} must be free, or hold a report and nothing else",
            got=", ".join(strange[:4]),
            cure="choose another folder",
        )
    if not overwrite:
        raise InputError(f"{place} holds a report, which is kept", cure="choose another folder, or ask to overwrite")


def _not_ours(place: Path) -> list[str]:
    """The names in a folder that no report of ours has; its page too, if something else made it."""
    kinds = {FIGURES_FOLDER: (".svg", ".png"), TABLES_FOLDER: (".csv",)}
    strange = []
    for entry in sorted(place.iterdir()):
        if entry.name in kinds and entry.is_dir():
            strange += [f"{entry.name}/{one.name}" for one in entry.iterdir() if one.suffix not in kinds[entry.name]]
        elif entry.name not in (PAGE, ROWS):
            strange.append(entry.name)
    index = place / PAGE
    head = index.read_text(encoding="utf-8", errors="replace")[:2000] if index.is_file() else ""
    if f'content="{GENERATOR}"' not in head:
        strange.insert(0, f"no {PAGE} of ours")
    return strange
