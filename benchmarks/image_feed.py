"""How fast a recipe trains on images, and what limits it: the step alone, reading alone, and both together.

    python benchmarks/image_feed.py photos /tmp/photos --source flickr8k/images_128px_webp.npz --count 10000
    python benchmarks/image_feed.py measure --recipe imagenet-rn50-mrl --data /tmp/photos

``photos`` writes a folder of JPEG files of 500 × 375 pixels: real photos, enlarged, with noise that brings them to the
64 kB of such a file in ImageNet. ``measure`` stores one row. Its step is that of the recipe on one batch that stays on
the device, with flips and normalisation; its reading is that of the recipe without a step. ``whole`` is a training by
``matryo train``'s own function, from its log. ``encode`` reads and embeds a split without training.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from matryo.data import open_dataset
from matryo.data.images.decode import in_threads, processors
from matryo.data.images.jpeg import decoder
from matryo.data.images.packed import PackedImages
from matryo.results import append_rows, stamp
from matryo.training import load_recipe, train
from matryo.training.batches.augment import DRAWS, Normalise, augment
from matryo.training.batches.images import StreamedImages
from matryo.training.batches.open import ordered_batches
from matryo.training.batches.reading import Waiting, threads_for
from matryo.training.distributed import Group, choose_device
from matryo.training.loop import _gpu_kernels
from matryo.training.model import build_model
from matryo.training.optim import make_optimizer
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override
from matryo.training.run.paths import METRICS
from matryo.training.step import autocast, make_step

PARTS = ("read", "step", "whole", "encode")
_IMAGENET, _EPOCHS = 1_281_167, 40   # the images and epochs of the paper's models


def main() -> None:
    """Write the photos, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    photos = verbs.add_parser("photos")
    photos.add_argument("out", type=Path)
    photos.add_argument("--source", type=Path, required=True, help="a packed file of photos")
    photos.add_argument("--count", type=int, default=10_000)
    photos.add_argument("--classes", type=int, default=100)
    photos.add_argument("--repeat", type=int, default=1, help="list each training image this often: longer epochs")
    measure = verbs.add_parser("measure")
    measure.add_argument("--recipe", default="imagenet-rn50-mrl")
    measure.add_argument("--data", type=Path, required=True)
    measure.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="recipe fields to override")
    measure.add_argument("--subject", default="", help="the name of the row [the recipe and the source]")
    measure.add_argument("--parts", nargs="+", default=["read", "step", "whole"], choices=[*PARTS])
    measure.add_argument("--steps", type=int, default=60, help="timed steps of the step alone")
    measure.add_argument("--train-steps", type=int, default=120, help="steps of the training")
    measure.add_argument("--images", type=int, default=10_000, help="images that are read")
    measure.add_argument("--rows", type=Path, default=Path("docs/results/image-feed.jsonl"))
    args = parser.parse_args()
    if args.verb == "photos":
        write_photos(args.out, args.source, args.count, args.classes)
        if args.repeat > 1:
            names = sorted(str(path.relative_to(args.out)) for path in args.out.glob("train/*/*.jpg"))
            (args.out / "train.txt").write_text("\n".join(names * args.repeat))
    else:
        measure_all(args)


def write_photos(out: Path, source: Path, count: int, classes: int) -> None:
    """A folder in ImageNet's layout; photos are repeated, each time with other noise, if there are too few."""
    from PIL import Image

    packed = np.load(source)
    photos = PackedImages(packed["blob"], packed["off"], source=source.name)

    def work(index: int) -> int:
        image = Image.fromarray(photos.image(index % len(photos))).resize((500, 375), Image.Resampling.BICUBIC)
        noise = np.random.default_rng(index).normal(0, 6, (375, 500, 1)).astype(np.float32)
        pixels = np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        split = "val" if index % 10 == 0 else "train"
        path = out / split / f"{index // 10 % classes:04}" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
        return len(file.getvalue())

    sizes = list(in_threads(work, count))
    print(f"{count:,} photos, {statistics.mean(sizes) / 1000:.1f} kB each")


def measure_all(args: argparse.Namespace) -> None:
    """Measure the parts, print them, store the row."""
    recipe = override(load_recipe(args.recipe), dict(item.split("=", 1) for item in args.set))
    device = choose_device(recipe.loop.device)
    dataset = open_dataset(recipe.data.source, args.data)
    split = dataset.split(recipe.data.train)
    figures: dict[str, Any] = {"processors": processors(), "decoder": decoder(), "batch": recipe.loop.batch}
    with _gpu_kernels():
        if "read" in args.parts:
            figures |= reading(split, recipe, device, args.images)
        if "step" in args.parts:
            figures |= stepping(recipe, len(dataset.classes), device, args.steps)
        if "encode" in args.parts:
            figures |= encoding(split, recipe, len(dataset.classes), device, args.images)
    if "whole" in args.parts:
        figures |= training(recipe, dataset, args.train_steps)
        figures["imagenet_hours"] = round(_IMAGENET * _EPOCHS / figures["whole_images_per_second"] / 3600, 2)
    for name, value in figures.items():
        print(f"{name:32} {value:,}" if isinstance(value, int | float) else f"{name:32} {value}", flush=True)
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    subject = args.subject or f"{recipe.name} {recipe.variant} {recipe.data.source}"
    append_rows(args.rows, [stamp("image-feed", subject, figures, seed=recipe.loop.seed, hardware=hardware)])


