"""Grad-CAM (Selvaraju et al. 2017) at every dim: which part of an image made the model say what it says.

The map of a class at dim m is ReLU(Σ_k α_k A_k): A are the channels of a convolutional layer, and α_k is the mean
over all places of the derivative of that class's logit at dim m by A_k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from matryo.encoders import ConvNet, Projected, ResNet, TimmEncoder
from matryo.errors import InputError, NestingError
from matryo.inference.items import as_images
from matryo.nesting import Nesting
from matryo.training.batches.augment import Normalise
from matryo.training.batches.open import ordered_batches
from matryo.training.step import autocast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from matryo.heads import NestedLinear
    from matryo.inference.model import TrainedModel

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["GradCam", "gradcam", "overlay"]

_FINE = 4   # a map of fewer places a side tells no parts apart
_BATCH = 16   # images at once: they need as much memory as in training
# Black, purple, red, orange, pale yellow: lightness rises all the way, so that the order is seen without a legend.
_COLOURS = np.array([(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], np.float32)


@dataclass(frozen=True, eq=False)
class GradCam:
    """What a model says of some images at each dim, and where it looked."""

    dims: tuple[int, ...]
    layer: str
    """The layer whose channels the maps are made of."""
    images: Array
    """uint8 [n, height, width, 3]: as the network saw them, cropped and resized."""
    maps: Array
    """float32 [n, dims, height, width]: 0…1, the largest of each is 1 unless nothing speaks for the class."""
    predicted: Array
    """int64 [n, dims]: the class said at each dim."""
    probability: Array
    """float32 [n, dims]: that class's."""


def gradcam(
    model: TrainedModel,
    images: Any,
    dims: Sequence[int] | None = None,
    *,
    classes: Any = None,
    layer: str | None = None,
) -> GradCam:
    """Where ``model`` looks at each of ``dims``, by default all it was trained at.

    Args:
        images: as for :meth:`TrainedModel.encode`.
        classes: the class to explain, as an integer for all, [n] or [n, dims]; by default the one predicted at
            each dim.
        layer: a module of the encoder that gives a map [batch, channels, height, width]; by default the last
            stage whose map is at least 4 × 4, or else the first.

    >>> seen = gradcam(load("runs/demo"), ["cat.png"], dims=(8, 256))         # doctest: +SKIP
    >>> overlay(seen.images[0], seen.maps[0, 0])                              # doctest: +SKIP
    """
    given = as_images(images)
    head = model.head
    if head is None:
        got = f"objective.kind {model.recipe.objective.kind}"
        raise InputError("Grad-CAM explains what a classifier says", got=got, cure="train with classify")
    dims = _check_dims(head, dims)
    asked = _check_classes(classes, len(given), len(dims), len(model.classes))
    model.network.eval()
    batches = ordered_batches(given, model.recipe, model.device, batch=_BATCH, workers=0)
    parts: list[tuple[Tensor, ...]] = []
    for start, (pixels, _) in zip(range(0, len(given), _BATCH), batches, strict=True):
        layer = _choose_layer(model.network.encoder, pixels[:1]) if layer is None else layer
        wanted = None if asked is None else asked[start : start + _BATCH].to(model.device)
        found = _explain(model, head, pixels, dims, wanted, layer)
        parts.append(tuple(part.cpu() for part in (_seen(model, pixels), *found)))
    columns = [torch.cat(column).numpy() for column in zip(*parts, strict=True)]
    return GradCam(dims, str(layer), *columns)


def overlay(image: Array, heat: Array) -> Array:
    """A uint8 ``image`` [height, width, 3] in grey, under its map [height, width] in colour."""
    image, heat = np.asarray(image), np.asarray(heat, np.float32)
    if image.dtype != np.uint8 or image.shape != (*heat.shape, 3):
        raise InputError(
            "an overlay needs a uint8 image [height, width, 3] and its map [height, width]",
            got=f"{image.dtype} {list(image.shape)} and {list(heat.shape)}",
            cure="use the images and maps of one GradCam",
        )
    grey = image.mean(-1, keepdims=True)
    places = np.linspace(0, 1, len(_COLOURS))
    colour = np.stack([np.interp(heat, places, channel) for channel in _COLOURS.T], -1)
    return np.asarray(np.rint(0.4 * grey + 0.6 * colour), np.uint8)


