"""Images and texts in one space: nested against trained at full dim alone and truncated, both ways, at every dim.

    python benchmarks/image_text.py --recipe flickr8k-pairs --data DIR --seeds 0 1
    python benchmarks/image_text.py --recipe emoji-pairs --seeds 0 1

DIR holds images with captions, as data.source = captions reads them; the emoji come with the package. Each model is
measured by how well images find their texts and texts their images, by how far the cosines of pairs that belong
together lie from those of random ones, and, where classes are in groups, by telling these apart from texts alone.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from support.series import Member, add_arguments, members, row_of, settle

from matryo import EmbeddingSet
from matryo.data import Dataset, open_dataset
from matryo.evaluation import Pairs, Relevance, ZeroShot, pairs, similarity_span, zero_shot
from matryo.inference import load
from matryo.inference.encode import encode_pairs
from matryo.inference.model import TrainedModel
from matryo.results import Result, Row, append_rows, stamp
from matryo.training import load_recipe

SIDES = ("images", "texts")
QUICK = ("encoder.dim=32", "head.dims=8,16,32", "text.vocabulary=500", "loop.steps=3", "loop.batch=32",
         "loop.device=cpu", "loop.precision=fp32", "optim.warmup=1")  # fmt: skip


def main() -> None:
    """Every model with every seed; rows are appended as they come, so that a run that is cut keeps its start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = ["nested", "fixed"]
    add_arguments(parser, recipe="flickr8k-pairs", rows="image-text.jsonl", models=", ".join(models), seeds=[0, 1])
    args = parser.parse_args()
    settle(args, "image-text.jsonl", QUICK)
    args.recipe = "emoji-pairs" if args.quick else args.recipe
    recipe = load_recipe(args.recipe, dict(item.split("=", 1) for item in args.set))
    if not args.data and recipe.data.source != "emoji-names":
        parser.error("--data DIR, or --quick")
    dataset = open_dataset(recipe.data.source, args.data)
    for one in members(args, args.models or models, dataset, fields_of):
        found = [row_of(one, "image-text", quick=args.quick)]
        model = load(one.folder)
        dims = recipe.nesting(model.nesting.dim).dims
        for split in one.recipe.data.test:
            for result in measured(model, one, dataset, split, dims):
                found.append(stamped(result, one, found[0].hardware))
                show(result, one)
        append_rows(args.rows, found)


def fields_of(model: str) -> dict[str, str]:
    """The key of a model within the series."""
    kind, _, dim = model.partition(":")
    return {"head.kind": "fixed", "head.dims": dim} if kind == "fixed" else {}


def measured(
    model: TrainedModel, one: Member, dataset: Dataset, split: str, dims: tuple[int, ...]
) -> Iterator[Result]:
    """Everything on one split."""
    name = f"{one.recipe.name} {one.model}"
    asked: Any = dataset.split(split)
    with tempfile.TemporaryDirectory() as scratch:
        images, texts = encode_pairs(model, dataset, split, Path(scratch) / split, progress=False)
        related = Relevance.open(Path(scratch) / split / "relevance.tsv", images, texts)
        about = {"model": name, "split": split}
        yield replace(pairs(images, texts, related, dims=dims, sides=SIDES, progress=False), **about)   # type: ignore[arg-type]
        yield replace(similarity_span(images, texts, relevance=related, dims=dims), **about)   # type: ignore[arg-type]
        if dataset.superclasses and (asked.queries.labels >= 0).any():
            for words, described in groups(model, dataset, one.recipe.data.train):
                told = zero_shot(described, images, dims=dims)
                yield replace(told, model=name, split=f"{split}, {words}")


def groups(model: TrainedModel, dataset: Dataset, train: str) -> Iterator[tuple[str, EmbeddingSet]]:
    """Texts about each group of classes: its own name, and the texts of its classes that were trained on."""
    names = dataset.superclasses
    words = [(place, word) for place, name in enumerate(names) for word in name.replace("-", " ").split()]
    own = np.array([place for place, _ in words])
    yield "groups by their names", _described(model, [word for _, word in words], own, names)
    texts: Any = dataset.split(train).candidates
    of = np.array([*dataset.superclass_of, -1])[texts.labels]
    yield "groups by the names in them", _described(model, list(texts), of, names)


def _described(model: TrainedModel, texts: list[str], labels: Any, names: tuple[str, ...]) -> EmbeddingSet:
    return EmbeddingSet.of(model.encode(texts, side="candidates"), labels=labels, classes=names)


def stamped(result: Any, one: Member, hardware: str) -> Row:
    """A result as a row of this series."""
    subject = f"{result.model} {result.dataset} {result.split}"
    return stamp(result.kind, subject, result.to_figures(), seed=one.seed, hardware=hardware)


def show(result: Any, one: Member) -> None:
    """A line for each figure that matters most."""
    lines = {}
    if isinstance(result, Pairs):
        lines = {f"hit@{k} {way}": result.at("hit", k, i) for i, way in enumerate(result.directions) for k in (1, 10)}
    elif isinstance(result, ZeroShot):
        lines = {"zero-shot": result.top1}
    for title, values in lines.items():
        by_dim = "  ".join(f"{dim}:{100 * value:.1f}" for dim, value in zip(result.dims, values, strict=True))
        print(f"{one.model} seed {one.seed} {result.split}: {title}  {by_dim}", flush=True)


if __name__ == "__main__":
    main()
