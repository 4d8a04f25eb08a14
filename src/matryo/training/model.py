"""NestedModel: an encoder with its nested head, as a recipe describes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from matryo.encoders import SlimmableLinear, SlimmableResNet, build_encoder
from matryo.errors import InputError, RecipeError, RunError
from matryo.heads import NestedLinear
from matryo.training.checkpoint import load_weights

if TYPE_CHECKING:
    from matryo.training.recipe import Recipe

__all__ = ["NestedModel", "at_width", "build_model", "freeze_before", "start_from"]


class NestedModel(nn.Module):
    """Images to embeddings, and to the loss at every dim.

    A slimmable one has an embedding for each width, [widths, batch, d], wherever others have the one [batch, d].
    """

    def __init__(self, encoder: nn.Module, head: NestedLinear, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.head, self.label_smoothing = encoder, head, label_smoothing

    def forward(self, images: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings [batch, d] and the unweighted loss at each dim [dims]."""
        z = self.encoder(images)
        return z, self.head.losses(z, target, label_smoothing=self.label_smoothing)

    def embed(self, images: Tensor, *, flip: bool = False) -> Tensor:
        """The columns of z that the nesting trains; with ``flip``, averaged with the mirror image's.

        The average, not the sum: summing would sharpen every softmax on top of it.
        """
        z: Tensor = self.encoder(images)
        if flip:
            z = (z + self.encoder(images.flip(-1))) / 2
        return z[..., : self.head.nesting.dim].float()


def build_model(recipe: Recipe, classes: int) -> NestedModel:
    """A freshly initialised model; the seed decides the weights and nothing else is disturbed."""
    options, slimmable = recipe.encoder, recipe.head.kind == "slimmable"
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.loop.seed)   # torch.manual_seed would seed every GPU too
        encoder = build_encoder(
            options.name,
            dim=options.dim,
            stem=options.stem,
            blurpool=options.blurpool,
            norm=options.norm,
            pretrained=options.pretrained,
            widths=options.widths if slimmable else (),
        )
        nesting = recipe.nesting(int(encoder.dim))   # type: ignore[arg-type]
        head = (
            SlimmableLinear(nesting, classes, bias=recipe.head.bias)
            if slimmable
            else NestedLinear(nesting, classes, tied=recipe.head.kind == "tied", bias=recipe.head.bias)
        )
    return NestedModel(encoder, head, recipe.optim.label_smoothing)


def at_width(model: NestedModel, width: float) -> NestedModel:
    """A slimmable model at one width, as a plain model whose head reads its whole embedding; others as they are."""
    encoder, head = model.encoder, model.head
    if isinstance(encoder, SlimmableResNet) and isinstance(head, SlimmableLinear):
        with torch.random.fork_rng(devices=[]):   # first weights are drawn, and overwritten
            plain = encoder.narrow(width)
            return NestedModel(plain, head.narrow(plain.dim), model.label_smoothing)
    if width != 1:
        raise InputError(
            "only a slimmable network has several widths",
            got=f"width {width:g}",
            cure="train one with --head.kind slimmable, or leave the width out",
        )
    return model


def freeze_before(encoder: nn.Module, name: str) -> list[nn.Module]:
    """Freeze what comes before the module ``name`` in the encoder; returns the layers to keep in eval mode.

    An empty name freezes nothing, ``none`` freezes the whole encoder.
    """
    if not name:
        return []
    modules = dict(encoder.named_modules())
    if name != "none" and (name not in modules or not list(modules[name].parameters())):
        layers = [key for key, module in modules.items() if key and list(module.parameters(recurse=False))]
        raise RecipeError(
            "finetune.unfreeze must name a module of the encoder",
            got=repr(name),
            cure=f"use none, or one such as {', '.join(layers[-4:])}",
        )
    frozen, reached = [], False
    for key, module in modules.items():   # registration order is the order of computation in every encoder here
        reached = reached or key == name
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(reached)
        if not reached and not list(module.children()):
            frozen.append(module)   # a layer: the running statistics of a frozen norm must not drift either
    return frozen


def start_from(encoder: nn.Module, path: Path) -> None:
    """Load the encoder's weights from an earlier run folder or a safetensors file."""
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise RunError("finetune.start must be a run folder or a .safetensors file", got=path, cure="check the path")
    stored = load_weights(file)
    inside = {name.removeprefix("encoder."): value for name, value in stored.items() if name.startswith("encoder.")}
    wanted = encoder.state_dict()
    given = {name: value for name, value in (inside or stored).items() if name in wanted}
    wrong = [name for name, value in wanted.items() if name in given and given[name].shape != value.shape]
    missing = [name for name in wanted if name not in given and not name.endswith("num_batches_tracked")]
    if missing or wrong:
        raise RunError(
            "finetune.start must hold every weight of the encoder",
            got=f"{len(missing)} missing and {len(wrong)} of another shape, the first is {[*missing, *wrong][0]}",
            cure="use the encoder settings of the run it came from",
        )
    encoder.load_state_dict(given, strict=False)
