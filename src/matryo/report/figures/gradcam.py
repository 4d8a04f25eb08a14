"""Grad-CAM: where the model looks at each dim."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from matryo.errors import InputError
from matryo.report.draw import export, short
from matryo.report.page import image_kind
from matryo.report.section import Plate, Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.figure import Figure

    from matryo.report.material import GradCamStrip, Material


def sections(material: Material) -> Iterator[Section]:
    """A strip per picture, as in the paper."""
    strips = tuple(material.strips)
    if not strips:
        return
    for strip in strips:
        _check(strip)
    changes = sum(len({*strip.said}) > 1 for strip in strips)
    yield Section(
        "gradcam", "Where the model looks",
        f"On {changes} of these {len(strips)} pictures the prediction changes with the dim",
        "Grad-CAM at each dim: bright regions support the class predicted below.",
        plates=(Plate("gradcam", "Grad-CAM by dim", export(_draw_strips(strips))),),
        strips=strips,
    )


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
            axis.imshow(imread(io.BytesIO(data), format=image_kind(data)))
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
