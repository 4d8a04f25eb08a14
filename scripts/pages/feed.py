"""The page of how fast recipes train on images and texts, and what limits each."""

from __future__ import annotations

from typing import Any

from matryo.results import Row
from pages.markdown import grid, latest

ABOUT = """Each line is one recipe on one machine, in items per second. *Step alone*: training steps on one batch that
stays on the device, with flips and normalisation. *Reading alone*: decode, random crop and resize by all threads,
without a step; and by one thread. *Whole*: the second half of a training by `matryo train`, with the share of that
time in which the device had no batch. *First 20 steps*: seconds from the call to the twentieth step, with opening the
data and choosing kernels. *× fixed*: the time of the nested step divided by that of a model with one head. *Encode*:
reading and embedding as `matryo encode` does, with bf16. Photos are those of Flickr8k enlarged to 500 × 375 pixels,
with noise that brings a file to the 64 kB of ImageNet's. *Whole* may stay below both of its parts although the device
hardly waits for a batch: the threads that read and the one that launches the steps then compete for Python's
interpreter lock, and launching is late."""
HOURS = """**The paper's models.** 40 epochs of ImageNet-1K (51.2 million images) take these hours at the rate of the
whole training at 160 px. The recipe grows to 192 px from epoch 29 on, where a step takes up to 1.44 times as long.
Eight GPUs take an eighth if each has as many cores and as fast a disk. MRL, MRL–E and FF take one time within the
ratio above. *Cores per GPU* is how many would read as fast as the step alone: its rate divided by that of reading
alone per core."""
_COLUMNS = {
    "step alone": "step_images_per_second", "reading alone": "read_images_per_second",
    "one thread": "read_images_per_second_of_one_thread", "whole": "whole_images_per_second",
    "waiting": "whole_waiting", "first 20 steps": "seconds_to_20_steps", "× fixed": "step_ratio_to_fixed",
    "encode": "encode_images_per_second",
}  # fmt: skip


def tables(rows: list[Row]) -> list[str]:
    """The rates of each recipe and machine, in images per second, and the hours of the paper's models."""
    shown = latest(rows, lambda row: (row.subject, row.hardware))
    lines = [[row.subject, row.hardware, *(str(row.figures.get(name, "–")) for name in ("processors", "decoder")),
              *(_cell(name, row.figures.get(key)) for name, key in _COLUMNS.items())] for row in shown]  # fmt: skip
    parts = [ABOUT, grid(["", "hardware", "cores", "decoder", *_COLUMNS], lines)]
    hours = [[row.subject, row.hardware, f"{row.figures['imagenet_hours']:.1f}",
              f"{row.figures['imagenet_hours'] / 8:.2f}", _cores(row.figures)]
             for row in shown if "imagenet_hours" in row.figures and "160 px" in row.subject]  # fmt: skip
    if hours:
        parts += [HOURS, grid(["", "hardware", "hours on one GPU", "on eight", "cores per GPU"], hours)]
    return parts


def _cores(figures: dict[str, Any]) -> str:
    if not {"step_images_per_second", "read_images_per_second"} <= figures.keys():
        return "–"
    return f"{figures['step_images_per_second'] / figures['read_images_per_second'] * figures['processors']:.0f}"


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if name == "waiting":
        return f"{value:.0%}"
    return f"{value:.3f}" if name == "× fixed" else f"{value:.1f} s" if name == "first 20 steps" else f"{value:,.0f}"


def finding(rows: list[Row]) -> str:
    """What a training on a GPU reaches of its step alone."""
    shown = [row.figures for row in latest(rows, lambda row: (row.subject, row.hardware)) if "160 px" in row.subject]
    needed = {"whole_images_per_second", "step_images_per_second"}
    whole = next(figures for figures in shown if needed <= figures.keys())
    rate, limit = whole["whole_images_per_second"], whole["step_images_per_second"]
    return (
        f"ResNet50 at 160 px with nine dims trains on a folder of JPEG files at {rate:,.0f} images per second on one "
        f"GPU and {whole['processors']} cores, {rate / limit:.0%} of its step alone."
    )


MAKERS = {"image-feed": tables}
