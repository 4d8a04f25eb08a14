"""Training runs: their cost, and accuracies by dim that no evaluation row repeats."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from matryo.errors import InputError
from matryo.report.lines import split_fields
from matryo.report.section import Section, Table
from matryo.report.series import Curve, Point, over_seeds
from matryo.report.words import dims, hardest, percent, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.report.material import Material
    from matryo.results import Row

_SHARES = {
    "top1": ("head top-1", "Top-1 accuracy of the trained heads."),
    "masked_top1": ("masked words", "Share of masked words predicted correctly."),
    "hit@1": ("hit@1", "Share of queries whose first result is correct."),
}
"""Figures of a run by split and dim: their name and their meaning."""


def sections(material: Material) -> Iterator[Section]:
    """A table of costs, and a plate per figure and split for runs that were not evaluated."""
    runs = _latest([row for row in material.rows if row.kind == "train"])
    if not runs:
        return
    models = [_model(material, row) for row in runs]
    by_model = {name: [r for r, model in zip(runs, models, strict=True) if model == name] for name in models}
    tested = dict.fromkeys((share, split) for row in runs for share in _shares(row) for split in row.figures[share])
    evaluated = {line.name for line in material.lines}
    curves = [
        curve
        for share, split in tested
        for name, rows in by_model.items()
        if name not in evaluated and (curve := _curve(name, share, split, rows)).points
    ]
    name, rows = next(iter(by_model.items()))
    seconds = over_seeds(rows, lambda row: row.figures["seconds"])[0]
    claim = f"A training run of {name} takes {seconds:.0f} seconds on {rows[0].hardware}"
    fields: dict[str, Any] = {"shown": ()}
    if curves:
        worst, fields = hardest(curves), split_fields(material, "training", curves)
        claim += f"; {worst.name} ends with {percent(worst.full.y)} {worst.metric} at {dims(worst.full.dim)} dims"
    fields["shown"] += (_costs(runs),)
    meanings = [text for metric, text in _SHARES.values() if metric in {curve.metric for curve in curves}]
    meaning = " ".join([f"{plural(len(runs), 'run')}.", *meanings])
    yield Section("training", "Training", claim, meaning, rows=tuple(runs), **fields)


def _model(material: Material, row: Row) -> str:
    """The evaluated model that a run trained, by its name or by equal head accuracies; else the run's subject."""

    def plain(name: str) -> str:
        return re.sub(r"[\s_-]+", "-", name)

    for line in material.lines:
        if plain(line.name) == plain(row.subject):
            return line.name
        for result in line.groups[0].results:
            heads = {str(one.dim): one.head_top1 for one in result.rows if one.head_top1 is not None}
            if heads and row.figures.get("top1", {}).get(result.split) == heads:
                return line.name
    return row.subject


def _latest(rows: Sequence[Row]) -> list[Row]:
    for row in rows:
        if "seconds" not in row.figures or not _speed(row):
            raise InputError(
                "a row of kind 'train' must have the figures seconds and …_per_second",
                got=f"{row.subject!r}: {', '.join(row.figures)}",
                cure="store the run's row again with this version, or remove that row",
            )
    return list({(row.subject, row.seed, _dims(row), row.hardware): row for row in rows}.values())


def _shares(row: Row) -> list[str]:
    return [share for share in _SHARES if share in row.figures]


def _speed(row: Row) -> tuple[str, float] | None:
    """(images, texts, pairs or windows; the number per second)."""
    named = ((name, value) for name, value in row.figures.items() if name.endswith("_per_second"))
    return next(((name.removesuffix("_per_second"), value) for name, value in named), None)


def _curve(name: str, share: str, split: str, rows: Sequence[Row]) -> Curve:
    values: dict[int, list[float]] = {}
    for row in rows:
        for dim, value in row.figures.get(share, {}).get(split, {}).items():
            values.setdefault(int(dim), []).append(value)
    means = {dim: over_seeds(many, float) for dim, many in sorted(values.items())}
    marks = tuple(Point(dim, float(mean), float(sd)) for dim, (mean, sd) in means.items())
    most = max(map(len, values.values()), default=1)
    return Curve(split, name, _SHARES[share][0], marks, most, f"sd over {most} seeds" if most > 1 else "")


def _dims(row: Row) -> tuple[Any, ...]:
    by_split = [by_dim for share in _shares(row) for by_dim in row.figures[share].values()]
    return tuple(dict.fromkeys(dim for by_dim in by_split for dim in by_dim))


def _costs(rows: Sequence[Row]) -> Table:
    lines = []
    for row in rows:
        trained, seed = _dims(row), "–" if row.seed is None else row.seed
        ends = " … ".join(dict.fromkeys([*trained[:1], *trained[-1:]]))
        what, speed = _speed(row) or ("", 0.0)
        lines.append((row.subject, ends, seed, f"{row.figures['seconds']:.1f}", f"{speed:.0f} {what}", row.hardware))
    return Table(("run", "dims", "seed", "seconds", "per second", "hardware"), tuple(lines))
