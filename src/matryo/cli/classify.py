"""Classify each row at the smallest dim that is sure enough, and say what that saves.

FOLDER is a run folder (its embeddings/ are read) or a folder of embeddings folders, one a split, with the heads that
`matryo encode` stores. Thresholds are chosen on a random half of the split, or on the split that --fit-on names, and
never tested on rows they were chosen on. --expected-dim asks for the best accuracy at that dim, --max-loss for the
smallest dim that loses at most so much accuracy; with neither, thresholds are chosen as the paper does.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.classify import Answers, Cascade, CascadeCurve, CascadeResult
    from matryo.embeddings import EmbeddingSet
    from matryo.results import Row

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FOLDER, how thresholds are chosen, and where the answers go."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="run folder, or folder of embeddings")
    parser.add_argument("--split", metavar="SPLIT", help="the split to classify (default: the one besides train)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--fit-on", metavar="SPLIT", help="choose thresholds on this split (default: half of --split)")
    source.add_argument("--cascade", type=Path, metavar="FILE", help="use the thresholds that --save wrote")
    parser.add_argument(
        "--strategy", choices=["greedy", "budget", "risk"], help="how thresholds are chosen (default: as asked below)"
    )
    parser.add_argument("--expected-dim", type=float, metavar="X", help="budget: the mean dim to keep to")
    parser.add_argument("--max-loss", type=float, metavar="X", help="risk: the accuracy to lose at most [0.005]")
    parser.add_argument("--confidence", type=float, default=0.95, metavar="X", help="risk: how surely [0.95]")
    parser.add_argument("--holdout", type=float, default=0.5, metavar="X", help="share of --split to choose on [0.5]")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which rows these are [0]")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the answers to FILE.csv or FILE.jsonl")
    parser.add_argument("--save", type=Path, metavar="FILE", help="save the thresholds as JSON")
    parser.add_argument("--curve", action="store_true", help="accuracy against expected dim, over 30 hold-outs")
    parser.add_argument("--json", metavar="FILE", help="append the result rows to FILE; - prints them and no table")


def run(args: argparse.Namespace) -> None:
    """Fit or load the cascade, classify, print the tables, write what was asked for."""
    from matryo.results import append_rows

    _check_out(args.out)
    splits = _splits(args.folder)
    asked = _open(args.folder, splits, args.split or _only(args.folder, splits))
    cascade, rest, origin = _prepare(args, splits, asked)
    answers = cascade.answers(rest)
    result = cascade.measure(rest) if rest.labels is not None and (rest.labels >= 0).any() else None
    curve = _draw(args, cascade, asked) if args.curve else None
    if args.save:
        cascade.save(args.save)
    if args.out:
        _write(args.out, rest, answers)
    rows = _to_rows(args, asked, [one for one in (result, curve) if one is not None])
    if args.json == "-":
        for row in rows:
            print(json.dumps(dataclasses.asdict(row), ensure_ascii=False))
        return
    where = " / ".join(filter(None, (asked.manifest.dataset, asked.path.name)))
    print(f"{args.folder.name}: {where}, {len(rest):,} rows; {origin}")
    print(_table(cascade, answers, result))
    if curve is not None:
        print(f"\n{_curve_table(curve)}")
    if args.json:
        append_rows(Path(args.json), rows)


def _prepare(
    args: argparse.Namespace, splits: dict[str, Path], asked: EmbeddingSet
) -> tuple[Cascade, EmbeddingSet, str]:
    """The cascade, the rows it was not fitted on, and a phrase on where it comes from."""
    from matryo.classify import Cascade
    from matryo.errors import InputError

    chosen = _strategy(args)
    if args.cascade:
        if chosen:
            raise InputError("--cascade brings its thresholds with it", got=f"--{next(iter(chosen))}", cure="drop one")
        return Cascade.load(args.cascade), asked, f"thresholds of {args.cascade.name}"
    cascade = Cascade(**{"confidence": args.confidence, "seed": args.seed, **chosen})
    if args.fit_on:
        if args.fit_on == asked.path.name:
            raise InputError(
                "--fit-on must name another split than --split",
                got=args.fit_on,
                cure="leave it out: half of the split is then held out",
            )
        holdout, rest = _open(args.folder, splits, args.fit_on), asked
    else:
        holdout, rest = _halves(asked, args.holdout, args.seed)
    cascade.fit(holdout)
    others = f"{len(holdout):,} {'rows of ' + args.fit_on if args.fit_on else 'others'}"
    return cascade, rest, f"{cascade.strategy} thresholds chosen on {others}"


def _strategy(args: argparse.Namespace) -> dict[str, object]:
    """What was asked for: naming a dim or a loss names the strategy too."""
    from matryo.errors import InputError

    given = {"strategy": args.strategy, "expected_dim": args.expected_dim, "max_loss": args.max_loss}
    given = {name: value for name, value in given.items() if value is not None}
    implied = [name for name, key in (("budget", "expected_dim"), ("risk", "max_loss")) if key in given]
    if len({*implied, given.get("strategy", "")} - {""}) > 1:
        raise InputError(
            "--expected-dim goes with the strategy budget, --max-loss with risk, and neither with another",
            got=", ".join(f"{name.replace('_', '-')} {value}" for name, value in given.items()),
            cure="drop one",
        )
    return {"strategy": implied[0], **given} if implied else given


def _halves(asked: EmbeddingSet, share: float, seed: int) -> tuple[EmbeddingSet, EmbeddingSet]:
    """A random ``share`` of the labelled rows, and all other rows in their order."""
    from matryo.errors import InputError

    if asked.labels is None or not (asked.labels >= 0).any():
        raise InputError(
            "the split must have labels to choose thresholds on",
            got=asked.path,
            cure="use thresholds you have (--cascade), or choose them on another split (--fit-on)",
        )
    labelled = np.flatnonzero(asked.labels >= 0)
    count = round(share * len(labelled))
    if not 1 <= count < len(labelled):
        raise InputError(
            "the hold-out must have rows, and leave some to classify",
            got=f"{share:g} of {len(labelled)} rows",
            cure="choose a --holdout between 0 and 1, or encode more rows",
        )
    held = np.zeros(len(asked), bool)
    held[np.random.default_rng(seed).permutation(labelled)[:count]] = True
    return asked.select(held), asked.select(~held)


def _splits(folder: Path) -> dict[str, Path]:
    from matryo.errors import EmbeddingsError

    inside = folder / "embeddings" if (folder / "embeddings").is_dir() else folder
    found = {path.parent.name: path.parent for path in sorted(inside.glob("*/manifest.json"))}
    if not found:
        itself = (folder / "manifest.json").exists()
        raise EmbeddingsError(
            "FOLDER must be a run folder, or hold one embeddings folder a split",
            got=f"{folder}, which {'is one of those itself' if itself else 'holds none'}",
            cure=f"give {folder.parent}" if itself else "check the path, or run matryo encode first",
        )
    return found


def _only(folder: Path, splits: dict[str, Path]) -> str:
    from matryo.errors import InputError

    others = [name for name in splits if name != "train"]
    if len(others) != 1:
        raise InputError(
            f"--split must say what to classify in {folder}", got=", ".join(splits), cure="name one of these"
        )
    return others[0]


def _open(folder: Path, splits: dict[str, Path], name: str) -> EmbeddingSet:
    from matryo.embeddings import EmbeddingSet
    from matryo.errors import EmbeddingsError

    if name not in splits:
        trained = (folder / "run.json").exists()
        raise EmbeddingsError(
            f"{folder} must hold embeddings of the split {name}",
            got=", ".join(splits),
            cure=f"matryo encode {folder} --split {name}" if trained else "name one of these",
        )
    return EmbeddingSet.open(splits[name])


def _draw(args: argparse.Namespace, cascade: Cascade, asked: EmbeddingSet) -> CascadeCurve:
    from matryo.classify import cascade_curve

    return cascade_curve(
        asked, nesting=cascade.dims_, strategy=cascade.strategy, confidence=args.confidence,
        fraction=args.holdout, seed=args.seed,
    )  # fmt: skip


def _to_rows(
    args: argparse.Namespace, asked: EmbeddingSet, results: Sequence[CascadeResult | CascadeCurve]
) -> list[Row]:
    from matryo.results import stamp

    subject = " ".join(filter(None, (args.folder.name, asked.manifest.dataset, asked.path.name)))
    model = asked.manifest.model
    seed = None if isinstance(model, str) else model.get("seed")   # of the run; that of the hold-out is in the command
    return [stamp(one.kind, subject, one.to_figures(), seed=seed) for one in results]


# ── what is written and printed ───────────────────────────────────────────────────────────────────────────────


def _check_out(out: Path | None) -> None:
    from matryo.errors import InputError

    if out is not None and out.suffix not in (".csv", ".jsonl"):
        raise InputError("--out must end in .csv or .jsonl", got=out.name, cure="that says how it is written")


def _write(out: Path, rows: EmbeddingSet, answers: Answers) -> None:
    """One answer a row: its id, the class, how sure, at which dim."""
    from matryo.files import replacing

    names = rows.classes or tuple(map(str, range(int(answers.columns.max(initial=0)) + 1)))
    columns = (rows.ids.tolist(), [names[column] for column in answers.columns], answers.confidence, answers.dims)
    lines = [(one, name, round(float(sure), 6), int(dim)) for one, name, sure, dim in zip(*columns, strict=True)]
    title = ("id", "class", "confidence", "dim")
    text = io.StringIO(newline="")
    if out.suffix == ".csv":
        csv.writer(text, lineterminator="\n").writerows([title, *lines])
    else:
        text.writelines(json.dumps(dict(zip(title, line, strict=True)), ensure_ascii=False) + "\n" for line in lines)
    with replacing(out) as file:
        file.write(text.getvalue().encode())


def _table(cascade: Cascade, answers: Answers, result: CascadeResult | None) -> str:
    lines = []
    if result is not None:
        last = result.dims[-1]
        lines += [f"{'':12}{'accuracy':>10}{'expected dim':>14}{'cumulative dim':>16}"]
        for name, accuracy, *dims in (
            ("cascade", result.accuracy, result.expected_dim, result.cumulative_dim),
            (f"dim {last}", result.full_accuracy, last, last),
        ):
            lines += [f"{name:12}{100 * accuracy:10.1f}{dims[0]:14.1f}{dims[1]:16.1f}"]
        lines += [""]
    lines += [f"{'dim':>6}{'threshold':>12}{'answered':>10}"]
    for dim, threshold in zip(cascade.dims_, [*cascade.thresholds_, None], strict=True):
        share = float((answers.dims == dim).mean()) if len(answers.dims) else 0.0
        shown = "the rest" if threshold is None else "none" if threshold > 1 else f"{threshold:.4f}"
        lines += [f"{dim:6}{shown:>12}{100 * share:9.1f}%"]
    if hasattr(cascade, "certified_"):
        points, sure = f"{100 * cascade.max_loss:g} points", f"{100 * cascade.confidence:g} % confidence"
        lines += [
            f"certified: at most {points} lost against dim {cascade.dims_[-1]}, with {sure}"
            if cascade.certified_
            else f"no cascade could be certified to lose at most {points}, so dim {cascade.dims_[-1]} answers all"
        ]
    return "\n".join(lines)


def _curve_table(curve: CascadeCurve) -> str:
    about = {"greedy": "last dim", "budget": "budget", "risk": "max loss"}[curve.strategy]
    lines = [
        f"mean ± sd over {curve.holdouts} hold-outs of {curve.fitted_on:,} rows, tested on {curve.tested_on:,} others",
        f"{about:>9}{'accuracy':>16}{'expected dim':>18}{'cumulative dim':>18}",
    ]
    for place, stop in enumerate(curve.stop):
        cells = [f"{100 * curve.accuracy[place]:.2f} ± {100 * curve.accuracy_sd[place]:.2f}"]
        for mean, sd in ((curve.expected_dim, curve.expected_dim_sd), (curve.cumulative_dim, curve.cumulative_dim_sd)):
            cells.append(f"{mean[place]:.1f} ± {sd[place]:.1f}")
        lines.append(f"{stop:>9g}{cells[0]:>16}{cells[1]:>18}{cells[2]:>18}")
    return "\n".join(lines)
