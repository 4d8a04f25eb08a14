"""Draw everything that is known of some embeddings as one page: open report/index.html in any browser.

Each FOLDER (as for `matryo evaluate`) is measured with every protocol that its embeddings allow, and with the
baselines; --rows adds results that were stored before. Where the pictures are at hand (the bundled emoji, or --data
DIR) the page shows the examples on which small and large dims disagree, and for a run of a convolutional network what
each dim looks at.
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
    """What to measure, which rows to add, where the page goes."""
    from matryo.cli.subjects import add_subject_arguments

    add_subject_arguments(parser, folders="*", baselines="all")
    parser.add_argument("--rows", action="append", type=Path, default=[], metavar="FILE", help="stored rows; repeat")
    parser.add_argument("--protocols", default="all", metavar="NAME,…", help="as for evaluate [all]")
    parser.add_argument("--out", type=Path, default=Path("report"), metavar="DIR", help="where the page goes [report]")
    parser.add_argument("--title", default="", metavar="TEXT", help="the page's title (default: what was measured)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the dataset, for the pictures")
    parser.add_argument("--strips", type=int, default=6, metavar="N", help="examples with Grad-CAM maps [6]")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(args: argparse.Namespace) -> None:
    """Measure, gather, draw."""
    from matryo.cli.evaluate import measure_folders, to_rows
    from matryo.cli.subjects import subjects_of
    from matryo.errors import InputError
    from matryo.results import read_rows

    if not args.folders and not args.rows:
        raise InputError("a report needs something to show", got="nothing", cure="give a run FOLDER, or --rows FILE")
    rows = [row for path in args.rows for row in read_rows(path)]
    if args.folders:
        rows += to_rows(measure_folders(subjects_of(args), args.protocols, args.baselines))
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
    """The page of ``rows``, with pictures where a folder's dataset is at hand; an older report gives way."""
    from matryo.evaluation import Disagreement
    from matryo.report import build_report

    pictures: dict[str, bytes] = {}
    drawn: list[GradCamStrip] = []
    credits: dict[str, None] = {}
    told = [Disagreement.from_figures(row.figures) for row in rows if row.kind == "disagreement"]
    for folder in folders:
        dataset = _dataset(folder, data)
        if dataset is None:
            continue
        mine = [one for one in told if one.model in (folder.name, str(folder)) and _is_of(one, dataset)]
        for one in mine:
            pictures |= _pictures(one, dataset)
        if not mine and told:
            print(f"no pictures of {folder.name}: the images of {dataset.name} have other names", file=sys.stderr)
        if mine and strips and not drawn and importlib.util.find_spec("torch"):
            drawn = _strips(folder, mine, dataset, strips)
        credits |= dict.fromkeys(dataset.credits if pictures else ())
    subjects = ", ".join(dict.fromkeys(folder.name for folder in folders)) or "stored results"
    return build_report(
        rows, out,
        title=title or f"What each dim is worth: {subjects}",
        pictures=pictures, strips=drawn, credits=tuple(credits), overwrite=True,
    )  # fmt: skip


def _dataset(folder: Path, data: Path | None) -> Dataset | None:
    """The images that a run was trained on, if they can be opened; a page without pictures is still a page."""
    from matryo.data import ImageSplit, open_dataset
    from matryo.data.open import BUNDLED
    from matryo.errors import DataError, MissingExtra
    from matryo.training.run.paths import RunFolder

    run = RunFolder(folder)
    if not run.complete:   # embeddings that were not made by matryo
        return None
    source, classes = run.recipe.data.source, run.classes
    if source not in BUNDLED and data is None:
        print(f"no pictures of {folder.name}: --data DIR says where they are", file=sys.stderr)
        return None
    try:
        found = open_dataset(source, data, classes=classes)
    except (DataError, MissingExtra) as error:
        print(f"no pictures of {folder.name}: {error}", file=sys.stderr)
        return None
    return found if any(isinstance(_asking(split, found), ImageSplit) for split in found.splits) else None   # texts


def _is_of(one: Disagreement, dataset: Dataset) -> bool:
    """Whether the examples are images of this dataset: their names tell, not that of the folder it lies in."""
    from matryo.data import ImageSplit

    images = _asking(one.split, dataset)
    if not isinstance(images, ImageSplit):
        return False
    return all(row < len(images) and images.name(row) == name for row, name in zip(one.rows, one.ids, strict=True))


def _asking(split: str, dataset: Dataset) -> Any:
    """What asks in a split: of pairs the queries; None where the dataset has no such split."""
    found = dataset.splits.get(split)
    return getattr(found, "queries", found)


def _pictures(one: Disagreement, dataset: Dataset) -> dict[str, bytes]:
    """The examples' images as PNG, under the keys that the report asks for."""
    images = _asking(one.split, dataset)
    return {f"{one.dataset}/{one.split}/{row}": png(images.image(row)) for row in one.rows}


def _strips(folder: Path, told: Iterable[Disagreement], dataset: Dataset, count: int) -> list[GradCamStrip]:
    """Examples that the smallest dim gets wrong and the largest right, with what each dim looks at."""
    from matryo.errors import InputError
    from matryo.inference import load
    from matryo.inference.gradcam import gradcam, overlay
    from matryo.report import GradCamStrip

    chosen = [
        (one.split, row, label)
        for one in told
        for row, label, said in zip(one.rows, one.labels, one.said, strict=True)
        if said[1] == label and one.split in dataset.splits
    ][:count]
    if not chosen:
        return []
    model = load(folder)
    dims = sorted({*model.nesting.dims[:3], model.nesting.dim})
    images = [_asking(split, dataset).image(row) for split, row, _ in chosen]
    try:
        seen = gradcam(model, images, dims)
    except InputError as error:
        print(f"no Grad-CAM: {error}", file=sys.stderr)
        return []
    return [
        GradCamStrip(
            picture=png(seen.images[i]),
            label=label,
            dims=seen.dims,
            overlays=tuple(png(overlay(seen.images[i], heat)) for heat in seen.maps[i]),
            said=tuple(model.classes[said] for said in seen.predicted[i]),
            probability=tuple(map(float, seen.probability[i])),
        )
        for i, (_, _, label) in enumerate(chosen)
    ]


def png(pixels: Any) -> bytes:
    """An RGB image as the bytes of a PNG file."""
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