def reading(split: Any, recipe: Recipe, device: torch.device, count: int) -> dict[str, float]:
    """Images per second of reading alone: by one thread, and by all that the recipe uses."""
    rates = {}
    batch, threads = recipe.loop.batch, threads_for(split, recipe.data.workers)
    for name, most in (("thread", 1), ("read", threads)):
        source = StreamedImages(split, recipe, Waiting(device))
        source.threads = most
        wanted = max(2, min(count, count * most // threads // 2 if most < threads else count) // batch)
        rows = np.random.default_rng(0).integers(0, len(split), (wanted + 1, batch))
        pixels = source.pixels(0, rows)
        next(pixels)   # the first batch also imports libraries
        began = time.perf_counter()
        for _ in pixels:
            pass
        rates[name] = wanted * batch / (time.perf_counter() - began)
    return {
        "read_threads": threads,
        "read_images_per_second_of_one_thread": round(rates["thread"], 1),
        "read_images_per_second": round(rates["read"], 1),
    }


def stepping(recipe: Recipe, classes: int, device: torch.device, steps: int) -> dict[str, float]:
    """Images per second of the step alone, and its time beside that of a model with one fixed head."""
    kinds: tuple[tuple[str, dict[str, str]], ...]
    kinds = ((recipe.head.kind, {}), ("fixed", {"head.dims": "", "head.weights": ""}))
    calls = {kind: _step_of(override(recipe, {"head.kind": kind, **dims}), classes, device) for kind, dims in kinds}
    seconds = stepping_of(calls, device, steps)
    return {
        "step_images_per_second": round(recipe.loop.batch / seconds[recipe.head.kind], 1),
        "step_ratio_to_fixed": round(seconds[recipe.head.kind] / seconds["fixed"], 4),
    }


def stepping_of(calls: dict[str, Any], device: torch.device, steps: int) -> dict[str, float]:
    """The median seconds of each of ``calls``, in turns of 10 steps after a warm-up."""
    times: dict[str, list[float]] = {}
    for call in calls.values():
        for _ in range(6):
            call()
    for _ in range(max(1, steps // 10)):
        for kind, call in calls.items():
            _wait(device)
            began = time.perf_counter()
            for _ in range(10):
                call()
            _wait(device)
            times.setdefault(kind, []).append((time.perf_counter() - began) / 10)
    return {kind: statistics.median(values) for kind, values in times.items()}


def _step_of(recipe: Recipe, classes: int, device: torch.device) -> Any:
    """One step of the library's own loop on a batch that stays on the device."""
    model = build_model(recipe, classes)
    model.to(device, memory_format=torch.channels_last)   # type: ignore[call-overload]
    step = make_step(model, make_optimizer(model, recipe), recipe, Group(0, 1, device))
    batch, size = recipe.loop.batch, recipe.data.size
    images = torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8, device=device)
    draws = torch.rand(batch, DRAWS, device=device)
    target = torch.randint(classes, (batch,), device=device)
    normalise = Normalise(recipe.data.mean, recipe.data.std, device)
    return lambda: step(normalise(augment(images, draws, recipe.augment, cropped=True)), target, 0.01)


def encoding(split: Any, recipe: Recipe, classes: int, device: torch.device, count: int) -> dict[str, float]:
    """Images per second of reading and embedding a split, as `matryo encode` does with bf16."""
    model = build_model(recipe, classes).eval()
    model.to(device, memory_format=torch.channels_last)   # type: ignore[call-overload]
    part = split.subset(np.arange(min(len(split), count)))
    for _ in range(2):   # the first pass chooses kernels
        began = time.perf_counter()
        with torch.inference_mode():
            for inputs, _ in ordered_batches(part, recipe, device):
                with autocast(recipe, device):
                    model.embed(inputs, flip=recipe.data.test_flip).cpu()
        seconds = time.perf_counter() - began
    return {"encode_images_per_second": round(len(part) / seconds, 1)}


def training(recipe: Recipe, dataset: Any, steps: int) -> dict[str, float]:
    """The speed of the last half of a training, its share of waiting, and when its first 20 steps were done."""
    fields = {"loop.steps": str(steps), "loop.log_every": "20", "data.test": "", "loop.checkpoint_seconds": "1e9"}
    made = override(recipe, fields)
    with tempfile.TemporaryDirectory() as folder:
        first: list[float] = []
        began = time.monotonic()
        watcher = threading.Thread(target=_await_line, args=(Path(folder) / "run" / METRICS, began, first), daemon=True)
        watcher.start()
        train(made, dataset, Path(folder) / "run", progress=False)
        watcher.join(10)
        lines = [json.loads(line) for line in (Path(folder) / "run" / METRICS).read_text().splitlines()]
    lines = [line for line in lines if line["kind"] == "train"]
    late = lines[len(lines) // 2 :]
    rates = [value for line in late for name, value in line.items() if name.endswith("_per_second")]
    return {
        "whole_images_per_second": round(statistics.harmonic_mean(rates), 1),
        "whole_waiting": round(statistics.mean(line["waiting"] for line in late), 3),
        "seconds_to_20_steps": round(first[0], 1),
    }


def _await_line(path: Path, began: float, seconds: list[float]) -> None:
    for _ in itertools.count():
        if path.exists() and path.stat().st_size:
            seconds.append(time.monotonic() - began)
            return
        time.sleep(0.05)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
