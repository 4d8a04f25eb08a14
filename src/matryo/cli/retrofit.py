"""Fit a map that makes existing vectors nested, test it on held-out queries, and apply it.

SOURCE is a .npy, .csv, .tsv, .parquet, .arrow, .feather or .jsonl file, an embeddings folder, an index, or - for
standard input. The map is chosen at each dim: identity, PCA, or a rung above them that is proved not to be worse. It is
saved as a folder, which `matryo index FOLDER --rotate MAP` and `matryo.Retrofit.load` take. An index needs no map of
its own: `matryo index FOLDER SOURCE --rotate` fits one.

With --migrate, the map carries the vectors of SOURCE into the space of another model, whose vectors of some of the same
items are in NEW. `matryo index NEW_FOLDER OLD_INDEX --migrate MAP` then builds an index that the new model can search
while its rows are encoded again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matryo.cli.parts.reading import add_source_arguments, open_sources
from matryo.cli.parts.subjects import parse_dims
from matryo.errors import InputError
from matryo.files import check_may_write

if TYPE_CHECKING:
    from matryo.retrieve.sources import Source
    from matryo.retrofit import Migration, Retrofit

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """SOURCE, what the map is fitted with, and what is written."""
    parser.add_argument("source", metavar="SOURCE", help="vectors to fit the map to; - is standard input")
    parser.add_argument("--queries", metavar="FILE", help="vectors that will be searched with, if they differ")
    parser.add_argument("--labels", type=Path, metavar="FILE",
                        help="a .npy file with a class number per vector, −1 where it is unknown")  # fmt: skip
    parser.add_argument("--dims", metavar="M,M,…", help="dims to serve (default: powers of two)")
    parser.add_argument("--trained", metavar="M,M,…", help="dims that the vectors were trained for: prefixes at these "
                        "keep their span in one of the maps")  # fmt: skip
    parser.add_argument("--metric", choices=["cosine", "ip", "l2"], default="cosine", help="how vectors are compared "
                        "[cosine]")  # fmt: skip
    parser.add_argument("--learn", action="store_true", help="also learn a rotation; needs torch")
    parser.add_argument("--adapt", action="store_true", help="also learn an adaptor, which changes full-dim scores; "
                        "needs torch")  # fmt: skip
    parser.add_argument("--migrate", metavar="NEW", help="vectors of the same items by a new model: fit a map into its "
                        "space; rows are matched by ids, or by their order")  # fmt: skip
    parser.add_argument("--confidence", type=float, default=0.95, metavar="P",
                        help="that no map above PCA is worse [0.95]")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the choice of held-out queries [0]")
    add_source_arguments(parser)
    out = parser.add_argument_group("output")
    out.add_argument("--map", type=Path, metavar="MAP", help="save the map to this folder")
    out.add_argument("--transform", type=Path, metavar="FILE", help="write the mapped vectors to this .npy file")
    out.add_argument("--dim", type=int, metavar="M", help="with --transform: only the first M columns")
    out.add_argument("--force", action="store_true", help="overwrite FILE")
    out.add_argument("--json", action="store_true", help="print the choice as a JSON object")
    out.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Fit, save, transform and print."""
    from matryo.retrofit.folder import check_free

    if args.map is not None:
        check_free(args.map, kind="retrofit" if args.migrate is None else "migration")
    if args.transform is not None:
        if args.transform.suffix != ".npy" or args.source == "-":
            cure = "name a .npy file" if args.source != "-" else "write standard input to a file first"
            raise InputError("--transform writes a .npy file, and reads SOURCE again", got=args.transform, cure=cure)
        check_may_write(args.transform, force=args.force)
    elif args.dim is not None:
        raise InputError("--dim applies to --transform", got="no --transform", cure="add --transform FILE")
    fitted = _fitted(args) if args.migrate is None else _migration(args)
    if args.map is not None:
        fitted.save(args.map)
    if args.transform is not None:
        _transform(args, fitted, open_sources(args, [args.source])[0])
    print(json.dumps(_about(fitted), ensure_ascii=False) if args.json else _text(args, fitted))


def _fitted(args: argparse.Namespace) -> Retrofit:
    from matryo.retrofit import Retrofit

    [source] = open_sources(args, [args.source])
    queries = None if args.queries is None else open_sources(args, [args.queries])[0]
    return Retrofit.fit(
        source, queries, labels=_labels(args.labels), nesting=parse_dims(args.dims), trained=parse_dims(args.trained),
        metric=args.metric, learn=args.learn, adapt=args.adapt, confidence=args.confidence, seed=args.seed,
        progress=not args.quiet,
    )  # fmt: skip


def _migration(args: argparse.Namespace) -> Migration:
    from matryo.cli.parts.migrating import fit_migration

    names = ("queries", "labels", "dims", "trained", "learn", "adapt", "dim")
    given = next((name for name in names if getattr(args, name) not in (None, False)), None)
    if given is not None or args.source == "-":
        got = f"--{given}" if given is not None else "SOURCE -"
        raise InputError("--migrate fits a map between two models", got=got, cure="drop it: both models fix the dims")
    return fit_migration(args)


def _about(fitted: Retrofit | Migration) -> dict[str, Any]:
    from matryo.retrofit import Retrofit
    from matryo.retrofit.folder import as_json

    return as_json(fitted) if isinstance(fitted, Retrofit) else fitted.to_dict()


def _labels(path: Path | None) -> Any:
    import numpy as np

    if path is None:
        return None
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        cure = "write class numbers with numpy.save"
        raise InputError(f"{path} must be a .npy file of labels", got=error, cure=cure) from error


def _transform(args: argparse.Namespace, fitted: Retrofit | Migration, source: Source) -> None:
    """Write the mapped vectors batch by batch; the file appears when it is complete."""
    import numpy as np

    from matryo.files import replacing
    from matryo.retrofit import Retrofit

    dim = _dim(args, fitted)
    count = source.count if source.count is not None else sum(len(batch.vectors) for batch in source.batches())
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, dim)}
    with replacing(args.transform) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for batch in source.batches():
            vectors = batch.vectors
            mapped = fitted.transform(vectors, args.dim) if isinstance(fitted, Retrofit) else fitted.transform(vectors)
            file.write(np.ascontiguousarray(mapped, "<f4").tobytes())


def _dim(args: argparse.Namespace, fitted: Retrofit | Migration) -> int:
    """The columns of the mapped vectors."""
    from matryo.retrofit import Retrofit

    return int(args.dim or fitted.dim) if isinstance(fitted, Retrofit) else fitted.new_dim


def _text(args: argparse.Namespace, fitted: Retrofit | Migration) -> str:
    from matryo.retrofit import Retrofit

    lines = [str(fitted)]
    lines += [f"map: {args.map}"] if args.map is not None else []
    lines += [f"vectors: {args.transform}, {_dim(args, fitted)} dims"] if args.transform is not None else []
    if args.map is not None and not isinstance(fitted, Retrofit):
        lines += [f"next: matryo index FOLDER {args.source} --migrate {args.map}"]
    elif args.map is not None and isinstance(fitted, Retrofit) and fitted.keeps_scores and fitted.rung != "identity":
        lines += [f"next: matryo index FOLDER --rotate {args.map}"]
    return "\n".join(lines)
