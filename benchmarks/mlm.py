"""Masked words at every dim: one nested BERT against one trained for each dim alone, for the same steps.

    python benchmarks/mlm.py --data DIR --seeds 0 1

DIR holds a corpus, train.jsonl(.gz) and test.jsonl(.gz) with one text per line; test is never trained on. The tokenizer
is learned from train once, so that every model predicts the same masked words. Settings are compared on a third file,
val.jsonl, with --set data.test=val: in the stored rows the second of every 25 unlabelled reviews of IMDB, the first
being test.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from support.series import add_arguments, members, row_of, settle

from matryo.data import Dataset, Tokenizer, open_dataset
from matryo.encoders import Bert, BertConfig
from matryo.results import append_rows
from matryo.training import load_recipe
from matryo.training.recipe.fields import Recipe

QUICK = ("encoder.name=bert-tiny", "head.dims=16,64,128", "text.vocabulary=200", "text.length=24", "loop.steps=6",
         "loop.batch=8", "loop.device=cpu", "loop.precision=fp32", "loop.compile=false", "optim.warmup=2")  # fmt: skip


def main() -> None:
    """Every model with every seed; rows are appended as they come, so that a run that is cut keeps its start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, recipe="imdb-mlm", rows="mlm.jsonl", models="nested and a fixed one for each dim", seeds=[0])
    parser.add_argument("--steps", type=int, default=4000, help="of each training; 0 is as long as the recipe says")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="one learned from train before")
    args = parser.parse_args()
    args.set = [f"loop.steps={args.steps}", *args.set]
    settle(args, "mlm.jsonl", QUICK)
    if not args.data and not args.quick:
        parser.error("--data DIR, or --quick")
    with tempfile.TemporaryDirectory() as scratch:
        if args.quick:
            from support.text_quick import make

            make(Path(scratch))
            args.data = Path(scratch) / "imdb"
        recipe = load_recipe(args.recipe, dict(item.split("=", 1) for item in args.set))
        dataset = open_dataset("corpus", args.data)
        begin = time.monotonic()
        learned = args.tokenizer or learn(dataset, recipe, Path(scratch))
        print(f"tokenizer: {time.monotonic() - begin:.1f} s", flush=True)
        models = args.models or ["nested", *(f"fixed:{dim}" for dim in dims_of(recipe))]
        for one in members(args, models, dataset, lambda model: fields_of(model, recipe, learned)):
            row = row_of(one, "mlm", quick=args.quick)
            append_rows(args.rows, [row])
            for split, by_dim in row.figures["masked_top1"].items():
                shown = "  ".join(f"{dim}:{100 * value:.2f}" for dim, value in by_dim.items())
                print(f"{one.model} seed {one.seed} {split}: {row.figures['seconds']:.0f} s  {shown}", flush=True)


def learn(dataset: Dataset, recipe: Recipe, folder: Path) -> Path:
    """The tokenizer of the training split, as a file."""
    texts = dataset.split(recipe.data.train)
    words = recipe.text
    tokenizer = Tokenizer.train((texts.text(i) for i in range(len(texts))), words.vocabulary, words.lowercase)
    tokenizer.save(folder / "tokenizer.json")
    return folder / "tokenizer.json"


def dims_of(recipe: Recipe) -> tuple[int, ...]:
    """The nesting of the recipe's encoder."""
    kind, _, folder = recipe.encoder.name.partition(":")
    width = Bert.open(folder, weights=False).dim if folder else BertConfig.named(kind).hidden_size
    return recipe.nesting(width).dims


def fields_of(model: str, recipe: Recipe, tokenizer: Path) -> dict[str, str]:
    """The key of a model within the series."""
    kind, _, dim = model.partition(":")
    dims = dim or ",".join(map(str, dims_of(recipe)))
    return {"head.kind": "fixed" if kind == "fixed" else "tied", "head.dims": dims, "text.tokenizer": str(tokenizer)}


if __name__ == "__main__":
    main()
