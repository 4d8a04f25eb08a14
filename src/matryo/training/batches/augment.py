"""Image augmentation on the device, one batch at a time, with random draws that depend only on (seed, epoch, image).

No generator has a state, so the augmentation of an image does not depend on how batches are distributed over processes
or how often the run was interrupted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from matryo.training.batches.order import hashed

if TYPE_CHECKING:
    from torch import Tensor

    from matryo.arrays import Floats, Integers
    from matryo.training.recipe.fields import Augment

# The columns of `draws`, one per random choice.
X, Y, FLIP, ZOOM, STRETCH, TURN, BRIGHT, CONTRAST, GREY, INVERT, OUTLINE, MIX = range(12)
DRAWS = MIX + 9   # the last nine are a matrix that mixes the channels


def draws(seed: int, epoch: int, images: Integers) -> Floats:
    """Uniform numbers in [0, 1), [len(images), DRAWS]: a hash of seed, epoch, image and column."""
    bits = hashed(seed, epoch, images[:, None] * DRAWS + np.arange(DRAWS)) >> np.uint64(40)
    return bits.astype(np.float32) / np.float32(1 << 24)


def augment(images: Tensor, u: Tensor, how: Augment, *, cropped: bool) -> Tensor:
    """Augment uint8 images [batch, height, width, 3] by the draws ``u``; the result is still on the scale of 0…255.

    ``cropped`` images were cropped while decoding (streamed images).
    """
    if not cropped and how.crop == "pad":
        images = _pad_crop(images, u, how.pad)
    elif not cropped and how.crop in ("affine", "resized"):
        images = _affine(images, u, how)
    if how.flip:
        mirrored = images.flip(2)
        images = torch.where((u[:, FLIP] < 0.5)[:, None, None, None], mirrored, images)
    if how.colour or how.grey or how.invert or how.outline:
        images = _recolour(images.float(), u, how)
    return images


class Normalise:
    """Mean/std normalisation: images of 0…255 [batch, height, width, 3] → [batch, 3, height, width], channels last."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> None:
        # Created once: a copy to the device in every step would wait for the device every time.
        self.scale = torch.tensor([1 / (255 * s) for s in std], device=device)
        self.offset = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise the images and move the channels."""
        return torch.addcmul(self.offset, images.float(), self.scale).permute(0, 3, 1, 2)

    def undo(self, pixels: Tensor) -> Tensor:
        """The uint8 images [batch, height, width, 3] from which the network's input was computed."""
        values = (pixels.permute(0, 2, 3, 1) - self.offset) / self.scale
        return values.round().clamp(0, 255).to(torch.uint8)


def crop_box(u: Floats, height: int, width: int, how: Augment) -> tuple[float, float, float, float]:
    """The (left, top, right, bottom) of a random resized crop: its share of the area from scale, aspect 3/4 … 4/3."""
    low, high = how.scale
    area = (low + (high - low) * float(u[ZOOM])) * height * width
    aspect = math.exp((float(u[STRETCH]) - 0.5) * 2 * math.log(4 / 3))
    w, h = min(width, math.sqrt(area * aspect)), min(height, math.sqrt(area / aspect))
    left, top = float(u[X]) * (width - w), float(u[Y]) * (height - h)
    return left, top, left + w, top + h


def _pad_crop(images: Tensor, u: Tensor, pad: int) -> Tensor:
    """Shift by up to ``pad`` pixels in each direction; the border is filled by reflection."""
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
    """Zoom, rotation and shift (affine) or a resized crop, in one resampling; the border is repeated outwards."""
    low, high = how.scale
    if how.crop == "resized":
        area = low + (high - low) * u[:, ZOOM]
        aspect = torch.exp(_signed(u[:, STRETCH]) * math.log(4 / 3))
        sx, sy = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
        angle, dx, dy = torch.zeros_like(sx), _signed(u[:, X]) * (1 - sx), _signed(u[:, Y]) * (1 - sy)
    else:
        size = 1 / (low * (high / low) ** u[:, ZOOM])   # a zoom of 2 shows half of each side
        stretch = torch.exp(_signed(u[:, STRETCH]) * 0.05)   # proportions change by 10 % at most
        sx, sy = size * stretch, size / stretch
        angle = _signed(u[:, TURN]) * math.radians(how.rotate)
        dx, dy = _signed(u[:, X]) * 2 * how.shift, _signed(u[:, Y]) * 2 * how.shift
    cos, sin = angle.cos(), angle.sin()
    theta = torch.stack([sx * cos, -sy * sin, dx, sx * sin, sy * cos, dy], 1).view(-1, 2, 3)
    pixels = images.permute(0, 3, 1, 2).float()
    grid = F.affine_grid(theta, list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, padding_mode="border", align_corners=False).permute(0, 2, 3, 1)


def _recolour(pixels: Tensor, u: Tensor, how: Augment) -> Tensor:
    """Change colours, contrast and brightness of all images; turn some grey, negative or into outlines."""
    batch = len(pixels)
    mix = torch.eye(3, device=u.device) + 0.6 * how.colour * _signed(u[:, MIX : MIX + 9]).view(-1, 3, 3)
    mix = mix / mix.sum(1, keepdim=True).clamp(min=0.3)   # columns sum to one: white and grey stay as they are
    grey = mix.new_full((1, 3, 3), 1 / 3)
    mix = torch.where((u[:, GREY] < how.grey)[:, None, None], grey, mix)
    contrast = torch.exp(how.colour * _signed(u[:, CONTRAST]))[:, None, None]
    bright = 255 * 0.4 * how.colour * _signed(u[:, BRIGHT])[:, None, None]
    middle = 0.8 * 255   # closer to white than to black, as backgrounds are usually light
    flat = torch.bmm(pixels.reshape(batch, -1, 3) - middle, mix * contrast) + (middle + bright)
    changed = torch.where((u[:, INVERT] < how.invert)[:, None, None], 255 - flat, flat).view_as(pixels)
    if how.outline:
        lines = (u[:, OUTLINE] < how.outline)[:, None, None, None]
        changed = torch.where(lines, _outline(changed), changed)
    return changed


def _outline(pixels: Tensor) -> Tensor:
    """Dark lines on white where neighbouring pixels differ."""
    grey = pixels.mean(-1)
    edges = _largest_near(grey) + _largest_near(-grey)
    return (255 - 2.5 * edges).clamp(0, 255)[..., None].expand_as(pixels)


def _largest_near(x: Tensor) -> Tensor:
    """The largest value of each pixel's 3 × 3 neighbourhood (several times faster than a max-pool on a CPU)."""
    for axis in (1, 2):
        first, last = x.narrow(axis, 0, 1), x.narrow(axis, x.shape[axis] - 1, 1)
        before = torch.cat([first, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
        after = torch.cat([x.narrow(axis, 1, x.shape[axis] - 1), last], axis)
        x = torch.maximum(torch.maximum(before, after), x)
    return x


def _signed(u: Tensor) -> Tensor:
    return 2 * u - 1
