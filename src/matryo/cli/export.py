"""Export a trained model as a folder that another library loads.

`matryo export RUN --to sentence-transformers --out DIR` for texts, `--to timm` for images, `--to onnx` for either. The
folder contains a model card with a table of every dim.
"""

from __future__ import annotations

import argparse
from pathlib import Path

FORMATS = ("sentence-transformers", "transformers", "timm", "open_clip", "onnx")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN, the format and the folder."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a run folder of `matryo train`")
    parser.add_argument("--to", required=True, choices=FORMATS, help="the library that loads the folder")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write (default: RUN/export/FORMAT)")
    parser.add_argument(
        "--rows", type=Path, action="append", metavar="FILE", default=[],
        help="result rows of `matryo evaluate --json`, for the tables of the card; repeat for more",
    )  # fmt: skip
    parser.add_argument("--width", type=float, default=1.0, metavar="W", help="width of a slimmable network [1.0]")
    parser.add_argument("--layers", type=int, metavar="N", help="only the first N layers of a BERT or ViT [all]")
    parser.add_argument("--force", "--overwrite", dest="force", action="store_true", help="replace an earlier export")


def run(args: argparse.Namespace) -> None:
    """Write the folder."""
    from matryo.errors import MissingExtra
    from matryo.files import resolve
    from matryo.results import read_rows

    with MissingExtra.unless_installed("PyTorch", "train", module="torch"):
        from matryo.export import export

    out = args.out or args.run_folder / "export" / args.to
    # By default the card is named after the run: the folder is only named after the format.
    name = "" if args.out else resolve(args.run_folder, "read").name
    rows = [row for path in args.rows for row in read_rows(path)]
    export(
        args.run_folder, args.to, out, rows=rows, name=name, width=args.width, layers=args.layers, overwrite=args.force
    )
    print(f"{out}: written for {args.to}; {out / 'README.md'} shows how to load it")
