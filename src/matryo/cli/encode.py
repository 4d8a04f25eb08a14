"""Encode a dataset, or new images and texts, with a trained model into embeddings folders.

Without ITEM, every split of the dataset becomes one folder. A split of pairs becomes two folders, queries and
candidates, and relevance.tsv, which lists the pairs. With ITEM …, these images or texts become the folder --out; they
need no labels. If interrupted, run the same command again to resume. Vectors are stored as the heads read them, not
normalised, with the heads beside them; every reader normalises as it needs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.cli.parts.items import add_items_argument, open_items
from matryo.cli.train import check_data_is_used
from matryo.data import Dataset, open_dataset
from matryo.data.open import SOURCES
from matryo.embeddings import EmbeddingSet
from matryo.embeddings.manifest import MANIFEST, Manifest
from matryo.embeddings.place import RELEVANCE
from matryo.errors import InputError
from matryo.files import resolve

if TYPE_CHECKING:
    from matryo.inference import TrainedModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN, what to encode, and where to write it."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a run folder of `matryo train`")
    add_items_argument(parser, "encode into --out")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the dataset; not for bundled data")
    parser.add_argument(
        "--source", choices=SOURCES, metavar="SOURCE",
        help=f"kind of dataset in --data: {', '.join(SOURCES)} (default: as in training)",
    )  # fmt: skip
    parser.add_argument(
        "--split", action="append", metavar="NAME", help="split to encode; repeat for more (default: train and test)"
    )
    parser.add_argument(
        "--out", type=_place, metavar="DIR",
        help="where to write: one folder per split in it (default: RUN/embeddings; RUN/width-W/embeddings or "
        "RUN/layers-N/embeddings), or the folder of the ITEMs",
    )  # fmt: skip
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32", help="of the stored vectors")
    parser.add_argument(
        "--precision", choices=["fp32", "bf16"], default="fp32", help="of the computation: bf16 is faster on a GPU"
    )
    parser.add_argument("--width", type=float, default=1.0, metavar="W", help="width of a slimmable network [1.0]")
    parser.add_argument("--layers", type=int, metavar="N", help="stop after N layers of a BERT or ViT [all]")
    parser.add_argument("--device", default="auto", metavar="DEVICE", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--force", "--overwrite", dest="force", action="store_true", help="encode again and replace existing embeddings"
    )
    parser.add_argument("--ray", metavar="ADDRESS", help="encode on a Ray cluster: its address, auto, or local; --out "
                        "may be a URL such as s3://bucket/name, where the parts stay")  # fmt: skip
    parser.add_argument("--ray-workers", type=int, metavar="N", help="with --ray: workers [one per core or GPU]")
    parser.add_argument("--ray-gpus", type=float, default=0.0, metavar="X", help="with --ray: GPUs per worker [0]")
    parser.add_argument("--ray-parts", action="store_true", help="with --ray: leave the parts in --out, for jobs on "
                        "the cluster, instead of gathering them into one folder")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Encode the splits or the items, and print what was written."""
    from matryo.inference import load

    _check_items(args)
    if args.ray is not None:
        from matryo.cli.parts.on_ray import encode_on_ray

        encode_on_ray(args)
        return
    if "://" in str(args.out or ""):
        raise InputError("--out must be a folder", got=args.out, cure="add --ray local to write parts to a URL")
    model = load(
        args.run_folder, device=args.device, width=args.width, layers=args.layers, precision=args.precision
    )
    if args.items:
        items = open_items(args.items)
        dataset = Dataset(resolve(args.items[0], "read").name, model.classes, {"new": items})
        _encode(args, model, dataset, "new", args.out)
        return
    source = args.source or model.recipe.data.source
    check_data_is_used(source, args.data, "--source")
    splits = args.split or [model.recipe.data.train, *model.recipe.data.test]
    dataset = _open(model, source, args.data, splits)
    part = f"layers-{model.layers}" if model.layers else f"width-{args.width:g}" if args.width != 1 else ""
    home = args.run_folder / part
    out = args.out or home / "embeddings"
    for name in splits:
        _encode(args, model, dataset, name, out / name)
    train, pairs = model.recipe.data.train, any(out.glob(f"*/{RELEVANCE}"))
    if pairs or _shares_classes(out, train):
        options = "" if pairs or train == "train" else f" --database {train}"
        cut = model.layers and not args.out
        print(f"next: matryo evaluate {args.run_folder if cut else args.out or home}{options}", end="")
        print(f" --layers {model.layers}" if cut else "")


def _place(text: str) -> Any:
    """A path, or a URL as it is: a path would lose one of its slashes."""
    return text if "://" in text else Path(text)


def _check_items(args: argparse.Namespace) -> None:
    for option in ("ray_workers", "ray_gpus", "ray_parts"):
        if getattr(args, option) and args.ray is None:
            flag = f"--{option.replace('_', '-')}"
            raise InputError(f"{flag} is for a Ray cluster", got="no --ray", cure="add --ray local")
    if args.items and args.out is None:
        raise InputError("new data needs a folder to write to", got="no --out", cure="add --out DIR")
    for option in ("data", "source", "split"):
        if args.items and getattr(args, option):
            rule = f"--{option} is for datasets, and ITEM … replaces the dataset"
            raise InputError(rule, got=f"{len(args.items)} ITEM", cure=f"drop --{option}, or the items")


def _encode(args: argparse.Namespace, model: TrainedModel, dataset: Dataset, split: str, out: Path) -> None:
    """Encode one split, or both sides of one, and print a line per folder."""
    from matryo.inference import encode_pairs, encode_split

    pairs = hasattr(dataset.split(split), "pairs")
    folders = [out / "queries", out / "candidates"] if pairs else [out]
    complete = [folder for folder in folders if (folder / MANIFEST).exists() and not args.force]
    encode = encode_pairs if pairs else encode_split
    encode(model, dataset, split, out, dtype=args.dtype, overwrite=args.force, progress=not args.quiet)
    for folder in folders:
        state = ", already complete (--force encodes again)" if folder in complete else ""
        written = Manifest.load(folder)
        print(f"{folder}: {written.count:,} vectors of {written.dim} dimensions{state}")


def _open(model: TrainedModel, source: str, root: Path | None, splits: list[str]) -> Dataset:
    """Return the dataset, labelled with the model's classes if they have any in common."""
    dataset = open_dataset(source, root, classes=model.classes or None)
    labelled = [split for name in splits if not hasattr(split := dataset.split(name), "pairs")]   # checks the names
    if model.classes and labelled and not any((split.labels >= 0).any() for split in labelled):
        print("None of the dataset's classes match the model's; labels are kept, heads are not stored.")
        return open_dataset(source, root)
    return dataset


def _shares_classes(out: Path, database: str) -> bool:
    """Whether ``out`` holds a split that can query the split ``database``, because they share classes."""
    folders = [path.parent for path in out.glob(f"*/{MANIFEST}")]
    labels = {folder.name: np.asarray(EmbeddingSet.open(folder).labels) for folder in folders}
    known = labels.pop(database, np.empty(0))
    return any(np.isin(queries, known[known >= 0]).any() for queries in labels.values())
