"""Encode the splits of a dataset with a trained model, into embeddings folders.

Stopped at any moment, the same command goes on where it was. The vectors are stored as the heads read them
(not normalised) with the heads beside them; everything that reads them normalises as it needs. A split of pairs
becomes two folders, queries and candidates, and relevance.tsv, which says what belongs to what.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from matryo.data.open import SOURCES

if TYPE_CHECKING:
    from matryo.data import Dataset
    from matryo.inference import TrainedModel

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN, and which splits to encode to where."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a run folder of `matryo train`")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the dataset (bundled ones need none)")
    parser.add_argument(
        "--source", choices=SOURCES, metavar="SOURCE",
        help=f"what --data holds: {', '.join(SOURCES)} (default: as in training)",
    )
    parser.add_argument(
        "--split", action="append", metavar="NAME", help="a split to encode; repeat for more (default: train and test)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where the folders go (default: RUN/embeddings; RUN/width-W/embeddings)"
    )
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32", help="of the numbers on disk")
    parser.add_argument(
        "--precision", choices=["fp32", "bf16"], default="fp32", help="of the computation: bf16 is quicker on a GPU"
    )
    parser.add_argument("--width", type=float, default=1.0, metavar="W", help="the width of a slimmable network [1.0]")
    parser.add_argument("--device", default="auto", metavar="DEVICE", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--force", "--overwrite", dest="force", action="store_true", help="encode again and replace existing embeddings"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Encode every asked-for split."""
    from matryo.inference import encode_pairs, encode_split, load

    model = load(args.run_folder, device=args.device, width=args.width, precision=args.precision)
    splits = args.split or [model.recipe.data.train, *model.recipe.data.test]
    dataset = _open(model, args.source or model.recipe.data.source, args.data, splits)
    home = args.run_folder / (f"width-{args.width:g}" if args.width != 1 else "")
    out = args.out or home / "embeddings"
    options = {"dtype": args.dtype, "overwrite": args.force, "progress": not args.quiet}
    for name in splits:
        folders = [out / name]
        pairs = hasattr(dataset.split(name), "pairs")
        if pairs:
            folders = [out / name / "queries", out / name / "candidates"]
        there = [(folder / "manifest.json").exists() and not args.force for folder in folders]
        if pairs:
            written = list(encode_pairs(model, dataset, name, out / name, **options))
        else:
            written = [encode_split(model, dataset, name, out / name, **options)]
        for folder, vectors, before in zip(folders, written, there, strict=True):
            print(f"{folder}: {len(vectors):,} vectors of {vectors.dim} dimensions"
                  + (", already complete (--force encodes again)" if before else ""))
    told = _evaluation(out, model.recipe.data.train)
    if told is not None:
        print(f"next: matryo evaluate {out.parent if args.out is None else out}{told}")


def _open(model: TrainedModel, source: str, root: Path | None, splits: list[str]) -> Dataset:
    """The dataset, with the model's classes where it knows some of them."""
    from matryo.data import open_dataset

    dataset = open_dataset(source, root, classes=model.classes or None)
    labelled = [split for name in splits if not hasattr(split := dataset.split(name), "pairs")]   # checks the names
    if model.classes and labelled and not any((split.labels >= 0).any() for split in labelled):
        print("no class of the dataset is one of the model's: it keeps its own")
        return open_dataset(source, root)
    return dataset


def _evaluation(out: Path, database: str) -> str | None:
    """The options that evaluate what lies in ``out``: pairs, or a split that knows classes of the ``database``.

    None where there is nothing to evaluate yet.
    """
    from matryo.embeddings import EmbeddingSet
    from matryo.embeddings.place import pair_folders

    if pair_folders(out):
        return ""
    folders = [path.parent for path in out.glob("*/manifest.json")]
    labels = {folder.name: np.asarray(EmbeddingSet.open(folder).labels) for folder in folders}
    known = labels.pop(database, np.empty(0))
    if not any(np.isin(asked, known[known >= 0]).any() for asked in labels.values()):
        return None
    return "" if database == "train" else f" --database {database}"
