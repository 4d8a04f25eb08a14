"""Layers × dims: a sentence encoder trained to be cut after fewer layers and to fewer dims, beside what is had without.

    python benchmarks/layers.py choose --data DIR --model all-MiniLM-L6-v2     # on a fifth of train, one seed
    python benchmarks/layers.py report --data DIR --model all-MiniLM-L6-v2 --seeds 0 1
    python benchmarks/layers.py times --model all-MiniLM-L6-v2

All arms are fine-tuned with the recipe minilm-pairs on texts with labels (CLINC150) for equally many steps. ``nested``
trains every dim after the last layer, and is cut afterwards; ``grid`` trains every dim after every layer; ``diagonal``
one dim after each layer (Starbucks); ``alone:N`` is the first N layers of the published encoder, fine-tuned by
themselves; ``original`` is not trained. Each is measured by 1-NN accuracy, after every layer and at every dim.

DIR holds train.jsonl and test.jsonl (text, label). Jobs that --rows already holds are skipped.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from matryo import EmbeddingSet, Nesting, evaluate, load, train
from matryo.arrays import Floats
from matryo.data import Dataset, hold_out, open_dataset
from matryo.encoders import Bert, Tokens
from matryo.inference import TrainedModel
from matryo.results import append_rows, read_rows, stamp
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import load_recipe

LAYERS, DIMS = 6, (12, 24, 48, 96, 192, 384)
SHALLOW = {"encoder.layers": "1,2,3,4,5"}
ARMS: dict[str, dict[str, str]] = {
    "original": {"loop.epochs": "0", "loop.steps": "0", "head.kind": "fixed", "head.dims": "384"},
    "nested": {},
    "grid": SHALLOW,
    "grid, distilled": {**SHALLOW, "head.self_distil": "0.5"},
    "grid, distilled, weight .2": {**SHALLOW, "head.self_distil": "0.5", "head.layer_weight": "0.2"},
    "diagonal": {**SHALLOW, "head.layer_dims": "12,24,48,96,192"},
    "diagonal, distilled": {**SHALLOW, "head.layer_dims": "12,24,48,96,192", "head.self_distil": "0.5"},
    "nested, distilled": {"head.self_distil": "0.5"},
    "alone:2": {"encoder.depth": "2"},
    "alone:4": {"encoder.depth": "4"},
}


def main() -> None:
    """Run one stage."""
    args = parse()
    if args.stage == "times":
        return times(args)
    dataset = open_dataset("texts", args.data)
    if args.stage == "choose":
        dataset = hold_out(dataset, 0.2)
    known = {
        (row.figures["arm"], row.seed, row.figures["stage"], row.figures["steps"])
        for row in (read_rows(args.rows) if args.rows.exists() else [])
        if row.kind == "layers"
    }
    for seed in args.seeds:
        for arm in args.arms:
            if (arm, seed, args.stage, args.steps) not in known and not (arm == "original" and seed):
                measure(args, arm, seed, dataset)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["choose", "report", "times"])
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of train.jsonl and test.jsonl")
    parser.add_argument("--model", type=Path, metavar="DIR", required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--per-class", type=int, default=10, help="texts of each class that are searched")
    parser.add_argument("--queries", type=int, default=10, help="texts of each class that are queries")
    parser.add_argument("--rows", type=Path, default=Path("docs/results/layers.jsonl"))
    return parser.parse_args()


def measure(args: argparse.Namespace, arm: str, seed: int, dataset: Dataset) -> None:
    """Train one arm, measure it after every layer it has and at every dim, and store a row."""
    test = "validation" if args.stage == "choose" else "test"
    recipe = recipe_of(args, arm, seed)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        model = load(train(recipe, dataset, Path(folder) / "run", progress=False))
        seconds = time.perf_counter() - began
    most = int(arm.partition(":")[2] or LAYERS)
    accuracy = one_nn(model, most, [drawn(dataset, "train", args.per_class), drawn(dataset, test, args.queries)])
    figures = {
        "arm": arm, "stage": args.stage, "steps": args.steps, "batch": args.batch, "lr": args.lr,
        "per_class": args.per_class, "queries": args.queries,
        "dims": list(DIMS), "model": args.model.name, "dataset": "clinc150", "split": test, "changed": ARMS[arm],
        "after": {f"{layers}": values for layers, values in accuracy.items()}, "seconds": round(seconds, 1),
    }  # fmt: skip
    append_rows(args.rows, [stamp("layers", arm, figures, seed=None if arm == "original" else seed)])
    print(f"{arm}, seed {seed}: {seconds:.0f} s")
    for layers, values in accuracy.items():
        print(f"  {layers} layers ", *(f"{dim}:{100 * v:.1f}" for dim, v in zip(DIMS, values, strict=True)), flush=True)


def recipe_of(args: argparse.Namespace, arm: str, seed: int) -> Recipe:
    """The recipe of an arm."""
    common = {
        "data.source": "texts", "data.test": "", "encoder.name": f"bert:{args.model}", "text.length": "32",
        "loop.batch": f"{args.batch}", "loop.steps": f"{args.steps}", "loop.seed": f"{seed}", "loop.precision": "fp32",
        "optim.lr": f"{args.lr:g}", "optim.warmup": f"{max(1, args.steps // 10)}",
    }  # fmt: skip
    return load_recipe("minilm-pairs", {**common, **ARMS[arm]})


def drawn(dataset: Dataset, split: str, per_class: int) -> Any:
    """The first ``per_class`` texts of each class."""
    whole: Any = dataset.split(split)
    kept = np.zeros(len(whole), bool)
    for label in range(len(dataset.classes)):
        kept[np.flatnonzero(whole.labels == label)[:per_class]] = True
    return whole.subset(kept)


def one_nn(model: TrainedModel, most: int, splits: Sequence[Any]) -> dict[int, list[float]]:
    """The 1-NN accuracy after each number of layers and at every dim: those of the second split in the first."""
    vectors = [after_each(model, most, [*split]) for split in splits]
    found = {}
    for layers in range(1, most + 1):
        pairs = zip(vectors, splits, strict=True)
        sets = [EmbeddingSet.of(each[layers - 1], labels=split.labels) for each, split in pairs]
        found[layers] = [row.top1 for row in evaluate(*sets, dims=Nesting(DIMS).dims, progress=False).rows]
    return found


@torch.inference_mode()
def after_each(model: TrainedModel, most: int, texts: list[str]) -> Floats:
    """The vectors after each number of layers, from one pass, [layers, n, d]."""
    assert model.tokenizer is not None
    order, parts = sorted(range(len(texts)), key=lambda i: len(texts[i])), []
    for rows in (order[i : i + 64] for i in range(0, len(order), 64)):
        ids, mask = model.tokenizer.encode([texts[i] for i in rows], 32)
        longest = int(mask.sum(1).max())
        tokens = Tokens(torch.as_tensor(ids[:, :longest]).long(), torch.as_tensor(mask[:, :longest]))
        parts.append(model.network.encoder(tokens, range(1, most + 1)))
    vectors = torch.empty(most, len(texts), parts[0].shape[-1])
    vectors[:, order] = torch.cat(parts, 1)
    return vectors.numpy()


def times(args: argparse.Namespace) -> None:
    """Milliseconds to encode a batch of 32 texts of 16 tokens after each number of layers, in turns."""
    bert = Bert.open(args.model).eval()
    tokens = Tokens(torch.randint(1000, 20_000, (32, 16)))
    found: dict[int, list[float]] = {layers: [] for layers in range(1, LAYERS + 1)}
    with torch.inference_mode():
        for number in range(35):
            for layers, some in found.items():
                network, began = bert.cut(layers), time.perf_counter()
                network(tokens)
                if number >= 5:
                    some.append(1000 * (time.perf_counter() - began))
    middle = {f"{layers}": sorted(some)[len(some) // 2] for layers, some in found.items()}
    figures = {"milliseconds": middle, "texts": 32, "tokens": 16, "model": args.model.name}
    append_rows(args.rows, [stamp("layer-times", "encoding after fewer layers", figures, seed=None)])
    print({layers: round(value, 2) for layers, value in middle.items()})


if __name__ == "__main__":
    main()
