"""Encode the splits of a dataset with a trained model, into embeddings folders.

Stopped at any moment, the same command goes on where it was. The vectors are stored as the heads read them
(not normalised) with the heads beside them; everything that reads them normalises as it needs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN, and which splits to encode to where."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a run folder of `matryo train`")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the dataset (the bundled emoji need none)")
    parser.add_argument(
        "--source", choices=["emoji", "folder", "packed", "shards"], help="what --data holds (default: as in training)"
    )
    parser.add_argument(
        "--split", action="append", metavar="NAME", help="a split to encode; repeat for more (default: train and test)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where the folders go (default: RUN/embeddings; RUN/width-W/embeddings)"
    )
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32", help="precision on disk")
    parser.add_argument("--width", type=float, default=1.0, metavar="W", help="the width of a slimmable network [1.0]")
    parser.add_argument("--device", default="auto", metavar="DEVICE", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--overwrite", action="store_true", help="encode again what is already there")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Encode every asked-for split."""
    from matryo.data import open_dataset
    from matryo.training import encode_split, load

    model = load(args.run_folder, device=args.device, width=args.width)
    source = args.source or model.recipe.data.source
    dataset = open_dataset(source, args.data, classes=model.classes)
    splits = args.split or [model.recipe.data.train, *model.recipe.data.test]
    if not any((dataset.split(name).labels >= 0).any() for name in splits):   # a misspelt name is told here
        print("no class of the dataset is one of the model's: it keeps its own")
        dataset = open_dataset(source, args.data)
    home = args.run_folder / (f"width-{args.width:g}" if args.width != 1 else "")
    out = args.out or home / "embeddings"
    for name in splits:
        there = (out / name / "manifest.json").exists() and not args.overwrite
        written = encode_split(
            model, dataset, name, out / name,
            dtype=args.dtype, overwrite=args.overwrite, progress=not args.quiet,
        )  # fmt: skip
        print(f"{out / name}: {len(written):,} vectors of {written.dim} dimensions"
              + (", there already (--overwrite encodes again)" if there else ""))
    print(f"next: matryo evaluate {out.parent if args.out is None else out}")
