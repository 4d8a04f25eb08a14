"""Pack image folders, tar shards or Parquet tables into few files of smaller images, which training reads faster.

Each split becomes one file, or several with --images-per-file. A longer side of more than --side pixels is reduced to
that; a JPEG file that needs no reduction is kept as it is. If interrupted, run the same command again to resume; files
that are complete are kept. Train on the result with --data.source packed --data OUT. ImageNet as FFCV stores it for the
paper's models: --side 500 --raw 0.5.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from matryo.errors import InputError
from matryo.files import resolve

_SOURCES = ("folder", "shards", "tables", "packed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset, the form of the images, and the folder to write."""
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the dataset")
    parser.add_argument(
        "--source", choices=_SOURCES, default="folder",
        help="kind of dataset in --data: class folders, tar shards, Parquet tables or packed files [folder]",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--split", action="append", metavar="NAME", help="split to pack; repeat for more [all]")
    parser.add_argument("--side", type=int, default=500, metavar="PIXELS", help="most pixels of the longer side [500]")
    parser.add_argument("--format", choices=["jpeg", "webp"], default="jpeg", help="jpeg decodes faster [jpeg]")
    parser.add_argument("--quality", type=int, default=90, metavar="Q", help="of images that are stored anew [90]")
    parser.add_argument(
        "--raw", type=float, default=0.0, metavar="SHARE",
        help="share of the images stored without compression: larger files, less to decode [0]",
    )  # fmt: skip
    parser.add_argument(
        "--images-per-file", type=int, default=50_000, metavar="N", help="write several files per split; 0: one [50000]"
    )
    parser.add_argument(
        "--machine", default="1/1", metavar="I/N", help="of N machines that write to the same --out, this is number I"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads that decode and encode [all processors]")
    parser.add_argument("--force", action="store_true", help="write complete files again, whatever they hold")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Pack the splits and print the size of each."""
    from matryo.data import open_dataset, pack_dataset
    from matryo.data.dataset import Dataset
    from matryo.data.images.tables import table_dataset

    number, _, machines = args.machine.partition("/")
    if not (number.isdecimal() and machines.isdecimal() and 1 <= int(number) <= int(machines)):
        raise InputError("--machine must be I/N with I in 1 … N", got=args.machine, cure="write --machine 1/4")
    out = resolve(args.out)
    if out == resolve(args.data, "read"):
        raise InputError("--out must be another folder than --data", got=args.out, cure="choose a new folder")
    tables = args.source == "tables"
    dataset: Dataset[Any] = table_dataset(args.data) if tables else open_dataset(args.source, args.data)
    chosen = {name: dataset.split(name) for name in args.split or dataset.splits}
    part = Dataset(dataset.name, dataset.classes, chosen, dataset.superclasses, dataset.superclass_of)
    pack_dataset(
        part, out, side=args.side, format=args.format, quality=args.quality, raw=args.raw, overwrite=args.force,
        images_per_file=args.images_per_file, machine=int(number), machines=int(machines), threads=args.threads,
        progress=not args.quiet,
    )  # fmt: skip
    for name, split in chosen.items():
        files = [out / f"{name}.npz"] if (out / f"{name}.npz").exists() else sorted(out.glob(f"{name}_*-of-*.npz"))
        size = sum(path.stat().st_size for path in files)
        print(f"{name}: {len(split):,} images, {len(files)} file{'s' * (len(files) != 1)}, {size / 1e6:,.1f} MB")
    if machines == "1":
        print(f"next: matryo train RECIPE --data.source packed --data {args.out}")
