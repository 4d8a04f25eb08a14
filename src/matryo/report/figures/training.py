"""Training runs: the share of what they were asked that was right, by dim, and what they took."""

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

# Figures of a run that are shares by split and dim: what they are called, how they are told, and what they mean.
_SHARES = {
    "top1": ("head top-1", "its heads reach", "Top-1 accuracy of the trained heads"),
    "masked_top1": ("hidden words", "of hidden words it predicts", "The share of hidden words that are predicted"),
    "hit@1": ("hit@1", "its hit@1 is", "The share of queries that find one of their candidates first"),
}


def training(material: Material) -> Section | None:
    """A figure for each share and split that runs were tested on; runs of one subject stand together over seeds."""
    runs = _latest([row for row in material.rows if row.kind == "train"])
    plates: list[Plate] = []
    curves: list[Curve] = []
    tested = [(share, split) for row in runs for share in _shares(row) for split in row.figures[share]]
    for share, split in dict.fromkeys(tested):
        name = _SHARES[share][0]
        here = [_curve(subject, share, split, rows) for subject, rows in _subjects(runs).items()]
        here = [one for one in here if one.points]
        if not here:
            continue
        panel = {f"{name}, %": [(one, material.looks.of(one.name), one.name) for one in here]}
        caption = f"Split {split}.{bars(here)}"
        plates.append(Plate(stem("training", len(plates) + 1, split), caption, export(chart(panel, height=3.3))))
        curves += here
    if not curves:
        return None
    (low, full), first = ends(curves[0]), curves[0]
    seconds = over_seeds(_subjects(runs)[first.name], lambda row: row.figures["seconds"])[0]
    told = next(told for name, told, _ in _SHARES.values() if name == first.metric)
    meant = [meaning for share, (_, _, meaning) in _SHARES.items() if any(share in row.figures for row in runs)]
    return Section(
        key="training",
        title="Training",
        finding=f"A run of {first.name} takes {seconds:.0f} seconds; {told} {percent(low.y)} at {dims(low.dim)} dims "
        f"and {percent(full.y)} at {dims(full.dim)}",
        meaning=f"{'; '.join(meant)}; when training ended. A fixed model is one run for each dim.",
        rows=tuple(runs),
        plates=tuple(plates),
        table=curve_table(curves),
        shown=(*by_dim(curves), _costs(runs)),
    )


def _latest(rows: Sequence[Row]) -> list[Row]:
    for row in rows:
        if "seconds" not in row.figures or not _speed(row):
            raise InputError(
                "a row of kind 'train' must say how long it took and how much it read: seconds, …_per_second",
                got=f"{row.subject!r}: {', '.join(row.figures)}",
                cure="read the run again with this version, or leave that row out",
            )
    return list({(row.subject, row.seed, _dims(row), row.hardware): row for row in rows}.values())


def _shares(row: Row) -> list[str]:
    return [share for share in _SHARES if share in row.figures]


def _speed(row: Row) -> tuple[str, float] | None:
    """(images, texts, pairs or windows, how many a second)."""
    named = ((name, value) for name, value in row.figures.items() if name.endswith("_per_second"))
    return next(((name.removesuffix("_per_second"), value) for name, value in named), None)


def _subjects(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.subject, []).append(row)
    return found


def _curve(subject: str, share: str, split: str, rows: Sequence[Row]) -> Curve:
    values: dict[int, list[float]] = {}
    for row in rows:
        for dim, value in row.figures.get(share, {}).get(split, {}).items():
            values.setdefault(int(dim), []).append(value)
    marks = []
    for dim, many in sorted(values.items()):
        mean, deviation = over_seeds(many, float)
        marks.append(Point(dim, float(mean), float(deviation)))
    most = max(map(len, values.values()), default=1)
    return Curve(split, subject, _SHARES[share][0], tuple(marks), most, f"sd over {most} seeds" if most > 1 else "")


def _dims(row: Row) -> tuple[Any, ...]:
    by_split = [by_dim for share in _shares(row) for by_dim in row.figures[share].values()]
    return tuple(dict.fromkeys(dim for by_dim in by_split for dim in by_dim))


def _costs(rows: Sequence[Row]) -> Table:
    lines = []
    for row in rows:
        trained, seed = _dims(row), "–" if row.seed is None else row.seed
        named = " … ".join(dict.fromkeys([*trained[:1], *trained[-1:]]))
        what, speed = _speed(row) or ("", 0.0)
        lines.append((row.subject, named, seed, f"{row.figures['seconds']:.1f}", f"{speed:.0f} {what}", row.hardware))
    return Table(("run", "dims", "seed", "seconds", "read a second", "hardware"), tuple(lines))
