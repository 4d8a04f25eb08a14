"""Image augmentation on the device, a batch at a time, with draws that depend on (seed, epoch, image) alone.

Because no generator state is involved, an image is varied in the same way however the batch is split over
processes and however often the run was interrupted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor

    from matryo.training.recipe import Augment

__all__ = ["DRAWS", "Normalise", "augment", "crop_box", "draws", "epoch_order"]

# The columns of `draws`, one for each random choice.
X, Y, FLIP, ZOOM, STRETCH, TURN, BRIGHT, CONTRAST, GREY, MIX = range(10)
DRAWS = 16   # MIX … MIX+5 are six channel-mixing numbers


def epoch_order(seed: int, epoch: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The order in which an epoch visits ``count`` images; every process computes the same."""
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    return generator.permutation(count)


def draws(seed: int, epoch: int, images: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Uniform numbers in [0, 1), [len(images), DRAWS]: a hash of seed, epoch, image and column."""
    key = _mix(np.array([(seed << 32) ^ epoch], np.uint64))
    counter = images.astype(np.uint64)[:, None] * np.uint64(DRAWS) + np.arange(DRAWS, dtype=np.uint64)
    bits = _mix(np.bitwise_xor(counter, key)) >> np.uint64(40)
    return bits.astype(np.float32) / np.float32(1 << 24)


def _mix(x: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The splitmix64 finaliser: every input bit changes about half of the output bits."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def augment(images: Tensor, u: Tensor, how: Augment, *, cropped: bool) -> Tensor:
    """Vary uint8 images [batch, height, width, 3] by the draws ``u``, still as 0…255 numbers.

    ``cropped`` says that the crop was already taken while decoding (streamed images).
    """
    if not cropped and how.crop == "pad":
        images = _pad_crop(images, u, how.pad)
    elif not cropped and how.crop in ("affine", "resized"):
        images = _affine(images, u, how)
    if how.flip:
        mirrored = images.flip(2)
        images = torch.where((u[:, FLIP] < 0.5)[:, None, None, None], mirrored, images)
    if how.colour or how.grey:
        images = _recolour(images.float(), u, how)
    return images


class Normalise:
    """0…255 images [batch, height, width, 3] → the network's [batch, 3, height, width], channels last in memory."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> None:
        # Made once: a copy to the device in every step would wait for the device every time.
        self.scale = torch.tensor([1 / (255 * s) for s in std], device=device)
        self.offset = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)

    def __call__(self, images: Tensor) -> Tensor:
        """Scale and move the channels."""
        return torch.addcmul(self.offset, images.float(), self.scale).permute(0, 3, 1, 2)


def crop_box(u: np.ndarray[Any, Any], height: int, width: int, how: Augment) -> tuple[float, float, float, float]:
    """The (left, top, right, bottom) of a random resized crop: area share from scale, aspect in 3/4 … 4/3."""
    low, high = how.scale
    area = (low + (high - low) * float(u[ZOOM])) * height * width
    aspect = math.exp((float(u[STRETCH]) - 0.5) * 2 * math.log(4 / 3))
    w, h = min(width, math.sqrt(area * aspect)), min(height, math.sqrt(area / aspect))
    left, top = float(u[X]) * (width - w), float(u[Y]) * (height - h)
    return left, top, left + w, top + h


def _pad_crop(images: Tensor, u: Tensor, pad: int) -> Tensor:
    """Shift by up to ``pad`` pixels each way; what comes in at the edge is the reflection."""
    _, height, width, _ = images.shape
    steps = 2 * pad + 1
    rows = _reflect(torch.arange(height, device=u.device) + (u[:, Y, None] * steps).long() - pad, height)
    columns = _reflect(torch.arange(width, device=u.device) + (u[:, X, None] * steps).long() - pad, width)
    batch = torch.arange(len(images), device=u.device)[:, None, None]
    return images[batch, rows[:, :, None], columns[:, None, :]]


def _reflect(index: Tensor, size: int) -> Tensor:
    inside = index.abs()
    return torch.where(inside >= size, 2 * (size - 1) - inside, inside)


def _affine(images: Tensor, u: Tensor, how: Augment) -> Tensor:
    """Zoom, turn, shift (affine) or a resized crop, in one resampling; the border is repeated outwards."""
    if how.crop == "resized":
        low, high = how.scale
        area = low + (high - low) * u[:, ZOOM]
        aspect = torch.exp((u[:, STRETCH] - 0.5) * 2 * math.log(4 / 3))
        sx, sy = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
        angle, dx, dy = torch.zeros_like(sx), (2 * u[:, X] - 1) * (1 - sx), (2 * u[:, Y] - 1) * (1 - sy)
    else:
        low, high = how.scale
        sx = 1 / (low * (high / low) ** u[:, ZOOM])
        stretch = torch.exp((u[:, STRETCH] - 0.5) * 0.3)
        sx, sy = sx * stretch, sx / stretch
        angle = (2 * u[:, TURN] - 1) * math.radians(how.rotate)
        dx, dy = (2 * u[:, X] - 1) * 2 * how.shift, (2 * u[:, Y] - 1) * 2 * how.shift
    cos, sin = angle.cos(), angle.sin()
    theta = torch.stack([sx * cos, -sy * sin, dx, sx * sin, sy * cos, dy], 1).view(-1, 2, 3)
    pixels = images.permute(0, 3, 1, 2).float()
    grid = F.affine_grid(theta, list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, padding_mode="border", align_corners=False).permute(0, 2, 3, 1)


def _recolour(pixels: Tensor, u: Tensor, how: Augment) -> Tensor:
    """Brightness, contrast, a random mix of the channels, and grey for some images."""
    weights = torch.tensor([0.299, 0.587, 0.114], device=u.device)
    grey = (pixels @ weights)[..., None].expand_as(pixels)
    if how.colour:
        contrast, bright = (1 + how.colour * (2 * u[:, [CONTRAST, BRIGHT]] - 1)).T[:, :, None, None, None]
        mix = torch.eye(3, device=u.device) + how.colour * _mixing(u)
        pixels = torch.bmm(pixels.flatten(1, 2), mix).view_as(pixels)
        middle = pixels.mean((1, 2, 3), keepdim=True)
        pixels = ((pixels - middle) * contrast + middle) * bright
    if how.grey:
        pixels = torch.where((u[:, GREY] < how.grey)[:, None, None, None], grey, pixels)
    return pixels.clamp(0, 255)


def _mixing(u: Tensor) -> Tensor:
    """Random off-diagonal channel weights whose columns sum to zero, so white and grey stay as they are."""
    off = 2 * u[:, MIX : MIX + 6] - 1
    a, b, c, d, e, f = off.unbind(1)
    columns = [-(a + b), c, e, a, -(c + d), f, b, d, -(e + f)]
    return torch.stack(columns, 1).view(-1, 3, 3)
