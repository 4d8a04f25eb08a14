"""Reproduce tables of the paper: check, train what is missing, measure each seed, judge the claims, store rows."""

from __future__ import annotations

import shutil
import time
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matryo.errors import InputError, StorageError
from matryo.files import alone_with, check_may_write
from matryo.reproduce.measures import MEASURES
from matryo.reproduce.measures.found import as_cells
from matryo.reproduce.paper import PICTURES, TABLES
from matryo.reproduce.runs import Workshop, lasting
from matryo.results import holds_rows, read_rows, stamp, write_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matryo.reproduce.runs import Model
    from matryo.reproduce.scales import Scale
    from matryo.reproduce.table import Cells, Table
    from matryo.results import Row

ROWS = "tables.jsonl"
ALL = "all"
KIND = "paper-table"


def chosen_tables(names: Sequence[str], scale: Scale) -> list[Table]:
    """Return the tables called ``names``, or every one that the scale allows for "all"."""
    if list(names) == [ALL]:
        return [table for table in TABLES.values() if scale.name not in table.missing]
    for name in names:
        if name not in TABLES:
            near = get_close_matches(name, TABLES, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            cure = f"{hint}`matryo reproduce` lists all"
            raise InputError("the paper has no such table", got=repr(name), cure=cure)
        if why := TABLES[name].missing.get(scale.name):
            others = [other for other in ("small", "paper") if other not in TABLES[name].missing]
            cure = f"use --scale {others[0]}" if others else "choose another table"
            raise InputError(f"table {name} cannot be measured at the scale {scale.name}", got=why, cure=cure)
    return [TABLES[name] for name in dict.fromkeys(names)]


def listing(scale: Scale) -> str:
    """Return every table and figure of the paper, with what it needs at this scale, as text."""
    shop, lines = Workshop(scale, Path()), []
    for table in TABLES.values():
        figures = f"; figures {', '.join(table.figures)}" if table.figures else ""
        lines += [f"{table.name}: {table.title} ({table.label}{figures})"]
        if why := table.missing.get(scale.name):
            lines += [f"    not at this scale: {why}"]
            continue
        measure = MEASURES[table.name]
        data = [*scale.folders, *measure.splits] if scale.folders else ["bundled"]
        models = list({model.digest: model.name for model in measure.models(shop)}.values())
        lines += [f"    models: {', '.join(models)}; data: {', '.join(data)}"]
    lines += [f"figure {label}: {what}" for label, what in PICTURES.items()]
    return "\n".join(lines)


def reproduce(
    tables: Sequence[Table],
    scale: Scale,
    runs: str | Path,
    *,
    data: Path | None = None,
    seeds: int | None = None,
    progress: bool = True,
    say: Callable[[str], object] = print,
) -> list[Row]:
    """Train what ``tables`` need and is missing in ``runs``, measure them, and return all rows stored there.

    Each table becomes a row in ``runs/tables.jsonl``, in the place of an earlier row of the same table. Trainings are
    shared between tables, kept between calls, and resumed from their checkpoints.
    """
    folder = Path(runs)
    shop = Workshop(scale, folder, data, progress=progress, say=say)
    numbers = range(scale.seeds if seeds is None else seeds)
    check(tables, shop, numbers)
    shop.train(list(_models(tables, shop)), numbers)
    for number, table in enumerate(tables, 1):
        started = time.monotonic()
        cells = table.with_derived(as_cells([MEASURES[table.name].run(shop, seed) for seed in numbers]))
        say(f"measured {number} of {len(tables)}: {table.name}, {lasting(time.monotonic() - started)}")
        store(folder / ROWS, table_row(table, cells, scale, len(numbers)))
    return read_rows(folder / ROWS)


def check(tables: Iterable[Table], shop: Workshop, seeds: Sequence[int]) -> None:
    """Refuse what could only fail later: no data, too little disk, a file that is not ours."""
    check_may_write(shop.runs / ROWS, is_ours=holds_rows)
    scale, tables = shop.scale, list(tables)
    if scale.folders and shop.data is None:
        rule = f"the scale {scale.name} needs a folder with {', '.join(scale.folders)}"
        raise InputError(rule, got="no --data", cure="give --data DIR, or try --scale small first")
    if not scale.folders and shop.data is not None:
        rule = f"the scale {scale.name} uses bundled data and reads no folder"
        raise InputError(rule, got=f"--data {shop.data}", cure="drop --data, or use --scale paper")
    if shop.data is not None:
        further = (place for table in tables for place in MEASURES[table.name].splits)
        for folder in dict.fromkeys((*scale.folders, *further)):
            if not (shop.data / folder).is_dir():
                rule = f"--data must hold the folder {folder}, one folder per class in it"
                raise InputError(rule, got=f"{shop.data} without it", cure="see docs/reproduce.md for the layout")
    missing = len(shop.missing(list(_models(tables, shop)), seeds))
    needed = missing * scale.run_gigabytes
    place = next(one for one in (shop.runs, *shop.runs.resolve().parents) if one.exists())
    free = shutil.disk_usage(place).free / 1e9
    if needed > free:
        rule = f"{missing} trainings with their embeddings need about {needed:.1f} GB of disk"
        raise StorageError(rule, got=f"{free:.1f} GB free below {shop.runs}", cure="use --runs on a larger disk")


def table_row(table: Table, cells: Cells, scale: Scale, seeds: int) -> Row:
    """Return the stored row of a measured table: its cells, and the verdict of each claim."""
    figures: dict[str, Any] = {"table": table.name, "scale": scale.name, "about": scale.about, "seeds": seeds}
    if note := table.note.get(scale.name):
        figures["note"] = note
    figures["cells"] = {
        column: {str(label): [round(value, 4) for value in cell.values] for label, cell in by.items()}
        for column, by in cells.items()
        if not column.startswith("_")
    }
    figures["claims"] = judged(table, cells)
    return stamp(KIND, f"{table.name} {scale.name}", figures, seed=None)


def judged(table: Table, cells: Cells) -> list[dict[str, Any]]:
    """Return each claim with its verdict on ``cells``, and the differences behind it."""
    claims = []
    for claim in table.claims:
        found = claim.comparisons(cells)
        claims.append({
            "claim": claim.text, "verdict": claim.verdict(found), "shown": claim.shown(found),
            "comparisons": [[one.at, round(one.difference, 4), None if one.error is None else round(one.error, 4)]
                            for one in found],
        })  # fmt: skip
    return claims


def store(path: Path, row: Row) -> None:
    """Write ``row`` to the file of rows, in the place of an earlier row of the same table and scale."""
    with alone_with(path):
        kept = [one for one in read_rows(path) if one.subject != row.subject]
        write_rows(path, [*kept, row])


def _models(tables: Iterable[Table], shop: Workshop) -> list[Model]:
    models = [model for table in tables for model in MEASURES[table.name].models(shop)]
    return list({model.digest: model for model in models}.values())
