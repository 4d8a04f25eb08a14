"""Training runs: the accuracy of their heads by dim, and what they took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matryo.errors import InputError
from matryo.report.draw import chart, export
from matryo.report.section import Plate, Section, Table, by_dim, curve_table
from matryo.report.series import Curve, Point, over_seeds
from matryo.report.words import bars, dims, ends, percent, stem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.report.material import Material
    from matryo.results import Row

__all__ = ["training"]


def training(material: Material) -> Section | None:
    """A figure for each split that runs were tested on; runs of one subject stand together over seeds and dims."""
    runs = _latest([row for row in material.rows if row.kind == "train"])
    if not any(map(_dims, runs)):
        return None
    plates, curves = [], []
    for number, split in enumerate(dict.fromkeys(split for row in runs for split in row.figures["top1"]), start=1):
        here = [_curve(subject, split, rows) for subject, rows in _subjects(runs).items()]
        here = [one for one in here if one.points]
        panel = {"head top-1, %": [(one, material.looks.of(one.name), one.name) for one in here]}
        drawn = export(chart(panel, height=3.3))
        plates.append(Plate(stem("training", number, split), f"Split {split}.{bars(here)}", drawn))
        curves += here
    low, full = ends(curves[0])
    seconds = over_seeds(_subjects(runs)[curves[0].name], lambda row: row.figures["seconds"])[0]
    return Section(
        key="training",
        title="Training",
        finding=f"A run of {curves[0].name} takes {seconds:.0f} seconds; its heads reach {percent(low.y)} at "
        f"{dims(low.dim)} dims and {percent(full.y)} at {dims(full.dim)}",
        meaning="Top-1 accuracy of the trained heads when training ended; a fixed model is one run for each dim.",
        rows=tuple(runs),
        plates=tuple(plates),
        table=curve_table(curves),
        shown=(*by_dim(curves), _costs(runs)),
    )


def _latest(rows: Sequence[Row]) -> list[Row]:
    for row in rows:
        if not {"top1", "seconds", "images_per_second"} <= row.figures.keys():
            raise InputError(
                "a row of kind 'train' must have the figures top1, seconds and images_per_second",
                got=f"{row.subject!r}: {', '.join(row.figures)}",
                cure="read the run again with this version, or leave that row out",
            )
    return list({(row.subject, row.seed, _dims(row), row.hardware): row for row in rows}.values())


def _subjects(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.subject, []).append(row)
    return found


def _curve(subject: str, split: str, rows: Sequence[Row]) -> Curve:
    values: dict[int, list[float]] = {}
    for row in rows:
        for dim, value in row.figures["top1"].get(split, {}).items():
            values.setdefault(int(dim), []).append(value)
    marks = []
    for dim, many in sorted(values.items()):
        mean, deviation = over_seeds(many, float)
        marks.append(Point(dim, float(mean), float(deviation)))
    most = max(map(len, values.values()), default=1)
    return Curve(split, subject, "head top-1", tuple(marks), most, f"sd over {most} seeds" if most > 1 else "")


def _dims(row: Row) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(dim for by_dim in row.figures["top1"].values() for dim in by_dim))


def _costs(rows: Sequence[Row]) -> Table:
    lines = []
    for row in rows:
        trained, seed = _dims(row), "–" if row.seed is None else row.seed
        named = " … ".join(dict.fromkeys([*trained[:1], *trained[-1:]]))
        figures = (f"{row.figures['seconds']:.1f}", f"{row.figures['images_per_second']:.0f}")
        lines.append((row.subject, named, seed, *figures, row.hardware))
    return Table(("run", "dims", "seed", "seconds", "images a second", "hardware"), tuple(lines))
