"""Grad-CAM (Selvaraju et al. 2017) at every dim: which part of an image led to the prediction.

The map of a class at dim m is ReLU(Σ_k α_k A_k). A_k are the channels of a convolutional layer, and α_k is the mean,
over all positions, of the derivative of the logit of that class at dim m with respect to A_k.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from matryo.encoders import ConvNet, Projected, ResNet, TimmEncoder
from matryo.errors import InputError
from matryo.inference.items import as_images
from matryo.nesting import Nesting
from matryo.training.batches.augment import Normalise
from matryo.training.batches.open import ordered_batches
from matryo.training.step import autocast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from matryo.arrays import Array
    from matryo.heads import NestedLinear
    from matryo.inference.model import TrainedModel


_FINE = 4   # positions per side; a smaller map does not show parts of an image
_BATCH = 16   # images per batch; each needs as much memory as in training
# Black, purple, red, orange, pale yellow: lightness increases throughout, so that no legend is needed.
_COLOURS = np.array([(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], np.float32)


@dataclass(frozen=True, eq=False)
class GradCam:
    """The predictions of a model for some images at each dim, with a heat map for each."""

    dims: tuple[int, ...]
    layer: str
    """The layer from whose channels the maps are computed."""
    images: Array
    """uint8 [n, height, width, 3]: the images as the network saw them, cropped and resized."""
    maps: Array
    """float32 [n, dims, height, width] in 0…1: the maximum of each map is 1, or 0 if nothing supports the class."""
    predicted: Array
    """int64 [n, dims]: the predicted class at each dim."""
    probability: Array
    """float32 [n, dims]: the probability of the predicted class."""


def gradcam(
    model: TrainedModel,
    images: Any,
    dims: Sequence[int] | None = None,
    *,
    classes: Any = None,
    layer: str | None = None,
) -> GradCam:
    """Explain the predictions of ``model`` at each of ``dims`` (default: all it was trained at).

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
        raise InputError("Grad-CAM needs a model with classes", got=got, cure="train with --objective.kind classify")
    dims = head.nesting.dims if dims is None else Nesting(dims).dims
    Nesting(dims).check_fits(head.nesting.dim)
    for dim in dims:
        head.weight_at(dim)   # an error for a dim without a head, before any encoding
    chosen = _check_classes(classes, len(given), len(dims), len(model.classes))
    model.network.eval()
    normalise = Normalise(model.recipe.data.mean, model.recipe.data.std, model.device)
    batches = ordered_batches(given, model.recipe, model.device, batch=_BATCH)
    parts: list[tuple[Tensor, ...]] = []
    for start, (pixels, _) in zip(range(0, len(given), _BATCH), batches, strict=True):
        layer = _choose_layer(model.network.encoder, pixels[:1]) if layer is None else layer
        wanted = None if chosen is None else chosen[start : start + _BATCH].to(model.device)
        explained = _explain(model, head, pixels, dims, wanted, layer)
        parts.append(tuple(part.cpu() for part in (normalise.undo(pixels), *explained)))
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
        return kept[-1].clone()   # the next layer may change its input in place

    with _hooked(network.encoder, {layer: keep}), torch.enable_grad(), autocast(model.recipe, model.device):
        z = network.embed(pixels, flip=flip)
    if len(kept) != 1 + flip:
        times = len(kept) // (1 + flip)
        raise InputError("the layer must run once per image", got=f"{layer}, run {times} times", cure="choose another")
    maps, predicted, probability = [], [], []
    for i, dim in enumerate(dims):
        logits = F.linear(z[:, :dim], head.weight_at(dim), head.bias_at(dim))
        best = logits.argmax(1)
        chosen = best if wanted is None else wanted[:, i]
        total = logits.gather(1, chosen[:, None]).sum()   # images are independent, so one backward pass serves all
        maps.append(_heat(kept, torch.autograd.grad(total, kept, retain_graph=True)))
        predicted.append(best)
        probability.append(logits.detach().softmax(1).gather(1, best[:, None])[:, 0])
    return _to_size(torch.stack(maps, 1), pixels), torch.stack(predicted, 1), torch.stack(probability, 1)