def _explain(
    model: TrainedModel, head: NestedLinear, pixels: Tensor, dims: Sequence[int], wanted: Tensor | None, layer: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The maps, the predicted classes and their probabilities of one batch."""
    network, flip = model.network, model.recipe.data.test_flip
    kept: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> Tensor:
        kept.append(_check_map(output, layer).detach().requires_grad_())
        return kept[-1].clone()   # what follows may change its input in place

    hook = _module(network.encoder, layer).register_forward_hook(keep)
    try:
        with torch.enable_grad(), autocast(model.recipe, model.device):
            z = network.embed(pixels, flip=flip)
    finally:
        hook.remove()
    if len(kept) != 1 + flip:
        times = len(kept) // (1 + flip)
        raise InputError("the layer must run once for an image", got=f"{layer}, run {times} times", cure="name another")
    maps, predicted, probability = [], [], []
    for i, dim in enumerate(dims):
        logits = _logits(head, z, dim)
        said = logits.argmax(1)
        chosen = said if wanted is None else wanted[:, i]
        total = logits.gather(1, chosen[:, None]).sum()   # images do not see each other, so one pass serves all
        maps.append(_heat(kept, torch.autograd.grad(total, kept, retain_graph=True)))
        predicted.append(said)
        probability.append(logits.detach().softmax(1).gather(1, said[:, None])[:, 0])
    return _to_size(torch.stack(maps, 1), pixels), torch.stack(predicted, 1), torch.stack(probability, 1)


def _heat(kept: Sequence[Tensor], slopes: Sequence[Tensor]) -> Tensor:
    """ReLU(Σ_k α_k A_k), [batch, height, width]; a second map is that of the mirror image."""
    alphas = [slope.float().mean((2, 3), keepdim=True) for slope in slopes]
    heats = [(alpha * a.detach().float()).sum(1) for alpha, a in zip(alphas, kept, strict=True)]
    return torch.relu(sum((heat.flip(-1) for heat in heats[1:]), heats[0]))


def _to_size(maps: Tensor, pixels: Tensor) -> Tensor:
    """The maps as large as the images, the largest value of each 1; one that is zero everywhere stays so."""
    large = F.interpolate(maps, size=pixels.shape[-2:], mode="bilinear", align_corners=False)
    peak = large.amax((2, 3), keepdim=True)
    return large / torch.where(peak > 0, peak, 1)


def _logits(head: NestedLinear, z: Tensor, dim: int) -> Tensor:
    return F.linear(z[:, :dim], head.weight_at(dim), head.bias_at(dim))


def _seen(model: TrainedModel, pixels: Tensor) -> Tensor:
    data = model.recipe.data
    return Normalise(data.mean, data.std, model.device).undo(pixels)


def _stages(encoder: nn.Module) -> list[str]:
    """The modules that give ever coarser maps, the coarsest last; empty where none are known."""
    if isinstance(encoder, Projected):
        return [f"encoder.{name}" for name in _stages(encoder.encoder)]
    if isinstance(encoder, ResNet):
        return ["layer1", "layer2", "layer3", "layer4"]
    if isinstance(encoder, ConvNet):
        return [f"blocks.{i}" for i in range(len(encoder.blocks))]
    if isinstance(encoder, TimmEncoder):
        return [f"model.{stage['module']}" for stage in getattr(encoder.model, "feature_info", ())]
    return []


def _choose_layer(encoder: nn.Module, pixels: Tensor) -> str:
    """The last stage whose map is fine enough, or else the first: none is finer."""
    stages = _stages(encoder)
    if not stages:
        raise InputError(
            "Grad-CAM must be told a layer of an encoder whose stages are not known",
            got=type(encoder).__name__,
            cure="name a convolutional layer of it",
        )
    sizes: dict[str, int] = {}

    def measure(name: str) -> Any:
        return lambda _, __, output: sizes.update({name: min(_check_map(output, name).shape[2:])})

    hooks = [_module(encoder, name).register_forward_hook(measure(name)) for name in stages]
    try:
        with torch.no_grad():
            encoder(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    return next((name for name in reversed(stages) if sizes[name] >= _FINE), stages[0])


def _module(encoder: nn.Module, layer: str) -> nn.Module:
    modules: dict[str, nn.Module] = dict(encoder.named_modules())
    if not layer or layer not in modules:
        known = _stages(encoder) or [name for name in modules if name][-4:]
        raise InputError("the layer must be a module of the encoder", got=repr(layer), cure=f"try {', '.join(known)}")
    if any(getattr(module, "output_fmt", "") == "NHWC" for module in modules.values()):   # timm says so
        raise _no_map("channels last", layer)
    return modules[layer]


def _check_map(output: Any, layer: str) -> Tensor:
    if not isinstance(output, torch.Tensor):
        raise _no_map(type(output).__name__, layer)
    if output.ndim != 4:
        raise _no_map(list(output.shape), layer)
    return output


def _no_map(got: object, layer: str) -> InputError:
    return InputError(
        "Grad-CAM needs a layer that gives a map [batch, channels, height, width]",
        got=f"{got} from {layer}",
        cure="name a convolutional layer; a transformer has none",
    )


def _check_dims(head: NestedLinear, dims: Sequence[int] | None) -> tuple[int, ...]:
    asked = head.nesting.dims if dims is None else Nesting(dims).dims
    Nesting(asked).check_fits(head.nesting.dim)
    unknown = [dim for dim in asked if not head.tied and dim not in head.nesting.dims]
    if unknown:
        raise NestingError(
            "a separate head classifies only at the dims it was trained for",
            got=unknown[0],
            cure=f"choose among {', '.join(map(str, head.nesting.dims))}",
        )
    return asked


def _check_classes(classes: Any, count: int, dims: int, known: int) -> Tensor | None:
    """[count, dims], or None where each dim's own prediction is to be explained."""
    if not count:
        raise InputError("Grad-CAM needs at least one image", got=0, cure="pass some")
    if classes is None:
        return None
    given = np.asarray(classes)
    fits = given.ndim == 0 or given.shape in ((count,), (count, dims))
    if not fits or given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= known:
        raise InputError(
            f"classes must be integers in [0, {known}): one, one an image, or one an image and dim",
            got=f"{given.dtype} {list(given.shape)}: {given.reshape(-1)[:4].tolist()}",
            cure="give indices into the model's classes",
        )
    columns = given[:, None] if given.ndim == 1 else given
    return torch.from_numpy(np.broadcast_to(columns, (count, dims)).astype(np.int64))
