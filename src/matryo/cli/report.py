"""Draw a page that says how many dims you need: report/index.html, for any browser, offline.

Each FOLDER (as for `matryo evaluate`) is measured with every protocol that its embeddings allow, and with the
baselines. --rows adds stored results. If the images are available (the bundled emoji, or --data DIR), the page shows
examples on which small and large dims disagree, and Grad-CAM maps for runs of a convolutional network.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matryo.data import Dataset
    from matryo.evaluation import Disagreement
    from matryo.report import GradCamStrip
    from matryo.results import Row

__all__ = ["add_arguments", "run", "write_report"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Folders to measure, rows to add, and the output folder."""
    from matryo.cli.parts.subjects import add_subject_arguments

    add_subject_arguments(parser, folders="*", baselines="all")
    parser.add_argument("--rows", action="append", type=Path, default=[], metavar="FILE", help="stored rows; repeat")
    parser.add_argument("--protocols", default="all", metavar="NAME,…", help="as for evaluate [all]")
    replaced = "output folder; an older report there is replaced [report]"
    parser.add_argument("--out", type=Path, default=Path("report"), metavar="DIR", help=replaced)
    parser.add_argument("--title", default="", metavar="TEXT", help="the page's title (default: what was measured)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the dataset, for the pictures")
    parser.add_argument("--strips", type=int, default=6, metavar="N", help="examples with Grad-CAM maps [6]")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(args: argparse.Namespace) -> None:
    """Measure the folders, add stored rows, and draw the page."""
    from matryo.cli.evaluate import measure_folders
    from matryo.errors import InputError
    from matryo.report import check_out
    from matryo.results import read_rows

    if not args.folders and not args.rows:
        raise InputError("a report needs folders or rows", got="neither", cure="give a run FOLDER, or --rows FILE")
    check_out(args.out, overwrite=True)   # before the folders are measured, which may take long
    rows = [row for path in args.rows for row in read_rows(path)]
    if args.folders:
        rows += [row for _, row in measure_folders(args)]
    page = write_report(rows, args.folders, args.out, title=args.title, data=args.data, strips=args.strips)
    print(f"open {page}")


def write_report(
    rows: Sequence[Row],
    folders: Sequence[Path],
    out: Path,
    *,
    title: str = "",
    data: Path | None = None,
    strips: int = 6,
) -> Path:
    """Draw the page of ``rows``, with pictures if a folder's dataset can be opened; an older report is replaced."""
    from matryo.evaluation import Disagreement
    from matryo.report import build_report

    pictures: dict[str, bytes] = {}
    drawn: list[GradCamStrip] = []
    credits: dict[str, None] = {}
    disagreements = [Disagreement.from_figures(row.figures) for row in rows if row.kind == "disagreement"]
    for folder in folders:
        dataset = _dataset(folder, data)
        if dataset is None:
            continue
        mine = [one for one in disagreements if one.model in (folder.name, str(folder)) and _is_of(one, dataset)]
        for one in mine:
            pictures |= _pictures(one, dataset)
        if not mine and disagreements:
            print(f"no pictures of {folder.name}: its ids are not names of images in {dataset.name}", file=sys.stderr)
        if mine and strips and not drawn and importlib.util.find_spec("torch"):
            drawn = _strips(folder, mine, dataset, strips)
        credits |= dict.fromkeys(dataset.credits if pictures else ())
    subjects = ", ".join(dict.fromkeys(folder.name for folder in folders)) or "stored results"
    return build_report(
        rows, out,
        title=title or f"Quality by dim: {subjects}",
        pictures=pictures, strips=drawn, credits=tuple(credits), overwrite=True,
    )  # fmt: skip


def _dataset(folder: Path, data: Path | None) -> Dataset | None:
    """The images that a run was trained on, or None with a note on stderr if they cannot be opened."""
    from matryo.data import ImageSplit, open_dataset
    from matryo.data.open import BUNDLED
    from matryo.errors import DataError, MissingExtra
    from matryo.training.run.paths import RunFolder

    run = RunFolder(folder)
    if not run.complete:   # embeddings that were not made by matryo
        return None
    source, classes = run.recipe.data.source, run.classes
    if source not in BUNDLED and data is None:
        print(f"no pictures of {folder.name}: give their folder with --data DIR", file=sys.stderr)
        return None
    try:
        dataset = open_dataset(source, data, classes=classes)
    except (DataError, MissingExtra) as error:
        print(f"no pictures of {folder.name}: {error}", file=sys.stderr)
        return None
    queries = (_queries(split, dataset) for split in dataset.splits)
    return dataset if any(isinstance(side, ImageSplit) for side in queries) else None


def _is_of(one: Disagreement, dataset: Dataset) -> bool:
    """Whether the examples are images of this dataset, by their names."""
    from matryo.data import ImageSplit

    images = _queries(one.split, dataset)
    if not isinstance(images, ImageSplit):
        return False
    return all(row < len(images) and images.name(row) == name for row, name in zip(one.rows, one.ids, strict=True))


def _queries(split: str, dataset: Dataset) -> Any:
    """The query side of a split (of pairs, the queries), or None if the dataset has no such split."""
    content = dataset.splits.get(split)
    return getattr(content, "queries", content)


def _pictures(one: Disagreement, dataset: Dataset) -> dict[str, bytes]:
    """The examples' images as PNG, by "DATASET/SPLIT/ROW"."""
    images = _queries(one.split, dataset)
    return {f"{one.dataset}/{one.split}/{row}": png(images.image(row)) for row in one.rows}


def _strips(folder: Path, disagreements: Iterable[Disagreement], dataset: Dataset, count: int) -> list[GradCamStrip]:
    """Grad-CAM strips of examples that the smallest dim gets wrong and the largest right."""
    from matryo.errors import InputError
    from matryo.inference import load
    from matryo.inference.gradcam import gradcam, overlay
    from matryo.report import GradCamStrip

    chosen = [
        (one.split, row, label)
        for one in disagreements
        for row, label, said in zip(one.rows, one.labels, one.said, strict=True)
        if said[1] == label and one.split in dataset.splits
    ][:count]
    if not chosen:
        return []
    model = load(folder)
    dims = sorted({*model.nesting.dims[:3], model.nesting.dim})
    images = [_queries(split, dataset).image(row) for split, row, _ in chosen]
    try:
        maps = gradcam(model, images, dims)
    except InputError as error:
        print(f"no Grad-CAM: {error}", file=sys.stderr)
        return []
    return [
        GradCamStrip(
            picture=png(maps.images[i]),
            label=label,
            dims=maps.dims,
            overlays=tuple(png(overlay(maps.images[i], heat)) for heat in maps.maps[i]),
            said=tuple(model.classes[said] for said in maps.predicted[i]),
            probability=tuple(map(float, maps.probability[i])),
        )
        for i, (_, _, label) in enumerate(chosen)
    ]


def png(pixels: Any) -> bytes:
    """Encode an RGB image as PNG."""
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