def _heat(kept: Sequence[Tensor], slopes: Sequence[Tensor]) -> Tensor:
    """ReLU(Σ_k α_k A_k), [batch, height, width]; a second element belongs to the mirror image."""
    alphas = [slope.float().mean((2, 3), keepdim=True) for slope in slopes]
    heats = [(alpha * a.detach().float()).sum(1) for alpha, a in zip(alphas, kept, strict=True)]
    return torch.relu(sum((heat.flip(-1) for heat in heats[1:]), heats[0]))


def _to_size(maps: Tensor, pixels: Tensor) -> Tensor:
    """Resize the maps to the images and scale the maximum of each to 1; an all-zero map stays zero."""
    large = F.interpolate(maps, size=pixels.shape[-2:], mode="bilinear", align_corners=False)
    peak = large.amax((2, 3), keepdim=True)
    return large / torch.where(peak > 0, peak, 1)


def _stages(encoder: nn.Module) -> list[str]:
    """The stages of a known encoder, each with a coarser map than the one before; else empty."""
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
    """The last stage whose map has at least 4 × 4 positions, or else the first stage."""
    stages = _stages(encoder)
    if not stages:
        raise InputError(
            "Grad-CAM does not know the stages of this encoder",
            got=type(encoder).__name__,
            cure="set layer to one of its convolutional layers",
        )
    sizes: dict[str, int] = {}

    def measure(name: str) -> Any:
        return lambda _, __, output: sizes.update({name: min(_check_map(output, name).shape[2:])})

    with _hooked(encoder, {name: measure(name) for name in stages}), torch.no_grad():
        encoder(pixels)
    return next((name for name in reversed(stages) if sizes[name] >= _FINE), stages[0])


@contextmanager
def _hooked(encoder: nn.Module, hooks: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Call each hook after the forward pass of the layer of its name."""
    handles = [_module(encoder, layer).register_forward_hook(hook) for layer, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _module(encoder: nn.Module, layer: str) -> nn.Module:
    modules: dict[str, nn.Module] = dict(encoder.named_modules())
    if not layer or layer not in modules:
        examples = _stages(encoder) or [name for name in modules if name][-4:]
        cure = f"try {', '.join(examples)}"
        raise InputError("the layer must be a module of the encoder", got=repr(layer), cure=cure)
    if any(getattr(module, "output_fmt", "") == "NHWC" for module in modules.values()):   # timm declares it
        raise _no_map("channels last", layer)
    return modules[layer]


def _check_map(output: Any, layer: str) -> Tensor:
    if isinstance(output, torch.Tensor) and output.ndim == 4:
        return output
    raise _no_map(list(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__, layer)


def _no_map(got: object, layer: str) -> InputError:
    return InputError(
        "Grad-CAM needs a layer with a map [batch, channels, height, width]",
        got=f"{got} from {layer}",
        cure="choose a convolutional layer; a transformer has none",
    )


def _check_classes(classes: Any, count: int, dims: int, known: int) -> Tensor | None:
    """The classes to explain, [count, dims], or None for those predicted at each dim."""
    if not count:
        raise InputError("Grad-CAM needs at least one image", got=0, cure="pass at least one")
    if classes is None:
        return None
    given = np.asarray(classes)
    fits = given.ndim == 0 or given.shape in ((count,), (count, dims))
    if not fits or given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= known:
        raise InputError(
            f"classes must be integers in [0, {known}): one, one per image, or one per image and dim",
            got=f"{given.dtype} {list(given.shape)}: {given.reshape(-1)[:4].tolist()}",
            cure="give indices into the model's classes",
        )
    columns = given[:, None] if given.ndim == 1 else given
    return torch.from_numpy(np.broadcast_to(columns, (count, dims)).astype(np.int64))
