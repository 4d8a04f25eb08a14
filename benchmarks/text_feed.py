"""How fast a recipe trains on texts and encodes them, beside its step alone.

    python benchmarks/text_feed.py --recipe imdb-mlm --data imdb

The step alone repeats one batch that stays on the device. ``whole`` is a training by ``matryo train``'s own function,
from its log. ``encode`` embeds a part of the training split as ``matryo encode`` does, and ``in order`` does so without
sorting the texts by length.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from image_feed import stepping_of, training

from matryo.data import open_dataset
from matryo.inference.model import TrainedModel
from matryo.results import append_rows, stamp
from matryo.training import load_recipe
from matryo.training.batches.open import open_batches, ordered_batches
from matryo.training.batches.texts import open_tokenizer
from matryo.training.distributed import Group, choose_device
from matryo.training.loop import _gpu_kernels
from matryo.training.model import build_model
from matryo.training.optim import make_optimizer
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override
from matryo.training.step import make_step


def main() -> None:
    """Measure, print, store one row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="imdb-mlm")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="recipe fields to override")
    parser.add_argument("--parts", nargs="+", default=["step", "whole", "encode"], choices=["step", "whole", "encode"])
    parser.add_argument("--steps", type=int, default=60, help="timed steps of the step alone")
    parser.add_argument("--train-steps", type=int, default=200)
    parser.add_argument("--texts", type=int, default=8192, help="texts that are encoded")
    parser.add_argument("--rows", type=Path, default=Path("docs/results/image-feed.jsonl"))
    args = parser.parse_args()
    recipe = override(load_recipe(args.recipe), dict(item.split("=", 1) for item in args.set))
    group = Group(0, 1, choose_device(recipe.loop.device))
    dataset = open_dataset(recipe.data.source, args.data)
    figures: dict[str, Any] = {"batch": recipe.loop.batch}
    with tempfile.TemporaryDirectory() as folder, _gpu_kernels():
        tokenizer = open_tokenizer(recipe, dataset.split(recipe.data.train), Path(folder), group, resumed=False)
        if "step" in args.parts:
            figures |= stepping(recipe, dataset, tokenizer, group, args.steps)
        if "encode" in args.parts:
            figures |= encoding(recipe, dataset, tokenizer, group.device, args.texts)
    if "whole" in args.parts:
        figures |= training(recipe, dataset, args.train_steps)
    for name, value in figures.items():
        print(f"{name:32} {value:,}", flush=True)
    hardware = torch.cuda.get_device_name(group.device) if group.device.type == "cuda" else ""
    subject = f"{recipe.name}, texts of {recipe.text.length} tokens"
    append_rows(args.rows, [stamp("image-feed", subject, figures, seed=recipe.loop.seed, hardware=hardware)])


def stepping(recipe: Recipe, dataset: Any, tokenizer: Any, group: Group, steps: int) -> dict[str, float]:
    """Items per second of the step alone, on the first batch."""
    batches = open_batches(dataset.split(recipe.data.train), recipe, group, progress=False, tokenizer=tokenizer)
    inputs, target = next(iter(batches.epoch(0)))
    model = build_model(recipe, len(dataset.classes), vocabulary=tokenizer.vocabulary).to(group.device)
    step = make_step(model, make_optimizer(model, recipe), recipe, group)
    seconds = stepping_of({"step": lambda: step(inputs, target, 1e-4)}, group.device, steps)["step"]
    return {"step_images_per_second": round(recipe.loop.batch / seconds, 1)}


def encoding(recipe: Recipe, dataset: Any, tokenizer: Any, device: torch.device, count: int) -> dict[str, float]:
    """Texts per second of encoding, sorted by length and in order."""
    split = dataset.split(recipe.data.train)
    part = split.subset(torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:count].numpy())
    network = build_model(recipe, len(dataset.classes), vocabulary=tokenizer.vocabulary).to(device)
    model = TrainedModel(network, recipe, dataset.classes, device, "", tokenizer=tokenizer, precision="bf16")

    def in_order() -> None:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16):
            for inputs, _ in ordered_batches(part, recipe, device, tokenizer=tokenizer):
                network.embed(inputs).float().cpu()

    def by_length() -> None:
        for _ in model.embed(part):
            pass

    rates = {}
    for name, run in (("encode_in_order", in_order), ("encode", by_length)) * 2:   # the first round chooses kernels
        began = time.perf_counter()
        run()
        rates[f"{name}_images_per_second"] = round(len(part) / (time.perf_counter() - began), 1)
    return rates


if __name__ == "__main__":
    main()
