"""Image inputs: a small split is decoded once and kept on the device, a large one is streamed from worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate
from torch.utils.data import Dataset as TorchDataset

from matryo.data import decode_all
from matryo.data.images.damaged import DamagedAsGray
from matryo.data.images.decode import processors
from matryo.errors import DataError, MatryoError
from matryo.training.batches.augment import DRAWS, Normalise, X, Y, augment, crop_box, draws

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from matryo.arrays import Integers
    from matryo.data import ImageSplit
    from matryo.training.recipe.fields import Recipe

_RESIDENT_LIMIT = 4 * 2**30


def open_images(
    split: ImageSplit, recipe: Recipe, device: torch.device, *, progress: bool
) -> ResidentImages | StreamedImages:
    """Open the images of a split for training."""
    if recipe.data.damaged == "gray":
        split = DamagedAsGray(split, recipe.data.size)
    if fits_on_device(split, recipe):
        return ResidentImages(split, recipe, device, progress)
    if recipe.augment.crop == "affine":
        raise DataError(
            "augment.crop = affine needs images that are kept on the device",
            got=f"images of {split.shape or 'various sizes'}, trained at {recipe.data.size} px",
            cure="pack them at that size (matryo.data.pack), or use --augment.crop resized",
        )
    return StreamedImages(split, recipe, device)


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
    """Images decoded and cropped by worker processes as they are needed."""

    def __init__(self, split: ImageSplit, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.normalise = Normalise(recipe.data.mean, recipe.data.std, device)
        self.wanted: list[list[tuple[int, int, int]]] = []   # the sampler, refilled for every epoch
        self.loader = _loader(_CroppedImages(split, recipe), self.wanted, device, persistent=True)

    def stream(self, epoch: int, rows: Integers) -> Iterator[Tensor]:
        """One batch per step: the images at ``rows`` [steps, batch], augmented as in ``epoch``."""
        size = size_at(self.recipe, epoch)
        self.wanted[:] = [[(epoch, int(i), size) for i in batch] for batch in rows]
        for pixels, numbers in _raising(self.loader):
            images, u = (part.to(self.device, non_blocking=True) for part in (pixels, numbers))
            yield self.normalise(augment(images, u, self.recipe.augment, cropped=True))


class _Reader(TorchDataset[Any]):
    """Reads one item in a worker process; returns errors, which torch would wrap in the worker's traceback."""

    def __init__(self, split: ImageSplit, recipe: Recipe) -> None:
        self.split, self.recipe = split, recipe

    def __getitem__(self, wanted: Any) -> Any:
        try:
            return self.read(wanted)
        except MatryoError as error:
            return error

    def read(self, wanted: Any) -> Any:
        """Decode an image and crop it."""
        raise NotImplementedError


class _CroppedImages(_Reader):
    """Images with the random crop of an epoch, and the draws for their augmentation on the device."""

    def read(self, wanted: tuple[int, int, int]) -> tuple[Any, Any]:
        epoch, index, size = wanted
        augment = self.recipe.augment
        u = draws(self.recipe.loop.seed, epoch, np.array([index]))[0]
        pixels = self.split.image(index)
        height, width = pixels.shape[:2]
        if augment.crop == "resized":
            box = crop_box(u, height, width, augment)
        elif augment.crop == "pad":   # a smaller square at a random position, in place of padding
            box = _square(height, width, 1 - augment.pad / size, float(u[X]), float(u[Y]))
        else:
            box = _square(height, width)
        return _resize(pixels, box, size), u


class _CentredImages(_Reader):
    """Images as the network sees them when encoding."""

    def read(self, wanted: int) -> Any:
        pixels = self.split.image(wanted)
        box = _square(pixels.shape[0], pixels.shape[1], self.recipe.data.test_crop)
        return _resize(pixels, box, self.recipe.data.encoded_size)


def centred_images(
    split: ImageSplit, recipe: Recipe, device: torch.device, rows: Sequence[Sequence[int]], workers: int | None = None
) -> Iterator[Tensor]:
    """The images at ``rows``, one list per batch, as the network sees them when encoding (no augmentation)."""
    size = recipe.data.encoded_size
    normalise = Normalise(recipe.data.mean, recipe.data.std, device)
    small = split.shape == (size, size) or len(rows) <= 1   # starting processes would take longer
    for pixels in _raising(_loader(_CentredImages(split, recipe), rows, device, workers=0 if small else workers)):
        yield normalise(pixels.to(device))


def _loader(
    reader: _Reader, rows: Sequence[Any], device: torch.device, *, workers: int | None = None, persistent: bool = False
) -> DataLoader[Any]:
    count = min(reader.recipe.data.workers if workers is None else workers, processors())
    return DataLoader(
        reader,
        batch_sampler=rows,
        num_workers=count,
        persistent_workers=persistent and count > 0,
        pin_memory=device.type == "cuda",
        # Not fork: it is unsafe in a process with threads and a GPU. The workers live for the whole run.
        multiprocessing_context="spawn" if count else None,
        collate_fn=_collate,
    )


def _collate(items: list[Any]) -> Any:
    error = next((item for item in items if isinstance(item, MatryoError)), None)
    return default_collate(items) if error is None else error


def _raising(batches: DataLoader[Any]) -> Iterator[Any]:
    for batch in batches:
        if isinstance(batch, MatryoError):
            try:
                raise batch
            finally:
                del batch   # else the traceback keeps the loader alive, and its processes with it
        yield batch


def _square(
    height: int, width: int, share: float = 1.0, x: float = 0.5, y: float = 0.5
) -> tuple[float, float, float, float]:
    """A square crop of ``share`` of the shorter side, at the position (x, y) in 0…1; in the centre by default."""
    side = min(height, width) * share
    left, top = x * (width - side), y * (height - side)
    return left, top, left + side, top + side


def _resize(pixels: Any, box: tuple[float, float, float, float], size: int) -> Any:
    if pixels.shape[0] == pixels.shape[1] == size and box == (0.0, 0.0, float(size), float(size)):
        return pixels
    from PIL import Image

    resized = Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.array(resized)   # a copy, as torch needs writable memory
