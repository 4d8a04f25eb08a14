"""Features of packed photos and of crops of them, by a ResNet50 with weights converted from Keras."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from tqdm import tqdm

from matryo.encoders.resnet import SHAPES, Bottleneck, ResNet

MEANS = (103.939, 116.779, 123.68)   # of blue, green and red
EPSILON = 1e-3   # of the batch norms
SIDE = 96   # of a crop, in pixels; a photo has 128


def encode_centres(images: Path, weights: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[photo, 2048]: the centre view alone."""
    return encode(images, weights, views=1)[:, 0]


def encode(images: Path, weights: Path, views: int = 5) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[photo, view, 2048]: the views are the centre and the four corners, or the first ``views`` of them."""
    packed = np.load(images)
    blob, offsets = packed["blob"], packed["off"]
    model, found = resnet(weights), []
    with torch.inference_mode():
        for start in tqdm(range(0, len(offsets) - 1, 32), desc="photos", unit="batch"):
            ends = offsets[start : start + 33]
            whole = torch.stack([decode(blob[first:last]) for first, last in pairwise(ends)])
            places = corners(whole.shape[-1])[:views]
            parts = torch.stack([whole[:, :, y : y + SIDE, x : x + SIDE] for y, x in places], 1)
            features = model(parts.flatten(0, 1).contiguous(memory_format=torch.channels_last))
            found.append(features.float().unflatten(0, parts.shape[:2]).numpy())
    return np.concatenate(found)


def corners(side: int) -> list[tuple[int, int]]:
    """The top left pixel of each view."""
    last, middle = side - SIDE, (side - SIDE) // 2
    return [(middle, middle), (0, 0), (0, last), (last, 0), (last, last)]


def decode(data: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """[3, height, width]: blue, green, red, less their means."""
    with Image.open(io.BytesIO(data.tobytes())) as image:
        pixels = np.asarray(image.convert("RGB"), np.float32)[:, :, ::-1] - np.array(MEANS, np.float32)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def resnet(path: Path) -> Any:
    """Our ResNet50 with what Keras does differently: biases, strides on the first 1 × 1 of a stage, padding, ε."""
    block, depths = SHAPES["resnet50"]
    assert block is Bottleneck
    model = ResNet(block, depths)
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = EPSILON
        elif isinstance(module, nn.Conv2d):
            module.bias = nn.Parameter(torch.zeros(module.out_channels))
        elif isinstance(module, Bottleneck) and name.endswith(".0"):
            module.conv1.stride, module.conv2.stride = module.conv2.stride, module.conv1.stride
    model.maxpool = nn.Sequential(nn.ZeroPad2d(1), nn.MaxPool2d(3, 2))   # type: ignore[assignment]
    weights = {name: value.float() for name, value in load_file(path).items() if not name.startswith("fc.")}
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    assert all(name.endswith("num_batches_tracked") for name in missing.missing_keys)
    return fused(model.eval()).to(memory_format=torch.channels_last)   # type: ignore[call-overload]


def fused(model: ResNet) -> nn.Module:
    """Batch norms folded into the convolutions before them."""
    for owner in [model, *(module for module in model.modules() if isinstance(module, Bottleneck))]:
        pairs = [(owner, f"conv{number}", f"bn{number}") for number in (1, 2, 3) if hasattr(owner, f"bn{number}")]
        shortcut = getattr(owner, "downsample", None)
        if isinstance(shortcut, nn.Sequential):
            pairs.append((shortcut, "0", "1"))
        for module, conv, norm in pairs:
            setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm)))
            setattr(module, norm, nn.Identity())
    return model
