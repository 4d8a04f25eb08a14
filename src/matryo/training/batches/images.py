"""Image inputs: a small split is decoded once and kept on the device, a large one is read by threads when needed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from matryo.data import decode_all
from matryo.data.images.damaged import DamagedAsGray
from matryo.errors import DataError
from matryo.training.batches.augment import DRAWS, Normalise, X, Y, augment, crop_box, draws
from matryo.training.batches.reading import Crops, Waiting, copied, read_ahead, threads_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from matryo.arrays import Floats, Integers
    from matryo.data import ImageSplit
    from matryo.data.images.crops import Box
    from matryo.training.recipe.fields import Augment, Recipe

_RESIDENT_LIMIT = 4 * 2**30


def open_images(
    split: ImageSplit, recipe: Recipe, waiting: Waiting, *, progress: bool
) -> ResidentImages | StreamedImages:
    """Open the images of a split for training."""
    if recipe.data.damaged == "gray":
        split = DamagedAsGray(split, recipe.data.size)
    if fits_on_device(split, recipe):
        return ResidentImages(split, recipe, waiting.device, progress)
    if recipe.augment.crop == "affine":
        raise DataError(
            "augment.crop = affine needs images that are kept on the device",
            got=f"images of {split.shape or 'various sizes'}, trained at {recipe.data.size} px",
            cure="pack them at that size (matryo.data.pack), or use --augment.crop resized",
        )
    return StreamedImages(split, recipe, waiting)


def fits_on_device(split: ImageSplit, recipe: Recipe) -> bool:
    """Whether the decoded split is kept on the device, and augmented there."""
    wanted, size, end = recipe.data.resident, recipe.data.size, recipe.data.size_end or recipe.data.size
    fits = split.shape == (size, size) == (end, end)
    if wanted == "yes" and not fits:
        trained = f"{size} px" if size == end else f"{size} to {end} px"
        raise DataError(
            "data.resident = yes needs images that all have the training size",
            got=f"images of {split.shape or 'various sizes'}, trained at {trained}",
            cure="pack them at that size, or use data.resident = auto",
        )
    return fits and (wanted == "yes" or (wanted == "auto" and len(split) * size**2 * 3 <= _RESIDENT_LIMIT))


def size_at(recipe: Recipe, epoch: int) -> int:
    """Pixels per side in ``epoch``: from size to size_end over size_ramp, rounded to multiples of 32 in between."""
    data = recipe.data
    if not data.size_end or epoch <= data.size_ramp[0]:
        return data.size
    if epoch >= data.size_ramp[1]:
        return data.size_end
    between = np.interp(epoch, data.size_ramp, (data.size, data.size_end))
    return max(32, round(float(between) / 32) * 32)


class ResidentImages:
    """All images, decoded, kept on the device and augmented there."""

    def __init__(self, split: ImageSplit, recipe: Recipe, device: torch.device, progress: bool) -> None:
        self.recipe, self.device = recipe, device
        self.normalise = Normalise(recipe.data.mean, recipe.data.std, device)
        self.images = torch.from_numpy(decode_all(split, progress=progress)).to(device)

    def stream(self, epoch: int, rows: Integers) -> Iterator[Tensor]:
        """One batch per step: the images at ``rows`` [steps, batch], augmented as in ``epoch``."""
        # The order and draws of the whole epoch are copied to the device at once, so that no step waits for a copy.
        chosen = torch.from_numpy(rows).to(self.device)
        u = draws(self.recipe.loop.seed, epoch, rows.reshape(-1)).reshape(*rows.shape, DRAWS)
        numbers = torch.from_numpy(u).to(self.device)
        for step in range(len(rows)):
            images = augment(self.images[chosen[step]], numbers[step], self.recipe.augment, cropped=False)
            yield self.normalise(images)


class StreamedImages:
    """Images decoded and cropped by threads, ahead of the step."""

    def __init__(self, split: ImageSplit, recipe: Recipe, waiting: Waiting) -> None:
        self.split, self.recipe, self.waiting = split, recipe, waiting
        self.normalise = Normalise(recipe.data.mean, recipe.data.std, waiting.device)
        self.threads = threads_for(split, recipe.data.workers)

    def stream(self, epoch: int, rows: Integers) -> Iterator[Tensor]:
        """One batch per step: the images at ``rows`` [steps, batch], augmented as in ``epoch``."""
        device = self.waiting.device
        for pixels, u in self.pixels(epoch, rows):
            images = augment(copied(pixels, device), copied(u, device), self.recipe.augment, cropped=True)
            yield self.normalise(images)

    def pixels(self, epoch: int, rows: Integers) -> Iterator[tuple[Tensor, Tensor]]:
        """One batch per step: the crops of the images, uint8, and the draws for their augmentation on the device."""
        size, drawn = size_at(self.recipe, epoch), deque[Any]()   # the draws of the batches that are being read

        def crops(chosen: Integers) -> Crops:
            drawn.append(draws(self.recipe.loop.seed, epoch, chosen))
            return Crops(chosen, size, _training_box(self.recipe.augment, size, drawn[-1]))

        for pixels in read_ahead(self.split, map(crops, rows), self.threads, self.waiting):
            yield pixels, torch.from_numpy(drawn.popleft())


def _training_box(how: Augment, size: int, u: Floats) -> Callable[[int, int, int], Box]:
    """The random crop of the image at each position of a batch, by its draws ``u`` [batch, DRAWS]."""
    if how.crop == "resized":
        return lambda position, height, width: crop_box(u[position], height, width, how)
    if how.crop == "pad":   # a smaller square at a random position, in place of padding
        share = 1 - how.pad / size
        return lambda position, height, width: _square(
            height, width, share, float(u[position, X]), float(u[position, Y])
        )
    return lambda _, height, width: _square(height, width)


def centred_images(
    split: ImageSplit, recipe: Recipe, device: torch.device, rows: Iterable[Sequence[int]]
) -> Iterator[Tensor]:
    """The images at ``rows``, one sequence per batch, as the network sees them when encoding (no augmentation)."""
    size, share = recipe.data.encoded_size, recipe.data.test_crop
    normalise = Normalise(recipe.data.mean, recipe.data.std, device)
    threads = threads_for(split, recipe.data.workers)
    batches = (Crops(indices, size, lambda _, height, width: _square(height, width, share)) for indices in rows)
    for pixels in read_ahead(split, batches, threads, Waiting(device)):
        yield normalise(copied(pixels, device))


def _square(
    height: int, width: int, share: float = 1.0, x: float = 0.5, y: float = 0.5
) -> tuple[float, float, float, float]:
    """A square crop of ``share`` of the shorter side, at the position (x, y) in 0…1; in the centre by default."""
    side = min(height, width) * share
    left, top = x * (width - side), y * (height - side)
    return left, top, left + side, top + side
