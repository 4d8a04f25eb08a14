"""`matryo encode --ray`: each split, or the items, encoded by the workers of a cluster."""

from __future__ import annotations

import argparse
from pathlib import Path

from matryo.errors import InputError
from matryo.ray import Cluster, Data, Parts, encode

__all__ = ["encode_on_ray"]


def encode_on_ray(args: argparse.Namespace) -> None:
    """Encode on the cluster of --ray, and print what was written."""
    from matryo.inference import load

    if "-" in args.items:
        raise InputError("workers cannot read standard input", got="-", cure="write the texts to a file")
    cluster = Cluster(args.ray, workers=args.ray_workers, gpus=args.ray_gpus)
    options = {"width": args.width, "layers": args.layers, "precision": args.precision}
    if args.device not in ("auto", "cpu"):
        raise InputError("workers choose their device", got=f"--device {args.device}", cure="use --ray-gpus 1")
    if args.items:
        jobs = [(Data(tuple(str(item) for item in args.items)), args.out)]
    else:
        recipe = load(args.run_folder, device="cpu").recipe
        source = args.source or recipe.data.source
        home = args.out or args.run_folder / "embeddings"
        root = "" if args.data is None else str(Path(args.data).absolute())
        jobs = [(Data((), source, root, name), f"{home}/{name}")
                for name in args.split or [recipe.data.train, *recipe.data.test]]  # fmt: skip
    with cluster:
        for data, out in jobs:
            written = encode(args.run_folder, data, out, cluster=cluster, keep_parts=True if args.ray_parts else None,
                             dtype=args.dtype, overwrite=args.force, progress=not args.quiet, **options)  # fmt: skip
            count = f"{written.count:,} vectors of {written.dim} dimensions"
            parts = f" in {len(written.records):,} parts" if isinstance(written, Parts) else ""
            print(f"{out}: {count}{parts}")
