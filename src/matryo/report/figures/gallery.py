"""Examples to look at: where two dims disagree, and where a model looks at each dim."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from matryo.errors import InputError
from matryo.evaluation.protocols.disagreement import Disagreement
from matryo.report.draw import export, short
from matryo.report.markup import escape, image, kind_of
from matryo.report.section import Plate, Section, Table, rows_of
from matryo.report.series import Group, gather
from matryo.report.words import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from matryo.report.material import GradCamStrip, Material

__all__ = ["disagreement", "gradcam"]


def disagreement(material: Material) -> Section | None:
    """A gallery for each model and split, of its first seed."""
    groups = gather(material.rows, "disagreement", Disagreement, lambda one: (one.by, one.dims))
    if not groups:
        return None
    one = groups[0].first
    low, high = one.dims
    total = one.both_right + one.only_low + one.only_high + one.both_wrong
    return Section(
        key="disagreement",
        title="Where dims disagree",
        finding=f"{low} dims are right and {high} wrong on {one.only_low:,} of {total:,} examples; the other way round "
        f"on {one.only_high:,}",
        meaning="The examples that tell the two dims apart most surely, with what each says and how sure it is.",
        rows=rows_of(groups),
        table=_examples(groups),
        shown=(_counts(groups),),
        html="".join(_gallery(group, material, opened=group is groups[0]) for group in groups),
    )


def gradcam(material: Material) -> Section | None:
    """A strip for each picture: where the model looks at each dim, as the paper shows it."""
    strips = material.strips
    if not strips:
        return None
    for strip in strips:
        _check(strip)
    dims = strips[0].dims
    changes = sum(len({*strip.said}) > 1 for strip in strips)
    heads = "".join(f'<th scope="col">{dim} dims</th>' for dim in dims)
    body = "".join(_strip(strip) for strip in strips)
    return Section(
        key="gradcam",
        title="Where the model looks",
        finding=f"On {changes} of these {len(strips)} pictures the answer changes with the dim",
        meaning="Grad-CAM at each dim: bright places are those that speak for the answer below.",
        rows=(),
        plates=(Plate("gradcam", "Grad-CAM by dim.", export(_draw_strips(strips))),),
        html=f'<div class="scroll" tabindex="0"><table class="strip"><thead><tr><th scope="col">picture</th>{heads}'
        f"</tr></thead><tbody>{body}</tbody></table></div>"
        '<p class="note"><a href="figures/gradcam.svg">SVG</a> <a href="figures/gradcam.png">PNG</a></p>',
    )


def _gallery(group: Group[Disagreement], material: Material, *, opened: bool) -> str:
    one = group.first
    cards = []
    for place, label in enumerate(one.labels):
        picture = material.pictures.get(f"{one.dataset}/{one.split}/{one.rows[place]}")
        shown = image(picture, f"{label}, {one.ids[place]}") if picture is not None else ""
        said = "".join(
            f"<dt>{dim}</dt><dd>{_answer(said, label, sure)}</dd>"
            for dim, said, sure in zip(one.dims, one.said[place], one.confidence[place], strict=True)
        )
        name = escape(label)
        cards.append(f'<figure class="card">{shown}<figcaption>{name}</figcaption><dl>{said}</dl></figure>')
    seed = f", seed {group.rows[0].seed}" if len(group.rows) > 1 else ""
    about = escape(f"{group.name} on {group.place}, by {one.by}{seed}: the true class, then what each dim says.")
    shown = f'<div class="gallery">{"".join(cards)}</div>'
    return f'<details{" open" if opened else ""}><summary>{about}</summary>{shown}</details>'


def _answer(said: str, label: str, sure: float) -> str:
    kind, sign = ("right", "✓") if said == label else ("wrong", "✗")
    return f'<span class="{kind}">{sign} {escape(said)}</span> {sure:.2f}'


def _strip(strip: GradCamStrip) -> str:
    cells = "".join(
        f"<td>{image(overlay, f'{said} at {dim} dims')}{_answer(said, strip.label, sure)}</td>"
        for dim, overlay, said, sure in zip(strip.dims, strip.overlays, strip.said, strip.probability, strict=True)
    )
    return f"<tr><td>{image(strip.picture, strip.label)}{escape(strip.label)}</td>{cells}</tr>"


def _draw_strips(strips: Sequence[GradCamStrip]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    columns = 1 + max(len(strip.dims) for strip in strips)
    figure = Figure(figsize=(1.5 * columns, 0.35 + 1.95 * len(strips)))
    edges = {"left": 0.01, "right": 0.99, "bottom": 0.0, "top": 1 - 0.35 / figure.get_figheight()}
    axes = figure.subplots(len(strips), columns, squeeze=False, gridspec_kw={**edges, "wspace": 0.08, "hspace": 0.0})
    for line, strip in zip(axes, strips, strict=True):
        answers = zip(strip.said, strip.probability, strict=True)
        below = [short(strip.label, 17), *(f"{short(said, 17)}\n{sure:.2f}" for said, sure in answers)]
        above = ["picture", *(f"{dim} dims" for dim in strip.dims)]
        for axis in line:
            axis.set_axis_off()
        for axis, data, said, head in zip(line, (strip.picture, *strip.overlays), below, above, strict=False):
            axis.imshow(imread(io.BytesIO(data), format=kind_of(data)))
            axis.set_anchor("N")
            axis.set_title(head if strip is strips[0] else "", pad=4)
            axis.text(0.5, -0.03, said, transform=axis.transAxes, ha="center", va="top", fontsize=9)
    return figure


def _check(strip: GradCamStrip) -> None:
    if not len(strip.dims) == len(strip.overlays) == len(strip.said) == len(strip.probability):
        raise InputError(
            "a strip must have an overlay, a class and a probability for each of its dims",
            got=f"{strip.label!r}: {len(strip.dims)} dims, {len(strip.overlays)} overlays",
            cure="give one of each",
        )


def _examples(groups: Sequence[Group[Disagreement]]) -> Table:
    heads = ("place", "series", "id", "row", "class", "low dim", "said", "confidence", "high dim", "said", "confidence")
    lines = []
    for group in groups:
        one = group.first
        for place, label in enumerate(one.labels):
            (low, high), (said, more), (sure, surer) = one.dims, one.said[place], one.confidence[place]
            lines.append(
                (group.place, group.name, one.ids[place], one.rows[place], label, low, said, sure, high, more, surer)
            )
    return Table(heads, tuple(lines))


def _counts(groups: Sequence[Group[Disagreement]]) -> Table:
    lines = []
    for group in groups:
        for row, one in zip(group.rows, group.results, strict=True):
            counts = (one.both_right, one.only_low, one.only_high, one.both_wrong)
            total = max(1, sum(counts))
            shares = (f"{count:,} ({percent(count / total)})" for count in counts)
            seed = "–" if row.seed is None else row.seed
            lines.append((group.name, group.place, seed, f"{one.dims[0]} | {one.dims[1]}", *shares))
    return Table(("model", "split", "seed", "dims", "both right", "only low", "only high", "both wrong"), tuple(lines))
