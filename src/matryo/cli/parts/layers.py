"""The grid of layers × dims that `evaluate --layers` prints and draws, of a run that was encoded after fewer layers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation import Subject
from matryo.evaluation.grid import grids
from matryo.files import check_may_write, replacing, resolve
from matryo.tables import render

_EXAMPLE = "for example --layers 2,4"


def layer_folders(args: argparse.Namespace) -> list[Path]:
    """Return the folders of RUN after each of --layers and, last, RUN itself; raise if one is missing."""
    if args.figure is not None and (not args.layers or args.figure.suffix not in (".svg", ".png")):
        got = f"--figure {args.figure}" + ("" if args.layers else " without --layers")
        raise InputError("--figure draws the grid of --layers as .svg or .png", got=got, cure=_EXAMPLE)
    if args.figure is not None:
        check_may_write(args.figure, force=args.force)
    try:
        layers = sorted({int(part) for part in args.layers.split(",")})
    except ValueError:
        raise InputError("--layers must list numbers of layers", got=repr(args.layers), cure=_EXAMPLE) from None
    if len(args.folders) != 1:
        cure = "give one RUN, or drop --layers"
        raise InputError("--layers compares one run with itself", got=f"{len(args.folders)} folders", cure=cure)
    (run,) = args.folders
    folders = [run / f"layers-{count}" for count in layers]
    if missing := next((folder for folder in folders if not folder.is_dir()), None):
        cure = f"matryo encode {run} --layers {missing.name.removeprefix('layers-')}"
        raise EmbeddingsError("the run must be encoded after each of --layers", got=f"no {missing}", cure=cure)
    return [*folders, run]


def grid_of_layers(
    args: argparse.Namespace, results: Sequence[Any], subjects: Sequence[Subject], show: Sequence[str] | None
) -> str:
    """Return the grids as text, and draw them into --figure."""
    blocks = grids(results, {subject.name: subject for subject in subjects}, show)
    if args.figure is not None:
        from matryo.report.grid_picture import grid_picture

        drawn, path = grid_picture(blocks), resolve(args.figure)
        with replacing(path) as file:
            file.write(drawn.png if path.suffix == ".png" else drawn.svg.encode())
    return render(blocks)
