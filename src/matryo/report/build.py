"""The report's folder: one page, its figures and tables as files, and the rows that they were drawn from.

::

    index.html          the page; it needs no other file
    figures/*.svg|png   each figure alone, on white
    tables/*.csv        the numbers of each section, with every digit
    rows.jsonl          the rows, one per line
    matryo.json         the checksums of these files: a report with other files in it is not overwritten
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.arguments import checked
from matryo.errors import InputError, MatryoError, MissingExtra
from matryo.files import replacing, resolve, storage
from matryo.folders import foreign, replacing_folder, restore, write_record
from matryo.report.answer import subjects
from matryo.report.answer_figure import AnswerFigure, answer_figure
from matryo.report.draw import drawing
from matryo.report.figures import every_section
from matryo.report.material import GradCamStrip, Material
from matryo.report.page import page
from matryo.results import write_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matryo.report.draw import Drawing
    from matryo.report.section import Section
    from matryo.results import Row

_DAMAGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)   # of a row that another program wrote
PAGE, ROWS, FIGURES_FOLDER, TABLES_FOLDER = "index.html", "rows.jsonl", "figures", "tables"


@checked
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
    """Draw every figure that ``rows`` allow into the folder ``out``, and return the path of its page.

    Rows of a kind that no figure shows are only listed. Rows of one model on one split with different seeds are drawn
    as their mean, with the standard deviation as error bars. ``pictures`` illustrate disagreements, by
    "DATASET/SPLIT/ROW"; ``credits`` are shown at the foot.

    The folder is written completely or not at all. An older report is kept unless ``overwrite=True``; files that no
    report wrote, or that were changed since, are never replaced.
    """
    if not rows:
        raise InputError("a report needs at least one row", got=0, cure="measure something first")
    folder = check_out(out, overwrite=overwrite)
    try:
        text, sections, figure = _draw(Material.of(rows, pictures, strips), title, credits)
    except _DAMAGE as error:
        _check_alone(rows, error)
        raise
    plates = {plate.name: plate.drawing for section in sections for plate in section.plates}
    plates |= {"answer": figure.drawing} if figure else {}
    with replacing_folder(folder) as work:
        _write(work, text, plates, sections, rows)
        write_record(work, "report")
        check_out(folder, overwrite=overwrite)   # again, because drawing takes a while
    return folder / PAGE


@checked
def check_out(out: str | Path, *, overwrite: bool) -> Path:
    """Check that a report can be drawn and written to ``out``, before anything is measured; return the folder."""
    for package in ("matplotlib", "jinja2"):
        with MissingExtra.unless_installed(package, "report"):
            import_module(package)
    folder = Path(out)
    folder = resolve(folder) if folder.is_symlink() or folder.name in ("", "..") else folder
    if not folder.name:
        raise InputError("a report needs a folder of its own", got=out, cure="choose a new folder")
    with storage(folder):
        restore(folder)
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return folder
        strange = foreign(folder, "report")
    if strange:
        raise InputError(
            f"{folder} must be empty, or hold a report as it was written",
            got=", ".join(strange[:4]),
            cure="choose another folder, or move your files away",
        )
    if not overwrite:
        raise InputError(f"{folder} already holds a report", cure="choose another folder, or pass overwrite=True")
    return folder


def _draw(
    material: Material, title: str, credits: Sequence[str]
) -> tuple[str, list[Section], AnswerFigure | None]:
    """Return the page, its sections, and the figure of its answer."""
    models = subjects(material)
    with drawing():
        sections = list(every_section(material))
        figure = answer_figure(models) if models else None
    text = page(title=title, sections=sections, rows=material.rows, credits=credits, models=models, figure=figure)
    return text, sections, figure


def _check_alone(rows: Sequence[Row], cause: Exception) -> None:
    """Raise an error about the first row that cannot be drawn alone: it is damaged. Return if each of them can."""
    if isinstance(cause, MatryoError):
        return
    for row in rows:
        try:
            _draw(Material.of([row]), "", ())
        except _DAMAGE as error:
            rule = f"the row of kind {row.kind!r} about {row.subject!r} is damaged"
            got, cure = f"{type(error).__name__}: {error}", "measure it again, or remove that row"
            raise InputError(rule, got=got, cure=cure) from error


def _write(
    folder: Path, text: str, plates: Mapping[str, Drawing], sections: Sequence[Section], rows: Sequence[Row]
) -> None:
    files = {Path(PAGE): text.encode()}
    for section in sections:
        if section.table is not None:
            files[Path(TABLES_FOLDER, f"{section.key}.csv")] = section.table.to_csv().encode()
    for name, plate in plates.items():
        files[Path(FIGURES_FOLDER, f"{name}.svg")] = plate.svg.encode()
        files[Path(FIGURES_FOLDER, f"{name}.png")] = plate.png
    for path, data in files.items():
        with replacing(folder / path) as file:
            file.write(data)
    write_rows(folder / ROWS, list(rows))
