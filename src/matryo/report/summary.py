"""The summary: three or four sentences computed from the rows, and a small table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.classify.curve import CascadeCurve
from matryo.report.figures.cascade import cheapest
from matryo.report.figures.pairs import main_pairs
from matryo.report.models import main_line
from matryo.report.section import Table, by_dim
from matryo.report.series import Curve, Point, gather
from matryo.report.words import dims, ends, enough, listed, percent, plural, points, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.report.material import Material
    from matryo.report.models import Line

__all__ = ["LEVEL", "overview", "summary"]

LEVEL = 0.005
"""Two accuracies no further apart than this are called level."""


def summary(material: Material) -> list[str]:
    """What the rows say, in sentences; as many as there are rows for."""
    found = [*_kept(material.lines), *_against(material.lines), *_cascade(material), *_pairs(material)]
    found += [_drawn_from(material)]
    return [sentence[:1].upper() + sentence[1:] for sentence in found]


def overview(material: Material) -> Table | None:
    """1-NN accuracy on the first split at the dims that its main model was trained for, beside all others."""
    main = main_line(material.lines)
    if main is None:
        return None
    curves = [one for line in _beside(material.lines) if (one := line.curve("1-NN"))]
    trained = {point.dim for point in _trained(curves[0])}
    kept = [Curve(c.place, c.name, c.metric, tuple(p for p in c.points if p.dim in trained), c.seeds) for c in curves]
    (found,) = by_dim((one for one in kept if one.points), title=lambda one: f"{one.metric} accuracy on {one.place}, %")
    return found


def _beside(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.place == lines[0].place]


def _trained(curve: Curve) -> list[Point]:
    found = [point for point in curve.points if point.trained]
    return found if len(found) > 1 else list(curve.points)


def _kept(lines: Sequence[Line]) -> list[str]:
    main = main_line(lines)
    curve = main.curve("1-NN") if main else None
    if main is None or curve is None or not curve.full.y:
        return []
    point, full = enough(curve), curve.full
    if point.dim == full.dim:
        low = curve.points[0]
        kept = share(low.y, full.y)
        return [f"on {main.place}, {main.name} keeps {kept} of its 1-NN accuracy at {dims(low.dim)} dims."]
    text = (
        f"on {main.place}, the first {dims(point.dim)} of {dims(full.dim)} dims of {main.name} keep "
        f"{share(point.y, full.y)} of its 1-NN accuracy ({percent(point.y)} against {percent(full.y)})"
    )
    fixed = main_line(lines, "fixed")
    other = fixed.curve("1-NN") if fixed and fixed is not main else None
    at = other.at(point.dim) if other else None
    if fixed is None or other is None or at is None or not other.full.y:
        return [f"{text}."]
    kept = share(at.y, other.full.y)
    return [f"{text}; an ordinary model ({fixed.name}) cut to {dims(point.dim)} keeps {kept}."]


def _against(lines: Sequence[Line]) -> list[str]:
    """Where the main model is ahead of every other line, level with the best of them, and behind."""
    main = main_line(lines)
    mine = main.curve("1-NN") if main else None
    others = [one for line in _beside(lines) if line is not main and (one := line.curve("1-NN"))] if lines else []
    if main is None or mine is None or not others:
        return []
    ahead, level, behind = [], [], []
    for point in _trained(mine):
        rivals = [(at.y, other.name) for other in others if (at := other.at(point.dim))]
        if not rivals:
            continue
        best, name = max(rivals)
        if point.y - best > LEVEL:
            ahead.append(dims(point.dim))
        elif best - point.y > LEVEL:
            behind.append(f"{dims(point.dim)} (by {points(best - point.y)}, to {name})")
        else:
            level.append(dims(point.dim))
    parts = [
        f"ahead of all others at {listed(ahead)} dims" if ahead else "",
        f"level with the best other (within {points(LEVEL)}) at {listed(level)}" if level else "",
        f"behind at {listed(behind)}" if behind else "",
    ]
    return [f"in 1-NN accuracy {main.name} is {'; '.join(filter(None, parts))}."] if any(parts) else []


def _cascade(material: Material) -> list[str]:
    same = gather(material.rows, "cascade", CascadeCurve, lambda one: (one.dims, one.head, one.strategy, one.stop))
    best = cheapest(same) if same else None
    if best is None:
        return []
    change = best.full - best.point.y
    return [
        f"answered at the smallest dim that is sure enough, {best.group.name} {best.spent} and "
        f"{'loses' if change >= 0 else 'gains'} {points(change)} against its full dim ({percent(best.full)})."
    ]


def _pairs(material: Material) -> list[str]:
    curve = main_pairs(material)
    if curve is None or not curve.full.y:
        return []
    low, full = ends(curve)
    return [
        f"on {curve.place}, the first {dims(low.dim)} of {dims(full.dim)} dims of {curve.name} keep "
        f"{share(low.y, full.y)} of its {curve.metric} ({percent(low.y)} against {percent(full.y)})."
    ]


def _drawn_from(material: Material) -> str:
    rows = material.rows
    models = len({line.name for line in material.lines})
    splits = len({line.place for line in material.lines})
    seeds = len({row.seed for row in rows} - {None})
    parts = [
        plural(models, "model") + f" on {plural(splits, 'split')}" if models else "",
        plural(seeds, "seed") if seeds else "",
    ]
    about = ", ".join(filter(None, parts))
    return f"drawn from {plural(len(rows), 'row')}{f': {about}' if about else ''}."
