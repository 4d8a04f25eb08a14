"""The large figure of the first screen: quality kept by dim, with the answer marked.

Every model's lines are in the figure; the page's script shows those of the chosen model, metric and split, and moves
the two markers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from matryo.report.answer import Choice, answer
from matryo.report.draw import Drawing, export, inline, legend, log_axis, percent_axis, sheet, short
from matryo.report.style import Look, categories, light

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from matryo.report.answer import Kept, Subject

_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))


@dataclass(frozen=True)
class AnswerFigure:
    """The figure as files, as a part of the page, and the scales that place its markers."""

    drawing: Drawing
    svg: str
    legend: tuple[tuple[str, Look], ...]
    scales: dict[str, Any]


def answer_figure(models: Sequence[Subject]) -> AnswerFigure:
    """Draw the figure: the default choice in the files, every model in the page."""
    default = Choice()
    looks = _looks(models)
    file, _ = _draw(models, looks, every=False)
    drawing, scales = _draw(models, looks, every=True)
    label = "Quality kept against dims, with the answer marked"
    svg = inline(drawing, "answer", label, legend=False, keep=r"line-|bar-|mark-")
    for index, model in enumerate(models):
        for number in range(len(model.curves)):
            if index != default.model:
                for part in ("line", "bar"):
                    gid = f'<g id="answer-{part}-{index}-{number}"'
                    svg = svg.replace(gid, f'{gid} display="none"')
    return AnswerFigure(file, svg, _legend(looks), scales)


def _looks(models: Sequence[Subject]) -> dict[tuple[str, str], Look]:
    """By metric and split: a dash and a marker per metric; a colour per split, or per metric if there is one split."""
    curves = [curve for model in models for curve in model.curves]
    metrics, splits = (dict.fromkeys(names) for names in zip(*((c.metric, c.split) for c in curves), strict=True))
    colours = categories(max(len(metrics), len(splits)))
    return {
        (metric, split): replace(colours[j if len(splits) > 1 else i], dash=_DASHES[i % 4], marker="osD^"[i % 4])
        for i, metric in enumerate(metrics)
        for j, split in enumerate(splits)
    }


def _legend(looks: dict[tuple[str, str], Look]) -> tuple[tuple[str, Look], ...]:
    splits = {split: replace(look, dash=(), marker="", width=4) for (_, split), look in looks.items()}
    if len(splits) == 1:
        return tuple((metric, look) for (metric, _), look in looks.items())
    metrics = {metric: replace(look, colour=light("soft")) for (metric, _), look in looks.items()}
    return (*splits.items(), *metrics.items())


def _draw(
    models: Sequence[Subject], looks: dict[tuple[str, str], Look], *, every: bool
) -> tuple[Drawing, dict[str, Any]]:
    default = Choice()
    figure, (axes,) = sheet([3.1])
    for index, model in enumerate(models):
        for number, curve in enumerate(model.curves):
            if every or index == default.model:
                _line(axes, curve, looks[curve.metric, curve.split], f"{index}-{number}")
    dim = answer(models, default)["dim"] or models[default.model].full
    axes.axvline(dim, color=light("ink"), linewidth=1.4, gid="mark-dim", zorder=1)
    axes.axhline(default.keep, color=light("ink"), linewidth=1.0, linestyle=(0, (4, 3)), gid="mark-keep", zorder=1)
    log_axis(axes, sorted({dim for model in models for dim in model.dims}))
    percent_axis(axes, "quality kept, % of the full dim")
    kept = [kept for curve in models[default.model].curves for kept in curve.kept]   # worse models may leave the axes
    axes.set_ylim(max(0.0, min(0.75, 0.1 * int(10 * min(kept) - 0.5))), max(1.06, min(1.3, max(kept) + 0.03)))
    for label, look in _legend(looks):
        axes.plot([], [], **_style(look), label=short(label))
    legend(figure, [axes])
    return export(figure), _scales(axes, [dim, default.keep])


def _line(axes: Axes, curve: Kept, look: Look, gid: str) -> None:
    spans = [(max(0.0, k - e), k + e) for k, e in zip(curve.kept, curve.error, strict=True)]
    low, high = zip(*spans, strict=True)
    axes.vlines(curve.dims, low, high, color=look.colour, linewidth=1, alpha=0.5, gid=f"bar-{gid}")
    axes.plot(curve.dims, curve.kept, **_style(look), gid=f"line-{gid}")


def _style(look: Look) -> dict[str, Any]:
    dash = (0, look.dash) if look.dash else "-"
    return {"color": look.colour, "linestyle": dash, "linewidth": look.width, "marker": look.marker, "markersize": 4.5}


def _scales(axes: Axes, drawn: list[float]) -> dict[str, Any]:
    """Points per doubling of the dim and per unit of quality, and where the markers are drawn."""
    figure = axes.get_figure()
    assert figure is not None
    per_point = figure.dpi / 72
    (left, bottom), (right, top) = axes.transData.transform([(1, 0), (2, 1)]) / per_point
    return {"x": right - left, "y": top - bottom, "dim": drawn[0], "keep": drawn[1]}
